"""Checks every kernel against fp64 of what is stored, on the device that it is to run on.

Before a kernel writes its outputs they are filled with NaN, so that what it leaves out shows.
Inputs are random. An error is the norm of the difference over the norm of the right result; it is
infinite where a second call gives other bits. The tests make more such comparisons, on Triton's
interpreter; here the compiled kernels are checked, also at Mixtral's full sizes.
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
from real.kernels.experts import dense_expert, masked_expert, partial_expert
from real.kernels.gated_gemv import gated_gemv
from real.kernels.gather_rows import gather_rows
from real.kernels.grouped_gemm import grouped_expert, grouped_gemm
from real.kernels.quantise import Layout, layout_of, quantise
from real.kernels.slot_matrices import PlainLayout, SlotMatrices, in_one_slot
from real.kernels.sparse_expert import gathered_expert, sparse_expert
from real.kernels.stacked_gates import sequential_gates, stacked_gates

MOST = 1e-5
"""The largest relative error allowed: sums are in fp32, and inputs are exact."""
SMALL = ((1, 1, 64), (13, 131, 32), (65, 257, 64), (128, 96, 200))
"""Rows, columns, group: ones, primes, sizes that no tile divides, groups of whole rows."""
REAL = ((1408, 2048, 64), (2048, 768, 64))
"""A matrix of Qwen1.5-MoE and one of Qwen3-30B."""
EXPERT = (26, 80)
"""Neurons and hidden size of a whole expert."""
REAL_EXPERTS = ((768, 2048), (14336, 4096))
"""Those of Qwen3-30B and Mixtral. Their fp64 is computed on the device, by torch."""
ROWS = (1, 2, 8, 16, 32)
"""Rows of whole experts: each has a tile of its own."""
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
                if shape[1] % 16 == 0 and bits < 8:
                    yield _checked(
                        f"integer_gemv {bits} bits", told, partial(_integers, device, shape, bits)
                    )
                yield _checked(
                    f"gated_gemv {bits} bits", told, partial(_gated, device, shape, bits)
                )
                yield _checked(
                    f"grouped_gemm {bits} bits", told, partial(_grouped, device, shape, bits)
                )
        for expert in (EXPERT, *(REAL_EXPERTS if real else ())):
            for bits in (16, 8, 4, 2):
                for rows in ROWS:
                    yield _checked(
                        f"expert {bits} bits",
                        f"{expert}, {rows} rows",
                        partial(_expert, device, expert, bits, rows),
                    )
                for dtype in (torch.float16, torch.float32) if bits < 16 else ():
                    yield _checked(
                        f"expert {bits} bits",
                        f"{expert}, 3 rows, {str(dtype).removeprefix('torch.')}",
                        partial(_expert, device, expert, bits, 3, dtype),
                    )
            for listed in (False, True):
                yield _checked(
                    "partial_expert" if listed else "masked_expert",
                    f"{expert}, 20% kept",
                    partial(_with_up, device, expert, listed=listed),
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


def _twice(work: Callable[[], Tensor]) -> Tensor:
    """The result, NaN where a second call gives other bits."""
    first, second = work(), work()
    return first if torch.equal(first, second) else torch.full_like(first, torch.nan)


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


def _integers(device: torch.device, shape: tuple[int, int, int], bits: int) -> float:
    (matrices,) = _in_slots(shape, bits, torch.bfloat16)
    x_JK = _random(len(SLOTS), shape[1], seed=1, dtype=torch.bfloat16)
    on_device = _to(matrices, device)
    got = _twice(lambda: dequant_gemv(x_JK.to(device), on_device, _slots(device), integers=True))
    want = [
        matrices.weight(slot).double() @ x.double() for slot, x in zip(SLOTS, x_JK, strict=True)
    ]
    return _error(got, torch.stack(want))


def _gated(device: torch.device, shape: tuple[int, int, int], bits: int) -> float:
    rows, columns, group = shape
    (first,) = _in_slots((2 * rows, columns, group), bits, torch.bfloat16)
    x_1K = _random(1, columns, seed=4, dtype=torch.bfloat16)
    got = gated_gemv(x_1K.to(device), _to(first, device), _slots(device))
    want = []
    for slot in SLOTS:
        gate, up = (first.weight(slot).double() @ x_1K[0].double()).chunk(2)
        want.append(gate * torch.sigmoid(gate) * up)
    return _error(got, torch.stack(want))


def _expert(
    device: torch.device,
    shape: tuple[int, int],
    bits: int,
    rows: int,
    dtype: torch.dtype = torch.bfloat16,
) -> float:
    """One expert whole, made and multiplied in fp64 on the device; ``dtype`` is its input's."""
    neurons, hidden = shape
    first, down = (
        _stored(device, (2 * neurons, hidden), bits),
        _stored(device, (hidden, neurons), bits),
    )
    x_TH = _random(rows, hidden, seed=1, dtype=dtype).to(device)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    got = _twice(
        lambda: (
            dense_expert(x_TH, first, down, slots)
            if rows == 1
            else grouped_expert(x_TH, first, down, slots, [rows])
        )
    )
    gate, up = (x_TH.double() @ first.weight(0).double().T).chunk(2, dim=1)
    want = (gate * torch.sigmoid(gate) * up) @ down.weight(0).double().T
    return _error(got, want.cpu())


def _stored(device: torch.device, shape: tuple[int, int], bits: int) -> SlotMatrices:
    """A random matrix in a slot on the device."""
    draw = torch.Generator(device).manual_seed(sum(shape))
    weight = torch.randn(*shape, generator=draw, device=device) * 0.05
    return in_one_slot(weight.bfloat16() if bits == 16 else quantise(weight, bits, 16))


def _with_up(device: torch.device, shape: tuple[int, int], *, listed: bool) -> float:
    """FloE's expert with its up projection at two bits, a fifth of the neurons kept."""
    neurons, hidden = shape
    up = _stored(device, shape, 2)
    draw = torch.Generator(device).manual_seed(1)
    pairs = torch.randn(1, neurons, 2 * hidden, generator=draw, device=device).bfloat16() * 0.05
    x_1H = _random(1, hidden, seed=1, dtype=torch.bfloat16).to(device)
    v_N = (x_1H.double() @ up.weight(0).double().T)[0]
    kept = v_N.abs().sort(descending=True).indices[: neurons // 5]
    # Half way to the next one, so that rounding cannot change who is kept.
    ranked = v_N.abs().sort(descending=True).values
    threshold = (ranked[len(kept) - 1 : len(kept)] + ranked[len(kept)]) / 2
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    if listed:
        rows = torch.full_like(pairs, torch.nan)
        rows[0, : len(kept)] = pairs[0, kept]
        count, names = slots + len(kept), kept.int()[:, None].contiguous()
        got = _twice(lambda: partial_expert(x_1H, up, slots, rows, slots, count, names))
    else:
        got = _twice(lambda: masked_expert(x_1H, up, slots, pairs, slots, threshold.float()))
    gate, down = pairs[0, kept].double().chunk(2, dim=1)
    inner = gate @ x_1H[0].double()
    want = (inner * torch.sigmoid(inner) * v_N[kept]) @ down
    return _error(got, want[None].cpu())


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
