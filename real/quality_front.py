"""Measures the quality of a study's points, and draws their front of speed and quality.

    python -m real.quality_front STUDY [loop=closed] [output_dir=DIR] [KEY=VALUE ...]

STUDY is a folder that ``python -m sim.study`` wrote. Its cells on eval sequences are measured; of a
search these are the front that its proxies gave, and the system as it stands. The model itself
computes what each cell serves. Printed are KL divergence and perplexity against full precision
beside the simulated speed, with paired 95 % intervals over sequences. The command then says which
points no other beats in both, and how well the proxy orders them.

``weights``, ``quantiser``, ``group``, ``dtype``, ``device`` and ``threads`` are as in ``python -m
real.quality``. Other words are overrides of every cell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from real.lossy.assess import Assessment, Loop, identity
from real.lossy.loss import Estimate, divergence_difference
from real.lossy.requests import WRONG_INPUT, Request, request_of, told_of_quality
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import own_folder
from sim.results.fronts import front
from sim.results.intervals import OVER
from sim.results.labels import Labels, labels_in, write_on
from sim.results.latency import decode_time_and_tokens
from sim.results.looks import looks, save
from sim.results.paired import Paired, paired
from sim.setup.configure import group_of
from sim.study.dataset import read_cells
from sim.study.kept_rows import last_cells
from sim.study.rows import AXIS, DONE, words_of
from sim.verbs.table import verb_of
from sim.verbs.words import read

NOT_OURS = ("outputs=", "trace.split=")
AROUND = ("model", "hardware", "devices", "trace", "workload", "budget")
"""Groups of what a system runs on and with: points that differ in one are on no common front."""
WIDTH = 150
ROOM_POINTS = 16.0, 9.0
"""The room that a number takes in the figure, width and height in points."""


@dataclass(frozen=True)
class FrontPoint:
    """A cell with its measured quality.

    - ``varied``: what the study set in it, by key; empty for the system as it stands.
    - ``faster``, ``worse``: compared with the system as it stands, paired: how many times as fast
      it decodes, and how much larger its KL is in nats a token. Both are None for that system
      itself, and where the study does not have it.
    - ``proxy``: shares of gate weight served low, and skipped.
    """

    number: int
    varied: Mapping[str, Any]
    loop: Loop
    faster: Paired | None
    worse: Estimate | None
    on_front: bool = False

    @property
    def around(self) -> str:
        """What of its machine, work and budget the study set in it."""
        found = {key: of for key, of in self.varied.items() if group_of(key) in AROUND}
        return json.dumps(found, sort_keys=True)

    @property
    def speed(self) -> float:
        return float(self.loop.replayed.result.summary["decode_tokens_per_s"])

    @property
    def loss(self) -> float:
        return self.loop.decode.divergence.value

    @property
    def labels(self) -> Labels:
        return labels_in(self.loop.replayed.result.summary)

    @property
    def proxy(self) -> tuple[float, float]:
        found = self.loop.replayed.result.summary["quality_proxy"]
        return float(found["low_mass"]), float(found["skip_mass"])

    def row(self) -> dict[str, Any]:
        """A flat row, for a table; ``sim.pareto`` reads it."""
        low, skip = self.proxy
        flat = {
            "number": self.number,
            **{AXIS + key: value for key, value in self.varied.items()},
            **self.loop.row(),
        }
        flat |= {"low_mass": low, "skip_mass": skip, "on_front": self.on_front}
        if self.faster is not None and self.worse is not None:
            flat |= {
                "faster": self.faster.speedup,
                "faster_interval": self.faster.interval,
                "worse": self.worse.value,
                "worse_interval": [self.worse.low, self.worse.high],
            }
        return flat


def cells_of(study: Path, overrides: Sequence[str]) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Every cell of ``study`` that ran on eval sequences: what is varied in it, and its overrides.

    The system as it stands is first. Raise ValueError where there is no such cell.
    """
    found: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    for row in sorted(last_cells(read_cells(study)), key=lambda row: str(row["key"])):
        if row["status"] != DONE or row["trace.split"] != "eval":
            continue
        varied = {
            key.removeprefix(AXIS): value
            for key, value in row.items()
            if key.startswith(AXIS) and value is not None and key != f"{AXIS}trace.split"
        }
        words = [word for word in words_of(row["overrides"]) if not word.startswith(NOT_OURS)]
        found.append((varied, (*words, "trace.split=eval", *overrides)))
    if not found:
        raise ValueError(
            f"{study} has no finished cell on eval sequences; name a study that python -m"
            " sim.study ran"
        )
    return sorted(found, key=lambda cell: bool(cell[0]))


def measure(study: Path, request: Request, console: Console) -> tuple[list[FrontPoint], Assessment]:
    """Measure every cell of the study on eval sequences, in the loop that is asked for."""
    cells = cells_of(study, request.overrides)
    (name,) = request.loops
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Shown(*columns, console=console) as progress:
        task = progress.add_task("loading", total=None)

        def track(what: str, sequence: int) -> None:
            progress.update(task, description=f"{what}: sequence {sequence}")

        assessment = Assessment(
            [words for _, words in cells], request.weights, request.scheme, track
        )
        loops = [assessment.assess(words, (name,))[0] for _, words in cells]
    return points_of([varied for varied, _ in cells], loops), assessment


def points_of(varied: Sequence[Mapping[str, Any]], loops: Sequence[Loop]) -> list[FrontPoint]:
    """The points, numbered from 1 by their loss.

    They are compared with the first cell if nothing is varied in it.
    """
    base = loops[0]
    base_ns = _decode_ns(base)
    found = []
    for values, loop in zip(varied, loops, strict=True):
        is_compared = not varied[0] and loop is not base
        faster = paired(_decode_ns(loop), base_ns) if is_compared else None
        worse = divergence_difference(loop.decoded, base.decoded) if is_compared else None
        found.append(FrontPoint(0, values, loop, faster, worse))
    # A bound (it knows the future, or does what no machine can) is no system: it beats nobody, and
    # is on no front.
    speeds = np.array([point.speed for point in found])
    losses = np.array([point.loss if point.labels.is_system else np.nan for point in found])
    arounds, marks = np.array([point.around for point in found]), np.zeros(len(found), np.bool_)
    for around in np.unique(arounds):
        here = arounds == around
        marks[here] = front(speeds[here], losses[here])
    order = sorted(range(len(found)), key=lambda i: (found[i].loss, -found[i].speed, i))
    return [
        FrontPoint(
            number, found[i].varied, found[i].loop, found[i].faster, found[i].worse, bool(marks[i])
        )
        for number, i in enumerate(order, 1)
    ]


def _decode_ns(loop: Loop) -> Any:
    return decode_time_and_tokens(loop.replayed.result.frames)[0]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side does not vary."""
    table = pl.DataFrame({"first": [*map(float, first)], "second": [*map(float, second)]})
    return float(table.select(pl.corr("first", "second", method="spearman")).item())


def print_points(points: Sequence[FrontPoint], console: Console) -> None:
    """Print the front and the system as it stands, least lost first, and what each point is.

    All points are in quality.json.
    """
    first = points[0].loop
    title = (
        f"{surroundings(points)}: quality measured ({first.name} loop, {first.decode.sequences}"
        " sequences)"
    )
    table = Table(
        "",
        "front",
        "decode tokens/s",
        "x as it stands",
        "gate weight low; skipped, %",
        "KL, millinats a token",
        "less that as it stands",
        "perplexity, %",
        title=title,
        title_justify="left",
        caption=f"In brackets, paired: {OVER}",
    )
    shown = [point for point in points if point.on_front or not point.varied]
    for point in shown:
        low, skip = point.proxy
        table.add_row(
            str(point.number),
            "*" if point.on_front else "",
            f"{point.speed:.3g}",
            escape(str(point.faster)) if point.faster else "",
            f"{100 * low:.3g}; {100 * skip:.3g}",
            escape(point.loop.decode.divergence.times(1000).text()),
            escape(point.worse.times(1000).text()) if point.worse else "",
            escape(point.loop.decode.increase.times(100).text()),
        )
    console.print(table)
    for line in [*(f"{point.number}: {told(point.varied)}" for point in shown), *sentences(points)]:
        print_text(console, line)


def surroundings(points: Sequence[FrontPoint]) -> str:
    """Trace, machine and budget in words, as far as all points share them."""
    summaries = [point.loop.replayed.result.summary for point in points]
    parts = (
        {str(one["trace"]["name"]) for one in summaries},
        {str(one["hardware"]) for one in summaries},
        {f"{one['budget']['resident_share']:.0%} resident" for one in summaries},
    )
    return ", ".join(name for part in parts if len(part) == 1 for name in part)


def told(varied: Mapping[str, Any]) -> str:
    """What is varied, in short; "as it stands" where nothing is."""
    short = {
        key.removeprefix("precision.").removeprefix("cache."): value
        for key, value in varied.items()
    }
    words = [
        f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in short.items()
    ]
    return " ".join(words) or "as it stands"


def sentences(points: Sequence[FrontPoint]) -> list[str]:
    """What a reader must know, which points are on the front, and what the proxies are worth."""
    on = [point for point in points if point.on_front]
    sums = [sum(point.proxy) for point in points]
    losses = [point.loss for point in points]
    lines = told_of_quality([point.loop for point in points])
    fronts = "the front" if len({point.around for point in points}) == 1 else "their own front"
    lines.append(
        f"{len(on)} of {len(points)} points are on {fronts} of speed and measured KL: "
        f"{', '.join(str(point.number) for point in on)}."
    )
    if len(points) < 3:
        return lines  # two points are always in one order or the other
    orders = [
        ("what is low or skipped", sums),
        ("what is low", [point.proxy[0] for point in points]),
        ("what is skipped", [point.proxy[1] for point in points]),
    ]
    ranks = {name: rank_correlation(values, losses) for name, values in orders}
    if found := ", ".join(f"{name}: {of:.2f}" for name, of in ranks.items() if not np.isnan(of)):
        of_what = "the measured KL with the share of gate weight of"
        lines.append(f"Rank correlation of {of_what} {found}.")
    return lines


def name_points(axis: Any, points: Sequence[FrontPoint]) -> None:
    """Number the system as it stands and the front's points, on their left, where there is room."""
    taken: list[Any] = []
    for point in sorted(points, key=lambda point: bool(point.varied)):
        at = axis.transData.transform((1000 * point.loss, point.speed)) * 72 / axis.figure.dpi
        is_clear = all(
            abs(at[0] - x) > ROOM_POINTS[0] or abs(at[1] - y) > ROOM_POINTS[1] for x, y in taken
        )
        if (point.on_front or not point.varied) and is_clear:
            taken.append(at)
            axis.annotate(
                str(point.number),
                (1000 * point.loss, point.speed),
                fontsize=7,
                xytext=(-4, 4),
                ha="right",
                textcoords="offset points",
            )


def draw(points: Sequence[FrontPoint], place: Path) -> list[Path]:
    """Draw ``quality_front.png`` and ``.svg``; return both files.

    They show speed by measured KL with the front joined, and what the proxies said of it.
    """
    with looks("quality_front") as plt:
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        x = np.array([1000 * point.loss for point in points])
        ends = np.array(
            [
                [
                    1000 * (end if end is not None else point.loss)
                    for end in (point.loop.decode.divergence.low, point.loop.decode.divergence.high)
                ]
                for point in points
            ]
        )
        for around in dict.fromkeys(point.around for point in points):
            on = [point for point in points if point.on_front and point.around == around]
            line = sorted((1000 * point.loss, point.speed) for point in on)
            if line:
                axes[0].plot(
                    *zip(*line, strict=True), color="0.6", drawstyle="steps-post", zorder=1
                )
        axes[0].set_xscale("log" if (x > 0).all() else "linear")
        for point, at, (low, high) in zip(points, x, ends, strict=True):
            colour = "black" if not point.varied else "#b4552d" if point.on_front else "0.6"
            marker = "s" if not point.varied else "o"
            bars = np.maximum([[at - low], [high - at]], 0)
            axes[0].errorbar(
                at, point.speed, xerr=bars, fmt=marker, color=colour, markersize=4, linewidth=0.7
            )
        axes[0].set_ylabel("decode (tokens/s, simulated)")
        for column, (name, marker) in enumerate((("served low", "o"), ("skipped", "^"))):
            axes[1].plot(
                x, [100 * point.proxy[column] for point in points], marker, markersize=4, label=name
            )
        axes[1].set_ylabel("share of gate weight, % (the proxies)")
        axes[1].legend(frameon=False, fontsize=8)
        for axis in axes:
            axis.set_xlabel("KL to full precision, measured (millinats a token)")
            axis.set_xscale(axes[0].get_xscale())
        name_points(axes[0], points)
        title = (
            f"{surroundings(points)}. Square: the system as it stands; coloured: the measured front"
        )
        figure.suptitle(title)
        # Points go by their numbers here, as in the table.
        write_on(figure, [(f"point {point.number}", point.labels) for point in points])
        return list(save(figure, place / "quality_front"))


def write(
    directory: Path, points: Sequence[FrontPoint], assessment: Assessment, request: Request
) -> None:
    """Write the figure, and ``quality.json`` as ``python -m real.quality`` does, a row a point."""
    content = {
        "schema": 1,
        **identity(assessment, request.weights),
        "rows": [point.row() for point in points],
    }
    (directory / "quality.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draw(points, directory)


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    try:
        study = Path(read(verb_of("real quality_front"), words).places[0])
        closed = [] if any(word.startswith("loop=") for word in words) else ["loop=closed"]
        request = request_of("real quality_front", [*words, *closed])
        if len(request.loops) != 1:
            raise ValueError("one loop, open or closed: leave out loop=both")
        place = request.output_dir
        with own_folder(place, overwrite=request.overwrite):
            points, assessment = measure(study, request, Console(stderr=True))
            write(place, points, assessment, request)
    except WRONG_INPUT as error:
        print(f"quality_front: {str(error).strip()}", file=sys.stderr)
        return 2
    out = Console(width=WIDTH)
    print_points(points, out)
    print_text(out, f"files: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
