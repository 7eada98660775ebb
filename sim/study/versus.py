"""``python -m sim.study.versus DATASET NAME [also=WORD]``: how many times as fast one system is as others.

DATASET: what ``python -m sim.study`` wrote. NAME: the system as the column ``system`` has it (its first word is enough
where no other cell of the same conditions begins with it). Cells are set side by side where they share trace, split,
sequences, workload, model, machine and bytes for experts, so that only their mechanisms differ; intervals are paired
over sequences, as everywhere. ``also=WORD``: only cells whose overrides have it, such as ``also=trace.split=eval``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.comparison import PLACES, SAME
from sim.paired import Paired, paired
from sim.study.dataset import read_cells
from sim.study.rows import DONE, Row

ALSO = "also="
WIDTH = 160


@dataclass(frozen=True)
class Side:
    """A cell beside the one that is asked about. ``ahead``: how many times as fast that one decodes, None of itself."""

    system: str
    tokens_per_s: float
    interval: tuple[float, float] | None
    hit_ratio: float | None
    ahead: Paired | None


@dataclass(frozen=True)
class Group:
    """Cells of the same conditions, fastest first."""

    title: str
    label: str
    sides: tuple[Side, ...]


def versus(rows: Iterable[Row], name: str) -> list[Group]:
    """The finished cells among ``rows`` by their conditions, where ``name`` is one of them.

    Raise ValueError where it is in no group, or several cells of one may be meant.
    """
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] == DONE and row["decode_ns"]:
            grouped.setdefault(_conditions(row), []).append(row)
    found = []
    for cells in grouped.values():
        meant = [row for row in cells if row["system"] == name]
        meant = meant or [row for row in cells if row["system"].split()[0] == name]
        if len(meant) > 1:
            names = "; ".join(row["system"] for row in meant)
            raise ValueError(f"{name} may be each of these: {names}; give one of them whole")
        if meant:
            found.append(_group(meant[0], cells))
    if not found:
        known = ", ".join(sorted({row["system"] for cells in grouped.values() for row in cells}))
        raise ValueError(f"no finished cell is of {name}; there are: {known or 'none at all'}")
    return found


def _conditions(row: Row) -> str:
    """What cells must share, as text."""
    config: Mapping[str, Any] = json.loads(row["config"])
    shared = {section: {key: value for key, value in config[section].items() if f"{section}.{key}" not in PLACES}
              for section in SAME}  # fmt: skip
    budget = json.loads(row["summary"])["budget"]["allowed_bytes"]
    return json.dumps([shared, row["trace_sha256"], list(row["sequence"]), budget], sort_keys=True)


def _group(ours: Row, cells: Sequence[Row]) -> Group:
    summary = json.loads(ours["summary"])
    own_ns = np.array(ours["decode_ns"])
    sides = [
        Side(row["system"], row["decode_tokens_per_s"], _interval(row), row["hit_ratio"],
             None if row is ours else paired(own_ns, np.array(row["decode_ns"])))
        for row in sorted(cells, key=lambda row: (-row["decode_tokens_per_s"], row["system"]))
    ]  # fmt: skip
    trace, gates = summary["trace"], str(summary["trace"]["gates"])
    title = (f"{trace['name']}, split {trace['split']}, {len(ours['sequence'])} sequences; {summary['hardware']}, "
             f"{summary['model']}, {summary['budget']['resident_share']:.1%} resident")  # fmt: skip
    return Group(title, gates if "TRANSPLANTED" in gates else "", tuple(sides))


def _interval(row: Row) -> tuple[float, float] | None:
    low, high = (row[f"ci95.decode_tokens_per_s.{end}"] for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def print_groups(groups: Sequence[Group], name: str, console: Console) -> None:
    """A table for each."""
    for group in groups:
        table = Table("system", "decode tokens/s", "hit ratio", f"{name} is so many times as fast", "",
                      title=group.title, title_justify="left")  # fmt: skip
        for side in group.sides:
            interval = "" if side.interval is None else f" [{side.interval[0]:.4g}, {side.interval[1]:.4g}]"
            hits = "" if side.hit_ratio is None else f"{side.hit_ratio:.3f}"
            ahead = ("", "") if side.ahead is None else (str(side.ahead), side.ahead.verdict)
            table.add_row(escape(side.system), escape(f"{side.tokens_per_s:.4g}{interval}"), hits,
                          *map(escape, ahead))  # fmt: skip
        console.print(table)
    for label in dict.fromkeys(group.label for group in groups if group.label):
        console.print(f"{label}.", highlight=False, markup=False, soft_wrap=True)
    console.print("In brackets: 95 % intervals; those of how many times are paired over sequences.", highlight=False,
                  markup=False, soft_wrap=True)  # fmt: skip


def read_rows(dataset: Path, also: Sequence[str] = ()) -> list[Row]:
    """The dataset's rows whose overrides have all words of ``also``. Raise ValueError where there are none."""
    rows: list[Row] = read_cells(dataset).to_dicts()
    if not rows:
        raise ValueError(f"{dataset} has no recorded cells; name the folder that python -m sim.study wrote")
    return [row for row in rows if set(also) <= set(row["overrides"].split())]


def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr."""
    also = [word.removeprefix(ALSO) for word in words if word.startswith(ALSO)]
    given = [word for word in words if not word.startswith(ALSO)]
    try:
        if len(given) != 2:
            raise ValueError("name a study's folder and a system: python -m sim.study.versus outputs/studies/NAME lru")
        groups = versus(read_rows(Path(given[0]), also), given[1])
    except (ValueError, OSError) as error:
        print(f"versus: {error}", file=sys.stderr)
        return 2
    print_groups(groups, given[1], Console(width=WIDTH))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
