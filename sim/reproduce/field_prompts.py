"""Prompts that two cards with split layers read in a pipeline, beside one card: published gains.

``claims/field_prompts.csv`` has, by run, the prompt's tokens, the rows of a chunk, the layers of each
card, and tokens a second on one card ``alone`` and on all of them. What is predicted is the gain,
by arithmetic: a card's part of a chunk takes time in proportion to its rows and its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from rich.table import Table

from sim.process.printing import NARROW, with_whole_words
from sim.reproduce.field_figures import rows_of
from sim.reproduce.roles import FOLDER
from sim.results.pipelined import overlapped_ns

PROMPTS = FOLDER / "field_prompts.csv"


@dataclass(frozen=True)
class Prompt:
    """A published prompt on several cards. ``alone``, ``measured``: tokens/s on one, and on all."""

    name: str
    source: str
    machine: str
    tokens: int
    chunk: int
    layers: tuple[int, ...]
    alone: float
    measured: float

    @property
    def gain(self) -> float:
        return self.measured / self.alone

    @property
    def predicted(self) -> float:
        """How many times as fast cards are that overlap chunks, by their rows and layers alone."""
        whole, rest = divmod(self.tokens, self.chunk)
        chunks = [*repeat(self.chunk, whole), *([rest] if rest else [])]
        took = overlapped_ns(([rows * own for own in self.layers], 0) for rows in chunks)
        return self.tokens * sum(self.layers) / took


def prompts(place: Path = PROMPTS) -> list[Prompt]:
    """The prompts of the file."""
    return [
        Prompt(
            row["id"],
            row["source"],
            row["machine"],
            int(row["tokens"]),
            int(row["chunk"]),
            tuple(map(int, row["layers"].split())),
            float(row["alone"]),
            float(row["measured"]),
        )
        for row in rows_of(place)
    ]


def prompts_table(of: Sequence[Prompt]) -> Table:
    """Gains over one card, measured and predicted."""
    columns = ("run", "machine", "tokens", "layers", "one card", "all", "gain", "predicted")
    made = Table(*columns, "error", **NARROW)
    for one in of:
        made.add_row(
            one.name,
            one.machine,
            f"{one.tokens:,}",
            " + ".join(map(str, one.layers)),
            f"{one.alone:,g}",
            f"{one.measured:,g}",
            f"{one.gain:.2f}",
            f"{one.predicted:.2f}",
            f"{one.predicted / one.gain - 1:+.1%}",
        )
    return with_whole_words(made)
