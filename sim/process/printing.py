"""How a command says a sentence, and a table: word for word, whatever it is made of."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

NARROW: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
"""A table's form on a narrow terminal: without a frame."""


def with_whole_words(table: Table) -> Table:
    """The same table, whose lines break between words only: a number in two parts, or cut, would be
    another one. All rows must be there. Print it with ``crop=False``.
    """
    for column in table.columns:
        words = " ".join(map(str, (column.header, *column.cells))).split()
        column.min_width = max(map(len, words), default=0)
    return table


def print_text(console: Console, text: str) -> None:
    """Print ``text`` as it stands. Names of runs have brackets, which are no markup; a terminal's
    width breaks no line, for the next program reads them; numbers have no colours of their own.
    """
    console.out(text, highlight=False)
