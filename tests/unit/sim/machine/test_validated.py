"""A machine's errors: by hand, in words, and what is refused."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import pytest

from sim.machine.validated import Validated, _told, validated


def test_errors_are_factors_in_either_direction_by_hand() -> None:
    """Twice as long, half as long, and 10 % too long."""
    found = validated([("a", 2.0, 1.0), ("a", 1.0, 2.0), ("b", 1.1, 1.0)])
    assert (found.runs, found.systems) == (3, 2)
    assert found.median_factor == pytest.approx(2)
    assert found.worst_factor == pytest.approx(2)
    square = (2 * log(2) ** 2 + log(1.1) ** 2) / 3
    assert found.log_error == pytest.approx(sqrt(square))


def test_a_bias_that_all_runs_share_counts_as_error() -> None:
    found = validated([("a", 1.2, 1.0), ("b", 1.2, 1.0)])
    assert exp(found.log_error) == pytest.approx(1.2)


def test_an_error_is_told_in_per_cent_or_as_a_factor() -> None:
    small = Validated(18, 6, 1.0324, 1.331, 0.1)
    assert str(small) == (
        "tokens/s are within 33 % of 18 measured runs on this machine (median 3.2 %)"
    )
    assert small.short == "33 %, 18 runs"
    large = Validated(1, 1, 3.23, 3.23, 1.2)
    assert str(large) == "tokens/s are within 3.2 times of 1 measured run on this machine"
    assert large.short == "3.2 times, 1 run"
    some = Validated(3, 1, 1.1, 1.2, 0.1, only="all experts on the device")
    assert str(some) == (
        "tokens/s are within 20 % of 3 measured runs on this machine (median 10 %) with all experts on"
        " the device"
    )
    with pytest.raises(ValueError, match=r"^hardware\.validated\.only=5 must be text"):
        Validated(1, 1, 1.0, 1.0, 0.0, only=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"runs": 0}, "runs=0 must be a whole number >= 1"),
        ({"systems": 7}, "systems=7 exceeds its runs=6"),
        ({"median_factor": 0.9}, "median_factor=0.9 must be from 1"),
        ({"worst_factor": "much"}, "worst_factor='much' must be a number"),
        ({"log_error": -1}, "log_error=-1 must be from 0"),
    ],
)
def test_what_is_no_error_is_refused_by_its_key(wrong: dict[str, Any], told: str) -> None:
    given = {"runs": 6, "systems": 3, "median_factor": 1.1, "worst_factor": 1.2, "log_error": 0.1}
    with pytest.raises(ValueError, match=f"hardware.validated.{told}"):
        Validated(**(given | wrong))


def test_errors_take_the_ends_of_their_ranges_and_nothing_beyond() -> None:
    Validated(1, 1, 1, 1, 0)
    Validated(2, 2, 1e6, 1e6, 20)
    for name, high, unit in (
        ("median_factor", "1.001e6", "times"),
        ("worst_factor", "1.001e6", "times"),
        ("log_error", "20.001", "a logarithm"),
    ):
        given = {"median_factor": 1, "worst_factor": 1, "log_error": 0} | {name: float(high)}
        with pytest.raises(ValueError, match=rf"^hardware\.validated\.{name}=.* give {unit}$"):
            Validated(2, 2, **given)
    assert [_told(factor) for factor in (1.994, 1.995, 1)] == ["99 %", "2 times", "0 %"]


@pytest.mark.parametrize("runs", [[], [("a", 0.0, 1.0)], [("a", 1.0, 2.0), ("b", 1.0, -1.0)]])
def test_errors_of_no_run_or_of_no_time_are_refused(runs: list[tuple[str, float, float]]) -> None:
    with pytest.raises(ValueError, match=r"^errors need runs with times above 0, got \["):
        validated(runs)
