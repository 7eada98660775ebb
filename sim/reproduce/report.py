"""Prints and writes the results of ``python -m sim.reproduce``.

Each paper gets a table, a figure, counts, and everything as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.process.files import write_json
from sim.process.printing import print_text
from sim.reproduce.roles import Claim, Paper
from sim.reproduce.rules import published
from sim.reproduce.verdicts import VERDICTS, Verdict, counts
from sim.results.labels import Labels, told, write_on
from sim.results.looks import COLOURS, MARKERS, NEUTRAL, looks, save

SHORT = 70
"""The most letters of a remark in the printed table; the written one has all of them."""
LOOKS = {
    verdict: (COLOURS[nth], MARKERS[nth])
    for verdict, nth in (("holds", 0), ("reachable", 4), ("misses", 1))
}
"""The colour and the marker of each verdict; others are grey dots."""


def number(value: Any) -> str:
    """``value`` as text with three significant digits.

    >>> number(0.46428), number((1.26, 1.44)), number(None)
    ('0.464', '1.26, 1.44', '')
    """
    if value is None:
        return ""
    if isinstance(value, tuple | list):
        return ", ".join(number(one) for one in value)
    return f"{value:.3g}"


def said(claim: Claim) -> str:
    """The published value of a claim as text, with its unit and bound."""
    mark = {"above": "> ", "below": "< "}.get(claim.bound or "", "")
    return f"{mark}{number(claim.value)} {claim.unit}".strip()


def found(verdict: Verdict) -> str:
    """The simulated value as text in the claim's unit, with its interval over the grid."""
    if verdict.simulated is None:
        return "cannot run" if verdict.failures else ""
    claim, factor = verdict.claim, 1.0
    if claim.role not in ("identity",) and claim.unit.startswith("%"):
        factor = 100.0
    elif claim.role != "identity" and claim.rule:
        factor = 1 / claim.scale
    points = verdict.value.points if verdict.value and len(verdict.value.points) > 1 else ()
    whole = verdict.simulated if isinstance(verdict.simulated, tuple) else (verdict.simulated,)
    shown = (
        (min(points), max(points))
        if points and claim.rule in ("speedup_range", "reduction")
        else whole
    )
    text = " to ".join(number(one * factor) for one in shown)
    if verdict.ends and verdict.ends[0] < verdict.ends[1] and claim.rule != "order":
        text += f" [{number(verdict.ends[0] * factor)}, {number(verdict.ends[1] * factor)}]"
    return text


def remark(verdict: Verdict) -> str:
    """The reason for a verdict: a misprint's arithmetic, where it is met, or what the role says."""
    claim = verdict.claim
    if verdict.verdict == "misprint":
        return claim.misprint or ""
    if verdict.verdict == "reachable":
        width = f", interval {verdict.width:.2g}x wide" if verdict.width else ""
        return f"met at {'; '.join(verdict.met_at)}{width}"
    if verdict.failures and verdict.simulated is None:
        return next(iter(verdict.failures.values()))[:160]
    return claim.why or claim.used or claim.note or ""


def table(paper: Paper, verdicts: Sequence[Verdict]) -> Table:
    """The printed table of scored claims; the written one (`markdown`) also has their words."""
    shown = Table(
        "claim",
        "where",
        "published",
        # Rich takes a word in brackets for markup, and would leave it out.
        escape("simulated [grid]"),
        "role",
        "verdict",
        "remark",
        pad_edge=False,
        title=escape(f"{paper.title}, {paper.source}"),
    )
    for v in verdicts:
        if v.claim.scored:
            cells = (
                v.claim.id,
                v.claim.where.split(" / ")[0],
                said(v.claim),
                found(v),
                v.claim.role,
                v.verdict,
                shorten(remark(v), SHORT, placeholder=" ..."),
            )
            shown.add_row(*map(escape, cells))
    return shown


def counted(verdicts: Sequence[Verdict]) -> str:
    """The counts by role, as ``identity: 21 holds, 4 misprint. input: 18. ...``"""
    parts = []
    for role, by_verdict in counts(verdicts).items():
        named = [f"{by_verdict[name]} {name}" for name in VERDICTS if by_verdict.get(name)]
        parts.append(f"{role}: {', '.join(named) if named else by_verdict.get('not scored', 0)}")
    return ". ".join(parts) + "."


def markdown(paper: Paper, verdicts: Sequence[Verdict]) -> str:
    """The written table of every claim; those that are not scored have their reasons."""
    lines = [
        f"# {paper.title} ({paper.source})",
        "",
        counted(verdicts),
        "",
        (
            "| claim | where | says | published | simulated [over the grid] | role | verdict |"
            " remark |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for v in verdicts:
        cells = (
            v.claim.id,
            v.claim.where,
            v.claim.says,
            said(v.claim),
            found(v),
            v.claim.role,
            v.verdict,
            remark(v),
        )
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join([*lines, "", *(f"- {text}" for text in told(by_claim(verdicts)))]) + "\n"


def by_claim(verdicts: Sequence[Verdict]) -> list[tuple[str, Labels]]:
    """The labels of every run at a documented default, under the id of its claim."""
    return [(v.claim.id, labels) for v in verdicts for _, labels in v.labels]


def write(folder: Path, paper: Paper, verdicts: Sequence[Verdict]) -> None:
    """Write ``NAME.md``, ``NAME.json``, ``NAME.png`` and ``NAME.svg`` of a paper into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{paper.name}.md").write_text(markdown(paper, verdicts), encoding="utf-8")
    rows: list[Mapping[str, Any]] = [
        {
            **asdict(v.claim),
            "verdict": v.verdict,
            "simulated": v.simulated,
            "ends": v.ends,
            "width": v.width,
            "sign": v.sign,
            "inside": v.inside,
            "met_at": v.met_at,
            "points": v.value.points if v.value else (),
            "intervals": v.value.intervals if v.value else (),
            "failures": dict(v.failures),
            "labels": told(v.labels),
        }
        for v in verdicts
    ]
    write_json(folder / f"{paper.name}.json", rows)
    draw(folder / f"{paper.name}.png", paper, verdicts)


def draw(path: Path, paper: Paper, verdicts: Sequence[Verdict]) -> None:
    """Draw simulated over published values by claim: a mark for the default, a bar for the grid.

    At 1 a value is the published one.
    """
    rows = [
        v
        for v in verdicts
        if v.claim.role in ("predicted", "transferred") and v.claim.rule != "order" and v.value
    ]
    with looks(paper.title) as plt:
        from matplotlib.ticker import LogLocator, NullLocator

        figure, axes = plt.subplots(figsize=(8, 1.2 + 0.2 * len(rows)), layout="constrained")
        for place, v in enumerate(reversed(rows)):
            target = published(v.claim)
            middle = sum(target) / len(target) if target else 1.0
            colour, marker = LOOKS.get(v.verdict, (NEUTRAL, "o"))
            if v.ends and v.ends[0] > 0:
                axes.plot(
                    [end / middle for end in v.ends],
                    [place, place],
                    color=colour,
                    alpha=0.4,
                    linewidth=4,
                )
            if v.value is not None and v.value.point > 0:
                axes.plot([v.value.point / middle], [place], marker, color=colour, markersize=4)
            elif v.value is not None:
                axes.text(
                    0.01,
                    place,
                    "the other sign",
                    color=colour,
                    fontsize=6,
                    va="center",
                    transform=axes.get_yaxis_transform(),
                )
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="simulated / published", yticks=range(len(rows)))
        axes.set_yticklabels([f"{v.claim.id} {v.claim.where}" for v in reversed(rows)], fontsize=6)
        for name, (colour, marker) in LOOKS.items():
            axes.plot([], [], marker, color=colour, label=name)
        axes.legend(frameon=False, fontsize=7, loc="best")
        axes.set_title(
            f"{paper.title}: mark at the documented default, bar over the grid of unstated parameters",
            fontsize=8,
        )
        write_on(figure, [("", labels) for v in rows for _, labels in v.labels], size=5)
        save(figure, path.with_suffix(""))


def show(
    console: Console, paper: Paper, verdicts: Sequence[Verdict], checks: Sequence[str]
) -> None:
    """Print a paper's table, its worked checks, its counts and its labels."""
    console.print(table(paper, verdicts))
    for line in (*checks, f"{paper.title}: {counted(verdicts)}", *told(by_claim(verdicts))):
        print_text(console, line)
