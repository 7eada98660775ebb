"""The first half of an expert for one token: h_j = SiLU(G_j x) * (U_j x), in one pass.

Legend and storage: ``real.kernels.dequant_gemv``. Gate and up lie in one slot and have one form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.dequant_gemv import groups_of, row_dots, tiling
from real.kernels.jit import blocks, jit, launches, tl
from real.kernels.slot_matrices import SlotMatrices, check_needs


def gated_gemv_ref(x_K: Tensor, gate: SlotMatrices, up: SlotMatrices, slot_J: Tensor) -> Tensor:
    """The definition: fp32 [J, N]."""
    x_K = x_K.float()
    rows = [
        torch.nn.functional.silu(gate.weight(slot) @ x_K) * (up.weight(slot) @ x_K)
        for slot in slot_J.tolist()
    ]
    return torch.stack(rows) if rows else x_K.new_empty(0, gate.rows)


@jit
def _silu_times(gate, up):
    return gate * tl.sigmoid(gate) * up


@jit
def _gated_gemv_kernel(
    x_ptr,
    slot_ptr,
    weight_ptr,
    weight_at,
    weight_stride,
    meta_ptr,
    scale_at,
    zero_at,
    meta_stride,
    up_at,
    up_scale_at,
    up_zero_at,
    h_ptr,
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
    weight = weight_ptr + slot * weight_stride
    meta = meta_ptr + slot * meta_stride
    gate0, gate1, gate2, gate3 = row_dots(
        x_ptr,
        weight + weight_at,
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
    up0, up1, up2, up3 = row_dots(
        x_ptr,
        weight + up_at,
        meta + up_scale_at,
        meta + up_zero_at,
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
    h = h_ptr + j.to(tl.int64) * N
    tl.store(h + r, _silu_times(gate0, up0), mask=r < R)
    if BITS <= 4:
        tl.store(h + R + r, _silu_times(gate1, up1), mask=(r < R) & (R + r < N))
    if BITS == 2:
        tl.store(h + 2 * R + r, _silu_times(gate2, up2), mask=(r < R) & (2 * R + r < N))
        tl.store(h + 3 * R + r, _silu_times(gate3, up3), mask=(r < R) & (3 * R + r < N))


def gated_gemv(
    x_K: Tensor,
    gate: SlotMatrices,
    up: SlotMatrices,
    slot_J: Tensor,
    tile: tuple[int, int] | None = None,
) -> Tensor:
    """SiLU(G x) * (U x) for every need as fp32 [J, N], accumulated in fp32.

    ``x_K`` is contiguous [K]; ``slot_J`` is int32 on the pool's device. Only tests give ``tile``.
    """
    J, K = len(slot_J), gate.columns
    check_needs(slot_J, gate)
    if gate.pool is not up.pool or gate.layout != up.layout:
        raise ValueError(
            f"gate and up must be of one form in one pool, not {gate.layout} and {up.layout}"
        )
    if list(x_K.shape) != [K] or not x_K.is_contiguous():
        raise ValueError(f"the input is {list(x_K.shape)}, but the matrices have {K} columns")
    if not launches(x_K):
        return gated_gemv_ref(x_K, gate, up, slot_J)
    h_JN = torch.empty(J, gate.rows, dtype=torch.float32, device=x_K.device)
    if not J:
        return h_JN
    constants, second = tiling(gate, J, tile), up.arguments()
    _gated_gemv_kernel[(blocks(gate.held_rows, constants["BN"]), J)](
        x_K,
        slot_J,
        **gate.arguments(),
        up_at=second["weight_at"],
        up_scale_at=second["scale_at"],
        up_zero_at=second["zero_at"],
        h_ptr=h_JN,
        N=gate.rows,
        K=K,
        R=gate.held_rows,
        G=groups_of(gate),
        **constants,
        num_warps=4,
    )
    return h_JN
