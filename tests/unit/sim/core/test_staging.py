"""Staging slots: what is counted, what is resident there, and what is evicted first."""

from __future__ import annotations

import pytest

from sim.core.staging import Staging


def staged(*keys: int, slots: int = 3) -> Staging:
    staging = Staging(slots, 10)
    for key in keys:
        staging.claim()
        staging.put(key)
    return staging


def test_a_slot_is_taken_when_it_is_claimed_and_what_has_arrived_is_there() -> None:
    staging = Staging(2, 10)
    staging.claim()
    assert (staging.used, staging.is_full, any(staging.holds)) == (1, False, False)
    staging.put(4)
    assert (
        staging.used,
        list(staging.keys),
        [key for key, held in enumerate(staging.holds) if held],
    ) == (1, [4], [4])
    staging.claim()
    assert staging.is_full
    staging.check()


def test_a_claim_for_something_that_does_not_come_is_given_back() -> None:
    staging = staged(4)
    staging.claim()
    staging.release()
    assert (staging.used, list(staging.keys)) == (1, [4])


def test_what_goes_leaves_a_free_slot() -> None:
    staging = staged(4, 1)
    staging.take(4)
    assert (staging.used, list(staging.keys), staging.holds[4]) == (1, [1], 0)
    staging.check()


def test_the_rest_of_a_partial_move_comes_into_the_slot_of_what_it_completes() -> None:
    staging = staged(4, 1)
    staging.put(4)
    assert (staging.used, list(staging.keys)) == (2, [4, 1])


@pytest.mark.parametrize(("pins", "first"), [([], 4), ([4], 1), ([4, 7], 1), ([4, 1, 7], -1)])
def test_the_first_to_arrive_that_is_not_pinned_goes_first(pins: list[int], first: int) -> None:
    assert staged(4, 1, 7).first_but(pins) == first


def test_the_most_slots_in_use_are_remembered() -> None:
    staging = staged(4, 1, 7)
    for key in (4, 1, 7):
        staging.take(key)
    assert (staging.used, staging.most_used) == (0, 3)


def test_without_slots_it_is_always_full() -> None:
    assert Staging(0, 10).is_full
    assert Staging(0, 10).first_but([]) == -1


def test_more_in_use_than_there_are_is_an_error_of_the_program() -> None:
    staging = staged(4, slots=1)
    staging.claim()
    with pytest.raises(AssertionError):
        staging.check()
