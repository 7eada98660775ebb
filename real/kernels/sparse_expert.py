"""FloE's sparse expert for one token: only the neurons whose up projection is large are computed.

    v = U x;  keep |v| >= t;  h = SiLU(g x) * v over the kept gate columns g;  y = sum of h times
    the kept down rows

Legend. J needs of the token; N neurons; H hidden size; C rows of a slot.

Storage. A neuron's *pair* is its gate column and its down row side by side, [2 H]: the compact
layout in which the host keeps and sends them. All types are plain. The up projection (resident, at
two bits) is computed by ``real.kernels.dequant_gemv``.

There are two forms. *Masked*: all N pairs are there, and the mask decides which are read.
*Gathered*: only the kept pairs are there, in any order, in the first of a slot's C rows, with their
count in device memory. Sums over neurons are split into SPLITS parts that are added in a fixed
order, so the same call gives the same bits.

Source: FloE (arXiv:2505.05950), Algorithm 1; with |v|, as its text has it, not v, as the algorithm
is printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import blocks, jit, launches, power_of_two, tl

SPLITS = 8
"""Parts of a sum: with blocks of 64 outputs, 512 programs at a hidden size of 4096."""


def sparse_expert_ref(
    x_H: Tensor, v_JN: Tensor, pairs: Tensor, slot_J: Tensor, threshold_J: Tensor
) -> Tensor:
    """The definition of the masked form: fp32 [J, H]; ``pairs`` [S, N, 2 H]."""
    outputs = []
    for slot, v_N, threshold in zip(
        slot_J.tolist(), v_JN.float(), threshold_J.tolist(), strict=True
    ):
        kept = (v_N.abs() >= threshold).nonzero()[:, 0]
        outputs.append(_pairs_ref(x_H, v_N[kept], pairs[slot, kept]))
    return torch.stack(outputs)


def gathered_expert_ref(
    x_H: Tensor, v_JC: Tensor, pairs: Tensor, slot_J: Tensor, count_J: Tensor
) -> Tensor:
    """The definition of the gathered form: fp32 [J, H]; ``pairs`` [S, C, 2 H]."""
    outputs = [
        _pairs_ref(x_H, v_C[:count], pairs[slot, :count])
        for slot, v_C, count in zip(slot_J.tolist(), v_JC.float(), count_J.tolist(), strict=True)
    ]
    return torch.stack(outputs)


def _pairs_ref(x_H: Tensor, v_C: Tensor, pairs_C: Tensor) -> Tensor:
    gate_CH, down_CH = pairs_C.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate_CH @ x_H.float()) * v_C) @ down_CH


@jit
def _gate_kernel(
    x_ptr,
    pairs_ptr,
    pairs_stride,
    slot_ptr,
    v_ptr,
    threshold_ptr,
    count_ptr,
    h_ptr,
    N,
    H,
    GATHERED: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
):
    """h of BN neurons: 0 for those that are not kept, whose weights are not read."""
    j = tl.program_id(1)
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    v = tl.load(v_ptr + j.to(tl.int64) * N + i, mask=i < N, other=0.0).to(tl.float32)
    pairs = pairs_ptr + tl.load(slot_ptr + j).to(tl.int64) * pairs_stride
    if GATHERED:
        keep = i < tl.load(count_ptr + j)
    else:
        keep = (tl.abs(v) >= tl.load(threshold_ptr + j)) & (i < N)
    acc = tl.zeros((BN,), dtype=tl.float32)
    if tl.max(keep.to(tl.int32), axis=0) > 0:
        for h0 in range(0, H, BH):
            h = h0 + tl.arange(0, BH)
            x = tl.load(x_ptr + h, mask=h < H, other=0.0).to(tl.float32)
            w = tl.load(
                pairs + i.to(tl.int64)[:, None] * (2 * H) + h[None, :],
                mask=keep[:, None] & (h < H)[None, :],
                other=0.0,
            )
            acc += tl.sum(w.to(tl.float32) * x[None, :], axis=1)
    tl.store(
        h_ptr + j.to(tl.int64) * N + i, tl.where(keep, acc * tl.sigmoid(acc) * v, 0.0), mask=i < N
    )


@jit
def _down_kernel(
    h_ptr,
    pairs_ptr,
    pairs_stride,
    slot_ptr,
    count_ptr,
    part_ptr,
    N,
    H,
    span,
    GATHERED: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
):
    """BH outputs over the ``span`` neurons of one part; down rows are read where h is not 0."""
    split = tl.program_id(1)
    j = tl.program_id(2)
    column = tl.program_id(0) * BH + tl.arange(0, BH)
    end = tl.minimum((split + 1) * span, N)
    pairs = pairs_ptr + tl.load(slot_ptr + j).to(tl.int64) * pairs_stride
    if GATHERED:
        end = tl.minimum(end, tl.load(count_ptr + j))
    acc = tl.zeros((BH,), dtype=tl.float32)
    for i0 in range(split * span, end, BN):
        i = i0 + tl.arange(0, BN)
        h = tl.load(h_ptr + j.to(tl.int64) * N + i, mask=i < end, other=0.0)
        w = tl.load(
            pairs + i.to(tl.int64)[:, None] * (2 * H) + H + column[None, :],
            mask=(h != 0.0)[:, None] & (column < H)[None, :],
            other=0.0,
        )
        acc += tl.sum(w.to(tl.float32) * h[:, None], axis=0)
    tl.store(
        part_ptr + (j.to(tl.int64) * tl.num_programs(1) + split) * H + column, acc, mask=column < H
    )


@jit
def _add_parts_kernel(part_ptr, y_ptr, H, SPLITS: tl.constexpr, BH: tl.constexpr):
    j = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BH + tl.arange(0, BH)
    acc = tl.zeros((BH,), dtype=tl.float32)
    for split in range(SPLITS):
        acc += tl.load(part_ptr + (j * SPLITS + split) * H + column, mask=column < H, other=0.0)
    tl.store(y_ptr + j * H + column, acc, mask=column < H)


def sparse_expert(
    x_H: Tensor,
    v_JN: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    threshold_J: Tensor,
    tile: tuple[int, int] | None = None,
) -> Tensor:
    """The masked form: fp32 [J, H] from all pairs of each need's slot.

    ``pairs`` are [S, N, 2 H], the slots at any stride. ``v_JN`` (fp32) is the up projection,
    ``threshold_J`` is fp32. ``tile`` is neurons x hidden columns.
    """
    J, N = v_JN.shape
    _check(x_H, v_JN, pairs, N)
    if (
        slot_J.dtype != torch.int32
        or len(slot_J) != J
        or threshold_J.dtype != torch.float32
        or len(threshold_J) != J
    ):
        raise ValueError(
            f"{J} needs take int32 slots and float32 thresholds, not {slot_J.dtype}"
            f" {list(slot_J.shape)} and {threshold_J.dtype} {list(threshold_J.shape)}"
        )
    if not launches(x_H):
        return sparse_expert_ref(x_H, v_JN, pairs, slot_J, threshold_J)
    return _launch(x_H, v_JN, pairs, slot_J, threshold_J, slot_J, tile, gathered=False)


def gathered_expert(
    x_H: Tensor,
    v_JC: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    count_J: Tensor,
    tile: tuple[int, int] | None = None,
) -> Tensor:
    """The gathered form: fp32 [J, H] from the first ``count_J`` rows of each need's slot.

    ``pairs`` are [S, C, 2 H]. ``v_JC`` (fp32) holds the kept values in the order of the rows; what
    lies behind the count is not looked at. ``slot_J`` and ``count_J`` are int32, on the device.
    """
    J, C = v_JC.shape
    _check(x_H, v_JC, pairs, C)
    for name, table in (("slots", slot_J), ("counts", count_J)):
        if table.dtype != torch.int32 or list(table.shape) != [J] or not table.is_contiguous():
            raise ValueError(
                f"{J} needs take as many int32 {name}, not {table.dtype} {list(table.shape)}"
            )
    if not launches(x_H):
        return gathered_expert_ref(x_H, v_JC, pairs, slot_J, count_J)
    return _launch(x_H, v_JC, pairs, slot_J, v_JC, count_J, tile, gathered=True)


def _check(x_H: Tensor, v: Tensor, pairs: Tensor, neurons: int) -> None:
    H = len(x_H)
    if (
        v.dtype != torch.float32
        or not v.is_contiguous()
        or not x_H.is_contiguous()
        or x_H.dim() != 1
    ):
        raise ValueError(
            f"up projections are contiguous torch.float32 and x a vector, not {v.dtype}"
            f" {list(v.shape)} and {list(x_H.shape)}"
        )
    if (
        pairs.dim() != 3
        or list(pairs.shape[1:]) != [neurons, 2 * H]
        or pairs.stride()[1:] != (2 * H, 1)
    ):
        raise ValueError(
            f"pairs are [.., {neurons}, {2 * H}] with contiguous rows, not {list(pairs.shape)} with"
            f" strides {pairs.stride()}"
        )


def _launch(
    x_H: Tensor,
    v: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    threshold_J: Tensor,
    count_J: Tensor,
    tile: tuple[int, int] | None,
    *,
    gathered: bool,
) -> Tensor:
    (J, N), H = v.shape, len(x_H)
    y_JH = torch.empty(J, H, dtype=torch.float32, device=x_H.device)
    if not J:
        return y_JH
    neurons, columns = tile or (8, min(512, power_of_two(H)))
    h_JN = torch.empty(J, N, dtype=torch.float32, device=x_H.device)
    _gate_kernel[(blocks(N, neurons), J)](
        x_H,
        pairs,
        pairs.stride(0),
        slot_J,
        v,
        threshold_J,
        count_J,
        h_JN,
        N,
        H,
        GATHERED=gathered,
        BN=neurons,
        BH=columns,
        num_warps=4,
    )
    neurons, columns = tile or (32, 64)
    part_JSH = torch.empty(J, SPLITS, H, dtype=torch.float32, device=x_H.device)
    _down_kernel[(blocks(H, columns), SPLITS, J)](
        h_JN,
        pairs,
        pairs.stride(0),
        slot_J,
        count_J,
        part_JSH,
        N,
        H,
        blocks(N, SPLITS),
        GATHERED=gathered,
        BN=neurons,
        BH=columns,
        num_warps=4,
    )
    columns = 256
    _add_parts_kernel[(blocks(H, columns), J)](
        part_JSH, y_JH, H, SPLITS=SPLITS, BH=columns, num_warps=4
    )
    return y_JH
