"""SIEVE, S3-FIFO and W-TinyLFU: their queues by hand."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.asking import ask, begin, order
from sim.policies.queues import S3FIFO, Sieve, WTinyLFU
from sim.values.types import Cause, Geometry

COLD = {"initial": "empty"}
TEN = Geometry(1, 20, 2, ("fp16",), (16.0,), (1,), 10)


def evicted(policy: Any, geometry: Geometry, *blocked: int) -> int:
    """The next victim, which then goes."""
    gone = order(policy, *blocked, geometry=geometry)[0]
    policy.on_evict(gone)
    return gone


def come(policy: Any, *keys: int) -> None:
    for key in keys:
        ask(policy, key)
        policy.on_insert(key, Cause.DEMAND)


# Contracts: C148
def test_sieve_evicts_the_first_from_the_hand_that_nobody_asked_for() -> None:
    policy = begin(Sieve(**COLD), 0, 1, 2, 3)
    ask(policy, 0, 2)
    assert order(policy) == [1, 3, 0, 2]
    policy.on_evict(1)
    assert order(policy) == [3, 0, 2], "the hand passed 0 and forgave it; it is at 2"
    ask(policy, 3)
    assert order(policy) == [0, 2, 3], "2 and 3 are marked; 0 is not any more"


def test_sieves_hand_goes_on_from_where_it_was() -> None:
    """A key that was inserted after the hand passed is not seen before the round is over."""
    policy = begin(Sieve(**COLD), 0, 1, 2, 3)
    ask(policy, 0)
    policy.on_evict(1)
    policy.on_insert(4, Cause.DEMAND)
    assert order(policy) == [2, 3, 4, 0]
    for key in (2, 3, 4):
        policy.on_evict(key)
    assert order(policy) == [0], "from behind the newest the hand comes to the oldest"


def test_sieve_passes_over_what_may_not_go_and_forgives_it() -> None:
    policy = begin(Sieve(**COLD), 0, 1, 2)
    ask(policy, 0)
    assert order(policy, 1) == [2, 0]
    policy.on_evict(2)
    assert order(policy) == [0, 1], "the mark of 0 is gone, and the hand is back at the oldest"


def test_a_request_marks_only_what_is_there() -> None:
    policy = begin(Sieve(**COLD), 0)
    ask(policy, 1, missed=(1,))
    policy.on_insert(1, Cause.DEMAND)
    assert order(policy) == [0, 1]
    policy.on_evict(5)
    assert order(policy) == [0, 1], "what never came in is forgotten"


# Contracts: C149
def test_new_keys_wait_in_the_small_queue_and_go_first() -> None:
    """Ten slots: one is small. Before the first eviction the others fill the main queue."""
    policy = begin(S3FIFO(**COLD), *range(10), geometry=TEN)
    assert order(policy, geometry=TEN) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert evicted(policy, TEN) == 0
    come(policy, 11)
    assert order(policy, geometry=TEN)[0] == 11, "new, and never asked for again"


def test_what_was_asked_for_twice_goes_on_to_the_main_queue() -> None:
    policy = begin(S3FIFO(**COLD), *range(10), geometry=TEN)
    ask(policy, 0)
    assert order(policy, geometry=TEN)[0] == 0, "once is not enough"
    ask(policy, 0)
    assert order(policy, geometry=TEN) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    ask(policy, 1)
    assert order(policy, geometry=TEN) == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1], "1 gets a second round"


def test_a_ghost_comes_back_into_the_main_queue() -> None:
    policy = begin(S3FIFO(**COLD), *range(10), geometry=TEN)
    assert evicted(policy, TEN) == 0
    come(policy, 0)
    # Main holds ten of its nine slots, so it is walked first; 0 is its newest.
    assert order(policy, geometry=TEN) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_ghosts_are_forgotten_in_the_end_and_when_a_prefetch_brings_one_back() -> None:
    few = {"ghost_share": 0.1, **COLD}
    policy = begin(S3FIFO(**few), *range(10), geometry=TEN)
    assert evicted(policy, TEN) == 0
    come(policy, 11)
    assert evicted(policy, TEN) == 11
    come(policy, 0)
    assert order(policy, geometry=TEN)[0] == 0, "one ghost is remembered: 11"
    assert evicted(policy, TEN) == 0
    policy.on_insert(0, Cause.PREFETCH)
    assert order(policy, geometry=TEN)[0] == 0, "no request: it is new"


def test_what_was_asked_for_and_never_came_in_is_new_when_it_comes() -> None:
    policy = begin(S3FIFO(**COLD), *range(10), geometry=TEN)
    assert evicted(policy, TEN) == 0
    ask(policy, 0, missed=(0,))
    policy.on_evict(0)
    policy.on_insert(0, Cause.PREFETCH)
    assert order(policy, geometry=TEN)[0] == 0


def test_s3_fifo_passes_over_what_may_not_go_and_it_stays_where_it_is() -> None:
    policy = begin(S3FIFO(**COLD), *range(10), geometry=TEN)
    assert order(policy, 0, 1, geometry=TEN)[:2] == [2, 3]
    assert evicted(policy, TEN, 0, 1) == 2
    assert order(policy, geometry=TEN)[:3] == [0, 1, 3]


# Contracts: C150
def test_what_leaves_the_window_stays_only_if_it_was_asked_for_more() -> None:
    """Ten slots: one is the window's. 9 is in it; 0 is first on probation."""
    policy = begin(WTinyLFU(**COLD), *range(10), geometry=TEN)
    assert order(policy, geometry=TEN)[0] == 9, "equal counts: the window's goes"
    ask(policy, 9)
    assert order(policy, geometry=TEN) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert evicted(policy, TEN) == 0
    come(policy, 11)
    assert order(policy, geometry=TEN)[0] == 1, "11 and 9 were asked for once, 1 never"


def test_what_is_asked_for_again_is_protected() -> None:
    """Of nine slots seven are protected. 1 is back on probation when seven others are."""
    policy = begin(WTinyLFU(**COLD), *range(10), geometry=TEN)
    ask(policy, 9, 9, 1)
    assert order(policy, geometry=TEN) == [0, 2, 3, 4, 5, 6, 7, 8, 1, 9]
    for key in range(2, 9):
        ask(policy, key)
    assert order(policy, geometry=TEN)[:3] == [0, 1, 2]


def test_counts_are_halved_after_ten_requests_a_slot() -> None:
    """At 100 requests 9 has 3 >> 1 = 1; then 0, asked for twice since, has more."""
    policy = begin(WTinyLFU(sample=1, **COLD), *range(10), geometry=TEN)
    ask(policy, 9, 9, 9, 15, 16, 17, 18, 19, 15)
    assert order(policy, geometry=TEN)[0] == 0
    ask(policy, 16)
    ask(policy, 0, 1, 2, 3, 4, 5, 6, 7, 8)
    # All have 1 now, so the window's goes first.
    assert order(policy, geometry=TEN)[0] == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: S3FIFO(small_share=1.5), r"cache\.small_share=1\.5 must be from 0 to 1"),
        (lambda: S3FIFO(ghost_share=-0.1), r"cache\.ghost_share=-0\.1 must be from 0 to 1"),
        (lambda: S3FIFO(threshold=0), r"cache\.threshold=0 must be a whole number"),
        (lambda: S3FIFO(threshold=4), r"cache\.threshold=4 must be at most 3"),
        (lambda: WTinyLFU(window_share=2), r"cache\.window_share=2 must be from 0 to 1"),
        (lambda: WTinyLFU(protected_share=True), r"cache\.protected_share=True must be"),
        (lambda: WTinyLFU(sample=0), r"cache\.sample=0 must be a whole number"),
    ],
)
def test_shares_and_numbers_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
