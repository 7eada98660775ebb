"""Printed tables and sentences read back: cells by their heads, and numbers to their last digit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.table import Table
from rich.text import Text

NUMBER = re.compile(r"(?<!\w)(?<!\d\.)([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) ?(%?)")


class Heard:
    """A console that keeps what it is given, and sees to it that a line stays as it is: not wrapped,
    and a name in brackets no markup.
    """

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.lines: list[str] = []

    def print(self, what: Any = "", **options: Any) -> None:
        if isinstance(what, Table):
            self.tables.append(what)
        else:
            assert options.get("soft_wrap") is True, what
            assert options.get("markup") is False, what
            self.lines.append(what)

    def out(self, text: str, *, highlight: bool) -> None:
        """What rich prints to the letter."""
        assert not highlight, text
        self.lines.append(text)


def rows_of(table: Table) -> list[dict[str, str]]:
    """The rows of a table, each cell by the head of its column (two heads alike: by number)."""
    heads: list[str] = []
    for column in table.columns:
        head = plain(column.header)
        heads.append(head if head not in heads else f"{head} {heads.count(head) + 1}")
    columns = [[plain(cell) for cell in column.cells] for column in table.columns]
    return [dict(zip(heads, cells, strict=True)) for cells in zip(*columns, strict=True)]


def plain(text: Any) -> str:
    """A title, a head or a cell as it is printed: without markup."""
    return Text.from_markup(str(text)).plain


def shows(text: str, *values: float) -> None:
    """Assert that the numbers in ``text`` are these, in order, each to the digit that it ends with.

    A number with a per cent sign stands for its hundredth.
    """
    found = NUMBER.findall(text)
    assert len(found) == len(values), f"{text!r} has other numbers than {values}"
    for (number, percent), value in zip(found, values, strict=True):
        told = Decimal(number.replace(",", ""))
        exponent = told.as_tuple().exponent
        assert isinstance(exponent, int)
        of = 100.0 if percent else 1.0
        digit = 10.0**exponent
        assert abs(float(told) - of * value) <= 0.5001 * digit, f"{text!r} tells of {values}"


def told_of(cell: str, expected: str | Sequence[float | None]) -> None:
    """Assert that a cell is a text, or shows these numbers; None stands for no number."""
    if isinstance(expected, str):
        assert cell == expected, f"{cell!r} is not {expected!r}"
    else:
        shows(cell, *(value for value in expected if value is not None))
