"""The transfers that have started, by number: objects while they may change, then columns.

An object takes some 300 bytes, and a long run starts millions of transfers. Most are demands that
came whole, over one link. Once such a one has landed it never changes again, so five numbers tell
all of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sim.core.transfer import UNUSED_AT_END, Transfer
from sim.values.packing import COUNT32, INT32, INT64

PACKED = {"key": INT32, "call": COUNT32, "moved_bytes": INT64, "victim": INT32}
"""What is kept of a packed transfer beside its number, and how wide. ``victim`` is -1 where none was
evicted."""
ALIKE = {"first_link": 0, "prefetch": 0, "dense": 0, "parent": -1, "outcome": UNUSED_AT_END}
"""What is the same for all that are packed."""


class Issued(list[Transfer]):
    """The transfers that have started; ``pack`` keeps those that have landed as columns.

    It is a list for who appends and counts. Reading a packed transfer makes an object like the one
    that was there, which is slow: readers of many take a ``column``, and ``objects``.
    """

    __slots__ = ("_columns", "_is_plain", "_numbers", "_open", "_row_of", "_seen")

    def __init__(self, transfers: Iterable[Transfer] = (), moves_simply: bool = False) -> None:
        """``moves_simply``: their moves are simple (`sim.core.simple`)."""
        super().__init__(transfers)
        self._is_plain = is_plain_of_simple if moves_simply else is_plain
        self._numbers = array(COUNT32)
        self._columns = {name: array(width) for name, width in PACKED.items()}
        self._open: list[int] = []  # demands that were on their way when they were last looked at
        self._seen = 0
        self._row_of: dict[int, int] = {}  # by number, of those that are packed; made when asked

    def pack(self) -> None:
        """Keep as columns what has landed since the last call."""
        self._row_of.clear()
        numbers = [*self._open, *range(self._seen, len(self))]
        self._open, self._seen, is_plain = [], len(self), self._is_plain
        landed, transfers = list[int](), list[Transfer]()
        for number, transfer in zip(numbers, map(super().__getitem__, numbers), strict=True):
            if not transfer.over:
                if not transfer.prefetch:  # a prefetch is never packed
                    self._open.append(number)
            elif is_plain(transfer):
                landed.append(number)
                transfers.append(transfer)
        self._numbers.fromlist(landed)
        columns = self._columns
        columns["key"].fromlist([transfer.key for transfer in transfers])
        columns["call"].fromlist([transfer.call for transfer in transfers])
        columns["moved_bytes"].fromlist([transfer.moved_bytes for transfer in transfers])
        columns["victim"].fromlist([t.victims[0] if t.victims else -1 for t in transfers])
        nothing = cast(Transfer, None)
        for number in landed:
            self[number] = nothing

    def objects(self) -> Iterator[tuple[int, Transfer]]:
        """Number and transfer of those that are not packed, in order."""
        for number in self._unpacked().tolist():
            yield number, list.__getitem__(self, number)

    def _unpacked(self) -> NDArray[np.int64]:
        is_object = np.ones(len(self), np.bool_)
        is_object[np.asarray(self._numbers)] = False
        return np.flatnonzero(is_object)

    def column(self, name: str) -> NDArray[np.int64]:
        """One number of every transfer: of `PACKED`, `ALIKE`, or ``outcome``."""
        value = _VALUE.get(name) or attrgetter(name)
        found = np.full(len(self), ALIKE.get(name, -1), np.int64)
        if name in PACKED:
            found[np.asarray(self._numbers)] = self._columns[name]
        numbers = self._unpacked()
        values = map(value, map(super().__getitem__, numbers.tolist()))
        found[numbers] = np.fromiter(values, np.int64, len(numbers))
        return found

    def __iter__(self) -> Iterator[Transfer]:
        for number, transfer in enumerate(super().__iter__()):
            yield self._made(number) if transfer is None else transfer

    def __getitem__(self, number: Any) -> Any:
        assert number.__class__ is not slice, "the transfers of a run are read one by one"
        transfer = list.__getitem__(self, number)
        return self._made(range(len(self))[number]) if transfer is None else transfer

    def _made(self, number: int) -> Transfer:
        """The packed transfer of this number, as it was."""
        if not self._row_of:
            self._row_of.update(zip(self._numbers, range(len(self._numbers)), strict=True))
        row = self._row_of[number]
        key, call, moved_bytes, victim = (column[row] for column in self._columns.values())
        made = Transfer(key, False, moved_bytes, call)
        made.number, made.waits, made.over, made.claimed = number, False, True, True
        made.victims = (victim,) if victim >= 0 else ()
        return made


def is_plain(transfer: Transfer) -> bool:
    """Whether a transfer that is over is told by its `PACKED` numbers alone."""
    return not (
        transfer.prefetch
        or transfer.dense
        or transfer.staged
        or transfer.partial
        or transfer.overtaken
        or transfer.bounced
        or transfer.feeds
        or transfer.rest_bytes
        or transfer.write_back
        or transfer.later_hops
        or transfer.parent >= 0
        or transfer.first_link
        or len(transfer.victims) > 1
        or transfer.left_bytes != transfer.moved_bytes
    )


def is_plain_of_simple(transfer: Transfer) -> bool:
    """`is_plain` where moves are simple: the other questions have one answer then."""
    return not (transfer.prefetch or len(transfer.victims) > 1 or transfer.write_back)


def _victim(transfer: Transfer) -> int:
    return transfer.victims[0] if transfer.victims else -1


_VALUE = {name: attrgetter(name) for name in PACKED} | {"victim": _victim}
