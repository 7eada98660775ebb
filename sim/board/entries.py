"""From rows of a study to boards: runs of the same work on the same machine with the same bytes.

Within a board every pair of entrants has a paired interval. All boards of a study are one
leaderboard.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.answers.comparison import row_conditions
from sim.results.coverage import Coverage, coverage_at
from sim.results.intervals import Floats
from sim.results.labels import Labels, labels_in
from sim.results.overview import kind_of
from sim.results.paired import Paired, paired, paired_all
from sim.study.cells import Cell
from sim.study.rows import AXIS, DONE, Row
from sim.values.code import code_digest, digest, files_digest, foreign_files, target_modules
from sim.values.units import GIB
from sim.verbs.names import nearest

RUNNER = "sim.study.worker"
"""The module that runs a cell: what it imports decides a run's numbers."""
PARTS = ("precision", "predictor", "cache", "system")
"""What an entrant may be an entrant of: the first of these that its cell names."""


def code_of(config: Mapping[str, Any]) -> str:
    """The digest of the code that a run of this configuration reaches, and of the packages.

    A class of somebody's own counts by the bytes of its file.
    """
    code = code_digest(RUNNER, *sorted(target_modules(config)))
    files = foreign_files(config)
    return digest(code, files_digest(files)) if files else code


def entered(cell: Cell) -> Cell:
    """The cell under a key that names its code as well: other code makes it run again.

    Raise ValueError for a word with blanks, which its row could not give back as one word.
    """
    if blank := [word for word in cell.words if len(word.split()) != 1]:
        raise ValueError(f"{blank[0]!r} has blanks; write it without them, or rename what it names")
    return replace(cell, key=digest(cell.key, code_of(cell.config)))


def check_entrant(name: str, cells: Iterable[Cell]) -> None:
    """Raise ValueError unless one of the cells is an entrant of this name."""
    first = ({part: cell.axes.get(part) for part in PARTS} for cell in cells)
    known = {str(next(filter(None, named.values()), "")) for named in first}
    if "" not in known and (name.split() or [""])[0] not in known:
        raise ValueError(
            f"against={name} is no entrant{nearest(name, known) or '; moelab list policies has them'}"
        )


def command_of(words: Iterable[str]) -> str:
    """The command of a run of these words."""
    return " ".join(["moelab run", *map(shlex.quote, words)])


def title_of(trace: str, split: str, sequences: int, model: str, hardware: str) -> str:
    """The beginning of a board's title: its work and its machine."""
    return f"{trace} ({split}, {sequences} sequences), {model} on {hardware}, "


def bytes_in(title_begins: str, budget: int) -> str:
    """A board's title, from its beginning and its bytes for experts."""
    return f"{title_begins}{budget / GIB:.3g} GiB for experts"


@dataclass(frozen=True, eq=False)
class Entry:
    """One run on a board.

    ``row`` is its row of the study. ``gain`` is how many times as fast any cache or schedule of the
    same bytes and permitted precisions can be at most; None where no bound was computed.
    """

    name: str
    part: str
    row: Row
    summary: Mapping[str, Any]
    labels: Labels

    @property
    def kind(self) -> str:
        """``lossless``, ``lossy``, or a bound that is no system."""
        return kind_of(self.labels)

    @property
    def tokens_per_s(self) -> float:
        return float(self.row["decode_tokens_per_s"])

    @property
    def interval(self) -> tuple[float, float] | None:
        found = self.summary["ci95"]["decode_tokens_per_s"]
        return None if found is None else (float(found[0]), float(found[1]))

    @property
    def gain(self) -> float | None:
        gap = self.summary["gap"]
        return None if gap is None else 1 + float(gap)

    @property
    def decode_ns(self) -> Floats:
        return np.array(self.row["decode_ns"], np.float64)

    @property
    def words(self) -> list[str]:
        return str(self.row["overrides"]).split()

    @property
    def command(self) -> str:
        """What runs it again and prints its numbers."""
        return command_of(self.words)


@dataclass(frozen=True, eq=False)
class Board:
    """Entries of the same conditions: real systems fastest first, then what no system can do."""

    name: str
    title: str
    conditions: Mapping[str, Any]
    entries: tuple[Entry, ...]
    coverage: Coverage | None

    def entry(self, name: str) -> Entry | None:
        """The entry of that name, or the only one that begins with it; None without one."""
        named = [one for one in self.entries if one.name == name]
        found = named or [one for one in self.entries if one.name.split()[0] == name]
        return found[0] if len(found) == 1 else None

    def ahead(self, ours: Entry, theirs: Entry) -> Paired:
        """How many times as fast ``ours`` decodes as ``theirs``."""
        return paired(ours.decode_ns, theirs.decode_ns)


@dataclass(frozen=True)
class Left:
    """An entrant that has no place on a board, and why."""

    words: str
    why: str


def boards_of(rows: Iterable[Row]) -> tuple[list[Board], list[Left]]:
    """The boards of a study's rows in the order of their first rows, and what is on none."""
    grouped: dict[str, list[Entry]] = {}
    left: list[Left] = []
    for row in rows:
        if row["status"] != DONE:
            left.append(Left(row["overrides"], f"{row['status']}: {row['error']}"))
        elif not row["decode_ns"] or not sum(row["decode_ns"]):
            left.append(Left(row["overrides"], "it decodes nothing"))
        else:
            key = json.dumps(row_conditions(row), sort_keys=True)
            grouped.setdefault(key, []).append(_entry(row))
    boards = [_board(json.loads(key), entries) for key, entries in grouped.items()]
    return _named(boards), left


def _entry(row: Row) -> Entry:
    summary = json.loads(row["summary"])
    part = next((part for part in PARTS if row.get(AXIS + part) is not None), "system")
    return Entry(_name(row, part), part, row, summary, labels_in(summary))


def _name(row: Row, part: str) -> str:
    """The entrant's file, with the words that set something of it or of the loader. A system is
    named with all that replaced parts of it.
    """
    if part == "system":
        return str(row["system"])
    own = ("loader.", f"{part}.")
    others = [word for word in row["overrides"].split() if word.lstrip("+").startswith(own)]
    return " ".join([str(row[AXIS + part]), *others])


def _board(conditions: Mapping[str, Any], entries: Sequence[Entry]) -> Board:
    ranked = sorted(
        entries, key=lambda one: (not one.labels.is_system, -one.tokens_per_s, one.name)
    )
    ranked = _told_apart(ranked)
    summary = ranked[0].summary
    trace, budget = summary["trace"], conditions["bytes for experts"]
    tokens = np.array(ranked[0].row["decode_tokens"], np.float64)
    begins = title_of(
        trace["name"], trace["split"], trace["sequences"], summary["model"], summary["hardware"]
    )
    return Board("", bytes_in(begins, budget), conditions, tuple(ranked), coverage_at(tokens))


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Entries whose names would be the same get numbers."""
    seen: dict[str, int] = {}
    found = []
    for one in entries:
        seen[one.name] = number = seen.get(one.name, 0) + 1
        found.append(one if number == 1 else replace(one, name=f"{one.name} #{number}"))
    return found


def _named(boards: Sequence[Board]) -> list[Board]:
    """The boards with names that a file may have, each its own."""
    found = []
    for number, board in enumerate(boards, 1):
        summary = board.entries[0].summary
        parts = (summary["trace"]["name"], summary["hardware"])
        gib = board.conditions["bytes for experts"] / GIB
        found.append(replace(board, name=f"{number}_{'_'.join(parts)}_{gib:.3g}GiB"))
    return found


def matrix(board: Board) -> list[list[Paired | None]]:
    """By entry and entry, how many times as fast the first decodes as the second."""
    return paired_all(np.array([one.row["decode_ns"] for one in board.entries], np.float64))
