"""Columns that grow as lists and are kept as arrays: 1 to 8 B an entry, not 40."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, MutableSequence, Sequence

import numpy as np
from numpy.typing import NDArray

INT8, INT32, COUNT32, INT64 = "b", "i", "I", "q"
"""The widths of a column's entries. COUNT32 goes from 0 to 4.3 billion."""
_COUNT64 = "L" if array("L").itemsize == 8 else "Q"
"""Unsigned types read a list three times as fast as signed ones do."""


Column = MutableSequence[int]
"""Numbers in order: a list, or an array, which can be used as a list can."""


def packed_column() -> Column:
    """An empty column whose entries take 8 B from the start, for one that is not only appended to."""
    return array(INT64)


def narrow(column: Column, width: str) -> Column:
    """A column as it is, or as an array of this width where it is an array already."""
    return array(width, column) if isinstance(column, array) else column


class Packing:
    """Keeps what some lists have gathered, by name of a column.

    Appending to a list is the fastest way to grow a column. So they stay lists, and ``pack`` now
    and then empties them into arrays. A list may gather several columns, row after row.
    """

    def __init__(
        self, lists: Mapping[tuple[str, ...], list[int]], widths: Mapping[str, str]
    ) -> None:
        """``lists``: by the names of the columns that one gathers.

        ``widths`` are those of columns whose numbers are small; others have 8 B an entry.
        """
        self._lists = lists
        self._kept = {name: array(widths.get(name, INT64)) for names in lists for name in names}

    def pack(self) -> None:
        for names, gathered in self._lists.items():
            if len(names) == 1 and self._kept[names[0]].itemsize < 8:
                self._kept[names[0]].frombytes(_packed(gathered, self._kept[names[0]].typecode))
            else:
                rows = _numbers(gathered)
                for nth, name in enumerate(names):
                    kept = self._kept[name]
                    kept.frombytes(_narrowed(rows[nth :: len(names)], kept.typecode).tobytes())
            gathered.clear()

    def whole(self) -> Mapping[str, Column]:
        """All that was gathered, by name. The lists are empty then."""
        self.pack()
        return self._kept


def _numbers(gathered: list[int]) -> NDArray[np.int64]:
    counts = array(_COUNT64)
    try:
        counts.fromlist(gathered)
    except OverflowError:  # one is negative
        return np.array(gathered, np.int64)
    return np.frombuffer(counts, np.int64)


def _packed(numbers: Sequence[int], width: str) -> bytes:
    """Small numbers in this width. ``struct`` reads them twice as fast as numpy does, large ones half
    as fast. Raise OverflowError where one does not fit.
    """
    try:
        return struct.pack(f"{len(numbers)}{width}", *numbers)
    except struct.error:
        return _narrowed(np.array(numbers, np.int64), width).tobytes()


def _narrowed(numbers: NDArray[np.int64], width: str) -> NDArray[np.integer]:
    """Numbers in this width. Raise OverflowError where one does not fit."""
    found = numbers.astype(np.dtype(width))
    if found.itemsize < numbers.itemsize and (found != numbers).any():
        raise OverflowError(
            f"{numbers[found != numbers][0]} does not fit a column of width {width!r}"
        )
    return found
