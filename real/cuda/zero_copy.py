"""FloE's compact transfer without a host's work: a kernel reads the kept rows where they rest, over
the link.

`real.cuda.gather` has threads that gather rows into pinned buffers, whence they are copied. Here
the whole expert rests in pinned memory, which the device sees: one launch brings all rows that are
kept. The host writes their numbers and nothing else; what it costs is multiprocessors, which wait
for the link while they could compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.gather import Gatherer, arena_bytes, check_rows
from real.cuda.runtime import Event, Runtime
from real.driver.settings import Engine
from real.kernels.gather_rows import gather_rows

TABLES = 2
"""Lists of rows: one is written while the kernel reads the other."""


class RowGatherer(Protocol):
    """Brings chosen rows of an expert to the device; `real.cuda.gather.Gatherer` is the staged
    one.
    """

    def gather(
        self, pairs: Tensor, kept: Tensor, target: Tensor, after: Sequence[Event] = ()
    ) -> list[Event]:
        """Bring rows ``kept`` of ``pairs`` to the first rows of ``target``, behind the events
        ``after``; the events of the ends."""

    def close(self) -> None: ...


class ZeroCopyGatherer:
    """One stream, whose kernels bring ``columns`` rows a program, of at most ``neurons`` rows of
    ``row_bytes``.
    """

    def __init__(
        self, runtime: Runtime, arena: PinnedArena, neurons: int, columns: int, row_bytes: int
    ) -> None:
        for name, value in (("neurons", neurons), ("columns", columns), ("row_bytes", row_bytes)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._runtime, self._columns, self._row_bytes = runtime, columns, row_bytes
        self._neurons = neurons
        self._stream = runtime.stream("zero-copy gather")
        self._tables = StagingRing(runtime, arena, TABLES, 4 * neurons)
        self._warm_up()

    def _warm_up(self) -> None:
        """A kernel is compiled for kinds of numbers (1, multiples of 16, others) by a first call,
        which belongs before a run. From device memory to device memory: it is the same code.
        """
        memory = self._runtime.allocate(17 * self._row_bytes).view(17, self._row_bytes)
        table = self._runtime.allocate(4 * 16).view(torch.int32)
        self._runtime.run(self._stream, table.zero_, writes=[table])
        for count in (1, 2, 16):
            bring = partial(gather_rows, memory[16:], table[:count], memory[:16], self._columns)
            self._runtime.run(self._stream, bring, reads=[memory[16:], table], writes=[memory[:16]])
        end = self._runtime.event()
        self._runtime.record(end, self._stream)
        # Before the memory is given back.
        self._runtime.synchronize(end)

    def gather(
        self, pairs: Tensor, kept: Tensor, target: Tensor, after: Sequence[Event] = ()
    ) -> list[Event]:
        """Bring rows ``kept`` (int64 on the host) of ``pairs`` (uint8 [I, row bytes], pinned) to
        the first rows of ``target`` (uint8 [C, row bytes] on the device), behind the events
        ``after``.

        Return when that has been given to the stream. Raise ValueError for rows that are not there
        and for more than ``target`` holds, DeviceError for pairs that the device does not see.
        """
        check_rows(pairs, kept, target, self._row_bytes)
        if len(kept) > self._neurons:
            raise ValueError(f"{len(kept)} rows are kept, but their list holds {self._neurons}")
        runtime, stream, count = self._runtime, self._stream, len(kept)
        source = runtime.mapped(pairs)
        for event in after:
            runtime.wait(stream, event)
        end = runtime.event()
        buffer = self._tables.take()
        table = buffer[: 4 * count].view(torch.int32)
        table.copy_(kept)
        bring = partial(gather_rows, source, runtime.mapped(table), target[:count], self._columns)
        runtime.run(stream, bring, reads=[pairs, table], writes=[target[:count]])
        runtime.record(end, stream)
        self._tables.give_back(buffer, end)
        return [end]

    def close(self) -> None: ...


def gatherer_of(
    runtime: Runtime, arena: PinnedArena, engine: Engine, neurons: int, row_bytes: int
) -> RowGatherer:
    """As ``engine.gather`` has it."""
    if engine.gather == "zero_copy":
        return ZeroCopyGatherer(runtime, arena, neurons, engine.gather_columns, row_bytes)
    return Gatherer(runtime, arena, engine.gather_threads, engine.gather_columns, row_bytes)


def gatherer_bytes(engine: Engine, neurons: int, row_bytes: int) -> int:
    """What such a gatherer takes of a pinned arena."""
    if engine.gather == "zero_copy":
        return ring_bytes(TABLES, 4 * neurons)
    return arena_bytes(engine.gather_threads, engine.gather_columns, row_bytes)
