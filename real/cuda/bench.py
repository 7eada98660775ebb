"""Measures how fast the kernels are, beside a measured copy of the device's memory.

Every operator is timed on matrices so far apart in memory that no cache holds the next one. It runs
inside a captured graph, so that launches cost nothing; only stacked beside sequential gates are
launched by the host. ``share`` is the operator's speed over that of a device-to-device copy. The operator's
speed is the bytes that it must read over its time; the copy's counts its reads and its writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch
from torch import Tensor

from real.cuda.runtime import Runtime
from real.cuda.segments import COUNT, FIRST_NEURON, SLOT, UP, fused_expert, sparse_expert_in_part
from real.cuda.timing import Timed, Work, summarise, timed_calls
from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.experts import masked_expert
from real.kernels.grouped_gemm import batch_of, grouped_expert, grouped_gemm
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.kernels.sparse_expert import sparse_expert
from real.kernels.stacked_gates import sequential_gates, stacked_gates


@dataclass(frozen=True)
class Bench:
    """What is measured.

    - ``shapes``: neurons and hidden size of experts, by model.
    - ``far_bytes``: the least that all matrices of one measurement take together, several times any
      cache.
    - ``kept_shares``: shares of neurons that a sparse expert keeps.
    - ``curve_bytes``, ``curve_hidden``: sizes of one int4 matrix, and its columns.
    - ``needs``: of which model's experts how many are computed at once.
    - ``batch_rows``: rows of one expert.
    - ``gates``: experts, top-k and hidden size.
    - ``prefill_rows``: rows of each of 8 experts.
    """

    shapes: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {
            "mixtral": (14336, 4096),
            "qwen15": (1408, 2048),
            "qwen3": (768, 2048),
        }
    )
    far_bytes: int = 1 << 28
    kept_shares: tuple[float, ...] = (0.5, 0.2, 0.1)
    curve_bytes: tuple[int, ...] = tuple(1 << bits for bits in range(21, 28))
    curve_hidden: int = 4096
    needs: tuple[tuple[str, int], ...] = (("qwen3", 8), ("qwen15", 4))
    batch_rows: tuple[int, ...] = (2, 8, 32)
    gates: tuple[tuple[int, int, int], ...] = ((8, 2, 4096), (60, 4, 2048), (128, 8, 2048))
    prefill_rows: tuple[int, ...] = (16, 64, 256)
    copy_bytes: int = 1 << 30
    repeats: int = 20


class Measuring:
    """Measures operators one by one; ``peak`` is the speed of a copy in bytes per second."""

    def __init__(self, runtime: Runtime, bench: Bench) -> None:
        self._runtime, self._bench = runtime, bench
        self.peak = self.copy_bytes_per_s()

    def copy_bytes_per_s(self) -> float:
        """The speed of a device-to-device copy, its reads and writes counted."""
        size = self._bench.copy_bytes
        source, target = (
            torch.empty(size, dtype=torch.uint8, device=self._runtime.device) for _ in range(2)
        )
        source.random_(0, 255)
        return 2 * size / median(self._calls([lambda: target.copy_(source)])) * 1e9

    def measure(self) -> Iterator[Timed]:
        """Every operator at every shape; those that a target judges come first."""
        bench = self._bench
        first = next(iter(bench.shapes))
        for bits in (4, 8, 2, 16):
            yield self._experts(first, bits, 1)
        for name, needs in bench.needs:
            if name in bench.shapes:
                yield self._experts(name, 4, needs)
        for kept in bench.kept_shares:
            yield self._with_up(first, *bench.shapes[first], kept)
        for experts, k, hidden in bench.gates:
            yield self._routed(experts, k, hidden)
        for rows in bench.batch_rows:
            yield self._torch_rows(first, rows)
            for bits in (4, 8, 2):
                yield from self._rows(first, bits, rows)
        for rows in bench.prefill_rows:
            yield from self._prefill(first, bench.shapes[first], rows)
        yield from self._others(first)

    def _others(self, first: str) -> Iterator[Timed]:
        """What no target judges."""
        for name, (neurons, hidden) in self._bench.shapes.items():
            for bits in (4, 8, 2, 16):
                if name != first:
                    yield self._experts(name, bits, 1)
                yield self._gemv(f"gemv {_label(bits)}", name, _layout(neurons, hidden, bits))
            yield self._torch(name, neurons, hidden)
            for kept in self._bench.kept_shares:
                if name != first:
                    yield self._with_up(name, neurons, hidden, kept)
                yield self._sparse(name, neurons, hidden, kept)
                yield self._in_part(name, neurons, hidden, kept)
        for size in self._bench.curve_bytes:
            yield self._curve(size)
        for experts, k, hidden in self._bench.gates:
            yield from self._gates(experts, k, hidden)

    def _calls(self, works: Sequence[Work], *, in_graph: bool = True) -> list[float]:
        return timed_calls(self._runtime, works, self._bench.repeats, in_graph=in_graph)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._runtime.device).to(torch.bfloat16)

    def _pool(self, slot_bytes: int, least: int = 1) -> Tensor:
        """Slots of random bytes, since matrix units and memories may be faster with zeros."""
        count = max(least, -(-self._bench.far_bytes // slot_bytes))
        pool = torch.empty(count, slot_bytes, dtype=torch.uint8, device=self._runtime.device)
        return pool.random_(0, 120)

    def _tables(self, count: int, needs: int = 1) -> list[Tensor]:
        """Tables of ``needs`` slots each, no slot in two of them."""
        return [
            torch.arange(slot, slot + needs, dtype=torch.int32, device=self._runtime.device)
            for slot in range(0, count - needs + 1, needs)
        ]

    def _gemv(self, operator: str, shape: str, layout: Layout | PlainLayout) -> Timed:
        matrices = SlotMatrices(self._pool(layout.stored_bytes), layout)
        x_1K = self._random(1, layout.columns)
        works = [
            partial(dequant_gemv, x_1K, matrices, slot_J)
            for slot_J in self._tables(len(matrices.pool))
        ]
        return summarise(operator, shape, self._calls(works), layout.stored_bytes, self.peak)

    def _experts_of(self, name: str, bits: int, needs: int) -> tuple[SlotMatrices, SlotMatrices]:
        """Experts far apart, with gate and up as one matrix, and down."""
        neurons, hidden = self._bench.shapes[name]
        first, down = _layout(2 * neurons, hidden, bits), _layout(hidden, neurons, bits)
        pool = self._pool(first.stored_bytes + down.stored_bytes, needs)
        return SlotMatrices(pool, first), SlotMatrices(pool, down, first.stored_bytes)

    def _experts(self, name: str, bits: int, needs: int) -> Timed:
        """``needs`` whole experts at once, for one row."""
        first, down = self._experts_of(name, bits, needs)
        compute = fused_expert(first, down, is_gated=True)
        x_1H = self._random(1, first.columns)
        works = [
            partial(compute, x_1H, slot_J[None]) for slot_J in self._tables(len(first.pool), needs)
        ]
        told = f"expert {_label(bits)}" if needs == 1 else f"{needs} experts {_label(bits)}"
        return summarise(told, name, self._calls(works), needs * first.slot_bytes, self.peak)

    def _rows(self, name: str, bits: int, rows: int) -> Iterator[Timed]:
        """A whole expert for some rows; with one plane it keeps what a model in bf16 keeps."""
        first, down = self._experts_of(name, bits, 1)
        x_TH, batch = (
            self._random(rows, first.columns),
            batch_of([rows], self._runtime.device, bits),
        )
        for planes, told in ((2, ""), (1, ", as bf16")):
            works = [
                partial(grouped_expert, x_TH, first, down, slot_J, batch, planes)
                for slot_J in self._tables(len(first.pool))
            ]
            operator = f"expert {_label(bits)}, {rows} rows{told}"
            yield summarise(operator, name, self._calls(works), first.slot_bytes, self.peak)

    def _torch_rows(self, name: str, rows: int) -> Timed:
        """The same expert in bf16 by torch."""
        neurons, hidden = self._bench.shapes[name]
        size = 3 * neurons * hidden * 2
        x_TH = self._random(rows, hidden)
        works = [
            partial(
                _by_torch, x_TH, self._random(2 * neurons, hidden), self._random(hidden, neurons)
            )
            for _ in range(-(-self._bench.far_bytes // size))
        ]
        return summarise(
            f"torch expert bf16, {rows} rows", name, self._calls(works), size, self.peak
        )

    def _curve(self, size: int) -> Timed:
        """An int4 matrix of about ``size`` bytes."""
        hidden = self._bench.curve_hidden
        rows = max(1, size // _layout(2, hidden, 4).stored_bytes) * 2
        return self._gemv("gemv int4 by size", f"{size >> 20} MiB", _layout(rows, hidden, 4))

    def _torch(self, name: str, neurons: int, hidden: int) -> Timed:
        """torch's own product, for comparison."""
        size = neurons * hidden * 2
        weights = [self._random(neurons, hidden) for _ in range(-(-self._bench.far_bytes // size))]
        x_K = self._random(hidden)
        return summarise(
            "torch bf16",
            name,
            self._calls([partial(torch.mv, w, x_K) for w in weights]),
            size,
            self.peak,
        )

    def _pairs(self, neurons: int, hidden: int) -> Tensor:
        size = neurons * hidden * 4
        count = -(-self._bench.far_bytes // size)
        return torch.stack([0.05 * self._random(neurons, 2 * hidden) for _ in range(count)])

    def _sparse(self, name: str, neurons: int, hidden: int, kept: float) -> Timed:
        """FloE's expert with a share of its neurons, alone: it reads the kept pairs only."""
        pairs = self._pairs(neurons, hidden)
        v_1N = torch.rand(1, neurons, device=self._runtime.device)
        threshold = torch.quantile(v_1N[0], 1 - kept).view(1)
        x_H = self._random(hidden)
        works = [
            partial(sparse_expert, x_H, v_1N, pairs, slot_J, threshold)
            for slot_J in self._tables(len(pairs))
        ]
        read_bytes = int((v_1N >= threshold).sum()) * hidden * 4
        return summarise(
            f"sparse_expert {kept:.0%} kept", name, self._calls(works), read_bytes, self.peak
        )

    def _with_up(self, name: str, neurons: int, hidden: int, kept: float) -> Timed:
        """The same after its up projection in bf16, which decides what is kept.

        Beside a whole bf16 expert its ceiling is 1 / (1/3 + 2/3 kept).
        """
        pairs, x_1H = self._pairs(neurons, hidden), self._random(1, hidden)
        # Every slot has the same weights at another place, so that one threshold is right for all.
        weight = 0.05 * self._random(neurons, hidden)
        layout = PlainLayout(neurons, hidden, torch.bfloat16)
        one = weight.view(torch.uint8).view(1, -1)
        up = SlotMatrices(one.repeat(-(-self._bench.far_bytes // one.numel()), 1), layout)
        v_N = dequant_gemv(x_1H, up, self._tables(1)[0])[0].abs()
        threshold = v_N.sort(descending=True).values[max(1, round(kept * neurons)) - 1].view(1)
        ups, works = self._tables(len(up.pool)), list[Work]()
        for number, slot_J in enumerate(self._tables(len(pairs))):
            up_J = ups[number % len(ups)]
            works.append(partial(masked_expert, x_1H, up, up_J, pairs, slot_J, threshold))
        total = int((v_N >= threshold).sum()) * hidden * 4 + layout.stored_bytes
        return summarise(
            f"up and sparse_expert {kept:.0%} kept", name, self._calls(works), total, self.peak
        )

    def _in_part(self, name: str, neurons: int, hidden: int, kept: float) -> Timed:
        """FloE's expert as a run's graphs compute it: with an up projection at two bits.

        A table lists the neurons that have come.
        """
        count = max(1, round(kept * neurons))
        layout = _layout(neurons, hidden, 2)
        up = SlotMatrices(self._pool(layout.stored_bytes), layout)
        pairs = self._pairs(neurons, hidden)
        compute, x_1H, works = (
            sparse_expert_in_part(up, pairs),
            self._random(1, hidden),
            list[Work](),
        )
        for slot in range(len(pairs)):
            table_WJ = torch.zeros(
                FIRST_NEURON + neurons, 1, dtype=torch.int32, device=self._runtime.device
            )
            table_WJ[SLOT], table_WJ[UP], table_WJ[COUNT] = slot, slot % len(up.pool), count
            come = torch.randperm(neurons, generator=torch.Generator().manual_seed(slot))[:count]
            table_WJ[FIRST_NEURON : FIRST_NEURON + count, 0] = come.to(table_WJ)
            works.append(partial(compute, x_1H, table_WJ))
        return summarise(
            f"expert of {kept:.0%} of its neurons",
            name,
            self._calls(works),
            count * hidden * 4 + layout.stored_bytes,
            self.peak,
        )

    def _routed(self, experts: int, k: int, hidden: int) -> Timed:
        """The gate of one layer, with its top k, as a graph of a run has it."""
        x_1H, weight = self._random(1, hidden), self._random(1, experts, hidden)
        counter = torch.zeros(1, dtype=torch.int32, device=self._runtime.device)
        calls = self._calls([partial(stacked_gates, x_1H, weight, k, counter=counter)] * 16)
        return summarise("routed gate", f"{experts}x{hidden}", calls, weight.numel() * 2, self.peak)

    def _gates(self, experts: int, k: int, hidden: int) -> Iterator[Timed]:
        """Stacked beside sequential gates (HOBBIT, Fig. 17a).

        The host launches them, since a graph would take away what stacking saves.
        """
        x_1H = self._random(1, hidden)
        for layers in (1, 2, 3, 4):
            weight = self._random(layers, experts, hidden)
            for label, work in (("stacked", stacked_gates), ("sequential", sequential_gates)):
                calls = self._calls([partial(work, x_1H, weight, k)] * 16, in_graph=False)
                yield summarise(
                    f"{label} gates of {layers}",
                    f"{experts}x{hidden}",
                    calls,
                    weight.numel() * 2,
                    self.peak,
                )

    def _prefill(self, name: str, shape: tuple[int, int], rows: int) -> Iterator[Timed]:
        """``rows`` for each of 8 experts: a grouped int4 product beside torch's product in bf16."""
        neurons, hidden = shape
        layout = _layout(neurons, hidden, 4)
        matrices = SlotMatrices(self._pool(layout.stored_bytes), layout)
        count = min(8, len(matrices.pool))
        slots = torch.arange(count, dtype=torch.int32, device=self._runtime.device)
        x_TK = self._random(count * rows, hidden)
        weights = self._random(count, neurons, hidden)
        batch = batch_of([rows] * count, self._runtime.device, 4)
        ours = partial(grouped_gemm, x_TK, matrices, slots, batch)
        theirs = partial(torch.bmm, x_TK.view(count, rows, hidden), weights.transpose(1, 2))
        for operator, work, size in (
            ("grouped_gemm int4", ours, layout.stored_bytes),
            ("torch bmm bf16", theirs, neurons * hidden * 2),
        ):
            yield summarise(
                f"{operator}, {count} x {rows} rows",
                name,
                self._calls([work] * 2),
                count * size,
                self.peak,
            )


def _layout(rows: int, columns: int, bits: int) -> Layout | PlainLayout:
    return (
        PlainLayout(rows, columns, torch.bfloat16)
        if bits == 16
        else Layout(rows, columns, bits, min(64, columns))
    )


def _label(bits: int) -> str:
    return f"int{bits}" if bits < 16 else "bf16"


def _by_torch(x_TH: Tensor, first: Tensor, down: Tensor) -> Tensor:
    gate, up = torch.nn.functional.linear(x_TH, first).chunk(2, dim=1)
    return torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down)
