"""Knees and crossings of curves whose knees and crossings are known."""

from __future__ import annotations

import math

import pytest

from sim.answers.breakeven import crossing, knee


@pytest.mark.parametrize("root", [1.5, 3.0, 77.0])
def test_a_crossing_is_found_to_a_4096th_of_the_logarithmic_interval(root: float) -> None:
    found = crossing(lambda x: x - root, 1, 100)
    assert found.low <= root <= found.high
    assert math.log(found.high / found.low) == pytest.approx(math.log(100) / 4096)
    assert found.value == pytest.approx(root, rel=math.log(100) / 4096)


def test_falling_differences_cross_as_rising_ones_do() -> None:
    assert crossing(lambda x: 5 - x, 1, 100).value == pytest.approx(5, rel=2e-3)


def test_an_exact_zero_ends_the_search() -> None:
    asked: list[None] = []
    assert crossing(
        lambda x: 10 - x, 1, 100, tell=lambda: asked.append(None)
    ).value == pytest.approx(10)
    assert len(asked) <= 14


@pytest.mark.parametrize(("shift", "sign"), [(1000, -1), (-1000, 1)])
def test_where_nothing_crosses_the_sign_is_told(shift: float, sign: int) -> None:
    found = crossing(lambda x: x - shift, 1, 100)
    assert (found.value, found.sign, found.low, found.high) == (None, sign, 1, 100)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 2), (3, 1)])
def test_an_interval_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="need 0 < low < high"):
        crossing(lambda x: x, low, high)


def test_the_knee_of_two_straight_lines_is_where_they_meet() -> None:
    assert knee([0, 1, 2, 3, 4, 5], [0, 4, 8, 9, 10, 11]) == 2


@pytest.mark.parametrize(
    ("x", "y"),
    [([0, 1, 2], [0, 1, 2]), ([0, 1, 2], [0, 0.5, 2]), ([0, 1], [0, 1]), ([0, 1, 2], [2, 1, 0])],
    ids=["a straight line", "it bends upwards", "two points", "it falls"],
)
def test_a_curve_that_does_not_bend_down_has_no_knee(x: list[float], y: list[float]) -> None:
    assert knee(x, y) is None
