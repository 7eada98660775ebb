"""Columns that grow as lists and are kept as arrays: 8 B an entry, where a list of ints takes 40."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import cast

INT64 = "q"


class Packing:
    """Keeps what some lists have gathered, by name.

    Appending to a list is the fastest way to grow a column. So they stay lists, and ``pack`` now
    and then empties them into arrays.
    """

    def __init__(self, lists: Mapping[str, list[int]]) -> None:
        self._lists = lists
        self._kept = {name: array(INT64) for name in lists}

    def pack(self) -> None:
        for name, gathered in self._lists.items():
            self._kept[name] += array(INT64, gathered)
            gathered.clear()

    def whole(self) -> Mapping[str, list[int]]:
        """All that was gathered, by name. The lists are empty then.

        What is typed as lists here are arrays, which can be read as lists can.
        """
        self.pack()
        return cast(Mapping[str, list[int]], self._kept)
