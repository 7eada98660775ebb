"""Knees and crossings of curves whose knees and crossings are known."""

from __future__ import annotations

import math

import pytest

from sim.answers.breakeven import Crossing, crossing, knee


@pytest.mark.parametrize("root", [1.5, 3.0, 77.0])
def test_a_crossing_is_found_to_a_4096th_of_the_logarithmic_interval(root: float) -> None:
    found = crossing(lambda x: x - root, 1, 100)
    assert found.low <= root <= found.high
    assert math.log(found.high / found.low) == pytest.approx(math.log(100) / 4096)
    assert found.value == pytest.approx(root, rel=math.log(100) / 4096)


def test_falling_differences_cross_as_rising_ones_do() -> None:
    assert crossing(lambda x: 5 - x, 1, 100).value == pytest.approx(5, rel=2e-3)


def test_an_exact_zero_ends_the_search() -> None:
    """10 is the first middle of 1 and 100, and 3.16 the second one."""
    asked: list[float] = []

    def difference(x: float) -> float:
        asked.append(x)
        return 10 - x

    told: list[None] = []
    found = crossing(difference, 1, 100, tell=lambda: told.append(None))
    assert found == Crossing(10.0, 10.0, 10.0, 0)
    assert (asked, len(told)) == ([1, 100, 10.0], 3)
    found = crossing(lambda x: math.copysign(1, x - 3), 1, 100, steps=1)
    assert found == Crossing(math.sqrt(10), 1, 10.0, 0)


def test_a_difference_that_is_zero_at_both_ends_or_at_one() -> None:
    assert crossing(lambda x: 0.0, 1, 4) == Crossing(None, 1, 4, 0)
    # At the lower end it is 0 and above negative: what is 0 itself ends the search.
    assert crossing(lambda x: 0.0 if x == 1 else -1.0, 1, 4, steps=1) == Crossing(
        math.sqrt(2), 1, 2.0
    )


def test_a_search_halves_twelve_times_and_tells_of_each_evaluation() -> None:
    told: list[None] = []
    crossing(lambda x: x - 3, 1, 100, tell=lambda: told.append(None))
    assert len(told) == 2 + 12


@pytest.mark.parametrize(("shift", "sign"), [(1000, -1), (-1000, 1)])
def test_where_nothing_crosses_the_sign_is_told(shift: float, sign: int) -> None:
    found = crossing(lambda x: x - shift, 1, 100)
    assert (found.value, found.sign, found.low, found.high) == (None, sign, 1, 100)


def test_one_point_tells_its_sign() -> None:
    assert crossing(lambda x: x - 3, 2, 2) == Crossing(None, 2, 2, -1)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0), (3, 1)])
def test_an_interval_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="need 0 < low <= high"):
        crossing(lambda x: x, low, high)


def test_the_knee_of_two_straight_lines_is_where_they_meet() -> None:
    assert knee([0, 1, 2, 3, 4, 5], [0, 4, 8, 9, 10, 11]) == 2
    assert knee([10, 12, 20], [5, 9, 15]) == 1
    # What rounding leaves is not above the line.
    assert knee([0, 1, 2], [0, 1 + 1.9e-9, 2]) is None
    assert knee([0, 1, 2], [0, 1 + 2.1e-9, 2]) == 1


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 2], [0, 0.5, 2]),
        ([0, 1], [0, 1]),
        ([0, 1, 2], [2, 1, 0]),
        ([0, 1, 2], [1, 3, 1]),
        ([2, 3, 2], [0, 1, 2]),
    ],
    ids=[
        "a straight line",
        "it bends upwards",
        "two points",
        "it falls",
        "it ends as high",
        "it ends where it began",
    ],
)
def test_a_curve_that_does_not_bend_down_has_no_knee(x: list[float], y: list[float]) -> None:
    assert knee(x, y) is None
