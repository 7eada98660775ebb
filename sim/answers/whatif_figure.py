"""Draws a what-if: speed against what is varied, with 95 % intervals and where it turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.answers.whatif import Answer
from sim.results.intervals import beside
from sim.results.labels import write_on
from sim.results.looks import MARKERS, looks, save

BEYOND = 3.0
"""How many times as high as the highest point, or as low as the lowest, a figure's ends may be."""


def draw(directory: Path, found: Answer, system: str) -> None:
    """Write ``figure.png`` and ``figure.svg`` into ``directory``."""
    with looks("whatif") as plt:
        from matplotlib.ticker import LogLocator

        figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
        by_series = {
            row.series: [r for r in found.rows if r.series == row.series] for row in found.rows
        }
        if all(len(rows) == 1 for rows in by_series.values()):
            by_series = {"decode": list(found.rows)}
        for (name, rows), marker in zip(by_series.items(), MARKERS, strict=False):
            x, y = [row.value for row in rows], [row.tokens_per_s for row in rows]
            known = [row.interval or (row.tokens_per_s,) * 2 for row in rows]
            below = [max(0.0, speed - low) for speed, (low, _) in zip(y, known, strict=True)]
            above = [max(0.0, high - speed) for speed, (_, high) in zip(y, known, strict=True)]
            axis.errorbar(x, y, yerr=[below, above], marker=marker, capsize=3, label=name)
        for value, what, style in _turns(found):
            axis.axvline(
                value, color="0.4", linestyle=style, linewidth=1, label=f"{what}: {value:.3g}"
            )
        axis.set(xlabel=found.axis, ylabel="decode (tokens/s)")
        if found.is_log:
            # On logarithmic axes speed is a straight line where one resource limits it.
            axis.set(xscale="log", yscale="log")
            shown = sorted({row.value for row in found.rows})
            axis.set_xticks(shown, [f"{value:g}" for value in shown], minor=False)
            axis.set_xticks([], minor=True)
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axis.yaxis.set_minor_formatter("{x:g}")
        else:
            axis.set_ylim(0, None)
        is_cut = _cut(axis, [row.tokens_per_s for row in found.rows])
        axis.legend()
        about = f": {found.about}" if found.about else ""
        over = "\n95 % intervals over the trace's sequences"
        over += "; some end beyond the figure" if is_cut else ""
        shown_over = beside((row.interval for row in found.rows), over)
        figure.suptitle(f"{system}{about}{shown_over}")
        write_on(figure, found.labels)
        save(figure, directory / "figure")


def _cut(axis: Any, speeds: Sequence[float]) -> bool:
    """Leave out what is far from every point; return whether there was any. The interval of two
    sequences can be a hundred times as long as all else.
    """
    low, high = axis.get_ylim()
    least, most = max(low, min(speeds) / BEYOND) if low else low, min(high, max(speeds) * BEYOND)
    if (least, most) == (low, high):
        return False
    axis.set_ylim(least, most)
    return True


def _turns(found: Answer) -> list[tuple[float, str, str]]:
    lines = []
    even = found.break_even
    shown = [row.value for row in found.rows]
    if even is not None and even.value is not None and min(shown) <= even.value <= max(shown):
        lines.append((even.value, even.what, "--"))
    needed = found.target
    if needed is not None and needed.value is not None:
        lines.append((needed.value, "needed", "-."))
    if found.knee is not None:
        lines.append((found.knee, "knee", ":"))
    return lines
