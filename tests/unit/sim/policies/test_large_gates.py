"""A cache that large gates read and do not change: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.asking import ONE_SITE, ask, begin, order
from sim.policies.belady import Belady
from sim.policies.frequency import LFU
from sim.policies.large_gates import LargeGatesOnlyRead
from sim.policies.popular import Popular
from sim.policies.recency import LRU
from sim.values.types import Cause

COLD = {"initial": "empty"}


def gate(*experts: int, rows: int) -> Any:
    return SimpleNamespace(
        site=0,
        step=0,
        needs=list(experts),
        tokens=[1] * len(experts),
        experts=np.zeros((rows, 1), int),
    )


def made(*keys: int, up_to_rows: int = 32) -> Any:
    return begin(LargeGatesOnlyRead(LRU(**COLD), up_to_rows), *keys)


# Contracts: C144
def test_a_gate_of_more_rows_changes_no_order_and_brings_nothing_in() -> None:
    policy = made(0, 1, 2)
    ask(policy, 0, 5, missed=(5,), at=gate(0, 5, rows=33))
    assert order(policy) == [0, 1, 2]
    assert not policy.admit(5, (0,))
    policy.on_evict(5)
    ask(policy, 0, 5, missed=(5,), at=gate(0, 5, rows=32))
    assert policy.admit(5, (1,))
    policy.on_evict(1)
    policy.on_insert(5, Cause.PREFETCH)
    assert order(policy) == [2, 0, 5]


def test_what_a_prefetch_brings_for_a_large_gate_has_come_without_a_request() -> None:
    """The wrapped policy does not know of the request, so it must not wait for its arrival."""
    for cause in (Cause.PREFETCH, Cause.DEMAND):
        policy = made(0, 1)
        ask(policy, 4, missed=(4,), at=gate(4, rows=40))
        policy.on_insert(4, cause)
        assert order(policy) == [0, 1, 4]
        policy.on_evict(4)
        assert order(policy) == [0, 1]


def test_a_key_that_never_came_in_is_forgotten_by_whom_knows_it() -> None:
    policy = made(0, up_to_rows=1)
    ask(policy, 3, missed=(3,), at=gate(3, rows=1))
    policy.on_evict(3)
    ask(policy, 3, missed=(3,), at=gate(3, rows=2))
    policy.on_evict(3)
    policy.on_insert(3, Cause.PREFETCH)
    assert order(policy) == [0, 3]


def test_the_wrapped_policy_refuses_as_it_would_alone() -> None:
    policy = LargeGatesOnlyRead(Popular([[0, 1]]))
    policy.pools(ONE_SITE)
    assert policy.admit(1, ())
    assert not policy.admit(2, ())


def test_it_needs_says_and_hears_what_the_wrapped_policy_does() -> None:
    policy = LargeGatesOnlyRead(LFU("sequence", initial="popular"))
    assert policy.requires.profile
    assert policy.initial == "popular"
    assert LargeGatesOnlyRead(LRU()).requires == LRU().requires
    counting = begin(LargeGatesOnlyRead(LFU("sequence", **COLD)), 0, 1)
    ask(counting, 0, 0, 1, at=gate(0, rows=1))
    assert order(counting) == [1, 0]
    counting.on_sequence(1, True)
    assert order(counting) == [0, 1]


@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_a_number_of_rows_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"cache\.up_to_rows="):
        LargeGatesOnlyRead(LRU(), value)


def test_a_cache_that_knows_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="knows the run's future"):
        LargeGatesOnlyRead(Belady())
