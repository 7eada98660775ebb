"""A layer's experts as CUDA graphs, which cost the host one launch where kernels cost one each.

A graph keeps the addresses of its capture. So it finds its experts through a table in device
memory, which says where each lies and, of an expert that has come in part, which neurons those are.
Its input and its outputs lie in buffers of its own. One graph for each precision and number of
needs thus serves every layer, every pool and every slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.runtime import Graph, Runtime, Stream
from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.experts import dense_expert, partial_expert
from real.kernels.slot_matrices import SlotMatrices
from real.store.neurons import Numbers

Compute = Callable[[Tensor, Tensor], Tensor]
"""``compute(x [1, H], table int32 [W, J]) -> [J, H]``.

It launches kernels of fixed shapes only, and looks at no value.
"""
TABLES = 4
"""How many tables may be on their way while the host fills another one."""
SLOT, UP, COUNT, FIRST_NEURON = range(4)
"""Rows of a table. Whole experts use the first one only.

Experts that have come in part use all of them, and one more for each neuron.
"""


@dataclass(frozen=True)
class Need:
    """An expert that is to be computed; ``slot`` is its place in the pool.

    Of a sparse expert ``up`` is the number of its resident up projection, and ``neurons`` are those
    that its slot holds, in their order.
    """

    slot: int
    up: int = 0
    neurons: Numbers | None = None

    def write(self, table_W: Tensor) -> None:
        """Write its column of a table; what lies behind its last neuron stays as it is."""
        table_W[SLOT] = self.slot
        if len(table_W) > 1:
            assert self.neurons is not None
            table_W[UP], table_W[COUNT] = self.up, len(self.neurons)
            table_W[FIRST_NEURON : FIRST_NEURON + len(self.neurons)] = torch.from_numpy(
                self.neurons
            )


@dataclass(frozen=True)
class Kind:
    """What experts of one precision compute.

    ``pool`` [S, bytes] is where their slots lie. Sparse experts have ``neurons``, and their up
    projections lie in ``ups`` [experts, bytes].
    """

    compute: Compute
    pool: Tensor
    ups: Tensor | None = None
    neurons: int = 0

    @property
    def table_rows(self) -> int:
        return FIRST_NEURON + self.neurons if self.ups is not None else 1

    def reads(self, needs: Sequence[Need]) -> list[Tensor]:
        """The memory that computing these needs reads."""
        ups = [] if self.ups is None else [self.ups[need.up] for need in needs]
        return [*(self.pool[need.slot] for need in needs), *ups]


def fused_expert(first: SlotMatrices, down: SlotMatrices, *, is_gated: bool) -> Compute:
    """An expert whose first projections are one matrix.

    That matrix has gate above up, or is a single projection (with ReLU) where there is no gate.
    """

    def compute(x_1H: Tensor, table_WJ: Tensor) -> Tensor:
        slot_J = table_WJ[SLOT]
        if is_gated:
            return dense_expert(x_1H, first, down, slot_J)
        inner = torch.relu(dequant_gemv(x_1H, first, slot_J))
        return dequant_gemv(inner, down, slot_J)

    return compute


def sparse_expert_in_part(up: SlotMatrices, pairs: Tensor) -> Compute:
    """FloE's expert of the neurons that have come, with ``pairs`` [S, N, 2 H] in the slots.

    The up projections are resident. Every neuron of ``up`` is multiplied, as in FloE, which finds
    the active ones that way.
    """

    def compute(x_1H: Tensor, table_WJ: Tensor) -> Tensor:
        slot_J, up_J, count_J = table_WJ[SLOT], table_WJ[UP], table_WJ[COUNT]
        return partial_expert(x_1H, up, up_J, pairs, slot_J, count_J, table_WJ[FIRST_NEURON:])

    return compute


class Segment:
    """The graph of one kind of expert for a number of needs, with its input, table and outputs."""

    def __init__(
        self, runtime: Runtime, stream: Stream, kind: Kind, x_1H: Tensor, num_needs: int
    ) -> None:
        self._runtime, self._stream, self._kind = runtime, stream, kind
        self.x_1H = x_1H
        rows = kind.table_rows
        self.table_WJ = (
            runtime.allocate(4 * rows * num_needs).view(torch.int32).view(rows, num_needs)
        )
        self.outputs_JH = (
            runtime.allocate(4 * num_needs * x_1H.shape[1]).view(torch.float32).view(num_needs, -1)
        )
        # At first of no neurons. Zeros, because a number behind the count names a neuron, too.
        runtime.run(stream, lambda: self.table_WJ.zero_(), writes=[self.table_WJ])
        self._graph: Graph = runtime.capture(
            stream,
            lambda: self.outputs_JH.copy_(kind.compute(self.x_1H, self.table_WJ)),
            reads=[self.x_1H, self.table_WJ, *kind.reads([Need(0)])],
            writes=[self.outputs_JH],
        )

    def replay(self, needs: Sequence[Need]) -> Tensor:
        """The outputs, fp32 [J, H], which the next replay overwrites.

        What the graph reads must have been ordered before it on the stream.
        """
        reads = [self.x_1H, self.table_WJ, *self._kind.reads(needs)]
        self._runtime.replay(self._graph, self._stream, reads=reads, writes=[self.outputs_JH])
        return self.outputs_JH


class Segments:
    """Segments by kind of expert and number of needs, each captured when it is first asked for.

    ``prepare`` captures them before a run. ``hidden`` and ``dtype`` are the input's.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        arena: PinnedArena,
        kinds: Sequence[Kind],
        hidden: int,
        dtype: torch.dtype,
        most_needs: int,
    ) -> None:
        self._runtime, self._stream, self._kinds, self._most_needs = (
            runtime,
            stream,
            kinds,
            most_needs,
        )
        self._x_1H = runtime.allocate(hidden * dtype.itemsize).view(dtype).view(1, hidden)
        runtime.run(stream, lambda: self._x_1H.zero_(), writes=[self._x_1H])
        rows = max(kind.table_rows for kind in kinds)
        self._tables = StagingRing(runtime, arena, TABLES, 4 * rows * most_needs)
        self._segments: dict[tuple[int, int], Segment] = {}

    def prepare(self) -> None:
        """Capture everything that a run may ask for.

        During a run a capture would take long, and memory beyond the budget. Each capture computes
        once, with what lies in the first slot of each pool.
        """
        for kind in range(len(self._kinds)):
            for num_needs in range(1, self._most_needs + 1):
                self._segment(kind, num_needs)

    def _segment(self, kind: int, num_needs: int) -> Segment:
        if not 1 <= num_needs <= self._most_needs:
            raise ValueError(f"a segment of {num_needs} needs, of 1 to {self._most_needs}")
        found = self._segments.get((kind, num_needs))
        if found is None:
            found = Segment(self._runtime, self._stream, self._kinds[kind], self._x_1H, num_needs)
            self._segments[kind, num_needs] = found
        return found

    def run(self, kind: int, x_1H: Tensor, needs: Sequence[Need]) -> Tensor:
        """The outputs of these experts for one input on the device: fp32 [J, H].

        The next run of as many needs overwrites them. The experts' slots must have been ordered
        before on the stream.
        """
        segment = self._segment(kind, len(needs))
        # Rows behind the longest list of neurons are not sent.
        rows = min(
            segment.table_WJ.shape[0], FIRST_NEURON + max(_count(need.neurons) for need in needs)
        )
        buffer = self._tables.take()
        held = buffer[: 4 * rows * len(needs)]
        table_WJ = held.view(torch.int32).view(rows, len(needs))
        table_WJ[FIRST_NEURON:] = 0
        for number, need in enumerate(needs):
            need.write(table_WJ[:, number])
        self._runtime.copy(segment.table_WJ[:rows], table_WJ, self._stream)
        copied = self._runtime.event()
        self._runtime.record(copied, self._stream)
        self._tables.give_back(buffer, copied)
        self._runtime.run(
            self._stream, lambda: self._x_1H.copy_(x_1H), reads=[x_1H], writes=[self._x_1H]
        )
        return segment.replay(needs)


def _count(neurons: Numbers | None) -> int:
    return 0 if neurons is None else len(neurons)


def tables_bytes(most_needs: int, neurons: int = 1) -> int:
    """How many bytes of a pinned arena the tables take.

    ``neurons``: how many an expert that may come in part has; 1 for any other.
    """
    rows = FIRST_NEURON + neurons if neurons > 1 else 1
    return ring_bytes(TABLES, 4 * rows * most_needs)


def all_neurons(count: int) -> Numbers:
    """The neurons of a whole expert, in stored order."""
    return np.arange(count, dtype=np.int64)
