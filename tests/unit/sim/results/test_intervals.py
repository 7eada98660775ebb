"""Intervals over sequences, against textbook t intervals, matrices, and cases known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.results.intervals import Floats, estimate, mean_interval, ratio_interval, share_interval

RANDOM = np.random.default_rng(11)


def one(above: list[float], below: list[float]) -> tuple[float, float] | None:
    return ratio_interval(np.array(above), np.array(below))


def test_the_interval_of_a_constant_is_the_constant() -> None:
    assert one([6.0, 6.0, 6.0], [2.0, 2.0, 2.0]) == (3.0, 3.0)


def test_a_ratio_of_sums_is_certain_where_every_sequence_has_the_same_ratio() -> None:
    assert one([1.0, 20.0, 300.0], [2.0, 40.0, 600.0]) == (0.5, 0.5)
    assert one([0.1, 0.7, 1.3], [0.3, 2.1, 3.9]) == (pytest.approx(1 / 3, rel=1e-15),) * 2


def test_fewer_than_two_sequences_and_nothing_below_have_no_interval() -> None:
    assert one([1.0], [2.0]) is None
    assert one([], []) is None
    assert one([1.0, 2.0], [0.0, 0.0]) is None


def test_a_sequence_without_any_part_tells_nothing() -> None:
    assert one([4.0, 0.0, 5.0], [1.0, 0.0, 1.0]) == one([4.0, 5.0], [1.0, 1.0])
    assert one([0.0, 4.0], [0.0, 1.0]) is None


def test_what_is_0_in_every_sequence_is_0() -> None:
    assert one([0.0, 0.0], [3.0, 1.0]) == (0.0, 0.0)
    assert one([0.0, 0.0], [3.0, 0.0]) is None


def test_equal_sequences_have_the_textbook_t_interval_of_the_mean() -> None:
    values = RANDOM.normal(5.0, 1.0, 7)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert mean_interval(values, np.ones(7)) == pytest.approx((low, high), rel=1e-12)
    found = estimate(values, np.ones(7))
    assert found is not None
    # It is not exactly 6, since the log ratio weights sequences by their share of either sum.
    assert found.freedom == pytest.approx(6, abs=0.2)


def by_matrix(above: Floats, below: Floats) -> tuple[float, float]:
    """Standard error and degrees of freedom of the log ratio, by Bell and McCaffrey's definition.

    The errors are independent, with variances proportional to the shares. What is seen is what they
    leave once each sequence has given up its share of their sum. Each square is divided by its
    expectation over its variance. The freedom is 2 E^2 / Var of their sum.
    """
    share = (above / above.sum() + below / below.sum()) / 2
    seen = above / above.sum() - below / below.sum()
    residual = np.eye(len(share)) - np.outer(share, np.ones(len(share)))
    covariance = residual @ np.diag(share) @ residual.T
    scale = share / np.diag(covariance)
    half = np.diag(np.sqrt(scale)) @ residual @ np.diag(np.sqrt(share))
    eigenvalues = np.linalg.eigvalsh(half.T @ half)
    return float(np.sqrt((scale * seen**2).sum())), float(
        eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    )


@pytest.mark.parametrize("count", [2, 3, 4, 9, 40])
def test_error_and_freedom_are_those_of_the_quadratic_form(count: int) -> None:
    above, below = RANDOM.lognormal(0, 1, count), RANDOM.lognormal(0, 1, count)
    found = estimate(above, below)
    assert found is not None
    assert (found.error, found.freedom) == pytest.approx(by_matrix(above, below), rel=1e-9)


def test_a_sequence_that_is_most_of_the_sum_leaves_about_one_degree_of_freedom() -> None:
    found = estimate(np.array([1000.0, 1.1, 1.2, 0.9]), np.array([1000.0, 1.0, 1.0, 1.0]))
    assert found is not None
    assert found.freedom == pytest.approx(1.0, abs=0.05)


def test_two_unequal_sequences_give_a_wide_interval_worked_by_hand() -> None:
    """Ratios 1 and 4 over equal denominators.

    Log errors are +-0.3, shares .35 and .65, and there is one degree of freedom.
    """
    found = estimate(np.array([1.0, 4.0]), np.array([1.0, 1.0]))
    assert found is not None
    error = np.sqrt(0.3**2 / (1 - 0.35) + 0.3**2 / (1 - 0.65))
    assert (found.value, found.error, found.freedom) == pytest.approx((2.5, error, 1.0))
    assert one([1.0, 4.0], [1.0, 1.0]) == pytest.approx(
        (2.5 * np.exp(-12.7062 * error), 2.5 * np.exp(12.7062 * error)), rel=1e-5
    )


def test_the_inverse_of_a_ratio_has_the_inverse_interval() -> None:
    above, below = RANDOM.lognormal(0, 1, 6), RANDOM.lognormal(0, 1, 6)
    there, back = ratio_interval(above, below), ratio_interval(below, above)
    assert there is not None
    assert back == pytest.approx((1 / there[1], 1 / there[0]))


def test_a_share_stays_between_0_and_1_and_its_complement_mirrors_it() -> None:
    part, whole = np.array([99.0, 100.0, 97.0]), np.full(3, 100.0)
    found, rest = share_interval(part, whole), share_interval(whole - part, whole)
    assert found is not None
    assert 0 < found[0] < part.sum() / whole.sum() < found[1] < 1
    assert rest == pytest.approx((1 - found[1], 1 - found[0]))
    assert share_interval(whole, whole) == (1.0, 1.0)
    assert share_interval(np.zeros(3), whole) == (0.0, 0.0)
    assert share_interval(whole[:2], whole[:2]) == (1.0, 1.0)
    assert share_interval(whole[:1], whole[:1]) is None
    one_of_two = np.array([100.0, 0.0])
    assert share_interval(one_of_two, one_of_two) is None


def test_a_difference_of_either_sign_is_symmetric_about_its_mean() -> None:
    low, high = mean_interval(np.array([-1.0, 2.0, 0.5]), np.array([10.0, 12.0, 9.0])) or (
        np.nan,
        np.nan,
    )
    assert (low + high) / 2 == pytest.approx(1.5 / 31)
    assert low < 0 < high


def test_confidence_is_one_half_at_the_estimate_and_975_in_1000_at_the_lower_end() -> None:
    found = estimate(RANDOM.lognormal(0, 1, 5), RANDOM.lognormal(0, 1, 5))
    assert found is not None
    assert found.confidence_above(float(found.value)) == pytest.approx(0.5)
    assert found.confidence_above(float(found.interval()[0])) == pytest.approx(0.975)
