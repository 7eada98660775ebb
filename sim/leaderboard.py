"""``python -m sim.leaderboard [name=leaderboard] [against=lru] [workers=N] [top=5]
[output_dir=DIR] [OVERRIDES...]``

Cache policies, predictors and selectors by decode speed, on sequences that none was fitted on: a
study whose rows become boards, one for each work, machine and size of slots (docs/leaderboard.md).
The same words again go on where it was stopped; runs of changed code are made again. Beside the
dataset lie ``leaderboard.html`` (no network needed), ``leaderboard.csv``, and a certificate of each
entrant against one of them. Exit status: 0, 2 for what cannot be run or written, 130 and 143 where
it was interrupted.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.board.certificates import certificate
from sim.board.entries import Board, Entry, Left, boards_of, check_entrant, entered
from sim.board.page import coverage_of, page
from sim.process.files import write_json, writing
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.results.intervals import OVER, beside
from sim.results.labels import told
from sim.results.overview import LOSSLESS
from sim.study.cells import plan_cells
from sim.study.conduct import conduct, say
from sim.study.dataset import read_cells
from sim.study.kept_rows import whole_rows
from sim.study.launchers import make_launcher
from sim.study.plan import read_plan
from sim.verbs.table import verb_of
from sim.verbs.words import read

PAGE, TABLE, CERTIFICATES = "leaderboard.html", "leaderboard.csv", "certificates"
WIDTH = 118
Files = dict[tuple[str, str], str]


@telling("what is finished is recorded, the same words go on")
def main(words: Sequence[str]) -> int:
    """Exit status, see above."""
    try:
        given = read(verb_of("leaderboard"), words)
        own = given.own
        plan = read_plan(own.get("name", "leaderboard")).with_last(given.overrides)
        if plan.search:
            raise ValueError(f"name={plan.name} is a search; a leaderboard is of a grid or a list")
        output_dir = Path(own.get("output_dir", f"outputs/{plan.name}"))
        options = {"workers": own["workers"]} if "workers" in own else {}
        against = own.get("against", "lru")
        planned = plan_cells(plan)
        check_entrant(against, planned)
        cells = [entered(cell) for cell in planned]
        conduct(plan.name, cells, make_launcher("pool", options), output_dir, False, say)
        recorded = whole_rows(read_cells(output_dir).to_dicts(), output_dir, compared=True)
        rows = {row["key"]: row for row in recorded}
        boards, left = boards_of(rows[cell.key] for cell in cells)
        command = shlex.join(["moelab", "leaderboard", *words])
        with writing(output_dir):
            write(boards, left, against, command, output_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(boards, left, against, int(own.get("top", 5)), Console(width=WIDTH))
    print(f"files: {output_dir / PAGE} {output_dir / TABLE} {output_dir / CERTIFICATES}/")
    return 0


def write(
    boards: Sequence[Board], left: Sequence[Left], against: str, command: str, output_dir: Path
) -> None:
    """Write the page, the table and the certificates. Those of an earlier call go."""
    folder = output_dir / CERTIFICATES
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    files: Files = {}
    for board in boards:
        base = board.entry(against)
        for one in board.entries if base is not None else ():
            if one is not base and base is not None:
                place = folder / f"{board.name}_{_plain(one.name)}_against_{_plain(base.name)}.json"
                content = certificate(board, one, base)
                write_json(place, content)
                files[board.name, one.name] = str(place)
    text = page(boards, left, against, files, command)
    (output_dir / PAGE).write_text(text, encoding="utf-8")
    pl.DataFrame(table(boards, against, files), infer_schema_length=None).write_csv(
        output_dir / TABLE
    )


def _plain(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_")


def table(
    boards: Sequence[Board], against: str, certificates: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """A row for each entry of each board, boards in order, entries in theirs."""
    rows = []
    for board in boards:
        base = board.entry(against)
        for place, one in enumerate(board.entries, 1):
            low, high = one.interval or (None, None)
            ahead = None if base is None or one is base else board.ahead(one, base)
            ahead_low, ahead_high = (ahead.interval if ahead else None) or (None, None)
            rows.append(
                {
                    "board": board.title,
                    "place": place,
                    "entrant": one.name,
                    "part": one.part,
                    "kind": one.kind,
                    "decode_tokens_per_s": one.tokens_per_s,
                    "low": low,
                    "high": high,
                    "against": None if base is None else base.name,
                    "times_as_fast": None if ahead is None else ahead.speedup,
                    "times_low": ahead_low,
                    "times_high": ahead_high,
                    "verdict": None if ahead is None else ahead.verdict,
                    "hit_ratio": one.row["hit_ratio"],
                    "can_gain_at_most": one.gain,
                    "labels": "; ".join(told([(one.name, one.labels)])),
                    "command": one.command,
                    "certificate": certificates.get((board.name, one.name)),
                }
            )
    return rows


def show(
    boards: Sequence[Board], left: Sequence[Left], against: str, top: int, console: Console
) -> None:
    """Print the first of each board, and what a reader must know of all."""
    for board in boards:
        print_text(console, board.title)
        console.print(_shown(board, against, top))
        print_text(console, coverage_of(board))
    named = [(one.name, one.labels) for board in boards for one in board.entries]
    refused = [f"{len(left)} not entered; the page says why."] if left else []
    brackets = beside((board.coverage for board in boards), f"In brackets: 95 % intervals. {OVER}")
    for line in ("", *told(named), *filter(None, [brackets]), *refused):
        print_text(console, line)


def _shown(board: Board, against: str, top: int) -> Table:
    """The fastest lossless entries, then the fastest of other kinds, and whom they are against."""
    base = board.entry(against)
    name = against if base is None else base.name
    heads = (
        "",
        "entrant",
        "of",
        "tokens/s",
        f"x {name} [95 %]",
        "",
        "hits",
        "can gain at most",
    )
    shown = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    shown.columns[1].overflow = "fold"
    shown.columns[4].no_wrap = True
    lossless = [one for one in board.entries if one.kind == LOSSLESS]
    chosen = [*lossless[:top], *([base] if base in lossless[top:] else [])]
    others = [one for one in board.entries if one.kind != LOSSLESS]
    for place, one in enumerate(lossless, 1):
        if one in chosen:
            _add(shown, board, base, one, str(place))
    for kind in dict.fromkeys(one.kind for one in others):
        shown.add_section()
        for one in [one for one in others if one.kind == kind][:top]:
            _add(shown, board, base, one, kind)
    return shown


def _add(shown: Table, board: Board, base: Entry | None, one: Entry, place: str) -> None:
    ahead = None if base is None or one is base else board.ahead(one, base)
    hits = one.row["hit_ratio"]
    shown.add_row(
        place,
        escape(one.name),
        one.part,
        f"{one.tokens_per_s:.4g}",
        "" if ahead is None else escape(str(ahead)),
        "" if ahead is None else ahead.verdict if ahead.is_decided else "?",
        "-" if hits is None else f"{hits:.3f}",
        "-" if one.gain is None else f"{one.gain:.2f}x",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
