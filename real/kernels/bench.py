"""How fast the kernels are, beside a measured copy of the device's memory.

Every operator is timed on matrices that lie far enough apart in memory that no cache holds the next one, inside a
captured graph, so that launches cost nothing. ``share`` is the bytes it must read over the time it takes, over the
bytes per second of a device-to-device copy (its reads and writes counted) on the same day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.kernels.sparse_expert import sparse_expert
from real.kernels.stacked_gates import sequential_gates, stacked_gates

SHAPES = {"mixtral": (14336, 4096), "qwen15": (1408, 2048), "qwen3": (768, 2048), "deepseek_v2_lite": (1408, 2048)}
"""Neurons and hidden size."""
FAR_BYTES = 1 << 28
"""Matrices of one measurement take at least so much together: several times any cache."""
KEPT_SHARES = (0.5, 0.2, 0.1)
REPEATS = 20


@dataclass(frozen=True)
class Timed:
    """One operator at one shape: median and 95th percentile ns a call; the bytes that it has to read."""

    operator: str
    shape: str
    median_ns: float
    p95_ns: float
    read_bytes: int
    share: float

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.median_ns * 1e9


def summarise(operator: str, shape: str, call_ns: Sequence[float], read_bytes: int, copy_bytes_per_s: float) -> Timed:
    """Of the durations of single calls."""
    ranked = sorted(call_ns)
    middle = median(ranked)
    p95 = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    return Timed(operator, shape, middle, p95, read_bytes, read_bytes / middle * 1e9 / copy_bytes_per_s)


def timed_calls(works: Sequence[Callable[[], object]], repeats: int = REPEATS) -> list[float]:
    """ns of one of ``works``, from graphs that run all of them once: each has its own memory."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    found = []
    with torch.cuda.stream(stream):
        for work in works:
            work()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for work in works:
                work()
        for _ in range(repeats + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e6 / len(works))
    return found[2:]


def copy_bytes_per_s(num_bytes: int = 1 << 30) -> float:
    """Of a device-to-device copy, read and written."""
    source, target = (torch.empty(num_bytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * num_bytes / median(timed_calls([lambda: target.copy_(source)])) * 1e9


def measure() -> Iterator[Timed]:
    """Every operator at every shape, on the current CUDA device."""
    peak = copy_bytes_per_s()
    for name, (neurons, hidden) in SHAPES.items():
        for bits in (16, 8, 4, 2):
            yield _gemv(name, neurons, hidden, bits, peak)
        yield _dense(name, neurons, hidden, peak)
        for kept in KEPT_SHARES:
            yield _sparse(name, neurons, hidden, kept, peak)
    for experts, k, hidden in ((8, 2, 4096), (60, 4, 2048), (128, 8, 2048)):
        yield from _gates(experts, k, hidden, peak)


def _slots(layout: Layout | PlainLayout) -> SlotMatrices:
    count = max(1, -(-FAR_BYTES // layout.stored_bytes))
    # Zeros are weights of every type, and no kernel is faster on them.
    return SlotMatrices(torch.zeros(count, layout.stored_bytes, dtype=torch.uint8, device="cuda"), layout)


def _gemv(name: str, neurons: int, hidden: int, bits: int, peak: float) -> Timed:
    layout = PlainLayout(neurons, hidden, torch.bfloat16) if bits == 16 else Layout(neurons, hidden, bits, 64)
    matrices = _slots(layout)
    x_1K = torch.randn(1, hidden, device="cuda", dtype=torch.bfloat16)
    slots = [torch.tensor([slot], dtype=torch.int32, device="cuda") for slot in range(len(matrices.pool))]
    works = [_call(dequant_gemv, x_1K, matrices, slot_J) for slot_J in slots]
    return summarise(f"dequant_gemv int{bits}" if bits < 16 else "gemv bf16", name, timed_calls(works),
                     layout.stored_bytes, peak)  # fmt: skip


def _dense(name: str, neurons: int, hidden: int, peak: float) -> Timed:
    """torch's own product, for comparison."""
    size = neurons * hidden * 2
    weights = [torch.randn(neurons, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(-(-FAR_BYTES // size))]
    x_K = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
    return summarise("torch bf16", name, timed_calls([_call(torch.mv, w, x_K) for w in weights]), size, peak)


def _sparse(name: str, neurons: int, hidden: int, kept: float, peak: float) -> Timed:
    """FloE's expert with a share of its neurons; it reads the kept pairs."""
    size = neurons * hidden * 4
    pairs = torch.zeros(-(-FAR_BYTES // size), neurons, 2 * hidden, device="cuda", dtype=torch.bfloat16)
    v_1N = torch.rand(1, neurons, device="cuda")
    threshold = torch.quantile(v_1N[0], 1 - kept).view(1)
    x_H = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
    slots = [torch.tensor([slot], dtype=torch.int32, device="cuda") for slot in range(len(pairs))]
    works = [_call(sparse_expert, x_H, v_1N, pairs, slot_J, threshold) for slot_J in slots]
    read_bytes = int((v_1N >= threshold).sum()) * hidden * 4
    return summarise(f"sparse_expert {kept:.0%} kept", name, timed_calls(works), read_bytes, peak)


def _gates(experts: int, k: int, hidden: int, peak: float) -> Iterator[Timed]:
    """Stacked beside sequential gates, HOBBIT's Fig. 17a: as the host launches them, so not in a graph's favour."""
    x_1H = torch.randn(1, hidden, device="cuda", dtype=torch.bfloat16)
    for layers in (1, 2, 3, 4):
        weight = torch.randn(layers, experts, hidden, device="cuda", dtype=torch.bfloat16)
        for label, work in (("stacked", stacked_gates), ("sequential", sequential_gates)):
            calls = timed_calls([_call(work, x_1H, weight, k)] * 16)
            yield summarise(f"{label} gates of {layers}", f"{experts}x{hidden}", calls, weight.numel() * 2, peak)


def _call(function: Callable[..., Any], *arguments: Tensor | SlotMatrices | int) -> Callable[[], object]:
    return lambda: function(*arguments)
