"""Caches that know the future, worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from helpers.asking import ONE_SITE, ask, begin, gate, order
from sim.policies.belady import Belady, CostAwareBelady
from sim.policies.requires import FutureNeeds
from sim.values.types import Geometry


def foreseen(schedule: list[list[int]], *keys: int) -> Any:
    policy = Belady(initial="empty")
    policy.foresee(schedule)
    return begin(policy, *keys)


def test_the_latest_next_request_goes_first_and_the_largest_key_of_those_never_asked_for() -> None:
    policy = foreseen([[0], [1], [0], [2]], 0, 1, 2, 4, 5)
    assert order(policy) == [5, 4, 2, 1, 0]
    ask(policy, 0)
    assert order(policy) == [5, 4, 2, 0, 1]


def test_inside_a_gate_the_later_need_is_requested_later() -> None:
    assert order(foreseen([[3, 1, 2]], 1, 2, 3)) == [2, 1, 3]


def test_a_key_that_was_asked_for_the_last_time_goes_first() -> None:
    policy = foreseen([[0, 1], [1]], 0, 1)
    ask(policy, 0, 1, at=gate(tick=0))
    assert order(policy) == [0, 1]
    ask(policy, 1, at=gate(tick=1))
    assert order(policy) == [1, 0]


def test_a_wave_tells_of_some_needs_of_its_gate_only() -> None:
    policy = foreseen([[0, 1], [0], [1]], 0, 1)
    ask(policy, 0, at=gate(tick=0))
    ask(policy, 1, at=gate(tick=0))
    assert order(policy) == [1, 0]


def test_belady_without_a_future_is_refused() -> None:
    with pytest.raises(ValueError, match="cache=belady needs the run's future requests"):
        Belady().pools(ONE_SITE)


def test_a_future_of_several_precisions_has_no_keys() -> None:
    future = FutureNeeds(7, [0], [0], [[2, 1]], [[0.5, 0.5]])
    assert replace(future, precision=0).keys(ONE_SITE) == [[2, 1]]
    with pytest.raises(
        ValueError,
        match=re.escape(
            "a cache that knows the future (cache=belady) needs one precision for all experts;"
            " choose precision=fp16 or another fixed one"
        ),
    ):
        future.keys(ONE_SITE)


# Bypass


def bypassing(slots: int, schedule: list[list[int]], *keys: int) -> Any:
    policy = Belady(initial="empty", bypass=True)
    policy.foresee(schedule)
    return begin(policy, *keys, geometry=Geometry(1, 6, 2, ("fp16",), (16.0,), (1,), slots))


def test_who_comes_again_before_all_that_would_have_to_go_enters() -> None:
    """After the first gate 0 comes again at 1, 4 at 2, 1 at 3; 5 and 2 never come again."""
    policy = bypassing(3, [[4, 5], [0], [4], [1]], 0, 1, 2)
    ask(policy, 4, 5, missed=[4, 5], at=gate(tick=0))
    admitted = {
        (4, 1): True,
        (4, 0): False,
        (4, 1, 2): True,
        (4, 0, 1): False,
        (5, 1): False,
        (5,): True,
    }
    assert {case: policy.admit(case[0], case[1:]) for case in admitted} == admitted
    assert not policy.admit(5, (2,)), "2 never comes again either, but has the smaller key"


def test_without_bypass_everybody_enters() -> None:
    policy = foreseen([[5], [0], [1]], 0, 1)
    assert policy.admits_all
    assert policy.admit(5, (0,))


# Costs


TWO_SIZES = Geometry(2, 2, 1, ("fp16",), (16.0,), (8,), 99, ((8, 2),))
"""Keys 0 and 1 take 8 B, keys 3 and 4 take 2 B."""


def costly(overhead_bytes: int, schedule: list[list[int]], *keys: int) -> Any:
    policy = CostAwareBelady(overhead_bytes, initial="empty")
    policy.foresee(schedule)
    return begin(policy, *keys, geometry=TWO_SIZES)


def test_a_load_that_costs_more_for_its_bytes_is_kept_longer() -> None:
    """After request 0, key 1 comes in 1, key 3 in 2, key 0 in 3.

    A load costs 4 + its bytes: 12 / 8 and 6 / 2 a byte. Their worths are 1.5 / 1, 3 / 2 and 1.5 /
    3; of equal ones the largest key goes first. Without overhead they are 1 / 1, 1 / 2 and 1 / 3.
    """
    schedule = [[4], [1], [3], [0]]
    for overhead, expected in ((4, [4, 0, 3, 1]), (0, [4, 0, 3, 1]), (5, [4, 0, 1, 3])):
        policy = costly(overhead, schedule, 0, 1, 3, 4)
        ask(policy, 4, at=gate(1, tick=0))
        assert order(policy, geometry=TWO_SIZES) == expected


def test_before_the_first_gate_the_first_request_is_one_away() -> None:
    assert order(costly(0, [[0], [1]], 0, 1, 3), geometry=TWO_SIZES) == [3, 1, 0]


def test_needs_that_wait_for_a_later_wave_are_the_next_to_come() -> None:
    """One gate asks for 1, 0, 3 and 4.

    The first wave is 1, which comes again later. Before that come 0, 3 and 4, in turn.
    """
    policy = costly(0, [[1, 0, 3, 4], [1]], 0, 1, 3, 4)
    ask(policy, 1, at=gate(0, tick=0))
    assert order(policy, geometry=TWO_SIZES) == [1, 4, 3, 0]
    ask(policy, 0, 3, at=gate(0, tick=0))
    assert order(policy, geometry=TWO_SIZES) == [3, 0, 1, 4]


@pytest.mark.parametrize("overhead", [-1, 0.5, True])
def test_an_overhead_that_is_no_number_of_bytes_is_refused(overhead: Any) -> None:
    with pytest.raises(
        ValueError, match=r"cache\.overhead_bytes=.* must be a whole number, 0 or more"
    ):
        CostAwareBelady(overhead)
