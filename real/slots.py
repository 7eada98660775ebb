"""The slots of a tier as memory: exactly the budget's bytes, and where in them each resident variant lies.

The controller decides what is resident and counts bytes; here it is only found room. A variant goes to free bytes of
its own pool's part, in one piece if there is one; where variants of several sizes share a pool it may lie in several
pieces, and is put together when it is computed. What the controller has given up keeps its bytes until they are needed.
"""

from __future__ import annotations

import mmap
from bisect import insort
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from real.reading import Bytes
from sim.slots import IN_FLIGHT, Slots

ALIGNMENT = 64
Extent = tuple[int, int]
"""Where a piece begins, and how long it is, in bytes."""


class SlotMemory:
    """``outside_bytes`` come on top of the pools: staging slots, and what pools may hold over their capacity."""

    def __init__(self, slots: Slots, outside_bytes: int = 0) -> None:
        self._slots = slots
        self.num_bytes = sum(slots.capacity_bytes) + outside_bytes
        self._parts: list[Extent] = []
        end = 0
        for size in (*slots.capacity_bytes, outside_bytes):
            # What begins aligned can be looked at as numbers; the gaps are no slots.
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + size
            self._parts.append((begin, end))
        self._mapping = mmap.mmap(-1, max(1, end))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: Any = np.frombuffer(self._mapping, np.uint8)
        self._tensor = torch.from_numpy(self.bytes)
        self._free: list[Extent] = [(begin, end - begin) for begin, end in self._parts if end > begin]
        self._extents: dict[int, list[Extent]] = {}
        self.num_scattered = 0
        """How often a variant found no room in one piece."""

    def place(self, key: int) -> None:
        """Find room for a key that the controller has claimed a slot for; its bytes are still to come."""
        if key in self._extents:
            return
        size = self._slots.key_bytes[key]
        found = self._take(key, size)
        if found is None:
            self._sweep()
            found = self._take(key, size)
        if found is None:
            raise RuntimeError(
                f"no room for {self._slots.geometry.name_of(key)}: {size} B needed, "
                f"{sum(length for _, length in self._free)} B free of {self.num_bytes}"
            )
        self._extents[key] = found

    def holds(self, key: int) -> bool:
        return key in self._extents

    def pieces(self, key: int, begin: int, count: int) -> Iterable[Bytes]:
        """The memory of bytes ``begin .. begin + count`` of a variant, in order."""
        for at, length in self._extents[key]:
            if begin < length and count > 0:
                piece = min(count, length - begin)
                yield self.bytes[at + begin : at + begin + piece]
                begin, count = 0, count - piece
            else:
                begin -= length

    def blob(self, key: int) -> torch.Tensor:
        """A variant's bytes: a view, or a copy where it lies in several pieces."""
        extents = self._extents[key]
        views = [self._tensor[at : at + length] for at, length in extents]
        return views[0] if len(views) == 1 else torch.cat(views)

    # ---- room

    def _take(self, key: int, size: int) -> list[Extent] | None:
        begin, end = self._parts[self._slots.pool_of[key]]
        for is_near in (lambda at: begin <= at < end, lambda at: True):
            fitting = [extent for extent in self._free if extent[1] >= size and is_near(extent[0])]
            if fitting:
                # The closest fit breaks nothing up that a larger variant needs.
                return [self._cut(min(fitting, key=lambda extent: (extent[1], extent[0])), size)]
        if sum(length for _, length in self._free) < size:
            return None
        if self._sweep():
            return self._take(key, size)
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
        """Give back the room of what the controller holds no more; whether there was any."""
        state = self._slots.state
        gone = [key for key in self._extents if state[key] > IN_FLIGHT]
        for key in gone:
            for extent in self._extents.pop(key):
                insort(self._free, extent)
        if gone:
            self._join()
        return bool(gone)

    def _join(self) -> None:
        """Free pieces side by side, in one part, become one."""
        borders = {begin for begin, _ in self._parts}
        joined: list[Extent] = []
        for at, length in self._free:
            if joined and sum(joined[-1]) == at and at not in borders:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((at, length))
        self._free = joined

    def check(self, held: Callable[[int], bool]) -> None:
        """Assert that no byte is in two places, and that what is ``held`` has its bytes. For tests."""
        pieces = sorted([*self._free, *(extent for extents in self._extents.values() for extent in extents)])
        assert all(at + length <= after for (at, length), (after, _) in pairwise(pieces)), pieces
        assert sum(length for _, length in pieces) == self.num_bytes
        for key, extents in self._extents.items():
            assert sum(length for _, length in extents) == self._slots.key_bytes[key]
        for key in range(self._slots.geometry.num_keys):
            assert not held(key) or key in self._extents, self._slots.geometry.name_of(key)
