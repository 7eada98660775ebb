"""The managed RAM tier: lookups, claims, pins, and what its policy is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sim.core.ram import RamTier
from sim.core.slots import ABSENT, IN_FLIGHT, RESIDENT
from sim.policies.recency import LRU
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.types import CapacityError, Cause, Geometry, Outcome, Route

HIT, MISS = int(Outcome.HIT), int(Outcome.MISS)
GATE: Any = SimpleNamespace(site=0, tick=0, token=1)
GEOMETRY = Geometry(2, 3, 3, ("fp16",), (16.0,), (4,), 4)
"""Keys 0 1 2 and 4 5 6, of 4 B each; the device holds one, RAM as many as its route says."""


class Told(LRU):
    """An LRU that writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(initial="ascending")
        self.log: list[tuple[Any, ...]] = []

    def on_requests(self, keys: Any, wanted: Any, outcomes: Any, gate: Any) -> None:
        self.log.append(("asked", *zip(keys, wanted, outcomes, strict=True)))
        super().on_requests(keys, wanted, outcomes, gate)

    def on_insert(self, key: int, cause: Cause) -> None:
        self.log.append(("in", key, cause))
        super().on_insert(key, cause)

    def on_evict(self, key: int) -> None:
        self.log.append(("out", key))
        super().on_evict(key)


def tier(slots: int = 2) -> tuple[RamTier, Told]:
    """A tier with room for so many, filled in ascending order: 0, 1, ..."""
    policy = Told()
    ram = RamTier(GEOMETRY, policy, Route((1, 1), (0, 0), ram_link=1, ram_bytes=4 * slots))
    policy.log.clear()
    return ram, policy


def test_it_has_its_own_bytes_and_its_own_contents() -> None:
    ram, _ = tier(3)
    assert ram.capacity_bytes == (12,)
    assert [key for key, state in enumerate(ram.state) if state == RESIDENT] == [0, 1, 2]
    assert ram.link == 1


# Contracts: C86
@pytest.mark.parametrize(
    ("ram_bytes", "there"),
    [
        (30, [*range(3), *range(4, 7), *range(8, 11), *range(12, 15)]),
        (99, [*range(3), *range(4, 7), *range(8, 11), *range(12, 15)]),
        (29, [*range(3), *range(4, 7), *range(8, 11), *range(12, 14)]),
        (25, [*range(3), *range(4, 7), 8]),
        (23, [*range(3), *range(4, 6), 8, 9, 10]),
        (4, [0]),
    ],
)
def test_it_begins_with_the_highest_precision_and_then_with_the_lower_copies_for_which_there_is_room(
    ram_bytes: int, there: list[int]
) -> None:
    """Six experts of 4 B and their low copies of 1 B, which are keys 8 9 10 and 12 13 14.

    Storage holds 30 B.
    """
    both = replace(GEOMETRY, precisions=("fp16", "int4"), bits=(16.0, 4.0), variant_bytes=(4, 1))
    ram = RamTier(both, LRU(), Route((1, 1), (0, 0), ram_link=1, ram_bytes=ram_bytes))
    assert [key for key, state in enumerate(ram.state) if state == RESIDENT] == there


def test_it_must_hold_one_expert_whatever_a_token_needs() -> None:
    tier(1)
    with pytest.raises(CapacityError, match="holds 3 B, but one token may need 1 experts of 4 B"):
        RamTier(GEOMETRY, Told(), Route((1, 1), (0, 0), ram_link=1, ram_bytes=3))


# Contracts: C21
def test_lookups_are_told_in_one_call_in_their_order_and_pin_what_is_asked_for() -> None:
    ram, policy = tier()
    assert (ram.look_up(5), ram.look_up(1)) == (False, True)
    assert policy.log == []
    assert ram.untold == [5, 1]
    ram.tell(GATE)
    assert ram.untold == []
    assert policy.log == [("asked", (5, 0, MISS), (1, 0, HIT))]
    assert (ram.lookups, ram.hits) == (2, 1)
    assert [key for key, pinned in enumerate(ram.pinned) if pinned] == [1, 5]


def test_what_comes_in_takes_a_slot_from_what_is_not_in_use_and_is_there_when_it_has_arrived() -> (
    None
):
    """0 is in use, so 1 is evicted, although 0 is older."""
    ram, policy = tier()
    for key in (0, 4):
        ram.look_up(key)
    ram.tell(GATE)
    assert ram.take_in(4, True, 7)
    assert (ram.state[4], ram.state[1], ram.evictions) == (IN_FLIGHT, ABSENT, [(7, 1)])
    ram.arrive(4, Cause.PREFETCH)
    assert ram.state[4] == RESIDENT
    assert policy.log[1:] == [("out", 1), ("in", 4, Cause.PREFETCH)]
    ram.check()


def test_a_slot_is_claimed_once_however_often_a_hop_begins() -> None:
    ram, _ = tier()
    assert ram.take_in(4, True, 7)
    assert ram.could_take_in(4)
    assert ram.take_in(4, False, 8)
    assert ram.evictions == [(7, 0)]


def test_where_all_is_in_use_nothing_comes_in() -> None:
    ram, _ = tier()
    for key in (0, 1, 4):
        ram.look_up(key)
    assert not ram.could_take_in(4)
    assert not ram.take_in(4, True, 7)
    assert not ram.take_in(4, False, 7)
    assert ram.evictions == []
    ram.leave(0)
    assert ram.could_take_in(4)
    assert ram.take_in(4, True, 8)
    assert ram.evictions == [(8, 0)]


def test_what_a_transfer_leaves_behind_stays_and_may_go() -> None:
    ram, policy = tier()
    ram.look_up(0)
    ram.leave(0)
    assert (ram.state[0], ram.pinned[0]) == (RESIDENT, 0)
    assert policy.log == []


# Contracts: C37
def test_what_is_given_up_before_it_came_is_forgotten_and_its_claim_is_free_again() -> None:
    """5 had claimed a slot, 6 had not; the policy is told of both that they will not come."""
    ram, policy = tier()
    for key in (5, 6):
        ram.look_up(key)
    ram.tell(GATE)
    assert ram.take_in(5, False, 7)
    ram.leave(5)
    ram.leave(6)
    assert (ram.state[5], ram.free_bytes, ram.pinned[5], ram.pinned[6]) == (ABSENT, [4], 0, 0)
    assert policy.log[1:] == [("out", 0), ("out", 5), ("out", 6)]
    assert list(policy.victims(0, 4, ram.blocked)) == [1]


# Contracts: C86
@pytest.mark.parametrize("system", ["hobbit", "fate"])
def test_with_room_for_all_that_storage_holds_nothing_waits_for_storage(system: str) -> None:
    """Two precisions are in play.

    All copies of both are in RAM, as if there were no storage below it.
    """
    words = [f"system={system}", "trace.max_sequences=1", "outputs=summary"]
    plain = execute(prepared([*words, "hardware=rtx4090_pcie4"])).summary
    over = execute(
        prepared([*words, "hardware=rtx4090_nvme", "hardware.ram.capacity_gib=400"])
    ).summary
    assert over["ram"]["hits"] == over["ram"]["lookups"] > 0
    assert over["makespan_s"] == plain["makespan_s"]
