"""Figures of published runs that are no speed: what a step takes, what its experts are, and slots.

``claims/field_steps.csv`` has what others measured of steps that check drafts, each with the words
that simulate it. ``claims/field_slots.csv`` has how many slots a longer context, or other bits of
keys and values, left of those of a run before. That is arithmetic: nothing is simulated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from rich.table import Table

from sim.process.printing import NARROW, with_whole_words
from sim.reproduce.field import on_gates
from sim.reproduce.roles import FOLDER
from sim.study.trials import prepared, trial

STEPS, SLOTS = FOLDER / "field_steps.csv", FOLDER / "field_slots.csv"
WHAT = {
    "step_ms": "ms a step",
    "step_ms_more": "ms a step more",
    "step_times": "steps of one token",
    "union": "experts over choices",
    "misses": "absent, of its experts",
}
"""What may be told of a step, and its words."""


@dataclass(frozen=True)
class Figure:
    """A figure of the steps of a published run.

    ``words`` simulate it. ``against``: words that follow them in the run that it is compared with.
    """

    name: str
    source: str
    machine: str
    what: str
    measured: float
    words: tuple[str, ...]
    against: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Slots that a run had, and those that were ``before`` it, in the same memory.

    A token's keys and values take ``token_bytes`` at 16 bits.
    """

    name: str
    source: str
    machine: str
    measured: int
    before: int
    tokens_before: int
    bits_before: float
    tokens: int
    bits: float
    token_bytes: int
    slot_bytes: int

    @property
    def predicted(self) -> int:
        """The slots before, and what keys and values give back, in whole slots."""
        then, now = self.tokens_before * self.bits_before, self.tokens * self.bits
        return self.before + int((then - now) / 16 * self.token_bytes // self.slot_bytes)


def figures(place: Path = STEPS) -> list[Figure]:
    """The figures of the file. Raise ValueError, naming the line, for one that is none."""
    found = []
    for number, row in enumerate(rows_of(place), 2):
        if row["what"] not in WHAT or not row["source"].startswith("https://") or not row["words"]:
            raise ValueError(
                f"{place}:{number}: {row} needs a source, words, and one of {', '.join(WHAT)}"
            )
        words, against = (tuple(row[name].split()) for name in ("words", "against"))
        told = row["id"], row["source"], row["machine"], row["what"], float(row["measured"])
        found.append(Figure(*told, words, against))
    return found


def splits(place: Path = SLOTS) -> list[Split]:
    """The slots of the file."""
    return [
        Split(
            row["id"],
            row["source"],
            row["machine"],
            int(row["measured"]),
            int(row["before"]),
            int(row["tokens_before"]),
            float(row["bits_before"]),
            int(row["tokens"]),
            float(row["bits"]),
            int(row["token_bytes"]),
            int(row["slot_bytes"]),
        )
        for row in rows_of(place)
    ]


def rows_of(place: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of figures, by the names of its columns."""
    with place.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def simulated(trace: Path, one: Figure) -> float:
    """What a figure is on the gates in the folder ``trace``."""
    words = on_gates(trace, one.words)
    if one.what == "union":
        return _union(words)
    if one.what == "misses":
        return 1 - float(trial(words).summary["hit_ratio"])
    here = _step_ms(words)
    if one.what == "step_ms":
        return here
    there = _step_ms([*words, *one.against])
    return here - there if one.what == "step_ms_more" else here / there


def _gates(trace: Path, one: Figure) -> str:
    """Where the gates of a figure come from."""
    run = prepared(on_gates(trace, one.words))
    return run.model.transplant or run.trace.header.model.name


def _step_ms(words: Sequence[str]) -> float:
    """The mean time of a decoded step."""
    decoded = trial(words).tokens.filter(pl.col("phase") == "decode")
    return float((decoded["end_ns"] - decoded["start_ns"]).mean()) / 1e6  # type: ignore[arg-type]


def _union(words: Sequence[str]) -> float:
    """Experts of a layer's gate over all choices of its rows, over decoded steps with all their
    drafts.
    """
    workload = prepared(words).workload
    rows = workload.speculation.tokens + 1
    is_full = np.array([step.decode and step.rows == rows for step in workload.steps], np.bool_)
    experts = int(is_full[workload.gate_step[workload.needs.tick]].sum())
    gates = int(is_full[workload.gate_step].sum())
    return experts / (gates * rows * workload.top_k)


def steps_table(trace: Path, of: Sequence[Figure]) -> Table:
    """What was measured of steps beside what is simulated."""
    gates = "; ".join(sorted({_gates(trace, one) for one in of}))
    columns = ("run", "machine", "of a step", "measured", "simulated", "ratio")
    made = Table(*columns, caption=f"gates: {gates}", **NARROW)
    for one in of:
        found = simulated(trace, one)
        made.add_row(
            one.name,
            one.machine,
            WHAT[one.what],
            f"{one.measured:g}",
            f"{found:.3g}",
            f"{found / one.measured:.2f}",
        )
    return with_whole_words(made)


def slots_table(of: Sequence[Split]) -> Table:
    """Slots before, measured and predicted."""
    columns = ("run", "machine", "tokens", "bits", "slots before", "measured", "predicted")
    made = Table(*columns, **NARROW)
    for one in of:
        made.add_row(
            one.name,
            one.machine,
            f"{one.tokens_before:,} to {one.tokens:,}",
            f"{one.bits_before:g} to {one.bits:g}",
            f"{one.before:,}",
            f"{one.measured:,}",
            f"{one.predicted:,}",
        )
    return with_whole_words(made)
