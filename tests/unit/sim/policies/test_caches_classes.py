"""LFRU divides by age, ClassLRU slows ages down by frequency. Values by hand."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.asking import FOUR_SITES, ask, begin, gate, order
from sim.policies.frequency_classes import LFRU, ClassLRU
from sim.values.types import Cause

COLD = {"initial": "empty"}


def asked(policy: Any, keys: str, step: int = 0) -> Any:
    """One request after another, in one step."""
    for key in keys:
        ask(policy, int(key), at=gate(step=step))
    return policy


# Contracts: C143
def test_a_keys_age_is_divided_by_two_to_the_power_of_its_class() -> None:
    """Counts of 0 to 3 are 4, 2, 1 and 1, so classes 2, 1, 0, 0.

    They were last touched at 4, 6, 7 and 8 of 8: 4 / 4, 2 / 2, 1 / 1 and 0. Of equal ones the
    least recent goes first.
    """
    policy = asked(begin(ClassLRU(**COLD)), "00001123")
    for key in range(4):
        policy.on_insert(key, Cause.DEMAND)
    assert order(policy) == [0, 1, 2, 3]
    asked(policy, "3")
    # 5 / 4, 3 / 2, 2 / 1, 0.
    assert order(policy) == [2, 1, 0, 3]


def test_a_key_of_class_c_outlives_one_of_class_0_by_two_to_the_power_of_c() -> None:
    """Key 0 is asked for 2^c times, then key 1 once, then others.

    After n further touches 1 is n old, and 0 is n + 1. So 0 goes first as long as
    (n + 1) / 2^c > n, which is at n = 0 alone; of equal values (c = 1, n = 1) the older one goes.
    """
    for c in (0, 1, 2, 3):
        policy = asked(begin(ClassLRU(**COLD), 0, 1), "0" * 2**c + "1")
        for n in range(12):
            first = 0 if c == 0 or n == 0 or (c, n) == (1, 1) else 1
            assert order(policy)[0] == first, (c, n)
            asked(policy, str(2 + n % 3))


def test_counts_are_halved_every_half_life_and_rounded_down() -> None:
    """3 requests make class 1, after a half-life 1 and class 0, after two 0."""
    policy = asked(begin(ClassLRU(half_life_steps=4, **COLD), 0, 1), "0001", step=3)
    asked(policy, "2", step=3)
    assert order(policy) == [0, 1], "2 / 2 and 1 / 1: the least recent"
    asked(policy, "3", step=3)
    assert order(policy) == [1, 0], "3 / 2 and 2 / 1"
    asked(policy, "4", step=4)
    assert order(policy) == [0, 1], "4 / 1 and 3 / 1"
    policy = asked(begin(ClassLRU(half_life_steps=4, **COLD), 0, 1), "0000001", step=0)
    asked(policy, "23", step=11)
    assert order(policy) == [0, 1], "6 >> 2 = 1: two half-lives at once"


def test_counts_outlive_evictions_and_sequences() -> None:
    """0 has class 2 from before its eviction; it came back before the request for 1."""
    policy = asked(begin(ClassLRU(**COLD), 0, 1), "0000")
    policy.on_evict(0)
    policy.on_sequence(1, True)
    policy.on_insert(0, Cause.PREFETCH)
    asked(policy, "123")
    assert order(policy) == [1, 0], "2 / 1 and 3 / 4"


def test_classes_end_at_the_last_one() -> None:
    """With two classes 8 requests weigh as much as 2."""
    policy = asked(begin(ClassLRU(classes=2, **COLD), 0, 1), "0000000011")
    asked(policy, "2")
    assert order(policy) == [0, 1], "3 / 2 and 1 / 2"
    policy = asked(begin(ClassLRU(**COLD), 0, 1), "0000000011")
    asked(policy, "2")
    assert order(policy) == [1, 0], "3 / 8 and 1 / 2"


def test_what_arrives_late_keeps_the_place_of_its_request() -> None:
    """A prefetch that a request found in flight; one without a request enters at the recent end."""
    policy = begin(ClassLRU(**COLD))
    asked(policy, "01")
    policy.on_insert(1, Cause.DEMAND)
    policy.on_insert(0, Cause.PREFETCH)
    policy.on_insert(2, Cause.PREFETCH)
    assert order(policy) == [0, 1, 2]


def test_ages_are_counted_in_each_pool_by_itself() -> None:
    """Two precisions: touches of the low pool do not age the high one.

    3 and 4 are high, 15 and 16 low. 3 has class 1 and age 1; 4 has class 0 and age 0.
    """
    policy = begin(
        ClassLRU(scope="precision", shares=(0.5, 0.5), **COLD), 3, 4, geometry=FOUR_SITES
    )
    ask(policy, 3, at=gate(1))
    ask(policy, 3, at=gate(1))
    ask(policy, 4, at=gate(1))
    for _ in range(9):
        ask(policy, 15, at=gate(1))
    ask(policy, 9, at=gate(3))
    # 2 / 2 and 1 / 1: the least recent. With the low pool's touches 11 / 2 and 10 / 1: key 4.
    assert order(policy, geometry=FOUR_SITES)[0] == 3


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["half_life_steps", "classes"])
def test_a_number_that_is_no_whole_one_from_1_on_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"cache.{name}={value!r} must be"):
        ClassLRU(**{name: value})


# Contracts: C147
def test_lfru_divides_requests_by_age() -> None:
    """Counts of 0 to 2 are 3, 1 and 1, ages 2, 1 and 1 at least: 3 / 2, 1 / 1, 1 / 1.

    Of equal ones the lowest key goes first. After two touches more: 3 / 4, 1 / 3, 1 / 2.
    """
    policy = begin(LFRU(**COLD), 2, 1, 0)
    asked(policy, "00012")
    assert order(policy) == [1, 2, 0]
    asked(policy, "34")
    assert order(policy) == [1, 2, 0]
    asked(policy, "1345345")
    # 0: 3 / 11; 1: 2 / 6; 2: 1 / 9.
    assert order(policy) == [2, 0, 1]


def test_lfru_forgets_no_count() -> None:
    policy = asked(begin(LFRU(**COLD), 0, 1), "0000111")
    policy.on_evict(0)
    policy.on_sequence(1, True)
    policy.on_insert(0, Cause.PREFETCH)
    # 4 / 1 (at least 1), 3 / 1.
    assert order(policy) == [1, 0]
