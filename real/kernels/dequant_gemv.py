"""One token through the matrices of its experts: y_j = W[slot_j] x_j, weights quantised or plain.

Legend. J needs of the token, each with a slot; K inputs; N outputs; G groups a row; P weights a
byte; R = ceil(N / P) rows of bytes. Storage: ``real.kernels.quantise``.

Two kernels do it. ``row_dots`` takes all bits, and multiplies in fp32. ``integer_dots`` takes large
launches of 4 and 2 bits, where instructions and not bytes are the limit.
``real.kernels.tiles.takes_integers`` says which. Sums that several programs share are added by
``add_parts``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real.kernels.add_parts import add_parts
from real.kernels.fixed_point import fixed_point
from real.kernels.integer_dots import integer_dots_kernel
from real.kernels.jit import blocks, chained, chains, is_compiled, launches
from real.kernels.quantise import Layout
from real.kernels.row_dots import row_dots_kernel
from real.kernels.slot_matrices import SlotMatrices, check_needs
from real.kernels.tiles import CHUNK, RowTile, row_tile, takes_integers


def dequant_gemv_ref(x_JK: Tensor, matrices: SlotMatrices, slot_J: Tensor) -> Tensor:
    """The definition: fp32 [J, N]; ``x_JK`` may be a single row for all needs."""
    x_JK = x_JK.float().expand(len(slot_J), -1)
    rows = [matrices.weight(slot) @ x_K for slot, x_K in zip(slot_J.tolist(), x_JK, strict=True)]
    return torch.stack(rows) if rows else x_JK.new_empty(0, matrices.rows)


def groups_of(matrices: SlotMatrices) -> int:
    """The number of groups a row, G; 1 for plain weights."""
    layout = matrices.layout
    return blocks(layout.columns, layout.group) if isinstance(layout, Layout) else 1


def form_of(matrices: SlotMatrices) -> dict[str, Any]:
    """The constant arguments that say how a matrix is stored.

    Raise ValueError for groups that are neither a power of two from 16 on nor a whole row.
    """
    layout = matrices.layout
    if not isinstance(layout, Layout):
        return {"BITS": matrices.bits, "GROUP": 1 << 30, "HAS_ZERO": False}
    whole_row = layout.group >= layout.columns
    if not whole_row and (layout.group < CHUNK or layout.group & (layout.group - 1)):
        raise ValueError(
            f"groups of {layout.group} of {layout.columns} columns: kernels take powers of two from"
            f" {CHUNK} on, or whole rows"
        )
    # Beyond all columns, where tiles may reach, a whole row's group is still the first.
    group = 1 << 30 if whole_row else layout.group
    return {"BITS": layout.bits, "GROUP": group, "HAS_ZERO": not layout.symmetric}


def multiply(
    x_JK: Tensor,
    matrices: SlotMatrices,
    slot_J: Tensor,
    *,
    gated: bool,
    behind: bool,
    tile: RowTile | None,
    integers: bool | None = None,
) -> Tensor:
    """Launch the product: fp32 [J, N], or gated [J, N / 2].

    ``behind``: x was written by the kernel just before, one of this package. ``integers``: which
    kernel; None for the rule's.
    """
    J, K, N, layout = len(slot_J), matrices.columns, matrices.rows, matrices.layout
    form, pdl = form_of(matrices), chains(x_JK)
    if integers is None:
        group = form["GROUP"]
        integers = takes_integers(matrices.bits, K, group, layout.stored_bytes, J)
    two_rows = gated and matrices.bits >= 8
    rows, out = matrices.held_rows // (2 if two_rows else 1), N // 2 if gated else N
    tile = tile or row_tile(matrices.bits, rows, K, J, gated=gated, integers=integers)
    slabs = max(1, 8 // matrices.bits)
    uneven = tile.columns * tile.steps * tile.parts != K or rows % tile.rows or N % slabs
    y_PJN = torch.empty(tile.parts, J, out, dtype=torch.float32, device=x_JK.device)
    if not J:
        return y_PJN[0]
    constants = {
        **form,
        "GATED": gated,
        "BN": tile.rows,
        "BK": tile.columns,
        "STEPS": tile.steps,
        "MASK": bool(uneven),
        "COMPILED": is_compiled(),
        "TRIGGER": pdl,
    }
    shape = {"N": N, "K": K, "R": matrices.held_rows, "G": groups_of(matrices), "OUT": out}
    grid, many = (blocks(rows, tile.rows), J, tile.parts), len(x_JK) == J > 1
    if integers:
        words, about = fixed_point(x_JK, behind=behind)
        integer_dots_kernel[grid](
            words,
            about,
            int(many),
            slot_J,
            **matrices.arguments(),
            y_ptr=y_PJN,
            **shape,
            **constants,
            WAIT=pdl,
            num_warps=tile.warps,
            **chained(pdl),
        )
    else:
        wait = pdl and behind
        row_dots_kernel[grid](
            x_JK,
            K if many else 0,
            slot_J,
            **matrices.arguments(),
            y_ptr=y_PJN,
            ROWS=rows,
            **shape,
            **constants,
            C=8 if matrices.bits == 16 else CHUNK,
            WAIT=wait,
            num_warps=tile.warps,
            **chained(wait),
        )
    return y_PJN[0] if tile.parts == 1 else add_parts(y_PJN)


def dequant_gemv(
    x_JK: Tensor,
    matrices: SlotMatrices,
    slot_J: Tensor,
    tile: RowTile | None = None,
    *,
    behind: bool = False,
    integers: bool | None = None,
) -> Tensor:
    """``W[slot_j] x_j`` for every need as fp32 [J, N], accumulated in fp32.

    ``x_JK`` is contiguous [J, K], or [1, K] for all needs; ``slot_J`` is int32 on the pool's
    device. ``behind``: x was written by the kernel just before, which is one of this package. Only
    tests give ``tile`` and ``integers``.
    """
    J, K = len(slot_J), matrices.columns
    check_needs(slot_J, matrices)
    if x_JK.dim() != 2 or x_JK.shape[1] != K or len(x_JK) not in (1, J) or not x_JK.is_contiguous():
        raise ValueError(
            f"inputs are {list(x_JK.shape)}, but {J} needs of {K} columns take [1 or {J}, {K}]"
        )
    if not launches(x_JK):
        return dequant_gemv_ref(x_JK, matrices, slot_J)
    return multiply(
        x_JK, matrices, slot_J, gated=False, behind=behind, tile=tile, integers=integers
    )
