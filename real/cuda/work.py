"""What experts compute on a CUDA device: eagerly, as the model does, or as a captured graph.

The eager way knows every form of expert, and gives the model's own bits. The graph runs this
project's kernels on one row of a replay, from slots of any pool. Several rows of a replay go to
them without a graph where weights are stored in few bits. The kernels know two forms: experts with
one stored matrix of first projections and a down projection, and nothing else; and experts that
move neuron by neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from real.cuda.arena import PinnedArena
from real.cuda.lanes import Lane
from real.cuda.runtime import Graph, Runtime
from real.cuda.segments import (
    Kind,
    Part,
    Segments,
    all_neurons,
    fused_expert,
    several_rows,
    sparse_expert_in_part,
)
from real.cuda.slots import DeviceSlots
from real.driver.device import TAIL
from real.kernels.slot_matrices import PlainLayout, SlotMatrices, in_one_slot
from real.kernels.tiles import tiled_counts
from real.store.experts import Tensors
from real.store.neurons import UP, Arrivals, of_neurons
from real.store.variants import RAW, StoredTensor, Variant
from real.store.work import ExpertWork, Weights
from sim.values.types import Geometry

FIRST = ("gate_up_proj", "up_proj")
Draw = Callable[..., Tensor]
FEW = 8
"""How many neurons of an expert are tried out."""
PLACE = attrgetter("at")
MOST_PLACES = 2**31 - 1
"""The largest place that a table's int32 can hold."""


class DeviceWork(ExpertWork):
    """`ExpertWork` whose tensors lie where ``like`` does; it allocates everything at once."""

    def __init__(self, weights: Weights, geometry: Geometry, like: Tensor) -> None:
        super().__init__(weights, geometry)
        # Its first call draws the stand-in weights.
        self.run_dense(-1, 1)
        assert self._dense is not None
        self._noise_at_home = self._noise
        self._dense, self._noise = self._dense.to(like.device), self._noise.to(like.device)
        self._resident_at_home = self.resident
        self.resident = None if self.resident is None else self.resident.to(like.device)
        self._on_cpu: dict[int, Tensor] = {}

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def noise(self) -> Tensor:
        """The input [1, H] of a replay's experts."""
        return self._noise

    def rows_at_home(self, key: int, count: int) -> Tensor:
        """The rows that an expert on the CPU is to compute, in host memory."""
        if self._inputs is None:
            return self._noise_at_home.expand(count, -1)
        return self.rows(key, count).to("cpu")

    @torch.no_grad()
    def run_on_cpu(self, key: int, blob: Tensor, rows: Tensor) -> None:
        """Compute an expert in host memory, on another thread; ``join`` brings its output over."""
        self._on_cpu[self._geometry.expert_of(key)] = self._output(
            key, blob, rows, None, self._resident_at_home
        )

    def join(self) -> None:
        """Bring what the CPU has computed for this site to the device; in a replay, drop it."""
        if self._inputs is not None:
            self._outputs |= {
                expert: rows.to(self._noise.device) for expert, rows in self._on_cpu.items()
            }
        self._on_cpu = {}


def captured_of(
    runtime: Runtime,
    lane: Lane,
    arena: PinnedArena,
    slots: DeviceSlots,
    work: DeviceWork,
    arrivals: Arrivals,
    most_needs: int,
) -> Captured | None:
    """Graphs of one row for each precision; None where one of the forms has no graph."""
    weights, header = work.weights, work.weights.store.header
    kinds = []
    for variant in header.variants:
        windows = slots.windows(variant.num_bytes)
        if not 0 < len(windows) <= MOST_PLACES:
            return None
        kind = (
            _sparse_kind(work, variant, windows)
            if header.resident
            else _whole_kind(weights, variant, windows)
        )
        if kind is None:
            return None
        kinds.append(kind)
    segments = Segments(runtime, lane, arena, kinds, work.noise, most_needs)
    return Captured(runtime, kinds, segments, slots, work, lane, arrivals)


class Captured:
    """The experts of a replay, computed by kernels: one row of each by captured ones.

    ``arrivals`` knows which neurons have come of experts that move in part.
    """

    def __init__(
        self,
        runtime: Runtime,
        kinds: Sequence[Kind],
        segments: Segments,
        slots: DeviceSlots,
        work: DeviceWork,
        lane: Lane,
        arrivals: Arrivals,
    ) -> None:
        self._segments, self._slots, self._work, self._lane = segments, slots, work, lane
        self._runtime, self._kinds, self._arrivals = runtime, kinds, arrivals
        header = work.weights.store.header
        self._whole = all_neurons(header.neurons) if header.resident else None

    def launch(self, kind: int, keys: Sequence[int]) -> tuple[int, Tensor]:
        """Compute the first of these experts of precision ``kind`` for a row of noise.

        Return how many, J, one launch can take, and their outputs fp32 [J, H]. What lies in several pieces is put
        together before, in room for one, and so is computed alone.
        """
        lane = self._lane
        slots = self._slots.begin_reads(keys[: self._segments.most_needs], lane)
        places = list(map(PLACE, slots))
        if min(places) < 0:
            # One that lies in pieces, or all that come before the first such one.
            slots = slots[: max(1, next(n for n, place in enumerate(places) if place < 0))]
            places = places[: len(slots)]
            if places[0] < 0:
                num_bytes = self._work.geometry.bytes_of(keys[0])
                places[0] = self._slots.place_of(slots[0], num_bytes, lane)
        parts = () if self._whole is None else [self._part(key) for key in keys[: len(slots)]]
        outputs_JH = self._segments.launch(kind, places, parts)
        self._slots.end_read(slots, lane)
        return len(slots), outputs_JH

    def takes_rows(self, kind: int) -> bool:
        """Whether several rows of an expert of precision ``kind`` are computed as it is stored."""
        return self._kinds[kind].several is not None

    def compute_rows(self, kind: int, key: int, count: int) -> Tensor:
        """An expert's outputs for ``count`` rows of noise: fp32 [T, H]."""
        (slot,) = slots = self._slots.begin_reads((key,), self._lane)
        place = self._slots.place_of(slot, self._work.geometry.bytes_of(key), self._lane)
        outputs_TH = self._rows_at(self._kinds[kind], place, count)
        self._slots.end_read(slots, self._lane)
        return outputs_TH

    def warm_up(self, most_rows: int) -> None:
        """Have the kernels of up to so many rows compiled, with what lies in the first slot."""
        for kind in self._kinds:
            for count in tiled_counts(most_rows) if kind.several else ():
                self._rows_at(kind, 0, count)

    def _rows_at(self, kind: Kind, place: int, count: int) -> Tensor:
        several, noise_1H = kind.several, self._work.noise
        assert several is not None

        def run() -> Tensor:
            slot_1 = torch.full((1,), place, dtype=torch.int32, device=noise_1H.device)
            return several(noise_1H.expand(count, -1).contiguous(), slot_1)

        reads = [noise_1H, *kind.reads([place], ())]
        return self._runtime.run(self._lane.stream, run, reads=reads)

    def _part(self, key: int) -> Part:
        g, header, held = (
            self._work.geometry,
            self._work.weights.store.header,
            self._arrivals.held(key),
        )
        whole = self._whole
        assert whole is not None
        return header.number(g.site_of(key), g.expert_of(key)), whole if held is None else held


def dense_graphs(runtime: Runtime, lane: Lane, work: DeviceWork) -> dict[int, Graph]:
    """The dense work of a replay's single rows, by key of a dense block, or TAIL: the head."""
    g, params_of = work.geometry, work.weights.dense_params
    graphs = {
        params: runtime.capture(lane.stream, partial(work.run_dense, params_of.index(params), 1))
        for params in dict.fromkeys(params_of)
    }
    keys = [*(g.key(0, site, g.experts) for site in range(g.sites)), TAIL]
    return {key: graphs[params] for key, params in zip(keys, params_of, strict=True)}


def _whole_kind(weights: Weights, variant: Variant, windows: Tensor) -> Kind | None:
    """The kind of experts that are one matrix of first projections and a down projection.

    None for experts that have anything else.
    """
    found = {tensor.name: tensor for tensor in variant.tensors}
    first = next((name for name in FIRST if name in found), None)
    if (
        first is None
        or set(found) != {first, "down_proj"}
        or any(t.flipped for t in variant.tensors)
    ):
        return None
    is_gated = first == "gate_up_proj"

    def ours(draw: Draw, hidden: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        tensors = {
            first: draw(2 * FEW if is_gated else FEW, hidden),
            "down_proj": draw(hidden, FEW),
        }
        matrices = [in_one_slot(tensors[name]) for name in (first, "down_proj")]
        compute = fused_expert(matrices[0], matrices[1], is_gated=is_gated)
        return tensors, lambda x_1H: compute(x_1H, torch.zeros(1, 1, dtype=torch.int32))

    if not _is_alike(weights, ours):
        return None
    matrices = [matrices_of(windows, variant, name) for name in (first, "down_proj")]
    return Kind(
        fused_expert(*matrices, is_gated=is_gated),
        windows,
        several=(
            several_rows(*matrices, is_gated=is_gated)
            if all(tensor.bits for tensor in variant.tensors)
            else None
        ),
    )


def _sparse_kind(work: DeviceWork, variant: Variant, windows: Tensor) -> Kind | None:
    """The kind of experts that move neuron by neuron; None where a graph's result is another."""
    weights, header = work.weights, work.weights.store.header
    assert header.resident is not None
    assert work.resident is not None
    (stored,), neurons = variant.tensors, header.neurons

    def ours(draw: Draw, hidden: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        pairs, up = draw(FEW, 2 * hidden), draw(FEW, hidden)
        compute = sparse_expert_in_part(in_one_slot(up), pairs[None])
        table_WJ = torch.tensor([[0], [0], [FEW], *([n] for n in range(FEW))], dtype=torch.int32)
        return of_neurons(weights.forms[0], pairs, up), lambda x_1H: compute(x_1H, table_WJ)

    if stored.bits or not _is_alike(weights, ours):
        return None
    size = neurons * stored.shape[1] * RAW[stored.dtype].itemsize
    pairs = (
        windows[:, stored.begin : stored.begin + size]
        .view(RAW[stored.dtype])
        .view(-1, *stored.shape)
    )
    compute = sparse_expert_in_part(matrices_of(work.resident, header.resident, UP), pairs)
    return Kind(compute, windows, work.resident, neurons)


def _is_alike(
    weights: Weights, ours: Callable[[Draw, int], tuple[Tensors, Callable[[Tensor], Tensor]]]
) -> bool:
    """Whether the captured way computes what the model's experts do, for every kind of form.

    Names alone do not tell: the activation may be another one. So a few neurons of random weights
    are tried.
    """
    made = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    x_1H = draw(1, weights.hidden)
    for form in {form.kind: form for form in weights.forms}.values():
        tensors, compute = ours(draw, weights.hidden)
        try:
            own = form.forward(tensors, x_1H)
            if not torch.allclose(own, compute(x_1H), rtol=0, atol=1e-4 * float(own.abs().max())):
                return False
        except (RuntimeError, TypeError):
            # Some layers take experts of their own size only, or lie on another device.
            return False
    return True


def matrices_of(pool: Tensor, variant: Variant, name: str) -> SlotMatrices:
    """One stored matrix of a variant, in every slot of a pool."""
    stored: StoredTensor = next(tensor for tensor in variant.tensors if tensor.name == name)
    if stored.bits:
        return SlotMatrices(pool, stored.layout, stored.begin)
    rows, columns = stored.shape
    return SlotMatrices(pool, PlainLayout(rows, columns, RAW[stored.dtype]), stored.begin)
