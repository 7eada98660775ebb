"""What experts compute on a CUDA device: eagerly, as the model does, or as a captured graph of own kernels.

The eager way knows every form of expert and gives the model's own bits; the graph takes one row, in a replay, of forms
whose first projections are one stored matrix and which have nothing but that and a down projection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.cuda.arena import PinnedArena
from real.cuda.runtime import Runtime, Stream
from real.cuda.segments import Segments, fused_expert
from real.cuda.slots import DeviceSlots, Grid
from real.expert_work import ExpertWork, Weights
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.store import RAW, StoredTensor, Variant
from sim.types import Geometry

FIRST = ("gate_up_proj", "up_proj")


class DeviceWork(ExpertWork):
    """`ExpertWork` whose tensors lie where ``like`` does. Everything that it needs is allocated at once."""

    def __init__(self, weights: Weights, geometry: Geometry, like: Tensor) -> None:
        super().__init__(weights, geometry)
        # A first call draws the stand-in weights.
        self.run_dense(-1, 1)
        assert self._dense is not None
        self._dense, self._noise = self._dense.to(like.device), self._noise.to(like.device)
        self._resident_at_home = self.resident
        self.resident = None if self.resident is None else self.resident.to(like.device)
        self._on_cpu: dict[int, Tensor] = {}

    @property
    def noise(self) -> Tensor:
        """[1, H]: the input of a replay's experts."""
        return self._noise

    @torch.no_grad()
    def run_on_cpu(self, key: int, blob: Tensor, rows: Tensor) -> None:
        """Compute an expert from host memory; ``join`` brings its output to the device. For another thread."""
        self._on_cpu[self._geometry.expert_of(key)] = self._output(key, blob, rows, None, self._resident_at_home)

    def join(self) -> None:
        """Bring what the CPU has computed for this site to the device; without inputs, forget it."""
        if self._inputs is not None:
            self._outputs |= {expert: rows.to(self._noise.device) for expert, rows in self._on_cpu.items()}
        self._on_cpu = {}


def segments_of(
    runtime: Runtime, stream: Stream, arena: PinnedArena, slots: DeviceSlots, pools: list[int], weights: Weights
) -> Segments | None:
    """Graphs for one row of each precision, whose pool is ``pools[precision]``; None where a form, or a pool that mixes
    sizes, has none."""
    grids = [slots.pools[pool] for pool in pools]
    computes, tensors = [], []
    for precision, variant in enumerate(weights.store.header.variants):
        found = {tensor.name: tensor for tensor in variant.tensors}
        first, grid = next((name for name in FIRST if name in found), None), grids[precision]
        if first is None or set(found) != {first, "down_proj"} or any(t.flipped for t in variant.tensors):
            return None
        if not isinstance(grid, Grid):
            return None
        pool = grid.tensor
        tensors.append(pool)
        computes.append(fused_expert(
            matrices_of(pool, variant, first), matrices_of(pool, variant, "down_proj"),
            is_gated=first == "gate_up_proj",
        ))  # fmt: skip
    return Segments(runtime, stream, arena, computes, tensors, weights.hidden, weights.dtype, 1)


def matrices_of(pool: Tensor, variant: Variant, name: str) -> SlotMatrices:
    """One stored matrix of a variant, in every slot of a pool."""
    stored: StoredTensor = next(tensor for tensor in variant.tensors if tensor.name == name)
    if stored.bits:
        return SlotMatrices(pool, stored.layout, stored.begin)
    rows, columns = stored.shape
    return SlotMatrices(pool, PlainLayout(rows, columns, RAW[stored.dtype]), stored.begin)
