"""A layer's experts as CUDA graphs: launches cost the host microseconds each, a replay costs them once.

A graph's addresses are those of its capture. Its experts are therefore found through a table of slots in device memory,
its input lies in a buffer of its own, and so do its outputs: one graph for each precision and number of needs serves
every layer and every slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.runtime import Graph, Runtime, Stream
from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.slot_matrices import SlotMatrices

Compute = Callable[[Tensor, Tensor], Tensor]
"""``compute(x [1, H], slots int32 [J]) -> [J, H]``: kernels only, of fixed shapes, without a look at any value."""
TABLES = 4
"""Tables that may be on their way while the host fills another one."""


def fused_expert(first: SlotMatrices, down: SlotMatrices, *, is_gated: bool) -> Compute:
    """An expert whose first projections are one matrix, gate above up, or a single one (ReLU) where it has no gate."""

    def compute(x_1H: Tensor, slot_J: Tensor) -> Tensor:
        inner = dequant_gemv(x_1H, first, slot_J)
        if is_gated:
            gate, up = inner.chunk(2, dim=1)
            inner = torch.nn.functional.silu(gate) * up
        else:
            inner = torch.relu(inner)
        return dequant_gemv(inner.contiguous(), down, slot_J)

    return compute


class Segment:
    """The graph of one kind of expert for a number of needs, with its input, table and outputs."""

    def __init__(self, runtime: Runtime, stream: Stream, compute: Compute, x_1H: Tensor, num_needs: int,
                 pool: Tensor) -> None:  # fmt: skip
        self._runtime, self._stream = runtime, stream
        self.x_1H = x_1H
        self.table_J = runtime.allocate(4 * num_needs).view(torch.int32)
        self.outputs_JH = runtime.allocate(4 * num_needs * x_1H.shape[1]).view(torch.float32).view(num_needs, -1)
        runtime.run(stream, lambda: self.table_J.zero_(), writes=[self.table_J])
        self._pool = pool
        self._graph: Graph = runtime.capture(
            stream, lambda: self.outputs_JH.copy_(compute(self.x_1H, self.table_J)),
            reads=[self.x_1H, self.table_J, pool[0]], writes=[self.outputs_JH],
        )  # fmt: skip

    def replay(self, slots: Sequence[int]) -> Tensor:
        """fp32 [J, H], overwritten by the next replay; what it reads must be ordered before on the stream."""
        reads = [self.x_1H, self.table_J, *(self._pool[slot] for slot in slots)]
        self._runtime.replay(self._graph, self._stream, reads=reads, writes=[self.outputs_JH])
        return self.outputs_JH


class Segments:
    """Segments by kind of expert and number of needs, captured when first asked for (``prepare`` does it before a run).

    ``computes`` is by kind; ``pools`` by kind the slots that it reads; ``hidden`` and ``dtype`` are the input's.
    """

    def __init__(self, runtime: Runtime, stream: Stream, arena: PinnedArena, computes: Sequence[Compute],
                 pools: Sequence[Tensor], hidden: int, dtype: torch.dtype, most_needs: int) -> None:  # fmt: skip
        self._runtime, self._stream, self._computes, self._pools = runtime, stream, computes, pools
        self._most_needs = most_needs
        self._x_1H = runtime.allocate(hidden * dtype.itemsize).view(dtype).view(1, hidden)
        runtime.run(stream, lambda: self._x_1H.zero_(), writes=[self._x_1H])
        self._tables = StagingRing(runtime, arena, TABLES, 4 * most_needs)
        self._segments: dict[tuple[int, int], Segment] = {}

    def prepare(self) -> None:
        """Capture everything that a run may ask for: in a run it would take long, and memory over the budget.

        A capture computes once, with what lies in the first slot of each pool.
        """
        for kind in range(len(self._computes)):
            for num_needs in range(1, self._most_needs + 1):
                self._segment(kind, num_needs)

    def _segment(self, kind: int, num_needs: int) -> Segment:
        if not 1 <= num_needs <= self._most_needs:
            raise ValueError(f"a segment of {num_needs} needs, of 1 to {self._most_needs}")
        found = self._segments.get((kind, num_needs))
        if found is None:
            found = Segment(self._runtime, self._stream, self._computes[kind], self._x_1H, num_needs, self._pools[kind])
            self._segments[kind, num_needs] = found
        return found

    def run(self, kind: int, x_1H: Tensor, slots: Sequence[int]) -> Tensor:
        """The experts in these slots on one input of the device: fp32 [J, H], overwritten by the next run of so many.

        The slots must have been ordered before on the stream.
        """
        segment = self._segment(kind, len(slots))
        buffer = self._tables.take()
        table = buffer[: 4 * len(slots)].view(torch.int32)
        table.copy_(torch.tensor(slots, dtype=torch.int32))
        self._runtime.copy(segment.table_J, table, self._stream)
        copied = self._runtime.event()
        self._runtime.record(copied, self._stream)
        self._tables.give_back(buffer, copied)
        self._runtime.run(self._stream, lambda: self._x_1H.copy_(x_1H), reads=[x_1H], writes=[self._x_1H])
        return segment.replay(slots)


def tables_bytes(most_needs: int) -> int:
    """What the tables take of a pinned arena."""
    return ring_bytes(TABLES, 4 * most_needs)
