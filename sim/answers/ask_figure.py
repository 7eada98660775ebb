"""Draws the answer to one question: the speed of every system, by what it serves."""

from __future__ import annotations

from pathlib import Path

from sim.answers.ask_parts import BOUND, KINDS, LOSSLESS, LOSSY, Found, alike
from sim.answers.ask_words import common, names_of
from sim.results.intervals import beside
from sim.results.labels import write_on
from sim.results.looks import COLOURS, NEUTRAL, looks, save

TONES = {LOSSLESS: COLOURS[0], LOSSY: COLOURS[1], BOUND: NEUTRAL}
MOST = {LOSSLESS: 10, LOSSY: 12, BOUND: 4}
"""The most lines of a kind; the table has the others."""

BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""Keeps the target's line out of what is written across it."""


def draw(directory: Path, found: Found) -> None:
    """Write ``figure.png`` and ``figure.svg`` into ``directory``."""
    bars = [
        (kind, group)
        for kind in KINDS
        for group in list(alike(found.of(kind)).values())[: MOST[kind]]
    ]
    with looks("ask") as plt:
        from matplotlib.ticker import LogLocator

        figure, axis = plt.subplots(figsize=(9, 1.9 + 0.24 * len(bars)), layout="constrained")
        for place, (kind, group) in enumerate(bars):
            row = group[0]
            low, high = row.interval or (row.tokens_per_s, row.tokens_per_s)
            axis.errorbar(
                row.tokens_per_s,
                place,
                xerr=[[max(0.0, row.tokens_per_s - low)], [max(0.0, high - row.tokens_per_s)]],
                fmt="o",
                color=TONES[kind],
                markersize=6,
                capsize=2,
            )
            axis.annotate(
                f"{row.tokens_per_s:.3g}, {row.share:.0%} resident",
                (max(high, row.tokens_per_s), place),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                bbox=BEHIND,
            )
        labels = [f"{names_of(group)} ({group[0].precision})" for _, group in bars]
        axis.set_yticks(range(len(bars)), labels, fontsize=7)
        axis.invert_yaxis()
        # Systems differ by a factor of a hundred: on a logarithmic axis a ratio is a length.
        axis.set_xscale("log")
        if found.target is not None:
            axis.axvline(found.target, color="0.2", linestyle="--", linewidth=1, zorder=0)
        least, most = axis.get_xlim()
        axis.set_xlim(least, most * (most / least) ** 0.22)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.xaxis.set_minor_formatter("{x:g}")
        if found.target is not None:
            axis.annotate(
                f"target {found.target:g}",
                (found.target, -0.9),
                fontsize=7,
                ha="center",
                bbox=BEHIND,
            )
        over = ", 95 % intervals over the trace's sequences"
        axis.set_xlabel(f"decode (tokens/s){beside((rows[0].interval for _, rows in bars), over)}")
        handles = [
            plt.Line2D([], [], marker="o", linestyle="", color=TONES[kind]) for kind in KINDS
        ]
        axis.legend(handles, KINDS, loc="lower right")
        figure.suptitle(f"{found.model} on {found.machine}, {found.memory_gib:g} GiB", fontsize=9)
        write_on(figure, [(row.system, common(row)) for row in found.rows])
        save(figure, directory / "figure")
