"""Captured segments: one graph for all slots of a kind, in legal order, and what it computes."""

from __future__ import annotations

import pytest
import torch
from fake_runtime import FakeRuntime, OrderError
from torch import Tensor

from real.cuda.arena import PinnedArena
from real.cuda.segments import Segments, fused_expert, tables_bytes
from real.kernels.quantise import layout_of, quantise
from real.kernels.slot_matrices import SlotMatrices

HIDDEN, INNER, SLOTS = 32, 48, 4


class Bench:
    def __init__(self, *, is_gated: bool = True, strict: bool = False) -> None:
        self.runtime = FakeRuntime(strict=strict)
        self.stream = self.runtime.stream("compute")
        rows = 2 * INNER if is_gated else INNER
        made = torch.Generator().manual_seed(0)
        first = [quantise(torch.randn(rows, HIDDEN, generator=made) * 0.1, 4, 16) for _ in range(SLOTS)]
        down = [quantise(torch.randn(HIDDEN, INNER, generator=made) * 0.1, 4, 16) for _ in range(SLOTS)]
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
            self.runtime, self.stream, PinnedArena(self.runtime, tables_bytes(3)),
            [fused_expert(self.first, self.down, is_gated=is_gated)], [self.pool], HIDDEN, torch.bfloat16, 3,
        )  # fmt: skip

    def wanted(self, x_1H: Tensor, slots: list[int]) -> Tensor:
        """In fp64, matrix by matrix."""
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
    bench.segments.prepare()
    before = bench.runtime.allocated
    for number, slots in enumerate([[0], [3], [1, 2], [2, 2, 0], [0, 1], [3], [1], [0]]):
        x_1H = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(number)).bfloat16()
        got = bench.segments.run(0, x_1H, slots)
        want = bench.wanted(x_1H, slots)
        assert float((got.double() - want).norm() / want.norm()) < 1e-5, slots
    assert bench.runtime.allocated == before, "nothing may be allocated in a run"


def test_a_slot_whose_copy_is_not_ordered_before_the_replay_is_found() -> None:
    bench = Bench(strict=True)
    copies = bench.runtime.stream("copies")
    bench.segments.prepare()
    # What captures have read is over for the copy.
    captured = bench.runtime.event()
    bench.runtime.record(captured, bench.stream)
    bench.runtime.wait(copies, captured)
    bench.runtime.run(copies, lambda: None, writes=[bench.pool[2]])
    with pytest.raises(OrderError, match="compute reads memory that stream 2 may still be writing"):
        bench.segments.run(0, torch.zeros(1, HIDDEN, dtype=torch.bfloat16), [2])


def test_a_number_of_needs_that_was_not_told_is_refused() -> None:
    with pytest.raises(ValueError, match="a segment of 4 needs, of 1 to 3"):
        Bench().segments.run(0, torch.zeros(1, HIDDEN, dtype=torch.bfloat16), [0, 1, 2, 3])
