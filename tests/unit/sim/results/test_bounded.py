"""Lower bounds in a summary and in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.results.bounded import NOT_COMPUTED, bound_told, bounds_section

FOUND = {
    "compute_ns": 1_500_000_000,
    "link_ns": 2_250_000_000,
    "relaxed_ns": 3_000_000_000,
    "lower_ns": 4_000_000_000,
    "method": "relaxation",
    "belady_loads": 7,
    "why_no_belady": None,
}
SECTION = {
    "compute_s": 1.5,
    "link_s": 2.25,
    "relaxed_s": 3.0,
    "lower_s": 4.0,
    "method": "relaxation",
    "belady_loads": 7,
    "why_no_belady": None,
}


def test_bounds_are_told_in_seconds_and_of_whose_steps() -> None:
    found: Any = SimpleNamespace(**FOUND)
    assert bounds_section(found, False) == SECTION
    found.relaxed_ns, found.why_no_belady = None, "several pools"
    assert bounds_section(found, True) == SECTION | {
        "relaxed_s": None,
        "method": "relaxation of these steps",
        "why_no_belady": "several pools",
    }
    nothing = dict.fromkeys(SECTION) | {"method": NOT_COMPUTED}
    assert bounds_section(None, True) == bounds_section(None, False) == nothing


@pytest.mark.parametrize(
    ("gap", "method", "told"),
    [
        (
            0.257,
            "max",
            "; no cache or schedule of these bytes and precisions can be over 1.26x as fast",
        ),
        (
            0.0,
            "relaxation",
            "; no cache or schedule of these bytes and precisions can be over 1.00x as fast",
        ),
        (0.257, "max of these steps", ""),
        (None, "max", ""),
        (None, NOT_COMPUTED, "; bounds=max computes what no cache or schedule can beat"),
    ],
)
def test_what_can_be_gained_is_said_or_how_to_have_it(
    gap: float | None, method: str, told: str
) -> None:
    assert bound_told({"gap": gap, "bounds": {"method": method}}) == told
