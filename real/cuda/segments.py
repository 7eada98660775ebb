"""A gate's experts as CUDA graphs, which cost the host one launch where kernels cost one each.

A graph keeps the addresses of its capture. So it finds its experts through a table, which says
where each lies and, of an expert that has come in part, which neurons those are. The host writes
the table into pinned memory, and the graph begins by copying it to the device: a launch needs no
other call. A graph for each precision and number of needs thus serves every layer and every slot.
There are as many of each as one gate may launch, so that no table is written while it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.cuda.arena import PinnedArena, ring_bytes
from real.cuda.lanes import Lane
from real.cuda.runtime import Graph, Runtime
from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.experts import dense_expert, partial_expert
from real.kernels.grouped_gemm import grouped_expert, grouped_gemm
from real.kernels.slot_matrices import SlotMatrices
from real.store.neurons import Numbers

Table = NDArray[np.int32]
Compute = Callable[[Tensor, Tensor], Tensor]
"""``compute(x [1, H], table int32 [W, J]) -> [J, H]``.

It launches kernels of fixed shapes only, and looks at no value.
"""
NO_NEURONS: Numbers = np.zeros(0, np.int64)
RowsCompute = Callable[[Tensor, Tensor], Tensor]
"""``compute(x [T, H], slot int32 [1]) -> fp32 [T, H]``: several rows of one expert, as stored."""
SLOT, UP, COUNT, FIRST_NEURON = range(4)
"""Rows of a table. Whole experts use the first one only.

Experts that have come in part use all of them, and one more for each neuron.
"""


Part = tuple[int, Numbers]
"""Of a sparse expert the number of its resident up projection, and the neurons in its slot."""


def write_parts(parts: Sequence[Part], table_WJ: Table) -> None:
    """Write into a table which part of each sparse expert has come.

    What lies behind the last neuron of one stays as it is.
    """
    for number, (up, neurons) in enumerate(parts):
        table_WJ[UP, number], table_WJ[COUNT, number] = up, len(neurons)
        table_WJ[FIRST_NEURON : FIRST_NEURON + len(neurons), number] = neurons


@dataclass(frozen=True)
class Kind:
    """What experts of one precision compute.

    ``pool`` [S, bytes] is where their slots lie. Sparse experts have ``neurons``, and their up
    projections lie in ``ups`` [experts, bytes]. ``several`` computes several rows of an expert that
    is stored in few bits; None where torch does that.
    """

    compute: Compute
    pool: Tensor
    ups: Tensor | None = None
    neurons: int = 0
    several: RowsCompute | None = None

    @property
    def table_rows(self) -> int:
        return FIRST_NEURON + self.neurons if self.ups is not None else 1

    def reads(self, places: Sequence[int], parts: Sequence[Part]) -> list[Tensor]:
        """The memory that computing these needs reads."""
        ups = [] if self.ups is None else [self.ups[up] for up, _ in parts]
        return [*(self.pool[place] for place in places), *ups]


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


def several_rows(first: SlotMatrices, down: SlotMatrices, *, is_gated: bool) -> RowsCompute:
    """The same for several rows. The bytes of the weights are read once for up to 64 of them."""

    def compute(x_TH: Tensor, slot_1: Tensor) -> Tensor:
        counts = [len(x_TH)]
        if is_gated:
            return grouped_expert(x_TH, first, down, slot_1, counts)
        inner = torch.relu(grouped_gemm(x_TH, first, slot_1, counts))
        return grouped_gemm(inner, down, slot_1, counts)

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
    """A graph of one kind of expert for a number of needs, with its tables and outputs."""

    def __init__(
        self, runtime: Runtime, lane: Lane, arena: PinnedArena, kind: Kind, x_1H: Tensor, needs: int
    ) -> None:
        self._runtime, self._lane, self._kind, self._x_1H = runtime, lane, kind, x_1H
        shape = kind.table_rows, needs
        self._pinned = arena.take(4 * shape[0] * needs).view(torch.int32).view(shape)
        # At first of no neurons. Zeros, because a number behind the count names a neuron, too.
        self._table_WJ: Table = self._pinned.zero_().numpy()
        # The first row, SLOT. To assign it to numpy's array takes three times as long.
        self._put_places = partial(Struct(f"{needs}i").pack_into, self._table_WJ.data, 0)
        held_WJ = runtime.allocate(4 * shape[0] * needs).view(torch.int32).view(shape)
        self.outputs_JH = (
            runtime.allocate(4 * needs * x_1H.shape[1]).view(torch.float32).view(needs, -1)
        )
        self._writes = (held_WJ, self.outputs_JH)

        def work() -> None:
            held_WJ.copy_(self._pinned, non_blocking=True)
            self.outputs_JH.copy_(kind.compute(x_1H, held_WJ))

        self._graph: Graph = runtime.capture(
            lane.stream, work, reads=self._reads([0], [(0, NO_NEURONS)]), writes=self._writes
        )
        self.last = lane.marked + 1
        """The number of the mark behind its last launch; the capture is one."""

    def _reads(self, places: Sequence[int], parts: Sequence[Part]) -> list[Tensor]:
        return [self._x_1H, self._pinned, *self._kind.reads(places, parts)]

    def launch(self, places: Sequence[int], parts: Sequence[Part] = ()) -> Tensor:
        """The outputs, fp32 [J, H], which the next launch overwrites; the last one must be over.

        What the graph reads must have been ordered before it on the lane.
        """
        runtime, lane = self._runtime, self._lane
        runtime.host_writes(self._pinned)
        self._put_places(*places)
        if parts:
            write_parts(parts, self._table_WJ)
        reads = partial(self._reads, places, parts)
        runtime.replay(self._graph, lane.stream, reads=reads, writes=self._writes)
        self.last = lane.marked + 1
        return self.outputs_JH


class Segments:
    """Segments by kind of expert and number of needs, all captured before the run.

    A capture in a run would take long, and memory beyond the budget. Each capture computes once,
    with what lies in the first slot of its pool. All compute the input ``x_1H``.
    """

    def __init__(
        self,
        runtime: Runtime,
        lane: Lane,
        arena: PinnedArena,
        kinds: Sequence[Kind],
        x_1H: Tensor,
        most_needs: int,
    ) -> None:
        self._lane, self.most_needs = lane, most_needs
        self._segments = {
            (number, needs): deque(
                Segment(runtime, lane, arena, kind, x_1H, needs) for _ in range(count)
            )
            for number, kind in enumerate(kinds)
            for needs, count in copies_of(most_needs).items()
        }

    def launch(self, kind: int, places: Sequence[int], parts: Sequence[Part] = ()) -> Tensor:
        """The outputs of these experts: fp32 [J, H].

        ``places`` are those of their slots in the pool; sparse experts have ``parts`` as well. A
        later launch of as many needs overwrites the outputs. The experts' slots must have been
        ordered before on the lane.
        """
        segments = self._segments.get((kind, len(places)))
        if segments is None:
            raise ValueError(f"a segment of {len(places)} needs, of 1 to {self.most_needs}")
        segment = segments[0]
        segments.rotate(-1)
        if segment.last > self._lane.over:
            # Rare: as many launches as one gate has lie between two of the same segment.
            self._lane.finish()
        return segment.launch(places, parts)


def copies_of(most_needs: int) -> dict[int, int]:
    """By number of needs: how many launches of that many the needs of one gate can make."""
    return {needs: most_needs // needs for needs in range(1, most_needs + 1)}


def tables_bytes(most_needs: int, neurons: int = 1, kinds: int = 1) -> int:
    """How many bytes of a pinned arena the tables take.

    ``neurons``: how many an expert that may come in part has; 1 for any other.
    """
    rows = FIRST_NEURON + neurons if neurons > 1 else 1
    copies = copies_of(most_needs).items()
    return kinds * sum(ring_bytes(count, 4 * rows * needs) for needs, count in copies)


def all_neurons(count: int) -> Numbers:
    """The neurons of a whole expert, in stored order."""
    return np.arange(count, dtype=np.int64)
