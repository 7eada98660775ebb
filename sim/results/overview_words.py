"""How an overview of many runs is told: a sentence for each budget, one table, and files of it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.process.files import write_json
from sim.process.printing import print_text
from sim.results.intervals import OVER
from sim.results.labels import told
from sim.results.overview import BOUND, LOSSLESS, LOSSY, Line, Overview, Refused, Set
from sim.results.overview_figure import draw
from sim.results.paired import TOO_FEW

HEAD = ("resident", "system", "tokens/s", "95 %", "x best", "95 %")
MOST_LINES = 40
"""Of more runs only the fastest at each budget are printed."""
MOST_REFUSED = 3
"""Of runs that are refused for one reason so many are named."""
NUMBER = re.compile(r"\d+(\.\d+)?")
UNPAIRED = "not paired, for times by sequence are not known"
"""Why nobody is called the fastest of runs that left only their summaries."""
NONE = "-"
"""In place of a number that there is not."""
LEAST_LINES = 3
"""So many at least."""


def verdict(found: Set) -> str:
    """Who is fastest at one budget: of lossless systems, of lossy ones, and by how much. Of one run
    alone only its speed.
    """
    best = found.best
    where = f"With {100 * found.share:.3g} % of the experts resident ({found.gib:.3g} GiB)"
    if not found.decodes:
        return f"{where} nothing is decoded, so nobody decodes fastest."
    if best.kind == BOUND:
        return f"{where} there is no system, only {best.name}: {best.tokens_per_s:.3g} tokens/s."
    others = [line for line in found.lines if line is not best]
    if not others:
        of_kind = "" if best.kind == LOSSLESS else f" ({best.kind})"
        return f"{where} {best.name}{of_kind} decodes {best.tokens_per_s:.3g} tokens/s."
    near = [
        line.name
        for line in others
        if line.kind == best.kind and line.ahead is not None and not line.ahead.is_decided
    ]
    speed = f"{best.tokens_per_s:.3g} tokens/s"
    parts = [f"{where} {best.name} is the fastest {best.kind} system, {speed}"]
    if near:
        tied = f"{', '.join([best.name, *near])} tie as the fastest {best.kind} systems"
        parts = [f"{where} {tied}, {best.name} with {speed}"]
    few = any(line.ahead and line.ahead.verdict == TOO_FEW for line in others)
    if few or any(line.kind == best.kind and line.ahead is None for line in others):
        why = TOO_FEW.removeprefix("cannot tell: ") if few else UNPAIRED
        parts = [
            f"{where} {best.name} has the highest speed of {best.kind} systems, {speed} (not sure: {why})"
        ]
    for kind, words in ((LOSSY, "and lossy"), (BOUND, "and no system")):
        line = next((one for one in others if one.kind == kind and best.kind != kind), None)
        if line is not None:
            parts.append(f"{line.name} is {_times(line, best)} as fast {words}")
    return "; ".join(parts) + "."


def _times(line: Line, best: Line) -> str:
    if line.ahead is not None:
        return str(line.ahead)
    return f"{line.tokens_per_s / best.tokens_per_s:.2f}x"


def cells(line: Line, found: Set) -> tuple[str, ...]:
    """What a table has of a run, as `HEAD` names it."""
    ahead = line.ahead
    return (
        f"{found.share:.1%}",
        line.name if line.kind == LOSSLESS else f"{line.name} ({line.kind})",
        f"{line.tokens_per_s:.3g}" if found.decodes else NONE,
        _between(line.interval),
        _times_best(line, found),
        _between(ahead.interval if ahead else None),
    )


def _times_best(line: Line, found: Set) -> str:
    if not found.decodes:
        return NONE
    return "1" if line is found.best else f"{line.tokens_per_s / found.best.tokens_per_s:.2f}"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.3g} to {ends[1]:.3g}"


def notes(found: Overview) -> Iterator[str]:
    """What must be said below a table: labels, what an interval is of, and what was refused."""
    yield from told(found.named())
    lossless = all(one.best.kind == LOSSLESS for one in found.sets)
    other = "" if lossless else " (where there is none: the fastest lossy one, else the bound)"
    yield f"x best: against the fastest lossless system at the budget{other}, paired. {OVER}"
    reasons: dict[str, list[Refused]] = {}
    for one in found.refused:
        # What differs by its numbers alone is one reason: pool 0, pool 3 ..
        reasons.setdefault(NUMBER.sub("0", one.why), []).append(one)
    for alike in reasons.values():
        words = "; ".join(one.words for one in alike[:MOST_REFUSED])
        more = f" and {len(alike) - MOST_REFUSED} more" if len(alike) > MOST_REFUSED else ""
        yield f"refused ({len(alike)}): {alike[0].why}: {words}{more}"


def show(found: Overview, console: Console) -> None:
    """Print one table, a sentence for each budget, and what must be said of the numbers."""
    most = max(LEAST_LINES, MOST_LINES // max(1, len(found.sets)))
    for title in found.titles:
        table = Table(*HEAD, title=escape(title), box=SIMPLE_HEAD, pad_edge=False)
        table.columns[1].overflow = "fold"
        for column in table.columns[2:]:
            column.no_wrap = True
        for one in found.sets:
            if one.title == title:
                for line in one.lines[:most]:
                    table.add_row(*map(escape, cells(line, one)))
                table.add_section()
        console.print(table)
        for one in found.sets:
            if one.title == title:
                print_text(console, verdict(one))
    for text in (*notes(found), *_not_shown(found, most)):
        print_text(console, text)


def _not_shown(found: Overview, most: int) -> Iterator[str]:
    """How many runs the tables leave out, and of whom they have no run at all."""
    left = [line.name for one in found.sets for line in one.lines[most:]]
    shown = {line.name for one in found.sets for line in one.lines[:most]}
    if left:
        nowhere = [name for name in dict.fromkeys(left) if name not in shown]
        more = f", and {len(nowhere) - MOST_REFUSED} others" if len(nowhere) > MOST_REFUSED else ""
        whom = f", all of {', '.join(nowhere[:MOST_REFUSED])}{more}" if nowhere else ""
        runs = "runs are" if len(left) > 1 else "run is"
        yield f"{len(left)} slower {runs} in table.csv, .md and .json alone{whom}"


def write(found: Overview, directory: Path) -> list[Path]:
    """Write ``table.csv``, ``table.md``, ``table.json`` and, where anything is decoded,
    ``figure.png`` and ``.svg``; return them.
    """
    rows = [_row(line, one) for one in found.sets for line in one.lines]
    drawn = replace(found, sets=tuple(one for one in found.sets if one.decodes))
    files = [directory / f"table.{kind}" for kind in ("csv", "md", "json")]
    with files[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["status"])
        writer.writeheader()
        writer.writerows(rows)
    files[1].write_text("\n".join(_markdown(found)) + "\n", encoding="utf-8")
    content = {
        "answers": [verdict(one) for one in found.sets],
        "labels": told(found.named()),
        "runs": rows,
        "refused": [{"words": one.words, "why": one.why} for one in found.refused],
    }
    write_json(files[2], content)
    return [*files, *(draw(drawn, directory / "figure") if drawn.sets else ())]


def _row(line: Line, found: Set) -> dict[str, Any]:
    low, high = line.interval or (None, None)
    best = found.best if found.decodes else None
    ahead = line.ahead
    fast = ahead.interval if ahead and ahead.interval else (None, None)
    return {
        "of": found.title,
        "resident_share": found.share,
        "budget_gib": found.gib,
        "system": line.name,
        "decode_tokens_per_s": line.summary["decode_tokens_per_s"],
        "low": low,
        "high": high,
        "kind": line.kind,
        "times_best": ahead.speedup if ahead else 1.0 if line is best else None,
        "times_low": fast[0],
        "times_high": fast[1],
        "verdict": ahead.verdict if ahead else "",
        "hit_ratio": line.summary["hit_ratio"],
        "waits": line.waits,
        "labels": "; ".join(told([("", line.labels)])),
    }


def _markdown(found: Overview) -> Iterator[str]:
    for title in found.titles:
        yield f"## {title}\n"
        yield f"| {' | '.join(HEAD)} |"
        yield "|---" * len(HEAD) + "|"
        for one in found.sets:
            if one.title == title:
                for line in one.lines:
                    yield f"| {' | '.join(cells(line, one))} |"
        yield ""
        yield from (f"{verdict(one)}\n" for one in found.sets if one.title == title)
    yield from (f"- {text}" for text in notes(found))
