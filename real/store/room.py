"""Allocates room for variants of several sizes in the parts of one memory.

A variant takes free bytes of its own part in one piece, if such a piece exists, else pieces of any
part. Room that its holder has given up keeps its bytes until the room is needed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import pairwise

ALIGNMENT = 64
Extent = tuple[int, int]
"""A piece of memory: where it begins, and how long it is, in bytes."""


class Room:
    """Free and taken bytes of a memory whose parts have ``sizes`` bytes.

    ``is_gone(key)``: whether the key's holder has given it up. ``on_free(key, extents)`` is called
    when the room of such a key is taken back.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        is_gone: Callable[[int], bool],
        on_free: Callable[[int, list[Extent]], None] = lambda key, extents: None,
    ) -> None:
        self._is_gone, self._on_free = is_gone, on_free
        self.num_bytes = sum(sizes)
        self._parts: list[Extent] = []
        end = 0
        for size in sizes:
            # An aligned beginning can be viewed as numbers of any dtype; the gaps are no room.
            begin = -(-end // ALIGNMENT) * ALIGNMENT if size else end
            end = begin + size
            self._parts.append((begin, end))
        self.end = end
        """How long the memory must be."""
        self._free: list[Extent] = [
            (begin, end - begin) for begin, end in self._parts if end > begin
        ]
        self.extents: dict[int, list[Extent]] = {}
        self.num_scattered = 0
        """How often a variant found no room in one piece."""

    @property
    def free_bytes(self) -> int:
        return sum(length for _, length in self._free)

    def place(self, key: int, size: int, part: int) -> bool:
        """Find room for a key that has none yet. Return whether the key has room now."""
        if key in self.extents:
            return True
        found = self._take(size, part)
        if found is None:
            self._sweep()
            found = self._take(size, part)
        if found is not None:
            self.extents[key] = found
        return found is not None

    def _take(self, size: int, part: int) -> list[Extent] | None:
        begin, end = self._parts[part]
        for is_near in (lambda at: begin <= at < end, lambda at: True):
            fitting = [extent for extent in self._free if extent[1] >= size and is_near(extent[0])]
            if fitting:
                # The closest fit leaves the larger pieces whole.
                return [self._cut(min(fitting, key=lambda extent: (extent[1], extent[0])), size)]
        if self.free_bytes < size:
            return None
        if self._sweep():
            return self._take(size, part)
        self.num_scattered += 1
        found = []
        for extent in sorted(self._free, key=lambda extent: -extent[1]):
            piece = self._cut(extent, min(size, extent[1]))
            found.append(piece)
            size -= piece[1]
            if not size:
                break
        return found

    def _cut(self, extent: Extent, size: int) -> Extent:
        """Take ``size`` bytes off a free piece."""
        at, length = extent
        self._free.remove(extent)
        if length > size:
            insort(self._free, (at + size, length - size))
        return at, size

    def _sweep(self) -> bool:
        """Take back the room of keys that are gone; return whether there were any."""
        gone = [key for key in self.extents if self._is_gone(key)]
        for key in gone:
            extents = self.extents.pop(key)
            self._on_free(key, extents)
            for extent in extents:
                insort(self._free, extent)
        if gone:
            self._join()
        return bool(gone)

    def _join(self) -> None:
        """Join free pieces that lie side by side in one part."""
        borders = {begin for begin, _ in self._parts}
        joined: list[Extent] = []
        for at, length in self._free:
            if joined and sum(joined[-1]) == at and at not in borders:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((at, length))
        self._free = joined

    def check(self) -> None:
        """Assert that no byte is in two places. For tests."""
        pieces = sorted(
            [*self._free, *(extent for extents in self.extents.values() for extent in extents)]
        )
        assert all(at + length <= after for (at, length), (after, _) in pairwise(pieces)), pieces
        assert sum(length for _, length in pieces) == self.num_bytes
