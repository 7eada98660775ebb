"""Draws a sweep: increase of perplexity against what is varied, with 95 % intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from real.lossy.sweep import SMALL, Sweep
from sim.results.looks import looks, save

TICKS = (-5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5, 1e6, 1e8)


def draw(sweep: Sweep, model: str, place: Path) -> list[Path]:
    """Draw a sweep as ``place`` with the endings .png and .svg; return both files."""
    with looks("quality_figures") as plt:
        panels = 2 if sweep.grid else 1
        figure, axes = plt.subplots(
            1, panels, figsize=(5.4 * panels, 4.0), squeeze=False, layout="constrained"
        )
        _curves(axes[0][0], sweep)
        if sweep.grid:
            _grid(figure, axes[0][1], sweep)
        figure.suptitle(f"{sweep.title}: {model}", fontsize=10)
        figure.supxlabel(f"{sweep.source}, measured on {SMALL}", fontsize=6, wrap=True)
        return list(save(figure, place))


def _curves(axis: Any, sweep: Sweep) -> None:
    for curve in sweep.frame["curve"].unique(maintain_order=True):
        rows = sweep.frame.filter(pl.col("curve") == curve).sort("x")
        x, y = rows["x"].to_numpy(), 100 * rows["increase"].to_numpy()
        low, high = (
            100 * rows[f"increase_{end}"].fill_null(rows["increase"]).to_numpy()
            for end in ("low", "high")
        )
        axis.errorbar(
            x,
            y,
            yerr=np.maximum([y - low, high - y], 0),
            label=curve,
            marker="o",
            markersize=3.5,
            capsize=2,
        )
    axis.set_xlabel(sweep.axis)
    axis.set_ylabel("increase of perplexity, %")
    # One axis for small increases and for ruin: linear around 0, logarithmic beyond.
    axis.set_yscale("symlog", linthresh=1)
    bottom, top = axis.get_ylim()
    ticks = [tick for tick in TICKS if bottom <= tick <= top]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axis.set_yticks([], minor=True)
    axis.axhline(0, color="black", linewidth=0.6)
    if sweep.axis.startswith("bits"):
        axis.set_xscale("log", base=2)
        axis.set_xticks([2, 4, 8], ["2", "4", "8"])
        axis.invert_xaxis()
    axis.legend(frameon=False, fontsize=8)


def _grid(figure: Any, axis: Any, sweep: Sweep) -> None:
    values = 100 * np.array(sweep.grid)
    bound = float(np.abs(values).max()) or 1.0
    image = axis.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-bound, vmax=bound)
    axis.set_xlabel("expert")
    axis.set_ylabel("site")
    axis.grid(visible=False)
    figure.colorbar(image, ax=axis, label=f"{sweep.grid_label}, %")
