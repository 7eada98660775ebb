"""The paired bootstrap, against distributions that can be enumerated."""

from __future__ import annotations

import numpy as np
import pytest

from sim.paired import CANNOT_TELL, FASTER, SLOWER, paired


def test_a_run_paired_with_itself_has_the_ratio_1_and_nobody_is_faster() -> None:
    found = paired(*[np.array([3.0, 1.0, 4.0, 1.5])] * 2, 0)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (1.0, (1.0, 1.0), 0.5, CANNOT_TELL)


def test_twice_as_slow_on_every_sequence_is_2_for_certain_however_they_vary() -> None:
    ours = np.array([3.0, 1.0, 40.0, 1.5])
    found = paired(ours, 2 * ours, 0)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (2.0, (2.0, 2.0), 1.0, FASTER)
    assert paired(2 * ours, ours, 0).verdict == SLOWER


def test_two_sequences_have_three_resamples_whose_shares_are_known() -> None:
    """One sequence each way: (1, 1) with 1/4: 3 times as fast; (2, 2) with 1/4: half as fast; both with 1/2: a tie."""
    found = paired(np.array([2.0, 8.0]), np.array([6.0, 4.0]), 0)
    assert found.speedup == 1.0
    assert found.interval == (0.5, 3.0)
    # Faster in 1/4, a tie (10 and 10) in 1/2: 1/2, within four standard errors of 2000 draws.
    assert found.p_faster == pytest.approx(0.5, abs=4 * (1 / 4 - 1 / 8) ** 0.5 / 2000**0.5)
    assert found.verdict == CANNOT_TELL


def test_the_probability_is_the_share_of_sequences_where_each_is_a_resample_of_its_own() -> None:
    """Ours is slower on one of two, by more than it gains: only (gain, gain), 1/4 of the resamples, is faster."""
    found = paired(np.array([1.0, 10.0]), np.array([2.0, 5.0]), 1)
    assert found.p_faster == pytest.approx(0.25, abs=0.04)
    assert found.speedup == 7 / 11


def test_one_sequence_has_a_ratio_but_no_interval_and_tells_nothing() -> None:
    found = paired(np.array([1.0]), np.array([9.0]), 0)
    assert (found.speedup, found.interval, found.p_faster, found.verdict) == (9.0, None, None, CANNOT_TELL)
    assert str(found) == "9.00x [one sequence]"


def test_sequences_that_took_no_time_leave_resamples_out_in_which_there_is_none() -> None:
    found = paired(np.array([0.0, 2.0]), np.array([0.0, 3.0]), 0)
    assert (found.interval, found.p_faster) == ((1.5, 1.5), 1.0)


def test_a_paired_comparison_needs_the_same_sequences() -> None:
    with pytest.raises(ValueError, match="needs the same sequences, got 3 and 2"):
        paired(np.ones(3), np.ones(2), 0)


def test_a_ratio_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="times above 0, got 0 and 3 ns"):
        paired(np.zeros(3), np.ones(3), 0)
