"""Bootstrap intervals where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from sim.intervals import RESAMPLES, ratio_intervals, resamples


def one(above: list[float], below: list[float], seed: int = 0) -> tuple[float, float] | None:
    return ratio_intervals({"x": (np.array(above), np.array(below))}, seed)["x"]


def test_the_interval_of_a_constant_is_the_constant() -> None:
    assert one([6.0, 6.0, 6.0], [2.0, 2.0, 2.0]) == (3.0, 3.0)


def test_a_ratio_of_sums_is_constant_where_every_part_has_the_same_ratio() -> None:
    assert one([1.0, 20.0, 300.0], [2.0, 40.0, 600.0]) == (0.5, 0.5)


def test_fewer_than_two_sequences_and_nothing_below_have_no_interval() -> None:
    assert one([1.0], [2.0]) is None
    assert one([], []) is None
    assert one([1.0, 2.0], [0.0, 0.0]) is None


def test_resamples_without_anything_below_are_left_out() -> None:
    """Only the second counts: whatever is drawn has the ratio 4, or none."""
    assert one([0.0, 4.0], [0.0, 1.0]) == (4.0, 4.0)


def test_the_interval_contains_the_ratio_and_stays_within_the_extremes() -> None:
    above, below = [1.0, 2.0, 3.0, 4.0, 10.0], [1.0] * 5
    found = one(above, below)
    assert found is not None
    low, high = found
    assert 1.0 <= low < 4.0 < high <= 10.0


def test_with_many_sequences_the_interval_is_that_of_the_mean() -> None:
    """Normal with standard deviation 1: 1.96 / sqrt(1000) = 0.062 on either side of the mean."""
    values = np.random.default_rng(7).normal(5.0, 1.0, 1000)
    found = one(list(values), [1.0] * 1000)
    assert found is not None
    spread = 1.96 * values.std() / np.sqrt(1000)
    assert found == pytest.approx((values.mean() - spread, values.mean() + spread), abs=0.15 * spread)


def test_the_same_seed_draws_the_same_sequences_for_every_metric() -> None:
    values, ones = [1.0, 5.0, 2.0, 8.0, 13.0, 7.5, 0.25, 31.0], [1.0] * 8
    assert one(values, ones, seed=3) == one(values, ones, seed=3)
    assert one(values, ones, seed=3) != one(values, ones, seed=4)
    both = ratio_intervals({"a": (np.array(values), np.array(ones)), "b": (np.array(values), np.array(ones))}, 3)
    assert both["a"] == both["b"] == one(values, ones, seed=3)


def test_resamples_are_indices_drawn_with_replacement() -> None:
    drawn = resamples(4, 0)
    assert drawn.shape == (RESAMPLES, 4)
    assert set(np.unique(drawn)) == {0, 1, 2, 3}
    assert any(len(set(row)) < 4 for row in drawn.tolist())
