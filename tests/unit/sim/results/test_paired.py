"""Paired comparisons: who is faster, how surely, and when that is not said."""

from __future__ import annotations

import numpy as np
import pytest

from sim.results.paired import (
    CANNOT_TELL,
    FASTER,
    SLOWER,
    TOO_FEW,
    Paired,
    paired,
    paired_all,
    paired_rates,
)


def test_a_run_paired_with_itself_has_the_ratio_1_and_nobody_is_faster() -> None:
    found = paired(*[np.array([3.0, 1.0, 4.0, 1.5])] * 2)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (
        1.0,
        (1.0, 1.0),
        0.5,
        CANNOT_TELL,
    )
    assert not found.is_decided


def test_runs_of_other_numbers_of_tokens_are_paired_by_tokens_over_time() -> None:
    """By hand: 7 tokens in 30 ns against 9 in 40 are 1.037 times as fast; alike numbers change nothing."""
    time = np.array([3.0, 1.0, 4.0, 1.5])
    found = paired_rates((time, np.array([1, 2, 3, 1])), (time * 40 / 30, np.array([1, 3, 3, 2])))
    assert found.speedup == pytest.approx((7 / 30) / (9 / 40))
    same = np.array([2, 2, 1, 1])
    assert paired_rates((time, same), (time[::-1], same)) == paired(time, time[::-1])


def test_twice_as_slow_on_every_sequence_is_2_for_certain_however_they_vary() -> None:
    ours = np.array([3.0, 1.0, 40.0, 1.5])
    found = paired(ours, 2 * ours)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (
        2.0,
        (2.0, 2.0),
        1.0,
        FASTER,
    )
    assert paired(2 * ours, ours).verdict == SLOWER
    assert found.is_decided


# Contracts: C112
def test_fewer_than_four_sequences_have_a_ratio_and_an_interval_but_no_verdict() -> None:
    ours = np.array([3.0, 1.0, 40.0])
    found = paired(ours, 2 * ours)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (
        2.0,
        (2.0, 2.0),
        1.0,
        TOO_FEW,
    )
    assert not found.is_decided
    assert "fewer than 4 independent sequences" in found.verdict


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((1.0, 1.2), CANNOT_TELL),
        ((0.8, 1.0), CANNOT_TELL),
        ((1.0, 1.0), CANNOT_TELL),
        ((0.9, 1.1), CANNOT_TELL),
        ((1.001, 1.2), FASTER),
        ((0.8, 0.999), SLOWER),
    ],
)
def test_an_interval_that_holds_1_tells_nothing_its_ends_included(
    interval: tuple[float, float], verdict: str
) -> None:
    found = Paired(1.0, interval, 0.5, 4)
    assert (found.verdict, found.is_decided) == (verdict, verdict != CANNOT_TELL)


def test_a_sequence_that_took_no_time_does_not_count_towards_a_verdict() -> None:
    found = paired(np.array([0.0, 2.0, 2.0, 2.0]), np.array([0.0, 3.0, 3.0, 3.0]))
    assert (found.sequences, found.interval, found.verdict) == (3, (1.5, 1.5), TOO_FEW)


def test_what_either_run_has_in_one_batch_is_one_observation() -> None:
    """Ours are batches of two, theirs of one and three: only groups of four are the same in both."""
    ours = np.array([5.0, 0, 3, 0, 4, 0, 5, 0])
    theirs = np.array([6.0, 9, 0, 0, 7, 12, 0, 0])
    assert paired(ours, theirs) == paired(np.array([8.0, 9.0]), np.array([15.0, 19.0]))
    shifted = np.array([1.0, 2, 0, 2, 0, 2, 0, 2])
    assert paired(ours, shifted) == Paired(9 / 17, None, None, 1)


def test_opposite_sequences_of_equal_weight_tell_nothing() -> None:
    found = paired(np.array([2.0, 8.0]), np.array([6.0, 4.0]))
    assert (found.speedup, found.p_faster) == (1.0, pytest.approx(0.5))
    assert found.interval is not None
    assert found.interval[0] * found.interval[1] == pytest.approx(1)


def test_how_sure_one_is_mirrors_how_sure_the_other_is() -> None:
    ours, theirs = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.2, 2.1, 3.9, 4.1, 4.8])
    there, back = paired(ours, theirs), paired(theirs, ours)
    assert there.p_faster is not None
    assert there.p_faster == pytest.approx(1 - (back.p_faster or 0))


def test_one_sequence_has_a_ratio_but_no_interval_and_tells_nothing() -> None:
    found = paired(np.array([1.0]), np.array([9.0]))
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (
        9.0,
        None,
        None,
        TOO_FEW,
    )
    assert str(found) == "9.00x [no interval]"


def test_a_paired_comparison_needs_the_same_sequences() -> None:
    with pytest.raises(ValueError, match="needs the same sequences, got 3 and 2"):
        paired(np.ones(3), np.ones(2))


def test_a_ratio_of_no_time_is_refused() -> None:
    for ours, theirs in ((0, 1), (1, 0)):
        told = f"times above 0, got {3 * ours} and {3 * theirs} ns"
        with pytest.raises(ValueError, match=told):
            paired(np.full(3, float(ours)), np.full(3, float(theirs)))


def test_all_pairs_are_those_of_two_and_two() -> None:
    random = np.random.default_rng(4)
    times = random.lognormal(0, 1, (4, 6))
    still = times.copy()
    still[1, 2] = 0.0  # a sequence that took one system alone no time
    for some in (times, np.where(np.arange(6) == 2, 0.0, times), still, times[:, :1], times[:, :2]):
        found = paired_all(some)
        for i, ours in enumerate(some):
            assert found[i][i] is None
            for j, theirs in enumerate(some):
                told, alone = found[i][j], paired(ours, theirs)
                if i != j:
                    assert told is not None
                    assert told.verdict == alone.verdict
                    assert told.speedup == pytest.approx(alone.speedup, rel=1e-12)
                    assert (told.interval is None) == (alone.interval is None)
                    assert (told.interval or ()) == pytest.approx(alone.interval or (), rel=1e-12)
                    sure = -1.0 if told.p_faster is None else told.p_faster
                    alone_sure = -1.0 if alone.p_faster is None else alone.p_faster
                    assert sure == pytest.approx(alone_sure, rel=1e-12)
                    assert told.sequences == alone.sequences
    with pytest.raises(ValueError, match="without any"):
        paired_all(np.zeros((2, 3)))
