"""The figures of runs and comparisons in Python: where time went, with labels above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.answers.comparison import COMPUTE, Comparison
from sim.results.frames import Frames
from sim.results.intervals import OVER
from sim.results.labels import labels_in, write_on
from sim.results.stalls import STALL_PARTS
from sim.values.units import NS_PER_MS, NS_PER_S

BINS = 60
"""At most so many bars: the mean of neighbouring steps, where there are more."""
COLOURS = ("0.85", *(f"C{number}" for number in range(10)), "black")
"""Of computing, then of each part of waiting, in the order of `STALL_PARTS`."""


def time_by_cause(frames: Frames, summary: Mapping[str, Any]) -> Any:
    """A figure: the mean time of a decoding step (of any step, where none decodes), by its cause,
    over the run.
    """
    parts = step_parts_ns(frames)
    is_decode = np.array([step.decode for step in frames.workload.steps], np.bool_)
    shown = np.flatnonzero(is_decode) if is_decode.any() else np.arange(len(is_decode))
    edges = np.unique(np.linspace(0, len(shown), min(BINS, len(shown)) + 1).astype(np.int64))
    figure, axis = _panels(1, (8.0, 4.0))
    base = np.zeros(len(edges) - 1)
    for colour, (part, time_ns) in zip(COLOURS, parts.items(), strict=True):
        mean_ms = np.add.reduceat(time_ns[shown], edges[:-1]) / np.diff(edges) / NS_PER_MS
        if mean_ms.any():
            name = _name(part)
            axis.bar(
                edges[:-1], mean_ms, np.diff(edges), base, align="edge", color=colour, label=name
            )
            base += mean_ms
    what = "decoding step" if is_decode.any() else "step"
    axis.set(xlabel=f"{what}, in order", ylabel=f"time of a {what} (ms)", xlim=(0, len(shown)))
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(f"{summary['system']} on {summary['hardware']}, {summary['model']}", fontsize=9)
    write_on(figure, [("", labels_in(summary))])
    return figure


def step_parts_ns(frames: Frames) -> dict[str, NDArray[np.int64]]:
    """By part (computing, then `STALL_PARTS`) the time that each step spent on it, in ns. The parts
    of a step sum to its length; what lies between steps is no step's.
    """
    record = frames.record
    start, end = (
        np.array(record.step_start_ns, np.int64),
        np.array(record.step_end_ns, np.int64),
    )
    idle_from = np.array(record.idle_start_ns, np.int64)
    at = np.searchsorted(start, idle_from, side="right") - 1
    inside = (at >= 0) & (np.array(record.idle_end_ns, np.int64) <= end[at])
    parts = {COMPUTE: end - start}
    for part in STALL_PARTS:
        parts[part] = np.zeros(len(start), np.int64)
        np.add.at(parts[part], at[inside], frames.stalls[part][inside])
        parts[COMPUTE] = parts[COMPUTE] - parts[part]
    return parts


def compared(found: Comparison) -> Any:
    """A figure: where the time of either run went, and how many times as fast A is, with its 95 %
    intervals.
    """
    figure, (left, right) = _panels(2, (10.0, 3.2))
    names = [f"{letter}: {name}" for letter, name in zip("AB", found.names, strict=True)]
    base = np.zeros(2)
    for colour, (part, times_ns) in zip(COLOURS, found.parts.items(), strict=True):
        if any(times_ns):
            spent = np.array(times_ns) / NS_PER_S
            left.barh(names, spent, left=base, label=_name(part), color=colour)
            base += spent
    left.invert_yaxis()
    left.set(xlabel="time of the whole run (s)", xlim=(0, 1.03 * base.max()))
    left.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for row, ratio in enumerate(found.ratios.values()):
        low, high = ratio.interval or (ratio.speedup, ratio.speedup)
        right.plot([low, high], [row, row], color="black")
        right.plot(ratio.speedup, row, "o", color="black" if ratio.is_decided else "0.6")
    right.axvline(1.0, color="0.6", linestyle=":", linewidth=1)
    right.set_yticks(range(len(found.ratios)), list(found.ratios))
    right.invert_yaxis()
    right.set(xlabel="B's time over A's (above 1: A is faster)")
    right.margins(x=0.2, y=0.3)
    verdict = found.verdict.verdict
    told = f"A is {verdict} than B" if found.verdict.is_decided else f"who is faster: {verdict}"
    figure.suptitle(f"{told}; {OVER}", fontsize=9)
    write_on(figure, zip(("A", "B"), found.labels, strict=True))
    return figure


def _name(part: str) -> str:
    return "computing" if part == COMPUTE else f"waiting: {part.replace('_', ' ')}"


def _panels(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure that makes room for its labels, and its axes. It is closed: a notebook shows what a
    cell returns, and would show an open one a second time.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=size, layout="constrained")
    plt.close(figure)
    return figure, axes
