"""The one table and the one figure of all pairs, and the lines that are asked of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from real.suite.gather import CALIBRATION, HALF, basis_of
from real.suite.pairs import MEANS, ONE, STALL, Group, Pair, groups
from real.suite.prediction import Line, Row, lines
from sim.results.labels import Labels, write_on
from sim.results.looks import COLOURS, MARKERS, looks, save

PHONE = "OnePlus 15R"
PUBLISHED = "runs that others published"
MOST_STALL, MOST_WALL = 0.043, 0.11
"""The median errors asked of the phone's tokens: below a straight line on the bytes that were read,
which has 4.3 % for stalls; and 11 % of the wall time."""
LINES_STALL = {"Gemma-4-26B-A4B": 0.344, "gpt-oss-120b": 0.371}
"""The median errors that a straight line on the bytes has in stalls of the phone's other runs, by
model. Its constants are those of Qwen3's run, as the machine's are (`moelab reproduce phone=DIR`).
"""
LETTERS = 6.0
"""The size of labels."""
NARROW, WIDE = 2.0, 5.0
"""Sizes of a mark: one token of a run, and a whole run."""


def all_lines(pairs: Sequence[Pair]) -> list[Line]:
    """What is asked of the pairs of each machine that has targets."""
    found = []
    measured = [pair for pair in pairs if pair.basis == CALIBRATION]
    for machine in dict.fromkeys(pair.machine for pair in measured):
        of = [pair for pair in measured if pair.machine == machine]
        rows = [
            Row(
                pair.source,
                pair.run,
                pair.share or 0.0,
                pair.measured_s,
                pair.predicted_s,
                not pair.is_scored,
            )
            for pair in of
        ]
        found += [
            Line(f"{machine}, {line.what}", line.found, line.target, line.holds)
            for line in lines(rows, max(pair.noise for pair in of))
        ]
    asked = [(HALF, "", STALL, MOST_STALL), (HALF, "", ONE, MOST_WALL)]
    asked += [(basis_of(of), f", {of}", STALL, most) for of, most in LINES_STALL.items()]
    for basis, of_model, quantity, target in asked:
        errors = [
            abs(pair.error)
            for pair in pairs
            if (pair.machine, pair.basis, pair.quantity) == (PHONE, basis, quantity)
            and pair.is_scored
        ]
        if errors:
            middle = median(errors)
            what = f"{PHONE}{of_model}, {quantity}: median error"
            found.append(Line(what, middle, target, middle <= target))
    return found


HEAD = ("machine", "predicted from", "time of", "scored", "median", "worst", "mean", "not scored")


def cells(group: Group) -> tuple[str, ...]:
    """A line of the table of errors, as `HEAD` names it."""
    of_runs = f"a {group.quantity}" if group.quantity in MEANS else group.quantity
    first = group.machine, group.basis, of_runs
    if not group.errors:
        return (*first, "0", "", "", "", str(group.others))
    signed = (f"{100 * group.worst:+.1f} %", f"{100 * group.mean:+.1f} %")
    count = str(len(group.errors))
    return (*first, count, f"{100 * group.median:.1f} %", *signed, str(group.others))


def line_cells(line: Line) -> tuple[str, ...]:
    """A line of what is asked: what, found, asked, and whether it holds."""
    if line.what.endswith("tau"):
        found, target = f"{line.found:.2f}", f"{line.target:.2f}"
    else:
        found, target = f"{100 * line.found:+.1f} %".removeprefix("+"), f"{100 * line.target:g} %"
    return line.what, found, target, "holds" if line.holds else "**missed**"


def markdown(pairs: Sequence[Pair]) -> str:
    """Both tables and what must be said of the gates, as the page has them."""
    return "\n".join(
        [
            *_table(HEAD, (cells(group) for group in groups(pairs))),
            "",
            *_table(("line", "found", "asked", ""), map(line_cells, all_lines(pairs))),
            "",
            *_table(("machines", "gates that are not the model's own"), iter(of_gates(pairs))),
            "",
        ]
    )


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> list[str]:
    def line(of: Sequence[str]) -> str:
        return f"| {' | '.join(of)} |".replace("|  |", "| |")

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def draw(pairs: Sequence[Pair], stem: Path) -> tuple[Path, Path]:
    """Draw every pair but waits, predicted over measured; write the figure beside ``stem``. Colours
    tell what a prediction is made of, marks where it ran.
    """
    shown = [pair for pair in pairs if pair.quantity in (*MEANS, ONE)]
    colours = _each(map(attrgetter("basis"), shown), COLOURS)
    marks = _each(map(_place, shown), MARKERS)
    with looks(stem.name) as plt:
        figure, axis = plt.subplots(figsize=(8.6, 5.6), layout="constrained")
        times = [1e3 * time for pair in shown for time in (pair.measured_s, pair.predicted_s)]
        ends = min(times) / 1.25, max(times) * 1.25
        axis.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
        axis.fill_between(
            ends,
            [end / 1.25 for end in ends],
            [end * 1.25 for end in ends],
            color="0.93",
            zorder=-1,
        )
        for pair in shown:
            colour = colours[pair.basis]
            axis.plot(
                1e3 * pair.measured_s,
                1e3 * pair.predicted_s,
                marks[_place(pair)],
                color=colour,
                markerfacecolor=colour if pair.is_scored else "none",
                markersize=NARROW if pair.quantity == ONE else WIDE,
                markeredgewidth=0.5 if pair.quantity == ONE else 0.9,
                alpha=0.8,
            )
        _legend(axis, colours, marks)
        axis.set(
            xscale="log",
            yscale="log",
            xlim=ends,
            ylim=ends,
            xlabel="measured (ms a token)",
            ylabel="predicted (ms a token)",
        )
        axis.set_aspect("equal")
        figure.suptitle(
            "filled: the run had no part in its prediction; grey: within 25 %", fontsize=9
        )
        write_on(figure, _labels(shown), LETTERS)
        return save(figure, stem)


def _place(pair: Pair) -> str:
    """Where a pair's run was: on a machine of ours, or on one of many that others have."""
    return PUBLISHED if pair.source == "published" else re.sub(r", .*$", "", pair.machine)


def _each(names: Iterable[str], looks_of: Sequence[str]) -> dict[str, str]:
    """A look for each name, in the order in which they come first."""
    return dict(zip(dict.fromkeys(names), cycle(looks_of), strict=False))


def _legend(axis: Any, colours: Mapping[str, str], marks: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[object] = [Patch(color=colour, label=basis) for basis, colour in colours.items()]
    handles += [
        Line2D([], [], color="0.4", marker=mark, linestyle="", label=place)
        for place, mark in marks.items()
    ]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _labels(pairs: Sequence[Pair]) -> list[tuple[str, Labels]]:
    """The labels of the figure: those of published runs are too many to be told one by one."""
    published = [pair for pair in pairs if pair.source == "published"]
    told = named([pair for pair in pairs if pair.source != "published"])
    gates = dict.fromkeys(pair.gates for pair in published if pair.gates)
    if gates:
        moved = sum("TRANSPLANTED" in text for text in gates)
        count = len(dict.fromkeys(pair.machine for pair in published))
        text = f"SYNTHETIC gates of {len(gates)} kinds, {moved} of them TRANSPLANTED"
        told.append((f"{PUBLISHED}, {count} machines", Labels(synthetic=text)))
    return told


def named(pairs: Sequence[Pair]) -> list[tuple[str, Labels]]:
    """What must be said of the gates of each machine's runs."""
    found = dict.fromkeys(
        (pair.machine, gates) for pair in pairs for gates in pair.gates.split("; ") if gates
    )
    return [(machine, Labels(synthetic=gates)) for machine, gates in found]


def of_gates(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """The same by text: all of its machines, and the text."""
    machines: dict[str, list[str]] = {}
    for machine, labels in named(pairs):
        machines.setdefault(str(labels.synthetic), []).append(machine)
    return [("; ".join(of), text) for text, of in machines.items()]
