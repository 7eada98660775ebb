"""Prefill: the tokens of every expert through its matrix, in one launch.

Legend. T rows of inputs (token x expert), those of one expert together; E experts with tokens, each
with a slot and a count; K inputs; N outputs. Storage: ``real.kernels.quantise``.

Arithmetic. The integers less their middle are exact in bf16 and fp16, so tensor cores multiply
exactly what is stored. Scale and zero act in fp32 on each group's part: ``scale * (dot - (zero -
middle) * sum of inputs)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from real.kernels.dequant_gemv import groups_of, tiling
from real.kernels.jit import blocks, jit, launches, power_of_two, tl
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import SlotMatrices, check_needs


def grouped_gemm_ref(
    x_TK: Tensor, matrices: SlotMatrices, slot_E: Tensor, count_E: Sequence[int]
) -> Tensor:
    """The definition: fp32 [T, N]."""
    parts = x_TK.float().split(list(count_E))
    rows = [
        part @ matrices.weight(slot).T for part, slot in zip(parts, slot_E.tolist(), strict=True)
    ]
    return torch.cat(rows) if rows else x_TK.new_empty(0, matrices.rows, dtype=torch.float32)


@jit
def _grouped_gemm_kernel(
    x_ptr,
    tile_ptr,
    slot_ptr,
    weight_ptr,
    weight_at,
    weight_stride,
    meta_ptr,
    scale_at,
    zero_at,
    meta_stride,
    y_ptr,
    N,
    K,
    R,
    G,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    WHOLE_ROW: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile: BM rows of one expert x BN rows of bytes of one slab. GROUP is a multiple of BK.

    WIDEN multiplies the same values as fp32, because Triton's interpreter multiplies the bit
    patterns of bf16.
    """
    tile = tile_ptr + tl.program_id(1) * 3
    slot = tl.load(slot_ptr + tl.load(tile)).to(tl.int64)
    m = tl.load(tile + 1) + tl.arange(0, BM)
    m_end = tl.load(tile + 2)
    r = tl.program_id(0) * BN + tl.arange(0, BN)
    slab = tl.program_id(2)
    n = slab * R + r
    n_mask = (r < R) & (n < N)
    weight = weight_ptr + slot * weight_stride + weight_at + r.to(tl.int64)[None, :] * K
    place = n.to(tl.int64) * G
    scale_base = meta_ptr + slot * meta_stride + scale_at
    zero_base = meta_ptr + slot * meta_stride + zero_at
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(
            x_ptr + m.to(tl.int64)[:, None] * K + k[None, :],
            mask=(m < m_end)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        held = tl.load(weight + k[:, None], mask=(r < R)[None, :] & (k < K)[:, None], other=0)
        MIDDLE: tl.constexpr = ((1 << BITS) - 1) // 2
        if BITS == 16:
            w = held.to(x.dtype)
        else:
            q = ((held.to(tl.int32) >> (8 - BITS - slab * BITS)) & ((1 << BITS) - 1)) - MIDDLE
            # By way of fp32, because the interpreter cannot convert an integer to bf16.
            w = q.to(tl.float32).to(x.dtype)
        if WIDEN:
            dot = tl.dot(x.to(tl.float32), w.to(tl.float32), input_precision="ieee")
        else:
            dot = tl.dot(x, w, input_precision="ieee")
        if BITS == 16:
            acc += dot
        else:
            g = place if WHOLE_ROW else place + k0 // GROUP
            scale = tl.load(scale_base + g, mask=n_mask, other=0.0).to(tl.float32)
            if HAS_ZERO:
                zero = tl.load(zero_base + g, mask=n_mask, other=0.0).to(tl.float32) - MIDDLE
                dot -= tl.sum(x.to(tl.float32), axis=1)[:, None] * zero[None, :]
            acc += dot * scale[None, :]
    y = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=(m < m_end)[:, None] & n_mask[None, :])


def tiles_of(count_E: Sequence[int], tile_rows: int) -> list[tuple[int, int, int]]:
    """(expert, first row, end of the expert's rows) of each tile; a tile is of one expert."""
    ends = list(accumulate(count_E))
    return [
        (expert, row, end)
        for expert, (count, end) in enumerate(zip(count_E, ends, strict=True))
        for row in range(end - count, end, tile_rows)
    ]


def grouped_gemm(
    x_TK: Tensor,
    matrices: SlotMatrices,
    slot_E: Tensor,
    count_E: Sequence[int],
    tile: tuple[int, int, int] | None = None,
) -> Tensor:
    """``x W[slot_e].T`` for every expert's rows as fp32 [T, N], accumulated in fp32.

    The first ``count_E[0]`` rows of the contiguous ``x_TK`` are those of the first expert, and so
    on. Plain weights of another type than x are rounded to it. ``tile`` is rows of x, rows of
    bytes, columns. Raise ValueError for groups of fewer than 16 weights that are no whole row.
    """
    T, K, N = sum(count_E), matrices.columns, matrices.rows
    check_needs(slot_E, matrices)
    if list(x_TK.shape) != [T, K] or not x_TK.is_contiguous():
        raise ValueError(f"inputs are {list(x_TK.shape)}, but {T} rows of {K} columns are needed")
    if len(count_E) != len(slot_E) or any(count < 0 for count in count_E):
        raise ValueError(
            f"{len(slot_E)} experts need as many counts from 0 on, not {list(count_E)}"
        )
    if not launches(x_TK):
        return grouped_gemm_ref(x_TK, matrices, slot_E, count_E)
    y_TN = torch.empty(T, N, dtype=torch.float32, device=x_TK.device)
    rows_m, rows_n, columns = tile or (
        min(64, max(16, power_of_two(max(count_E, default=1)))),
        64,
        64,
    )
    constants = tiling(matrices, 1, (rows_n, columns))
    if constants["WHOLE_ROW"]:
        constants["GROUP"] = columns
    elif constants["GROUP"] < 16:
        raise ValueError(
            f"groups of {constants['GROUP']} are too small for tensor cores: take 16 or more"
        )
    constants["BK"] = min(columns, constants["GROUP"])
    tiles = torch.tensor(tiles_of(count_E, rows_m), dtype=torch.int32).to(
        x_TK.device, non_blocking=True
    )
    if len(tiles):
        slabs = 8 // matrices.bits if isinstance(matrices.layout, Layout) else 1
        _grouped_gemm_kernel[(blocks(matrices.held_rows, rows_n), len(tiles), slabs)](
            x_TK,
            tiles,
            slot_E,
            **matrices.arguments(),
            y_ptr=y_TN,
            N=N,
            K=K,
            R=matrices.held_rows,
            G=groups_of(matrices),
            **constants,
            BM=rows_m,
            WIDEN=x_TK.is_cpu,
            num_warps=8,
        )
    return y_TN
