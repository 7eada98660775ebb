"""Runs that others published, simulated from what their sources tell.

``claims/field.csv`` has one run a row: what was measured, where that is written, and the words that
simulate it. Machines are those of ``conf/hardware``, with the link's rate as the source tells it.
Where ``fitted_on`` names other rows, a figure of the words is drawn from each of them. ``baseline``
names the run of the same group that it is compared with (`sim.reproduce.field_gains`). Gates are
synthetic, fitted to published statistics of the model.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from sim.process.printing import NARROW, with_whole_words
from sim.reproduce.roles import FOLDER
from sim.study.trials import trial

FILE = FOLDER / "field.csv"
LIKE = "qwen3_30b_a3b"
"""The model whose gates all rows have."""
WORDS = (f"model={LIKE}", "precision=int4", "trace.max_sequences=1")


@dataclass(frozen=True)
class Published:
    """A published run. ``hit_ratio`` is None where the source does not tell it.

    ``fitted_on``: the runs from which figures of the words were drawn. ``baseline``: the run of its
    group that it is compared with; empty where there is none.
    """

    name: str
    source: str
    machine: str
    tokens_per_s: float
    hit_ratio: float | None
    words: tuple[str, ...]
    fitted_on: tuple[str, ...] = ()
    baseline: str = ""


@dataclass(frozen=True)
class Row:
    """A published run beside its simulation. ``ratio``: simulated tokens a second by measured.

    ``gates``: where those of the simulation come from.
    """

    published: Published
    tokens_per_s: float
    hit_ratio: float
    gates: str

    @property
    def ratio(self) -> float:
        return self.tokens_per_s / self.published.tokens_per_s


def published(place: Path = FILE) -> list[Published]:
    """The runs of the file, in its order. Raise ValueError, naming the line, for one that is none."""
    found = []
    with place.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                hits = float(row["hit_ratio"]) if row["hit_ratio"] else None
                words = tuple(row["words"].split())
                rate = float(row["tokens_per_s"])
                told = row["id"], row["source"], row["machine"], rate, hits, words
                one = Published(*told, tuple(row["fitted_on"].split()), row["baseline"])
            except (KeyError, ValueError, AttributeError) as error:
                raise ValueError(f"{place}:{number}: {row} is no published run ({error})") from None
            if rate <= 0 or not one.source.startswith("https://") or not words:
                raise ValueError(f"{place}:{number}: {row} needs a rate, a source and words")
            found.append(one)
    return found


def rows(trace: Path, of: Sequence[Published]) -> Iterator[Row]:
    """Each run, simulated on the gates in the folder ``trace``."""
    for one in of:
        summary = trial([*WORDS, f"trace.path={trace}", *one.words]).summary
        rate, gates = 1 / float(summary["tpot_s"]["mean"]), str(summary["trace"]["gates"])
        yield Row(one, rate, float(summary["hit_ratio"]), gates)


def table(found: Sequence[Row]) -> Table:
    """Measured and simulated, side by side."""
    columns = ("run", "machine", "measured", "simulated", "ratio", "hits measured", "simulated")
    gates = "; ".join(sorted({row.gates for row in found}))
    made = Table(*columns, "fitted on", caption=f"gates: {gates}", **NARROW)
    for row in found:
        told = row.published.hit_ratio
        made.add_row(
            row.published.name,
            row.published.machine,
            f"{row.published.tokens_per_s:.2f}",
            f"{row.tokens_per_s:.2f}",
            f"{row.ratio:.2f}",
            "-" if told is None else f"{told:.3f}",
            f"{row.hit_ratio:.3f}",
            " ".join(row.published.fitted_on),
        )
    return with_whole_words(made)
