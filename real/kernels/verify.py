"""Checks every kernel against fp64 of what is stored, on the device that it is to run on.

Before a kernel writes its outputs they are filled with NaN, so that what it leaves out shows.
Inputs are random. An error is the norm of the difference over the norm of the right result. The
tests make more such comparisons, on Triton's interpreter; here the compiled kernels are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.gated_gemv import gated_gemv
from real.kernels.gather_rows import gather_rows
from real.kernels.grouped_gemm import grouped_gemm
from real.kernels.quantise import Layout, layout_of, quantise
from real.kernels.slot_matrices import PlainLayout, SlotMatrices
from real.kernels.sparse_expert import gathered_expert, sparse_expert
from real.kernels.stacked_gates import sequential_gates, stacked_gates

MOST = 1e-5
"""The largest relative error allowed: sums are in fp32, and inputs are exact."""
SMALL = ((1, 1, 64), (13, 131, 32), (65, 257, 64), (128, 96, 200))
"""Rows, columns, group: ones, primes, sizes that no tile divides, groups of whole rows."""
REAL = ((1408, 2048, 64), (2048, 768, 64))
"""A matrix of Qwen1.5-MoE and one of Qwen3-30B."""
MIXTRAL = (4096, 14336, 64)
"""Mixtral's down projection; fp64 of more such matrices takes the host too long."""
SLOTS = (2, 0)


@dataclass(frozen=True)
class Check:
    """One kernel at one shape; ``error`` is None where the kernel raised ``reason``."""

    operator: str
    shape: str
    error: float | None
    most: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        return self.error is not None and self.error <= self.most


def verify(device: torch.device, *, real: bool) -> Iterator[Check]:
    """Check every operator at small shapes, and with ``real`` at those of real experts.

    Triton must support the device.
    """
    with _nan_filled():
        for shape in SMALL + (REAL if real else ()):
            dtypes = (
                (torch.bfloat16,)
                if shape in REAL
                else (torch.float32, torch.bfloat16, torch.float16)
            )
            for bits in (16, 8, 4, 2):
                for dtype in dtypes:
                    told = f"{shape}, {str(dtype).removeprefix('torch.')}"
                    yield _checked(
                        f"dequant_gemv {bits} bits",
                        told,
                        partial(_gemv, device, shape, bits, dtype),
                    )
                told = str(shape)
                yield _checked(
                    f"gated_gemv {bits} bits", told, partial(_gated, device, shape, bits)
                )
                yield _checked(
                    f"grouped_gemm {bits} bits", told, partial(_grouped, device, shape, bits)
                )
        if real:
            yield _checked(
                "dequant_gemv 4 bits",
                str(MIXTRAL),
                partial(_gemv, device, MIXTRAL, 4, torch.bfloat16),
            )
        for pairs in ((7, 5), (130, 96), (64, 300), *(((1408, 2048),) if real else ())):
            for share in (0.0, 0.1, 1.0):
                told = f"{pairs}, {share:.0%} kept"
                yield _checked(
                    "sparse_expert", told, partial(_sparse, device, pairs, share, gathered=False)
                )
                yield _checked(
                    "gathered_expert", told, partial(_sparse, device, pairs, share, gathered=True)
                )
        for rows, width in ((1, 1), (67, 26), (131, 28), *(((1408, 8192),) if real else ())):
            for columns in (1, 7, 50):
                told = f"{rows} rows of {width} B, {columns} a program"
                yield _checked(
                    "gather_rows", told, partial(_gathered, device, rows, width, columns)
                )
        for form in ((1, 8, 2, 64), (3, 60, 4, 130), (4, 128, 8, 2048) if real else (1, 16, 3, 97)):
            for name, function in (
                ("stacked_gates", stacked_gates),
                ("sequential_gates", sequential_gates),
            ):
                yield _checked(name, str(form), partial(_gates, device, function, form))


@contextmanager
def _nan_filled() -> Iterator[None]:
    """Within the block ``torch.empty`` gives NaN."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _checked(operator: str, shape: str, work: Callable[[], float]) -> Check:
    try:
        return Check(operator, shape, work(), MOST)
    except (
        Exception
    ) as error:  # a kernel that does not compile, or faults: it must not hide the others
        return Check(operator, shape, None, MOST, f"{type(error).__name__}: {error}"[:500])


def _error(got: Tensor, want: Tensor) -> float:
    """The relative error; inf where the result has NaN."""
    off = (got.cpu().double() - want).norm() / want.norm().clamp(min=1e-30)
    return float(off) if bool(off.isfinite()) else float("inf")


def _random(
    *shape: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def _in_slots(
    shape: tuple[int, int, int], bits: int, dtype: torch.dtype, matrices: int = 1
) -> list[SlotMatrices]:
    """Random matrices side by side in two of three slots, on the CPU."""
    rows, columns, group = shape
    layout: Layout | PlainLayout = PlainLayout(rows, columns, dtype)
    if bits < 16:
        layout = layout_of(quantise(torch.zeros(rows, columns), bits, group))
    size = layout.stored_bytes
    pool = torch.randint(0, 255, (3, 32 + matrices * size), dtype=torch.uint8)
    for slot in SLOTS:
        for number in range(matrices):
            weight = _random(rows, columns, seed=10 * slot + number, scale=0.05)
            stored: Any = weight if bits == 16 else quantise(weight, bits, group)
            layout.write(stored, pool[slot, 32 + number * size : 32 + (number + 1) * size])
    return [SlotMatrices(pool, layout, 32 + number * size) for number in range(matrices)]


def _to(matrices: SlotMatrices, device: torch.device) -> SlotMatrices:
    return SlotMatrices(matrices.pool.to(device), matrices.layout, matrices.at)


def _slots(device: torch.device) -> Tensor:
    return torch.tensor(SLOTS, dtype=torch.int32, device=device)


def _gemv(
    device: torch.device, shape: tuple[int, int, int], bits: int, dtype: torch.dtype
) -> float:
    (matrices,) = _in_slots(shape, bits, dtype)
    x_JK = _random(len(SLOTS), shape[1], seed=1, dtype=dtype)
    got = dequant_gemv(x_JK.to(device), _to(matrices, device), _slots(device))
    want = [
        matrices.weight(slot).double() @ x.double() for slot, x in zip(SLOTS, x_JK, strict=True)
    ]
    return _error(got, torch.stack(want))


def _gated(device: torch.device, shape: tuple[int, int, int], bits: int) -> float:
    gate, up = _in_slots(shape, bits, torch.bfloat16, matrices=2)
    x_K = _random(shape[1], seed=4, dtype=torch.bfloat16)
    pool = gate.pool.to(device)
    on_device = [SlotMatrices(pool, one.layout, one.at) for one in (gate, up)]
    got = gated_gemv(x_K.to(device), on_device[0], on_device[1], _slots(device))
    want = []
    for slot in SLOTS:
        first, second = (one.weight(slot).double() @ x_K.double() for one in (gate, up))
        want.append(first * torch.sigmoid(first) * second)
    return _error(got, torch.stack(want))


def _grouped(device: torch.device, shape: tuple[int, int, int], bits: int) -> float:
    counts = [3, 37]
    (matrices,) = _in_slots(shape, bits, torch.bfloat16)
    x_TK = _random(sum(counts), shape[1], seed=1, dtype=torch.bfloat16)
    got = grouped_gemm(x_TK.to(device), _to(matrices, device), _slots(device), counts)
    parts = x_TK.double().split(counts)
    want = [
        part @ matrices.weight(slot).double().T for part, slot in zip(parts, SLOTS, strict=True)
    ]
    return _error(got, torch.cat(want))


def _sparse(device: torch.device, shape: tuple[int, int], share: float, *, gathered: bool) -> float:
    neurons, hidden = shape
    kept = round(neurons * share)
    x_H = _random(hidden, seed=1, dtype=torch.bfloat16)
    v_JI = _random(len(SLOTS), neurons, seed=2)
    pairs = _random(3, neurons, 2 * hidden, seed=3, scale=0.1, dtype=torch.bfloat16)
    ranked = v_JI.abs().sort(dim=1, descending=True).values
    threshold_J = (ranked[:, kept - 1] if kept else ranked[:, 0] * 1.01).contiguous()
    want = []
    for j, slot in enumerate(SLOTS):
        gate_IH, down_IH = pairs[slot].double().chunk(2, dim=1)
        gate_I = gate_IH @ x_H.double()
        keep_I = v_JI[j].abs() >= threshold_J[j]
        want.append((gate_I * torch.sigmoid(gate_I) * v_JI[j].double() * keep_I) @ down_IH)
    if not gathered:
        got = sparse_expert(
            x_H.to(device),
            v_JI.to(device),
            pairs.to(device),
            _slots(device),
            threshold_J.to(device),
        )
        return _error(got, torch.stack(want))
    capacity = neurons + 3
    v_JC, rows = (
        torch.full((2, capacity), torch.nan),
        torch.full((3, capacity, 2 * hidden), torch.nan).bfloat16(),
    )
    count_J = torch.zeros(2, dtype=torch.int32)
    for j, slot in enumerate(SLOTS):
        chosen = (v_JI[j].abs() >= threshold_J[j]).nonzero()[:, 0].flip(0)
        v_JC[j, : len(chosen)], rows[slot, : len(chosen)] = v_JI[j, chosen], pairs[slot, chosen]
        count_J[j] = len(chosen)
    got = gathered_expert(
        x_H.to(device), v_JC.to(device), rows.to(device), _slots(device), count_J.to(device)
    )
    return _error(got, torch.stack(want))


def _gathered(device: torch.device, rows: int, width: int, columns: int) -> float:
    """The share of wrong bytes: of two thirds of the rows, and of what lies behind them.

    What lies behind them must be left alone.
    """
    draw = torch.Generator().manual_seed(0)
    source = torch.randint(0, 256, (rows, width), generator=draw, dtype=torch.uint8)
    chosen = torch.randperm(rows, generator=draw)[: -(-2 * rows // 3)]
    target = torch.full((len(chosen) + 2, width), 0xFF, dtype=torch.uint8, device=device)
    want = torch.cat([source[chosen], torch.full((2, width), 0xFF, dtype=torch.uint8)])
    row_C = chosen.to(torch.int32)
    if device.type == "cuda":
        # The kernel reads these from the host, whose memory must be pinned for that.
        source, row_C = source.pin_memory(), row_C.pin_memory()
    gather_rows(source, row_C, target, columns)
    return float((target.cpu() != want).double().mean())


def _gates(
    device: torch.device, function: Callable[..., Any], form: tuple[int, int, int, int]
) -> float:
    """The error of the scores against fp64; inf where a choice is not of the k best scores."""
    layers, experts, k, hidden = form
    x_TH = _random(2, hidden, seed=1, dtype=torch.bfloat16)
    weight_PEH = _random(layers, experts, hidden, seed=2, dtype=torch.bfloat16)
    score_TPE, expert_TPk, weight_TPk = (
        part.cpu() for part in function(x_TH.to(device), weight_PEH.to(device), k)
    )
    best = score_TPE.argsort(dim=2, descending=True, stable=True)[..., :k]
    shares = score_TPE.double().gather(2, best).softmax(dim=2)
    if not torch.equal(expert_TPk.long(), best) or _error(weight_TPk, shares) > MOST:
        return float("inf")
    return _error(score_TPE, torch.einsum("th,peh->tpe", x_TH.double(), weight_PEH.double()))
