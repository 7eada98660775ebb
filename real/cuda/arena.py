"""Pinned host memory: one mapping, registered once, for everything that is copied to the device.

torch's own pinned allocator rounds every block up to a power of two: 256 experts of 352 MB would
take 128 GiB. Pinning some GiB takes a second, so it is done before a run and never during one.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.cuda.lanes import Moment, is_over
from real.cuda.runtime import Runtime

PAGE_BYTES = 1 << 21
"""The size of a huge page; the arena begins at a multiple of it."""
ALIGNMENT = 4096
"""The alignment that unbuffered reads ask of addresses."""


class PinnedArena:
    """``num_bytes`` of pinned memory, taken piece by piece and given back all at once."""

    def __init__(self, runtime: Runtime, num_bytes: int) -> None:
        self._runtime = runtime
        size = max(ALIGNMENT, _up(num_bytes))
        self._mapping = mmap.mmap(-1, size + PAGE_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without huge pages refuses this call, and small pages do.
            with suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        begin = -np.frombuffer(self._mapping, np.uint8).ctypes.data % PAGE_BYTES
        # The storage must begin with the first pinned byte: torch's `is_pinned` looks at the
        # beginning of the storage, whatever part of it a tensor has.
        pinned: Any = np.frombuffer(self._mapping, np.uint8, count=size, offset=begin)
        self._memory = torch.from_numpy(pinned)
        self._taken = 0
        runtime.register(self._memory)

    @property
    def num_bytes(self) -> int:
        return self._memory.numel()

    def take(self, num_bytes: int) -> Tensor:
        """The next bytes, uint8, aligned for unbuffered reads. Raise ValueError if it has fewer."""
        if num_bytes > self.num_bytes - self._taken:
            raise ValueError(
                f"the arena of {self.num_bytes} B has {self.num_bytes - self._taken} B left, not"
                f" {num_bytes}"
            )
        begin = self._taken
        self._taken += _up(num_bytes)
        return self._memory[begin : begin + num_bytes]

    def close(self) -> None:
        """Unpin the memory; the last piece that is still held gives it back to the system.

        Copies from it must be over.
        """
        self._runtime.unregister(self._memory)
        self._memory = self._memory[:0]
        del self._mapping


class StagingRing:
    """Equal pinned buffers, used in turn.

    A buffer is given out again once the host has seen that the copy out of it is over.
    """

    def __init__(self, runtime: Runtime, arena: PinnedArena, count: int, num_bytes: int) -> None:
        if count < 1:
            raise ValueError(f"a ring of {count} buffers holds nothing")
        self._runtime = runtime
        self._free: deque[tuple[Tensor, Moment | None]] = deque(
            (arena.take(num_bytes), None) for _ in range(count)
        )

    def take(self) -> Tensor | None:
        """The buffer that rested longest, for the host to fill; None while none is free."""
        if not self._free:
            return None
        buffer, read = self._free[0]
        if read is not None and not is_over(read):
            return None
        self._free.popleft()
        self._runtime.host_writes(buffer)
        return buffer

    def give_back(self, buffer: Tensor, read: Moment) -> None:
        """Give a buffer back; the moment ``read`` passes with the copy out of it."""
        self._free.append((buffer, read))


def ring_bytes(count: int, num_bytes: int) -> int:
    """How many bytes of an arena a ring of ``count`` buffers takes."""
    return count * _up(num_bytes)


def _up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
