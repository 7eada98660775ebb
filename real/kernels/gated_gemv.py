"""The first half of an expert for one token: h_j = SiLU(G_j x) * (U_j x), in one pass.

Gate lies above up in one matrix of 2 N rows. Legend and storage: ``real.kernels.dequant_gemv``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.dequant_gemv import dequant_gemv, dequant_gemv_ref, multiply
from real.kernels.jit import launches
from real.kernels.slot_matrices import SlotMatrices, check_needs
from real.kernels.tiles import RowTile


def gated_gemv_ref(x_1K: Tensor, first: SlotMatrices, slot_J: Tensor) -> Tensor:
    """The definition: fp32 [J, N]."""
    return silu_times(dequant_gemv_ref(x_1K, first, slot_J))


def silu_times(inner: Tensor) -> Tensor:
    """SiLU(gate) * up, gate being the first half of each row."""
    gate, up = inner.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def gated_gemv(
    x_1K: Tensor,
    first: SlotMatrices,
    slot_J: Tensor,
    tile: RowTile | None = None,
    *,
    integers: bool | None = None,
) -> Tensor:
    """SiLU(G x) * (U x) for every need as fp32 [J, N], accumulated in fp32.

    ``x_1K`` is contiguous [1, K], ``first`` has gate above up; ``slot_J`` is int32 on the pool's
    device. Only tests give ``tile`` and ``integers``.
    """
    K = first.columns
    check_needs(slot_J, first)
    if list(x_1K.shape) != [1, K] or not x_1K.is_contiguous():
        raise ValueError(f"the input is {list(x_1K.shape)}, but the matrices take [1, {K}]")
    if first.rows % 2:
        raise ValueError(f"{first.rows} rows are not a gate's and as many of its up projection")
    if not launches(x_1K):
        return gated_gemv_ref(x_1K, first, slot_J)
    if first.bits == 2 and first.rows % 4:
        # Gate and up of a neuron lie in two bytes then.
        return silu_times(dequant_gemv(x_1K, first, slot_J, tile, integers=integers))
    return multiply(x_1K, first, slot_J, gated=True, behind=False, tile=tile, integers=integers)
