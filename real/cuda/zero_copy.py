"""FloE's compact transfer without host threads: a kernel reads the kept rows over the link.

In `real.cuda.gather` threads gather rows into pinned buffers, from which they are copied. Here the
whole expert rests in pinned memory that the device sees, and one launch brings all kept rows. The
host writes their numbers and nothing else. The price is paid in multiprocessors, which wait for the
link when they could compute.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.copies import RowGatherer, Submit
from real.cuda.gather import Gatherer, arena_bytes, check_rows
from real.cuda.lanes import Lane
from real.cuda.runtime import Runtime
from real.driver.settings import Engine
from real.kernels.gather_rows import gather_rows

TABLES = 2
"""How many lists of rows: the host writes one while the kernel reads the other."""


class ZeroCopyGatherer:
    """Gives the lane a kernel that brings ``columns`` rows in each program.

    A gather has at most ``neurons`` rows of ``row_bytes``.
    """

    def __init__(
        self, runtime: Runtime, arena: PinnedArena, neurons: int, columns: int, row_bytes: int
    ) -> None:
        for name, value in (("neurons", neurons), ("columns", columns), ("row_bytes", row_bytes)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._runtime, self._columns, self._row_bytes = runtime, columns, row_bytes
        self._neurons = neurons
        self._tables = StagingRing(runtime, arena, TABLES, 4 * neurons)
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernel compiled before a run.

        It is compiled at its first call with each kind of number (1, multiples of 16, others).
        These calls copy from device memory to device memory: the compiled code is the same.
        """
        stream = self._runtime.stream("warm-up")
        memory = self._runtime.allocate(17 * self._row_bytes).view(17, self._row_bytes)
        table = self._runtime.allocate(4 * 16).view(torch.int32)
        self._runtime.run(stream, table.zero_, writes=[table])
        for count in (1, 2, 16):
            bring = partial(gather_rows, memory[16:], table[:count], memory[:16], self._columns)
            self._runtime.run(stream, bring, reads=[memory[16:], table], writes=[memory[:16]])
        end = self._runtime.event()
        self._runtime.record(end, stream)
        # The memory is given back on return.
        self._runtime.synchronize(end)

    def gather(self, pairs: Tensor, kept: Tensor, target: Tensor, lane: Lane) -> None:
        """Bring rows ``kept`` of ``pairs`` to the first rows of ``target``, in the lane's order.

        ``kept`` is int64 on the host, ``pairs`` uint8 [I, row bytes] in pinned memory, ``target``
        uint8 [C, row bytes] on the device. Return when the lane has been given that work. Raise
        ValueError for rows that are not there and for more rows than ``target`` holds, DeviceError
        for pairs that the device does not see.
        """
        check_rows(pairs, kept, target, self._row_bytes)
        if len(kept) > self._neurons:
            raise ValueError(f"{len(kept)} rows are kept, but their list holds {self._neurons}")
        runtime, count = self._runtime, len(kept)
        source = runtime.mapped(pairs)
        while (buffer := self._tables.take()) is None:
            lane.finish()
        table = buffer[: 4 * count].view(torch.int32)
        table.copy_(kept)
        bring = partial(gather_rows, source, runtime.mapped(table), target[:count], self._columns)
        runtime.run(lane.stream, bring, reads=[pairs, table], writes=[target[:count]])
        self._tables.give_back(buffer, lane.moment)


def gatherer_of(
    runtime: Runtime,
    arena: PinnedArena,
    engine: Engine,
    submit: Submit,
    neurons: int,
    row_bytes: int,
) -> RowGatherer:
    """The gatherer that ``engine.gather`` names; ``submit`` gives work to its threads."""
    if engine.gather == "zero_copy":
        return ZeroCopyGatherer(runtime, arena, neurons, engine.gather_columns, row_bytes)
    return Gatherer(runtime, arena, submit, engine.gather_threads, engine.gather_columns, row_bytes)


def gatherer_bytes(engine: Engine, neurons: int, row_bytes: int) -> int:
    """How many bytes of a pinned arena such a gatherer takes."""
    if engine.gather == "zero_copy":
        return ring_bytes(TABLES, 4 * neurons)
    return arena_bytes(engine.gather_threads, engine.gather_columns, row_bytes)
