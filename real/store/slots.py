"""The slots of a tier as memory: the budget's bytes, and where in them each resident variant lies.

The controller decides what is resident, and counts bytes; this module only finds room. A variant
goes to free bytes of its own pool's part, in one piece if such a piece exists. Where variants of
several sizes share a pool a variant may lie in several pieces, and is put together when it is
computed. What the controller has given up keeps its bytes until they are needed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from real.store.reading import Bytes
from real.store.room import ALIGNMENT, Room
from sim.core.slots import IN_FLIGHT, Slots


class SlotMemory:
    """The memory of a tier's pools, and of ``outside_bytes`` beyond them.

    - ``outside_bytes``: for staging slots, and for what pools may hold over their capacity.
    - ``keeps_slot(key)``: whether a key that is neither resident nor in flight keeps its slot.
    - ``take(num_bytes)`` gives the memory, uint8, beginning at a multiple of 64 bytes.
    """

    def __init__(
        self,
        slots: Slots,
        outside_bytes: int = 0,
        keeps_slot: Callable[[int], bool] = lambda key: False,
        take: Callable[[int], Bytes] | None = None,
    ) -> None:
        self._slots = slots

        def is_gone(key: int) -> bool:
            return slots.state[key] > IN_FLIGHT and not keeps_slot(key)

        self._room = Room((*slots.capacity_bytes, outside_bytes), is_gone)
        self.num_bytes = self._room.num_bytes
        self.bytes: Any = (take or _mapped)(self._room.end)
        self._tensor = torch.from_numpy(self.bytes)

    @property
    def num_scattered(self) -> int:
        """How often a variant found no room in one piece, and was scattered over several."""
        return self._room.num_scattered

    def place(self, key: int) -> None:
        """Find room for a key whose slot has been claimed; its bytes are still to come."""
        size = self._slots.key_bytes[key]
        if not self._room.place(key, size, self._slots.pool_of[key]):
            raise RuntimeError(
                f"no room for {self._slots.geometry.name_of(key)}: {size} B needed,"
                f" {self._room.free_bytes} B free of {self.num_bytes}"
            )

    def holds(self, key: int) -> bool:
        return key in self._room.extents

    def pieces(self, key: int, begin: int, count: int) -> Iterable[Bytes]:
        """The memory of bytes ``begin .. begin + count`` of a variant, in order."""
        for at, length in self._room.extents[key]:
            if begin < length and count > 0:
                piece = min(count, length - begin)
                yield self.bytes[at + begin : at + begin + piece]
                begin, count = 0, count - piece
            else:
                begin -= length

    def blob(self, key: int) -> torch.Tensor:
        """A variant's bytes: a view, or a copy where it lies in several pieces."""
        views = [self._tensor[at : at + length] for at, length in self._room.extents[key]]
        return views[0] if len(views) == 1 else torch.cat(views)

    def check(self, held: Callable[[int], bool]) -> None:
        """Assert that no byte is in two places and every ``held`` key has its bytes. For tests."""
        self._room.check()
        for key, extents in self._room.extents.items():
            assert sum(length for _, length in extents) == self._slots.key_bytes[key]
        for key in range(self._slots.geometry.num_keys):
            assert not held(key) or self.holds(key), self._slots.geometry.name_of(key)


def _mapped(num_bytes: int) -> Bytes:
    mapping = mmap.mmap(-1, max(1, num_bytes))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def most_bytes(slots: Slots) -> int:
    """The most that a tier's memory takes in bytes, the gaps between its pools included."""
    return sum(capacity + ALIGNMENT for capacity in slots.capacity_bytes)
