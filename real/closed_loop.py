"""Measures how far an open-loop simulation of lossy systems is off.

    python -m real.closed_loop [systems=a,b,c] [mode=both] [KEY=VALUE ...]

A trace holds the full-precision model's gates, but low precision and skips change what later gates
choose. Here the model runs inside the simulation and shows that: routing agreement by layer and by
distance from the prompt, and the shifts of hit ratio, bytes moved and decoding time from the open
to the closed loop. It does so teacher-forced and free-running, with paired 95 % intervals. Lossless
systems must show exactly zero: the command says so, and fails if one does not.

``weights``, ``quantiser``, ``group``, ``dtype``, ``device`` and ``threads`` are as in ``python -m
real.quality``. Any other word is an override of ``python -m sim`` for all systems.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from real.lossy.assess import Assessment, identity
from real.lossy.closed import measure
from real.lossy.loops import MODES, Shift
from real.lossy.loss import Estimate
from real.lossy.requests import WRONG_INPUT, Request, request_of
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.results.folders import own_folder
from sim.results.intervals import OVER
from sim.results.labels import Labels, told, write_on
from sim.results.looks import looks, save
from sim.verbs.table import verb_of
from sim.verbs.words import read

SYSTEMS = ("lru", "hobbit", "fate", "floe", "adapmoe", "swapmoe", "mixtral_offloading_code")
WIDTH = 156


def own_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], Request]:
    """Systems, modes, and the request of the other words. Raise ValueError for wrong ones."""
    own = read(verb_of("real closed_loop"), words).own
    mode = own.get("mode", "both")
    systems = tuple(own["systems"].split(",")) if "systems" in own else SYSTEMS
    return systems, MODES if mode == "both" else (mode,), request_of("real closed_loop", words)


def print_shifts(shifts: Sequence[Shift], console: Console) -> None:
    """Print a table for each mode: agreement, then each shift from open to closed loop."""
    for mode in dict.fromkeys(shift.mode for shift in shifts):
        table = Table(
            "system",
            "same experts, %",
            "hit ratio: shift, points",
            "bytes moved: change, %",
            "decode time: change, %",
            "KL, millinats" if mode == MODES[0] else "same tokens, %",
            title=f"From the open to the closed loop, {mode}",
            title_justify="left",
            caption=f"In brackets: {OVER}",
        )
        for shift in shifts:
            if shift.mode != mode:
                continue
            last = (
                shift.divergence.times(1000)
                if shift.divergence is not None
                else shift.same_tokens.times(100)
            )
            cells = [
                shift.routing.times(100),
                shift.hit_ratio[2].times(100),
                shift.moved_bytes[2].times(100),
                shift.time[2].times(100),
                last,
            ]
            table.add_row(shift.system, *(escape(_text(cell)) for cell in cells))
        console.print(table)
    for line in (*told(_named(shifts)), *sentences(shifts)):
        print_text(console, line)


def _named(shifts: Sequence[Shift]) -> list[tuple[str, Labels]]:
    return [(shift.system, shift.labels) for shift in shifts]


def _text(estimate: Estimate) -> str:
    value, low, high = estimate.value, estimate.low, estimate.high
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.3g}, {high:.3g}]"


def sentences(shifts: Sequence[Shift]) -> list[str]:
    """What lossless systems show, and how agreement falls with distance, in words."""
    found = []
    lossless = [shift for shift in shifts if shift.lossless]
    if lossless:
        names = ", ".join(dict.fromkeys(shift.system for shift in lossless))
        exact = all(shift.is_zero for shift in lossless)
        found.append(
            f"Lossless ({names}): {'exactly zero everywhere' if exact else 'NOT zero: a defect'}."
        )
    for shift in shifts:
        if not shift.lossless:
            steps = ", ".join(
                f"{name}: {estimate.value:.1%}" for name, estimate in shift.by_distance
            )
            found.append(f"{shift.system}, {shift.mode}: same experts by decoded token: {steps}.")
    return found


def draw(shifts: Sequence[Shift], place: Path) -> list[Path]:
    """Draw agreement by site and by distance, one colour a system.

    Lines are solid for teacher-forced, dashed for free-running. Return the files.
    """
    with looks("closed_loop") as plt:
        figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.0), layout="constrained")
        colours = {
            name: f"C{i}" for i, name in enumerate(dict.fromkeys(shift.system for shift in shifts))
        }
        for shift in shifts:
            line = {
                "color": colours[shift.system],
                "linestyle": "-" if shift.mode == MODES[0] else "--",
            }
            label = shift.system if shift.mode == shifts[0].mode else None
            axes[0].plot(
                100 * np.array(shift.by_site), label=label, marker="o", markersize=3, **line
            )
            values = [100 * estimate.value for _, estimate in shift.by_distance]
            axes[1].plot(range(len(values)), values, marker="o", markersize=3, **line)
        axes[0].set_xlabel("site")
        axes[1].set_xlabel("decoded token")
        axes[1].set_xticks(
            range(len(shifts[0].by_distance)), [name for name, _ in shifts[0].by_distance]
        )
        axes[0].set_ylabel("experts that both models choose, %")
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        # The title stands above, since a text below would lie on the legend.
        title = (
            "Gates of the lossy model against full precision (solid: teacher-forced, dashed:"
            " free-running)"
        )
        figure.suptitle(title)
        write_on(figure, _named(shifts))
        return list(save(figure, place / "closed_loop"))


def write(
    directory: Path, shifts: Sequence[Shift], assessment: Assessment, request: Request
) -> None:
    """Write ``closed_loop.json``, ``closed_loop.parquet`` (a row a system and mode), the figure."""
    rows: list[dict[str, Any]] = [shift.row() for shift in shifts]
    more = [
        {
            "system": s.system,
            "mode": s.mode,
            "by_site": [v if np.isfinite(v) else None for v in s.by_site],
            "by_distance": {name: e.value for name, e in s.by_distance},
        }
        for s in shifts
    ]
    content = {
        "schema": 1,
        **identity(assessment, request.weights),
        "rows": rows,
        "agreement": more,
        "labels": told(_named(shifts)),
    }
    (directory / "closed_loop.json").write_text(
        json.dumps(content, indent=1) + "\n", encoding="utf-8"
    )
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(directory / "closed_loop.parquet")
    draw(shifts, directory)


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Exit status: 0; 1 where a lossless system shows a shift; 2, with one message on stderr, for
    wrong input.
    """
    try:
        systems, modes, request = own_words(words)
        place = request.output_dir
        with own_folder(place, overwrite=request.overwrite):
            shifts, assessment = measure(systems, modes, request, Console(stderr=True))
            write(place, shifts, assessment, request)
    except WRONG_INPUT as error:
        print(f"closed_loop: {str(error).strip()}", file=sys.stderr)
        return 2
    out = Console(width=WIDTH)
    print_shifts(shifts, out)
    print_text(out, f"files: {place}")
    return 0 if all(shift.is_zero for shift in shifts if shift.lossless) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
