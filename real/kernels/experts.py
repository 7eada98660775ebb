"""Whole experts of one token, each a few chained launches.

Legend: ``real.kernels.dequant_gemv``. From two rows on: ``real.kernels.grouped_gemm``.

Where sparse stops paying. FloE's expert is three launches in a row and reads the up projection
whole, so it gains only where bytes take longer than launches. For one need of 1408 x 2048 and of
768 x 2048 its prototype took as long as the dense expert in bf16, or longer, at every share kept;
for Mixtral's it was 1.4 to 2.4 times as fast. Small experts pay with all needs in a launch.
"""

from __future__ import annotations

from torch import Tensor

from real.kernels.dequant_gemv import dequant_gemv
from real.kernels.gated_gemv import gated_gemv
from real.kernels.slot_matrices import SlotMatrices
from real.kernels.sparse_expert import listed_expert, sparse_expert


def dense_expert(x_1H: Tensor, first: SlotMatrices, down: SlotMatrices, slot_J: Tensor) -> Tensor:
    """``down (SiLU(gate x) * (up x))`` for every need: fp32 [J, H].

    ``first`` has gate above up. ``x_1H`` is one row for all needs.
    """
    h_JN = gated_gemv(x_1H, first, slot_J)
    return dequant_gemv(h_JN, down, slot_J, behind=True)


def masked_expert(
    x_1H: Tensor,
    up: SlotMatrices,
    up_J: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    threshold_J: Tensor,
) -> Tensor:
    """FloE's expert with its up projection ``up[up_J]``, all pairs in the slot: fp32 [J, H]."""
    v_JN = dequant_gemv(x_1H, up, up_J)
    return sparse_expert(x_1H[0], v_JN, pairs, slot_J, threshold_J, behind=True)


def partial_expert(
    x_1H: Tensor,
    up: SlotMatrices,
    up_J: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    count_J: Tensor,
    neuron_LJ: Tensor,
) -> Tensor:
    """The same of the neurons that have come, which ``neuron_LJ`` names: fp32 [J, H]."""
    v_JN = dequant_gemv(x_1H, up, up_J)
    return listed_expert(x_1H[0], v_JN, pairs, slot_J, count_J, neuron_LJ, behind=True)
