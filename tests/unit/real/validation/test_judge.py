"""Errors, order, regret and coverage of predictions, by hand."""

from __future__ import annotations

import pytest

from real.validation.judge import Case, as_row, coverage, intervals, rankings
from real.validation.report import _free, _ranking


def case(system: str, predicted: int, *measured: int, share: float = 0.5) -> Case:
    """A case of two steps, of which the first takes a quarter of the time."""
    steps = tuple((ns // 4, ns - ns // 4) for ns in measured)
    return Case(
        system, share, predicted, measured, (predicted // 4, predicted - predicted // 4), steps
    )


def test_the_error_is_against_the_median_of_the_repeats_and_the_noise_is_theirs() -> None:
    """Of 90, 100, 110 the median is 100, the deviation 10. 105 is 5 % more, in each step, too."""
    one = case("a", 10500, 9000, 10000, 11000)
    assert one.error == pytest.approx(0.05)
    assert one.noise == pytest.approx(0.1)
    assert one.step_error == pytest.approx(0.05)
    # Pairs of repeats differ by 9/10, 9/11, 10/11 less 1, alike in both steps; the median is 1/10.
    assert one.step_noise == pytest.approx(0.1)
    assert as_row(one)["measured_s"] == 10000 / 1e9


def test_one_run_has_no_noise() -> None:
    assert case("a", 100, 100).noise == case("a", 100, 100).step_noise == 0


def test_the_report_does_not_tell_a_noise_that_nobody_knows() -> None:
    once, twice = _free([case("a", 100, 100), case("b", 100, 90, 110)])[6:8]
    assert once.split(" | ")[5] == "-"
    assert once.endswith("| - |")
    assert "-" not in twice.split(" | ")[5]
    assert twice.endswith("% |")


def test_only_pairs_that_differ_by_more_than_the_noise_count_for_the_order() -> None:
    """a, b and c measure 100, 102 and 200, with 2 % of noise each.

    a and b cannot be told apart, since 2 x 2 % of 100 is 4.
    """
    a, b, c = (
        case(name, p, m - m // 50, m, m + m // 50)
        for name, p, m in (("a", 10300, 10000), ("b", 10200, 10200), ("c", 9000, 20000))
    )
    (found,) = rankings([a, b, c])
    assert (found.told_apart, found.right, found.tau) == (2, 0, -1)
    assert (found.picked, found.fastest, found.regret) == ("c", "a", pytest.approx(1.0))


def test_a_right_order_has_tau_one_and_no_regret() -> None:
    (found,) = rankings(
        [case("a", 95, 100, 100), case("b", 140, 150, 150), case("c", 210, 200, 200)]
    )
    assert (found.told_apart, found.right, found.tau, found.regret) == (3, 3, 1, 0)


def test_a_pair_that_is_predicted_alike_is_neither_right_nor_wrong() -> None:
    a, b, c = case("a", 100, 100, 100), case("b", 100, 150, 150), case("c", 200, 200, 200)
    (found,) = rankings([a, b, c])
    assert (found.told_apart, found.right, found.tau) == (3, 2, pytest.approx(2 / 3))


def test_what_ran_once_is_told_apart_from_nothing_as_nobody_knows_its_noise() -> None:
    once = [case("a", 95, 100), case("b", 140, 150), case("c", 210, 200, 200)]
    (found,) = rankings(once)
    assert (found.told_apart, found.right, found.tau, found.regret) == (0, 0, None, 0)
    *_, said, _ = _ranking([found], once)
    assert said == (
        "90% intervals from the other cases' errors are not made: there are too few errors."
    )


def test_budgets_are_ranked_by_themselves_and_one_system_not_at_all() -> None:
    found = rankings([case("a", 1, 1, share=0.25), case("a", 1, 1), case("b", 2, 2)])
    assert [one.share for one in found] == [0.5]


def test_an_interval_is_as_wide_as_the_errors_of_the_other_cases() -> None:
    """Ten others, off by 1 to 10 %: the ceil(11 x 0.9) = 10th of their errors is 10 %."""
    others = [case(f"s{n}", 1000, 1000 + 10 * n) for n in range(1, 11)]
    mine = case("mine", 2000, 2190)
    found = intervals([*others, mine])[-1]
    assert found == pytest.approx((1800, 2200))
    # Without the last there are nine errors: the ceil(10 x 0.9) = 9th of nine is 9 %.
    assert intervals([*others[:9], mine])[-1] == pytest.approx((1820, 2180))
    # Eight errors are too few: there is no 9th.
    assert intervals([*others[:8], mine])[-1] is None
    assert coverage([*others[:8], mine]) is None


def test_coverage_counts_runs_not_cases() -> None:
    others = [case(f"s{n}", 1000, 1000 + 10 * n) for n in range(1, 12)]
    # Each case's interval comes from the errors of the eleven others: 11 % wide for all but the
    # last two. Their runs count, too.
    mine = case("mine", 2000, 2000, 2500)
    found = coverage([*others, mine])
    within = [
        low <= run <= high
        for one, (low, high) in zip(
            [*others, mine], (i for i in intervals([*others, mine]) if i), strict=True
        )
        for run in one.measured_ns
    ]
    assert len(within) == 13
    assert found == pytest.approx(sum(within) / 13)
    assert not within[-1]
