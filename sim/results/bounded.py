"""Lower bounds in a summary and in words, also where none were computed (contract C115)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.bounds.bounds import MAX, METHODS, NONE, RELAXATION, Bounds
from sim.values.units import seconds

NOT_COMPUTED = f"{NONE}: bounds={MAX} or bounds={RELAXATION} computes them"
"""What a summary says in place of the method where no bounds were computed."""


def bounds_section(bounds: Bounds | None, is_timed: bool) -> dict[str, Any]:
    """The section ``bounds`` of a summary; its numbers are null where none were computed.

    ``is_timed``: whether requests arrive over time. A faster system then composes other steps, so
    the bounds hold for these steps only.
    """
    relaxed_ns = None if bounds is None else bounds.relaxed_ns
    steps = " of these steps" if is_timed else ""
    return {
        "compute_s": None if bounds is None else seconds(bounds.compute_ns),
        "link_s": None if bounds is None else seconds(bounds.link_ns),
        "relaxed_s": None if relaxed_ns is None else seconds(relaxed_ns),
        "lower_s": None if bounds is None else seconds(bounds.lower_ns),
        "method": NOT_COMPUTED if bounds is None else f"{bounds.method}{steps}",
        "belady_loads": None if bounds is None else bounds.belady_loads,
        "why_no_belady": None if bounds is None else bounds.why_no_belady,
    }


def bound_told(summary: Mapping[str, Any]) -> str:
    """A clause that says how much faster any cache or schedule can be at most.

    Where no bounds were computed it says which setting tells that. Empty where nothing can.
    """
    gap, method = summary["gap"], summary["bounds"]["method"]
    if method == NOT_COMPUTED:
        return f"; bounds={MAX} computes what no cache or schedule can beat"
    if gap is None or method not in METHODS:
        return ""
    return (
        f"; no cache or schedule of these bytes and precisions can be over {1 + gap:.2f}x as fast"
    )
