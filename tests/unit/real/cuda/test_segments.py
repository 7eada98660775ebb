"""Captured segments: one graph serves all slots of a kind, in legal order; and what it computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from helpers.fake_runtime import FakeRuntime, OrderError
from helpers.lanes import lane_of
from real.cuda.arena import PinnedArena
from real.cuda.segments import (
    Kind,
    Part,
    Segments,
    fused_expert,
    sparse_expert_in_part,
    tables_bytes,
)
from real.kernels.quantise import layout_of, quantise
from real.kernels.slot_matrices import SlotMatrices

HIDDEN, INNER, SLOTS = 32, 48, 4


class Bench:
    def __init__(self, *, is_gated: bool = True, strict: bool = False) -> None:
        self.runtime = FakeRuntime(strict=strict)
        self.lane = lane_of(self.runtime, "compute")
        self.x_1H = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
        rows = 2 * INNER if is_gated else INNER
        made = torch.Generator().manual_seed(0)
        first = [
            quantise(torch.randn(rows, HIDDEN, generator=made) * 0.1, 4, 16) for _ in range(SLOTS)
        ]
        down = [
            quantise(torch.randn(HIDDEN, INNER, generator=made) * 0.1, 4, 16) for _ in range(SLOTS)
        ]
        begin = layout_of(first[0]).stored_bytes
        size = begin + layout_of(down[0]).stored_bytes
        self.pool = self.runtime.allocate(SLOTS * size).view(SLOTS, size)
        for slot in range(SLOTS):
            layout_of(first[slot]).write(first[slot], self.pool[slot])
            layout_of(down[slot]).write(down[slot], self.pool[slot, begin:])
        self.first = SlotMatrices(self.pool, layout_of(first[0]))
        self.down = SlotMatrices(self.pool, layout_of(down[0]), begin)
        self.is_gated = is_gated
        self.segments = Segments(
            self.runtime,
            self.lane,
            PinnedArena(self.runtime, tables_bytes(3)),
            [Kind(fused_expert(self.first, self.down, is_gated=is_gated), self.pool)],
            self.x_1H,
            3,
        )

    def launch(self, x_1H: Tensor, places: list[int], parts: Sequence[Part] = ()) -> Tensor:
        self.x_1H.copy_(x_1H)
        return self.segments.launch(0, places, parts)

    def wanted(self, x_1H: Tensor, slots: list[int]) -> Tensor:
        """The outputs in fp64, matrix by matrix."""
        rows = []
        for slot in slots:
            inner = self.first.weight(slot).double() @ x_1H[0].double()
            if self.is_gated:
                gate, up = inner[:INNER], inner[INNER:]
                inner = gate / (1 + (-gate).exp()) * up
            else:
                inner = inner.clamp(min=0)
            rows.append(self.down.weight(slot).double() @ inner)
        return torch.stack(rows)


@pytest.mark.parametrize("is_gated", [True, False])
def test_one_graph_serves_every_slot(is_gated: bool) -> None:
    bench = Bench(is_gated=is_gated)
    before = bench.runtime.allocated
    for number, slots in enumerate([[0], [3], [1, 2], [2, 2, 0], [0, 1], [3], [1], [0]]):
        x_1H = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(number)).bfloat16()
        got = bench.launch(x_1H, slots)
        want = bench.wanted(x_1H, slots)
        assert float((got.double() - want).norm() / want.norm()) < 1e-5, slots
    assert bench.runtime.allocated == before, "nothing may be allocated in a run"


def test_a_slot_whose_copy_is_not_ordered_before_the_replay_is_found() -> None:
    bench = Bench(strict=True)
    copies = bench.runtime.stream("copies")
    # The captures read the slots; the copy must come after that.
    bench.lane.finish()
    bench.runtime.run(copies, lambda: None, writes=[bench.pool[2]])
    with pytest.raises(OrderError, match="compute reads memory that stream 2 may still be writing"):
        bench.segments.launch(0, [2])


def test_a_number_of_needs_that_was_not_told_is_refused() -> None:
    with pytest.raises(ValueError, match="a segment of 4 needs, of 1 to 3"):
        Bench().segments.launch(0, list(range(4)))


def test_a_gate_launches_each_of_its_needs_alone_without_a_wait_and_the_next_gate_may_again() -> (
    None
):
    """Three needs, so three graphs of one need. The fourth's table may be in use until a wait."""
    bench = Bench(strict=True)
    bench.lane.finish()
    for _ in range(3):
        marked = bench.lane.marked
        for _ in range(3):
            bench.segments.launch(0, [1])
        assert bench.lane.marked == marked, "a launch has waited"
        bench.lane.finish()


def test_a_table_that_is_written_while_its_graph_may_read_it_is_found() -> None:
    bench = Bench(strict=True)
    bench.lane.finish()
    segment = bench.segments._segments[0, 3][0]
    segment.launch([0] * 3)
    with pytest.raises(OrderError, match="the host writes memory that stream 1 may still be read"):
        segment.launch([0] * 3)


NEURONS, EXPERTS = 37, 5


class Sparse:
    """Experts whose neurons come one by one; their up projections lie elsewhere, at two bits."""

    def __init__(self, *, strict: bool = False, most_needs: int = 3) -> None:
        self.runtime = FakeRuntime(strict=strict)
        self.lane = lane_of(self.runtime, "compute")
        self.x_1H = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
        made = torch.Generator().manual_seed(0)
        self.stored = [
            quantise(torch.randn(NEURONS, HIDDEN, generator=made) * 0.1, 2, 16)
            for _ in range(EXPERTS)
        ]
        layout = layout_of(self.stored[0])
        ups = self.runtime.allocate(EXPERTS * layout.stored_bytes).view(EXPERTS, -1)
        for number, matrix in enumerate(self.stored):
            layout.write(matrix, ups[number])
        self.up = SlotMatrices(ups, layout)
        size = NEURONS * 2 * HIDDEN * 2
        self.pool = self.runtime.allocate(SLOTS * size).view(SLOTS, size)
        self.pairs = self.pool.view(torch.bfloat16).view(SLOTS, NEURONS, 2 * HIDDEN)
        compute = sparse_expert_in_part(self.up, self.pairs)
        self.segments = Segments(
            self.runtime,
            self.lane,
            PinnedArena(self.runtime, tables_bytes(most_needs, NEURONS)),
            [Kind(compute, self.pool, ups, NEURONS)],
            self.x_1H,
            most_needs,
        )

    def bring(self, slot: int, count: int, seed: int) -> Tensor:
        """Put pairs of ``count`` neurons into a slot, NaN behind them; return the neurons."""
        made = torch.Generator().manual_seed(seed)
        self.pairs[slot] = torch.nan
        self.pairs[slot, :count] = (torch.randn(count, 2 * HIDDEN, generator=made) * 0.1).bfloat16()
        return torch.randperm(NEURONS, generator=made)[:count]

    launch = Bench.launch  # type: ignore[assignment]

    def wanted(self, x_1H: Tensor, slot: int, part: Part) -> Tensor:
        """The output in fp64, neuron by neuron."""
        up, neurons = part
        weight = self.up.weight(up).double()
        total, x_H = torch.zeros(HIDDEN, dtype=torch.float64), x_1H[0].double()
        for place, neuron in enumerate(neurons.tolist()):
            gate_H, down_H = self.pairs[slot, place].double().chunk(2)
            gate = float(gate_H @ x_H)
            total += gate / (1 + math.exp(-gate)) * float(weight[neuron] @ x_H) * down_H
        return total


def test_one_graph_serves_experts_in_part_of_any_neurons() -> None:
    """Longer lists come before shorter ones: what they leave in the table must not be looked at."""
    bench = Sparse()
    before = bench.runtime.allocated
    for seed, counts in enumerate([[5], [NEURONS], [1], [0], [NEURONS, 3], [2, 0, 11], [7]]):
        x_1H = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()
        slots = [(seed + j) % SLOTS for j in range(len(counts))]
        parts = [
            ((seed * 2 + j) % EXPERTS, bench.bring(slots[j], count, 10 * seed + j).numpy())
            for j, count in enumerate(counts)
        ]
        got = bench.launch(x_1H, slots, parts)
        for slot, part, row in zip(slots, parts, got, strict=True):
            want = bench.wanted(x_1H, slot, part)
            assert float((row.double() - want).norm()) <= 1e-5 * float(want.norm()), counts
    assert bench.runtime.allocated == before, "nothing may be allocated in a run"


def test_pairs_that_are_still_on_their_way_are_found() -> None:
    bench = Sparse(strict=True)
    copies = bench.runtime.stream("copies")
    neurons = bench.bring(1, 4, 0).numpy()
    bench.lane.finish()
    bench.runtime.run(copies, lambda: None, writes=[bench.pool[1]])
    with pytest.raises(OrderError, match="compute reads memory that stream 2 may still be writing"):
        bench.segments.launch(0, [1], [(0, neurons)])
    ended = bench.runtime.event()
    bench.runtime.record(ended, copies)
    bench.runtime.wait(bench.lane.stream, ended)
    bench.segments.launch(0, [1], [(0, neurons)])
