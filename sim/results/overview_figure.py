"""The figure of an overview: speed by memory, a panel for each machine, model and work."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from sim.results.intervals import beside
from sim.results.labels import told, write_on
from sim.results.looks import COLOURS, MARKERS, looks, save
from sim.results.overview import BOUND, LOSSY, Overview, Set

MOST_PANELS = 6
"""More kinds of work than these are in the tables alone."""
TALLEST = 1.35
"""The height of the axis, in the highest speed."""
LABEL_INCHES = 0.12
"""The height of a line of labels above the panels."""
TITLE_LETTERS = 90
"""As long as a line of a title may be beside a legend."""
MOST_NAMES = 24
"""Of more systems only the fastest are drawn."""


def draw(found: Overview, stem: Path) -> tuple[Path, Path]:
    """Write the figure beside ``stem``; return its files."""
    titles = found.titles[:MOST_PANELS]
    many = {title: [one for one in found.sets if one.title == title] for title in titles}
    rows = max((len(one.lines) for sets in many.values() for one in sets), default=1)
    labels = LABEL_INCHES * len(told(found.named()))
    with looks(stem.name) as plt:
        figure, axes = plt.subplots(
            len(titles),
            1,
            figsize=(8, labels + len(titles) * (2.2 + 0.2 * min(rows, MOST_NAMES))),
            layout="constrained",
            squeeze=False,
        )
        for axis, (title, sets) in zip(axes.flat, many.items(), strict=True):
            (_bars if len(sets) == 1 else _curves)(axis, sets)
            shown = textwrap.fill(title, TITLE_LETTERS)
            axis.set_title(shown.replace("$", r"\$"), fontsize=8)  # a $ begins no formula
        share_scale([axis for axis in axes.flat if not axis.get_ylabel()])
        left = len(found.titles) - len(titles)
        more = f"{left} more in the table" if left else ""
        intervals = (line.interval for sets in many.values() for one in sets for line in one.lines)
        over = beside(intervals, "95 % intervals over the trace's sequences")
        figure.suptitle("; ".join(filter(None, [over, more])))
        write_on(figure, found.named())
        return save(figure, stem)


def share_scale(panels: list[Any]) -> None:
    """Draw the bars of all panels on one scale: a longer bar is a faster run in any of them."""
    longest = max((axis.get_xlim()[1] for axis in panels), default=0.0)
    for axis in panels:
        axis.set_xlim(0, longest)


def _bars(axis: Any, sets: list[Set]) -> None:
    """One budget: a bar for each system, fastest on top."""
    (one,) = sets
    lines = one.lines[:MOST_NAMES]
    for at, line in enumerate(lines):
        low, high = line.interval or (line.tokens_per_s, line.tokens_per_s)
        axis.barh(
            at,
            line.tokens_per_s,
            xerr=[[max(0.0, line.tokens_per_s - low)], [max(0.0, high - line.tokens_per_s)]],
            color=_colour(line.kind),
            hatch="//" if line.kind == BOUND else None,
            edgecolor="white",
            capsize=2,
        )
    marks = [f" ({line.kind})" if line.kind in (LOSSY, BOUND) else "" for line in lines]
    axis.set_yticks(
        range(len(lines)), [line.name + mark for line, mark in zip(lines, marks, strict=True)]
    )
    axis.invert_yaxis()
    axis.set_xlabel(f"decode (tokens/s), {one.share:.1%} resident ({one.gib:.3g} GiB)")


def _colour(kind: str) -> str:
    return COLOURS[1] if kind == LOSSY else "0.7" if kind == BOUND else COLOURS[0]


def _curves(axis: Any, sets: list[Set]) -> None:
    """Several budgets: a curve for each system."""
    names = dict.fromkeys(line.name for one in reversed(sets) for line in one.lines)
    for number, name in enumerate(list(names)[:MOST_NAMES]):
        points = [(one, line) for one in sets for line in one.lines if line.name == name]
        speeds = [line.tokens_per_s for _, line in points]
        ends = [line.interval or (line.tokens_per_s,) * 2 for _, line in points]
        kind = points[0][1].kind
        axis.errorbar(
            [one.gib for one, _ in points],
            speeds,
            yerr=[
                [max(0.0, speed - low) for speed, (low, _) in zip(speeds, ends, strict=True)],
                [max(0.0, high - speed) for speed, (_, high) in zip(speeds, ends, strict=True)],
            ],
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            linestyle="--" if kind == BOUND else ":" if kind == LOSSY else "-",
            capsize=2,
            label=f"{name} ({kind})" if kind in (LOSSY, BOUND) else name,
        )
    axis.set(xlabel="expert bytes on the device (GiB)", ylabel="decode (tokens/s)")
    # An interval over few sequences may be many times as long as the axis.
    axis.set_ylim(0, TALLEST * max(line.tokens_per_s for one in sets for line in one.lines))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
