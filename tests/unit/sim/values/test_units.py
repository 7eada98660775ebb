"""Conversions at their limits, and numbers that are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sim.values.units import MOST, gb_per_s, gib, ms, require_number, seconds, tflops, us


def test_times_become_whole_nanoseconds() -> None:
    assert (us(6.0), us(0.5), us(1e-3), us(0.0)) == (6_000, 500, 1, 0)
    assert (ms(3.5), ms(14), ms(1e-6)) == (3_500_000, 14_000_000, 1)
    assert all(type(value) is int for value in (us(6.0), ms(3.5), gib(1.5)))


def test_what_is_less_than_half_a_nanosecond_vanishes_and_halves_go_to_even() -> None:
    assert (us(0.0004), us(0.0005), us(0.0015)) == (0, 0, 2)


def test_gib_is_two_to_the_thirty_and_gb_ten_to_the_nine() -> None:
    assert gib(1) == 1_073_741_824
    assert gib(0.5) == 536_870_912
    assert gb_per_s(31.5) == 31_500_000_000.0
    assert tflops(165.2) == 165.2e12


def test_seconds_are_nanoseconds_over_a_billion() -> None:
    assert seconds(1_500_000_000) == 1.5
    assert seconds(1) == 1e-9


@pytest.mark.parametrize("value", [0, 0.0, 1, 2.5, MOST])
def test_a_number_from_the_minimum_up_is_taken(value: float) -> None:
    require_number("x", value)


@pytest.mark.parametrize("value", [-1e-9, -1, math.inf, -math.inf, math.nan])
def test_a_number_out_of_range_is_refused_with_its_name_and_value(value: float) -> None:
    with pytest.raises(ValueError, match=rf"a\.b={value!r} must be a number >= 0"):
        require_number("a.b", value)


@pytest.mark.parametrize(("value", "whole"), [(1e308, False), (1.1e15, False), (10**30, True)])
def test_a_number_that_arithmetic_would_overflow_with_is_refused_with_its_range(
    value: float, whole: bool
) -> None:
    with pytest.raises(ValueError, match=r"a\.b=.* must be a (whole )?number from 1 to 1e\+15$"):
        require_number("a.b", value, minimum=1, whole=whole)


def test_a_seed_may_be_of_any_size() -> None:
    require_number("seed", 2**128, maximum=math.inf, whole=True)


@pytest.mark.parametrize("value", ["24GiB", "fast", None, True, [1]])
def test_what_is_no_number_is_refused_without_a_guess_at_its_suffix(value: Any) -> None:
    with pytest.raises(
        ValueError, match="must be a number in the unit of its name, without a suffix"
    ):
        require_number("hardware.memory_gib", value)


def test_a_whole_number_may_not_be_a_float() -> None:
    require_number("n", 3, minimum=3, whole=True)
    with pytest.raises(ValueError, match=r"n=3\.0 must be a whole number"):
        require_number("n", 3.0, whole=True)
    with pytest.raises(ValueError, match="n=2 must be a whole number >= 3"):
        require_number("n", 2, minimum=3, whole=True)
