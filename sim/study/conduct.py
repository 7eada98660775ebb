"""Conduct a study: keep the recorded cells, run the others, show progress, and tell the result."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sim.process.progress import Shown
from sim.study.cells import Cell
from sim.study.dataset import Dataset
from sim.study.launchers import Launcher
from sim.study.rows import DONE, FAILED, REFUSED, Row, axis_types


@dataclass(frozen=True)
class Conducted:
    """How many of a study's cells have each status, and how many ``ran`` in this call; the others
    were recorded before.
    """

    counts: Counter[str]
    ran: int


def conduct(
    study: str,
    cells: Sequence[Cell],
    launcher: Launcher,
    output_dir: Path,
    retry: bool = False,
    tell: Callable[[str], None] = print,
    code: str | None = None,
) -> Conducted:
    """Run the cells that are not recorded in ``output_dir`` yet.

    ``retry``: cells that were refused or failed run again, and those that other code than ``code``
    has made; without it these stay, and it is told. Raise DatasetError where rows cannot be
    recorded.
    """
    with launcher, Dataset(output_dir, axes_of(cells), tell) as dataset:
        statuses = dataset.statuses
        bad = [key for key, status in statuses.items() if status in (REFUSED, FAILED)]
        old = of_other_code(dataset, {cell.key for cell in cells} & statuses.keys(), code)
        if old and not retry:
            tell(f"{len(old)} cells are of other code (column code); retry=yes runs them again")
        if retry and (again := dataset.forget([*bad, *old])):
            tell(f"{again} cells run again: refused, failed or of other code")
        left = [cell for cell in cells if cell.key not in dataset.statuses]
        if len(left) < len(cells):
            tell(f"{len(cells) - len(left)} of {len(cells)} cells are recorded already")
        with showing_progress(study, len(left)) as report:
            for row in launcher.run(study, left, output_dir):
                dataset.add(row)
                report(row)
        return Conducted(Counter(dataset.statuses[cell.key] for cell in cells), len(left))


def of_other_code(dataset: Dataset, keys: Iterable[str], code: str | None) -> list[str]:
    """Those of ``keys`` whose rows other code than ``code`` has made; none where that is not given."""
    return [key for key in keys if code is not None and dataset.codes[key] != code]


def axes_of(cells: Iterable[Cell]) -> dict[str, object]:
    """The type of the column of each key that the cells vary."""
    values: dict[str, list[object]] = {}
    for cell in cells:
        for key, value in cell.axes.items():
            values.setdefault(key, []).append(value)
    return axis_types(values)


@contextmanager
def showing_progress(study: str, total: int) -> Iterator[Callable[[Row], None]]:
    """Show how far a study is: a bar with rate and remaining time on a terminal, else a line now
    and then. Yield the function to call with every finished row.
    """
    counts: Counter[str] = Counter()
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Shown(*columns) as bar:
        task = bar.add_task(study, total=total, note="")

        def report(row: Row) -> None:
            counts[row["status"]] += 1
            now, done = time.monotonic(), counts.total()
            rate = done / max(now - started, 1e-9)
            bad = ", ".join(
                f"{counts[status]} {status}" for status in (REFUSED, FAILED) if counts[status]
            )
            left = f", {(total - done) / rate:.0f} s left"
            note = f"{rate:.3g} cells/s" + (f", {bad}" if bad else "") + left
            bar.update(task, completed=done, note=note)

        yield report


def answer(study: str, conducted: Conducted, output_dir: Path) -> str:
    """The last lines of a study: how many cells have each status, how many ran now, and how to read
    them.
    """
    counts = conducted.counts
    before = counts.total() - conducted.ran
    now = f"; {conducted.ran} ran now, {before} were recorded before" if before else ""
    bad = [f"{counts[status]} {status}" for status in (REFUSED, FAILED) if counts[status]]
    told = f" ({', '.join(bad)}: column error says why)" if bad else ""
    return (
        f"{study}: {counts.total()} cells, {counts[DONE]} done{told}{now}. "
        f'polars.read_parquet("{output_dir}/cells/*.parquet") reads them.'
    )


def say(text: str) -> None:
    """Print on stderr."""
    print(text, file=sys.stderr, flush=True)
