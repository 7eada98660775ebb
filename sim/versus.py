"""``python -m sim.versus DATASET NAME [also=WORD]``: compare a study's systems with one of them.

DATASET is the folder that ``python -m sim.study`` wrote. NAME is the system as in the column
``system``; its first word is enough where no other cell of the same conditions begins with it.

Cells are compared where they share trace, split, sequences, workload, model, machine and bytes for
experts, so that only their mechanisms differ. The answer is how many times as fast as NAME each of
them decodes, with intervals paired over sequences. Cells without a cell of NAME beside them are
listed below, with the reason. ``also=WORD`` takes only cells whose overrides have this word as the
study wrote it, such as ``also=trace.split=fit``. What a cell has by default is no word of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.answers.comparison import row_conditions, short
from sim.process.printing import print_text
from sim.results.intervals import OVER, beside
from sim.results.labels import Labels, labels_in, told
from sim.results.paired import Paired, paired
from sim.setup.configure import changes
from sim.study.dataset import read_cells
from sim.study.kept_rows import last_cells, whole_rows
from sim.study.rows import DONE, Row, words_of
from sim.values.units import GIB

ALSO = "also="
TITLED = ("trace", "trace.split", "trace.max_sequences", "model", "hardware")
"""Keys of words that say what a group's title has anyway."""
SHOWN = 2
"""How many of the conditions are named in which a cell differs from its nearest."""


@dataclass(frozen=True)
class Side:
    """A cell in a group.

    ``ahead`` says how many times as fast it decodes as the system that is asked about; None of that
    system itself.
    """

    system: str
    tokens_per_s: float
    interval: tuple[float, float] | None
    hit_ratio: float | None
    ahead: Paired | None
    labels: Labels


@dataclass(frozen=True)
class Group:
    """Cells of the same conditions, fastest first."""

    title: str
    sides: tuple[Side, ...]

    @property
    def base(self) -> str:
        """The system that the others are compared with, whole: the name that was given may be a
        part of it.
        """
        return next(side.system for side in self.sides if side.ahead is None)


@dataclass(frozen=True)
class Alone:
    """A cell that cannot be compared with the system that is asked about, and why not."""

    system: str
    overrides: str
    why: str


@dataclass(frozen=True)
class Versus:
    """All cells of a study: groups that are compared, and cells that are not."""

    groups: tuple[Group, ...]
    alone: tuple[Alone, ...]


def versus(rows: Iterable[Row], name: str) -> Versus:
    """Group the cells of ``rows`` by their conditions, and compare each group with ``name``.

    Raise ValueError where no group has that system, or a group has several cells of that name.
    """
    grouped: dict[str, list[Row]] = {}
    alone: list[Alone] = []
    for row in rows:
        if row["status"] != DONE:
            alone.append(
                Alone(row["system"], row["overrides"], f"it is {row['status']}: {row['error']}")
            )
        elif not sum(row["decode_ns"] or ()):
            alone.append(Alone(row["system"], row["overrides"], "it decodes nothing"))
        else:
            grouped.setdefault(json.dumps(row_conditions(row), sort_keys=True), []).append(row)
    compared, meant_rows, left = [], [], []
    for cells in grouped.values():
        meant = [row for row in cells if row["system"] == name]
        meant = meant or [row for row in cells if row["system"].split()[0] == name]
        if len(meant) > 1:
            raise ValueError(f"{name} may be each of these: {_which(meant)}")
        if meant:
            compared.append(cells)
            meant_rows.append(meant[0])
        else:
            left += cells
    if not compared:
        known = ", ".join(sorted({row["system"] for cells in grouped.values() for row in cells}))
        known = known or "none at all" + "".join(f" ({one.system}: {one.why})" for one in alone[:1])
        raise ValueError(f"no finished cell is of {name}; there are: {known}")
    alone += [
        Alone(row["system"], row["overrides"], _difference(row, meant_rows, name)) for row in left
    ]
    own = _own_words(meant_rows)
    return Versus(tuple(map(_group, meant_rows, compared, own)), tuple(alone))


def _own_words(rows: Sequence[Row]) -> list[str]:
    """Of each row, the words about what surrounds its system that not all rows have, without what
    its title has anyway.
    """
    words = [
        [word for word in changes(words_of(row["overrides"])) if word.split("=")[0] not in TITLED]
        for row in rows
    ]
    return [" ".join(word for word in own if any(word not in of for of in words)) for own in words]


def _which(meant: Sequence[Row]) -> str:
    """The cells that a name may be, and how to name one: by its system, or by a word of its own."""
    systems = [row["system"] for row in meant]
    if len({*systems}) == len(systems):
        return f"{'; '.join(systems)}; give one of them whole"
    words = [words_of(row["overrides"]) for row in meant]
    shared = set(words[0]).intersection(*words)
    own = [
        " ".join([system, *(word for word in its if word not in shared)])
        for system, its in zip(systems, words, strict=True)
    ]
    return f"{'; '.join(own)}; give a system whole, and also=WORD for a word that only one cell has"


def _difference(row: Row, meant: Sequence[Row], name: str) -> str:
    """In words: why a cell compares with none of ``meant``.

    It names what differs from the one that shares most conditions with it.
    """
    mine = row_conditions(row)
    differences = [
        {key: theirs.get(key) for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)}
        for theirs in map(row_conditions, meant)
    ]
    least = min(differences, key=len)
    parts = [
        f"{key} {short(mine.get(key))}, not {short(other)}"
        for key, other in sorted(least.items())[:SHOWN]
    ]
    more = f" and {len(least) - SHOWN} more" if len(least) > SHOWN else ""
    return f"no cell of {name} has its conditions; the nearest differs: {'; '.join(parts)}{more}"


def _group(ours: Row, cells: Sequence[Row], own: str) -> Group:
    summary = json.loads(ours["summary"])
    own_ns = np.array(ours["decode_ns"])
    sides = [
        Side(
            row["system"],
            row["decode_tokens_per_s"],
            _interval(row),
            row["hit_ratio"],
            None if row is ours else paired(np.array(row["decode_ns"]), own_ns),
            labels_in(json.loads(row["summary"])),
        )
        for row in sorted(cells, key=lambda row: (-row["decode_tokens_per_s"], row["system"]))
    ]
    trace, allowed = summary["trace"], summary["budget"]["allowed_bytes"]
    title = (
        f"{trace['name']}, split {trace['split']}, {len(ours['sequence'])} sequences;"
        f" {summary['hardware']}, {summary['model']}, {allowed / GIB:.3g} GiB for experts,"
        f" {summary['budget']['resident_share']:.1%} resident{'; ' if own else ''}{own}"
    )
    return Group(title, tuple(sides))


def _interval(row: Row) -> tuple[float, float] | None:
    low, high = (row[f"ci95.decode_tokens_per_s.{end}"] for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def print_versus(found: Versus, name: str, console: Console) -> None:
    """Print a table for each group, the labels of all cells, and the cells in no group."""
    for group in found.groups:
        table = Table(
            "system",
            f"tokens/s{beside((side.interval for side in group.sides), ' [95 %]')}",
            "hits",
            escape(f"as fast as {group.base}"),
            "",
            title=escape(group.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for side in group.sides:
            interval = (
                ""
                if side.interval is None
                else f" [{side.interval[0]:.4g}, {side.interval[1]:.4g}]"
            )
            hits = "" if side.hit_ratio is None else f"{side.hit_ratio:.3f}"
            ahead = () if side.ahead is None else (str(side.ahead), _short(side.ahead))
            marks = [
                *(["lossy"] if side.labels.lossy else []),
                *([] if side.labels.is_system else ["a bound"]),
            ]
            name_marked = f"{side.system} ({', '.join(marks)})" if marks else side.system
            table.add_row(
                escape(name_marked),
                escape(f"{side.tokens_per_s:.4g}{interval}"),
                hits,
                *map(escape, ahead),
            )
        console.print(table)
        print_text(console, told_of(group))
    intervals = [side.interval for group in found.groups for side in group.sides]
    brackets = "In brackets: 95 % intervals, paired where they are of how many times."
    labels = told((side.system, side.labels) for group in found.groups for side in group.sides)
    alone = [f"Beside no {name}: {one.system} ({one.overrides}): {one.why}." for one in found.alone]
    for line in filter(None, (*labels, beside(intervals, f"{brackets} {OVER}"), *alone)):
        print_text(console, line)


def _short(ahead: Paired) -> str:
    """The verdict in a column: too few sequences are told in the sentence."""
    return ahead.verdict if ahead.is_decided else "?"


def told_of(group: Group) -> str:
    """A group in sentences: real systems first, then what no system can do."""
    against = [side for side in group.sides if side.ahead is not None]
    parts = [_sentence(side, group.base) for side in against if side.labels.is_system]
    parts += [_sentence(side, group.base) for side in against if not side.labels.is_system]
    return " ".join(parts)


def _sentence(side: Side, base: str) -> str:
    assert side.ahead is not None
    mark = "" if side.labels.is_system else ", which is no system,"
    lost = " and lossy" if side.labels.lossy else ""
    sure = "" if side.ahead.is_decided else f" ({side.ahead.verdict})"
    return f"{side.system}{mark} is {side.ahead} as fast as {base}{lost}{sure}."


def read_rows(dataset: Path, also: Sequence[str] = ()) -> list[Row]:
    """The rows of the dataset whose overrides have all words of ``also``, of equal ones the last.

    Raise ValueError where there are none.
    """
    rows = [*whole_rows(last_cells(read_cells(dataset)), dataset, compared=True)]
    if not rows:
        why = "has no recorded cells" if dataset.exists() else "is not there"
        raise ValueError(f"{dataset} {why}; name the folder that moelab study wrote")
    found = [row for row in rows if set(also) <= set(words_of(row["overrides"]))]
    if not found:
        known = sorted({word for row in rows for word in words_of(row["overrides"])})
        raise ValueError(
            f"no cell has {' '.join(also)} among its words; there are: {' '.join(known)}"
        )
    return found


def main(words: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message on stderr."""
    also = [word.removeprefix(ALSO) for word in words if word.startswith(ALSO)]
    given = [word for word in words if not word.startswith(ALSO)]
    try:
        if len(given) != 2:
            raise ValueError(
                "name a study's folder and a system: moelab versus outputs/studies/NAME lru"
            )
        found = versus(read_rows(Path(given[0]), also), given[1])
    except (ValueError, OSError) as error:
        print(f"versus: {error}", file=sys.stderr)
        return 2
    print_versus(found, given[1], Console())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
