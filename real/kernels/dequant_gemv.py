"""One token through the matrices of its experts: y_j = W[slot_j] x_j, weights quantised or plain.

Quantised weights have 8, 4 or 2 bits.

Legend. J needs of the token, each with a slot; K inputs; N outputs; G groups a row; P weights a
byte; R = ceil(N / P) rows of bytes. Storage: ``real.kernels.quantise``.

Arithmetic. GPUs convert integers to floats at a quarter of their speed or less, so nothing is
converted: an integer q is shifted to the top of the mantissa of 1.0, which then reads as
1 + q / 2^bits. Let d be the dot product of such numbers over a group, and s the sum of the group's
inputs. Then the group's part is ``scale * (2^bits d - (2^bits + zero) s)``. Sums are in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real.kernels.jit import blocks, jit, launches, power_of_two, tl
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import SlotMatrices, check_needs

MIN_PROGRAMS = 528
"""The least number of programs of a launch: tiles are made smaller to get there.

It is four for each of the 132 multiprocessors of the largest GPU aimed at.
"""
MAX_TILE_ROWS, TILE_COLUMNS = 16, 512


def dequant_gemv_ref(x_JK: Tensor, matrices: SlotMatrices, slot_J: Tensor) -> Tensor:
    """The definition: fp32 [J, N]; ``x_JK`` may be a single row for all needs."""
    x_JK = x_JK.float().expand(len(slot_J), -1)
    rows = [matrices.weight(slot) @ x_K for slot, x_K in zip(slot_J.tolist(), x_JK, strict=True)]
    return torch.stack(rows) if rows else x_JK.new_empty(0, matrices.rows)


@jit
def _add_slab(
    acc,
    held,
    x,
    x_sum,
    scale_ptr,
    zero_ptr,
    row,
    g,
    N,
    G,
    LEFT: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Add a tile's part to the dot products of one slab's rows.

    The slab's bits in each byte must be shifted left by LEFT to reach the mantissa's top.
    """
    MANTISSA: tl.constexpr = ((1 << BITS) - 1) << (23 - BITS)
    LEVELS: tl.constexpr = 1 << BITS
    lifted = (((held << LEFT) & MANTISSA) | 0x3F800000).to(tl.float32, bitcast=True)
    dot = tl.sum(tl.reshape(lifted * x[None, :], (BN, BK // GROUP, GROUP)), axis=2)
    mask = (row < N)[:, None] & (g < G)[None, :]
    place = row.to(tl.int64)[:, None] * G + g[None, :]
    scale = tl.load(scale_ptr + place, mask=mask, other=0.0).to(tl.float32)
    if HAS_ZERO:
        zero = tl.load(zero_ptr + place, mask=mask, other=0.0).to(tl.float32)
        return acc + tl.sum(scale * (LEVELS * dot - (LEVELS + zero) * x_sum[None, :]), axis=1)
    SYMMETRIC: tl.constexpr = LEVELS + (LEVELS - 1) // 2
    return acc + tl.sum(scale * (LEVELS * dot - SYMMETRIC * x_sum[None, :]), axis=1)


@jit
def row_dots(
    x_ptr,
    weight_ptr,
    scale_ptr,
    zero_ptr,
    r,
    N,
    K,
    R,
    G,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    WHOLE_ROW: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Dot products of x with rows r, r + R, .. (P of them, at most four), each byte read once.

    The accumulators beyond P stay 0.
    """
    acc0 = tl.zeros((BN,), dtype=tl.float32)
    acc1 = tl.zeros((BN,), dtype=tl.float32)
    acc2 = tl.zeros((BN,), dtype=tl.float32)
    acc3 = tl.zeros((BN,), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        mask = (r < R)[:, None] & (k < K)[None, :]
        held = tl.load(weight_ptr + r.to(tl.int64)[:, None] * K + k[None, :], mask=mask, other=0)
        if BITS == 16:
            acc0 += tl.sum(held.to(tl.float32) * x[None, :], axis=1)
        else:
            held = held.to(tl.int32)
            x_sum = tl.sum(tl.reshape(x, (BK // GROUP, GROUP)), axis=1)
            g = (
                tl.arange(0, BK // GROUP) * 0
                if WHOLE_ROW
                else k0 // GROUP + tl.arange(0, BK // GROUP)
            )
            acc0 = _add_slab(
                acc0,
                held,
                x,
                x_sum,
                scale_ptr,
                zero_ptr,
                r,
                g,
                N,
                G,
                15,
                BITS,
                GROUP,
                HAS_ZERO,
                BN,
                BK,
            )
            if BITS <= 4:
                acc1 = _add_slab(
                    acc1,
                    held,
                    x,
                    x_sum,
                    scale_ptr,
                    zero_ptr,
                    R + r,
                    g,
                    N,
                    G,
                    15 + BITS,
                    BITS,
                    GROUP,
                    HAS_ZERO,
                    BN,
                    BK,
                )
            if BITS == 2:
                acc2 = _add_slab(
                    acc2,
                    held,
                    x,
                    x_sum,
                    scale_ptr,
                    zero_ptr,
                    2 * R + r,
                    g,
                    N,
                    G,
                    19,
                    BITS,
                    GROUP,
                    HAS_ZERO,
                    BN,
                    BK,
                )
                acc3 = _add_slab(
                    acc3,
                    held,
                    x,
                    x_sum,
                    scale_ptr,
                    zero_ptr,
                    3 * R + r,
                    g,
                    N,
                    G,
                    21,
                    BITS,
                    GROUP,
                    HAS_ZERO,
                    BN,
                    BK,
                )
    return acc0, acc1, acc2, acc3


@jit
def _dequant_gemv_kernel(
    x_ptr,
    x_stride,
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
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    j = tl.program_id(1)
    slot = tl.load(slot_ptr + j).to(tl.int64)
    r = tl.program_id(0) * BN + tl.arange(0, BN)
    meta = meta_ptr + slot * meta_stride
    acc0, acc1, acc2, acc3 = row_dots(
        x_ptr + j.to(tl.int64) * x_stride,
        weight_ptr + slot * weight_stride + weight_at,
        meta + scale_at,
        meta + zero_at,
        r,
        N,
        K,
        R,
        G,
        BITS,
        GROUP,
        WHOLE_ROW,
        HAS_ZERO,
        BN,
        BK,
    )
    y = y_ptr + j.to(tl.int64) * N
    dtype = y_ptr.dtype.element_ty
    tl.store(y + r, acc0.to(dtype), mask=r < R)
    if BITS <= 4:
        tl.store(y + R + r, acc1.to(dtype), mask=(r < R) & (R + r < N))
    if BITS == 2:
        tl.store(y + 2 * R + r, acc2.to(dtype), mask=(r < R) & (2 * R + r < N))
        tl.store(y + 3 * R + r, acc3.to(dtype), mask=(r < R) & (3 * R + r < N))


def tiling(matrices: SlotMatrices, needs: int, tile: tuple[int, int] | None) -> dict[str, Any]:
    """The constant arguments of ``row_dots``.

    ``tile`` is rows of bytes x columns, both powers of two. Raise ValueError for groups that are
    neither a power of two of at least 2 nor a whole row.
    """
    layout, held = matrices.layout, matrices.held_rows
    rows = MAX_TILE_ROWS
    while rows > 1 and blocks(held, rows) * needs < MIN_PROGRAMS:
        rows //= 2
    rows, columns = tile or (rows, min(TILE_COLUMNS, max(32, power_of_two(matrices.columns))))
    if not isinstance(layout, Layout):
        return {
            "BITS": matrices.bits,
            "GROUP": columns,
            "WHOLE_ROW": True,
            "HAS_ZERO": False,
            "BN": rows,
            "BK": columns,
        }
    whole_row = layout.group >= layout.columns
    if not whole_row and (layout.group < 2 or layout.group & (layout.group - 1)):
        raise ValueError(
            f"groups of {layout.group} of {layout.columns} columns: kernels take powers of two from"
            " 2 on, or whole rows"
        )
    group = columns if whole_row else layout.group
    return {
        "BITS": layout.bits,
        "GROUP": group,
        "WHOLE_ROW": whole_row,
        "HAS_ZERO": not layout.symmetric,
        "BN": rows,
        "BK": max(columns, group),
    }


def groups_of(matrices: SlotMatrices) -> int:
    """The number of groups a row, G; 1 for plain weights."""
    layout = matrices.layout
    return blocks(layout.columns, layout.group) if isinstance(layout, Layout) else 1


def dequant_gemv(
    x_JK: Tensor, matrices: SlotMatrices, slot_J: Tensor, tile: tuple[int, int] | None = None
) -> Tensor:
    """``W[slot_j] x_j`` for every need as fp32 [J, N], accumulated in fp32.

    ``x_JK`` is contiguous [J, K], or [1, K] for all needs; ``slot_J`` is int32 on the pool's
    device. Only tests give ``tile``.
    """
    J, K = len(slot_J), matrices.columns
    check_needs(slot_J, matrices)
    if x_JK.dim() != 2 or x_JK.shape[1] != K or len(x_JK) not in (1, J) or not x_JK.is_contiguous():
        raise ValueError(
            f"inputs are {list(x_JK.shape)}, but {J} needs of {K} columns take [1 or {J}, {K}]"
        )
    if not launches(x_JK):
        return dequant_gemv_ref(x_JK, matrices, slot_J)
    y_JN = torch.empty(J, matrices.rows, dtype=torch.float32, device=x_JK.device)
    if not J:
        return y_JN
    constants = tiling(matrices, J, tile)
    _dequant_gemv_kernel[(blocks(matrices.held_rows, constants["BN"]), J)](
        x_JK,
        K if len(x_JK) == J and J > 1 else 0,
        slot_J,
        **matrices.arguments(),
        y_ptr=y_JN,
        N=matrices.rows,
        K=K,
        R=matrices.held_rows,
        G=groups_of(matrices),
        **constants,
        num_warps=4,
    )
    return y_JN
