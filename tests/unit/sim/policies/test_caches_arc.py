"""ARC's four lists, worked by hand (Megiddo and Modha, FAST 2003, figure 4)."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.asking import ask, begin, gate
from sim.policies.adaptive import ARC
from sim.values.types import Cause, Geometry


def slots(count: int) -> Geometry:
    return Geometry(1, 9, 2, ("fp16",), (16.0,), (1,), count)


def lists(policy: ARC) -> tuple[list[int], list[int], list[int], list[int], float]:
    """T1, T2, B1 and B2, each least recent first, and p."""
    of = policy._lists[0]
    return (
        list(of.recent),
        list(of.frequent),
        list(of.recent_ghosts),
        list(of.frequent_ghosts),
        of.target,
    )


def request(policy: ARC, key: int, capacity: int) -> int | None:
    """Serve a single request as ARC alone would; returns what it evicts."""
    resident = policy._resident
    missed = key not in resident
    ask(policy, key, missed=[key] if missed else [], at=gate(**{f"e{key}": 1}))
    victim = None
    if missed:
        if len(resident) == capacity:
            blocked = bytearray(10)
            blocked[key] = 1
            victim = next(policy.victims(0, key, blocked))
            policy.on_evict(victim)
        policy.on_insert(key, Cause.DEMAND)
    return victim


def test_two_slots_through_every_case_of_the_figure() -> None:
    """c = 2; the requests are 1 1 2 3 2 1 4 3 2.

    - 1 enters T1, and T2 at its second request. 2 enters T1.
    - 3 is new: |T1| = 1 > p = 0, so 2 goes to B1.
    - 2, a ghost of B1: p = 0 + max(0 / 1, 1) = 1, and |T1| = 1 is not above it, so 1 goes to B2.
    - 1, a ghost of B2: p = 1 - max(0 / 1, 1) = 0, so T1's 3 goes to B1.
    - 4 is new: T1 is empty, so T2's 2 goes to B2.
    - 3, a ghost of B1: p = 1, and |T1| = 1 is not above it, so T2's 1 goes to B2.
    - 2, a ghost of B2 (with 2 there, none in B1): p = 0, so T1's 4 goes.
    """
    policy = begin(ARC(initial="empty"), geometry=slots(2))
    told = [(key, request(policy, key, 2), *lists(policy)) for key in (1, 1, 2, 3, 2, 1, 4, 3, 2)]
    assert told == [
        (1, None, [1], [], [], [], 0),
        (1, None, [], [1], [], [], 0),
        (2, None, [2], [1], [], [], 0),
        (3, 2, [3], [1], [2], [], 0),
        (2, 1, [3], [2], [], [1], 1),
        (1, 3, [], [2, 1], [3], [], 0),
        (4, 2, [4], [1], [3], [2], 0),
        (3, 1, [4], [3], [], [2, 1], 1),
        (2, 4, [], [3, 2], [4], [1], 0),
    ]


def test_a_full_t1_loses_one_without_a_ghost() -> None:
    """Case IV, A, second half: T1 = 1 2, and nothing is in B1."""
    policy = begin(ARC(initial="empty"), geometry=slots(2))
    assert [request(policy, key, 2) for key in (1, 2, 3)] == [None, None, 1]
    assert lists(policy) == ([2, 3], [], [], [], 0)


def test_a_ghost_of_t2_takes_t1s_place_where_t1_holds_just_what_it_should() -> None:
    """T1 = 4, T2 = 1 2, p = 1.

    For a new key |T1| = p keeps 4, and T2's 1 goes; for a ghost of T2 4 goes.
    """
    for incoming, expected in ((7, 1), (5, 4)):
        policy = begin(ARC(initial="empty"), geometry=slots(3))
        for key in (1, 1, 2, 2, 4):
            request(policy, key, 3)
        assert lists(policy)[:2] == ([4], [1, 2])
        of = policy._lists[0]
        of.frequent_ghosts[5] = None
        of.target = 2.0 if incoming == 5 else 1.0  # a request of ghost 5 lowers it by 1
        ask(policy, incoming, missed=[incoming], at=gate(**{f"e{incoming}": 1}))
        assert next(policy.victims(0, incoming, bytearray(10))) == expected


def test_what_came_without_a_request_has_its_first_one_still_to_come() -> None:
    policy = begin(ARC(initial="empty"), 1, 2, geometry=slots(4))
    policy.on_insert(3, Cause.PREFETCH)
    assert lists(policy)[:2] == ([1, 2, 3], [])
    request(policy, 1, 4)
    assert lists(policy)[:2] == ([2, 3, 1], [])
    request(policy, 1, 4)
    assert lists(policy)[:2] == ([2, 3], [1])


def test_a_prefetch_that_was_asked_for_on_its_way_has_its_place_since_the_request() -> None:
    policy = begin(ARC(initial="empty"), 1, geometry=slots(4))
    ask(policy, 3, missed=[3], at=gate(e3=1))
    policy.on_insert(4, Cause.PREFETCH)
    policy.on_insert(3, Cause.PREFETCH)
    assert lists(policy)[0] == [1, 3, 4]
    request(policy, 3, 4)
    assert lists(policy)[:2] == ([1, 4], [3])


# Contracts: C47
def test_what_is_on_its_way_is_neither_offered_nor_counted() -> None:
    """T1 has 1, and 3, which has not arrived: |T1| is 1, not above p = 1, so T2 gives."""
    policy = begin(ARC(initial="empty"), geometry=slots(3))
    for key in (1, 2, 2):
        request(policy, key, 3)
    policy._lists[0].target = 1.0
    ask(policy, 3, missed=[3], at=gate(e3=1))
    assert list(policy.victims(0, 3, bytearray(10))) == [2, 1]


def test_what_is_blocked_gives_way_to_the_other_list() -> None:
    policy = begin(ARC(initial="empty"), geometry=slots(3))
    for key in (1, 2, 2):
        request(policy, key, 3)
    blocked = bytearray(10)
    blocked[1] = 1
    assert list(policy.victims(0, 5, blocked)) == [2]


def test_what_was_requested_and_never_came_in_leaves_no_ghost() -> None:
    policy = begin(ARC(initial="empty"), geometry=slots(3))
    request(policy, 1, 3)
    ask(policy, 5, missed=[5], at=gate(e5=1))
    policy.on_evict(5)
    assert lists(policy) == ([1], [], [], [], 0)
    policy.on_evict(1)
    assert lists(policy) == ([], [], [1], [], 0)


def test_the_longer_the_other_lists_ghosts_the_further_p_moves() -> None:
    """With |B1| = 1 and |B2| = 3 a ghost of B1 adds 3.

    With |B1| = 0 and |B2| = 3 a ghost of B2 then takes 1.
    """
    policy = begin(ARC(initial="empty"), geometry=slots(4))
    policy._lists[0].recent_ghosts[1] = None
    policy._lists[0].frequent_ghosts.update(dict.fromkeys((2, 3, 4)))
    ask(policy, 1, missed=[1], at=gate(e1=1))
    assert lists(policy)[4] == 3
    ask(policy, 2, missed=[2], at=gate(e2=1))
    assert lists(policy)[4] == 2


@pytest.mark.parametrize("quotas", [(3, 1), (4, 0)])
def test_each_site_has_lists_of_its_own_with_its_own_capacity(quotas: tuple[int, int]) -> None:
    geometry = Geometry(2, 4, 1, ("fp16",), (16.0,), (1,), 4)
    policy: Any = ARC("site", initial="empty", quotas=quotas)
    policy.pools(geometry)
    assert tuple(of.capacity for of in policy._lists) == quotas
