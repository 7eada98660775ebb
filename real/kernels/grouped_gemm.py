"""Several tokens: the rows of every expert through its matrix, in one launch. From 2 rows on.

Legend. T rows of inputs (token x expert), those of one expert together; E experts with tokens, each
with a slot and a count; K inputs; N outputs; B blocks of inputs, each a dot of the tensor cores.
Storage: ``real.kernels.quantise``; the kernel: ``real.kernels.tensor_dots``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from real.kernels.add_parts import add_parts
from real.kernels.dequant_gemv import form_of, groups_of
from real.kernels.gated_gemv import silu_times
from real.kernels.jit import blocks, capability_of, chained, chains, is_compiled, launches
from real.kernels.quantise import Layout
from real.kernels.slot_matrices import SlotMatrices, check_needs
from real.kernels.tensor_dots import block_sums_kernel, tensor_dots_kernel
from real.kernels.tiles import BatchTile, batch_tile, pairs_scales

BLOCK, UNEVEN_BLOCK = 64, 16
"""Inputs of one dot, and where rows do not divide into these: single bytes need more registers."""
PLANES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}
"""How many numbers of 8 bits of mantissa add up to one of a type."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Which rows are whose: ``table`` int32 [tiles, 3] on the device, for tiles of ``inputs`` rows.

    A row of it is an expert, its first row in the tile, and the end of its rows.
    """

    counts: tuple[int, ...]
    inputs: int
    table: Tensor


def grouped_gemm_ref(
    x_TK: Tensor, matrices: SlotMatrices, slot_E: Tensor, count_E: Sequence[int]
) -> Tensor:
    """The definition: fp32 [T, N]."""
    parts = x_TK.float().split(list(count_E))
    rows = [
        part @ matrices.weight(slot).T for part, slot in zip(parts, slot_E.tolist(), strict=True)
    ]
    return torch.cat(rows) if rows else x_TK.new_empty(0, matrices.rows, dtype=torch.float32)


def tiles_of(count_E: Sequence[int], tile_rows: int) -> list[tuple[int, int, int]]:
    """(expert, first row, end of the expert's rows) of each tile; a tile is of one expert."""
    ends = list(accumulate(count_E))
    return [
        (expert, row, end)
        for expert, (count, end) in enumerate(zip(count_E, ends, strict=True))
        for row in range(end - count, end, tile_rows)
    ]


def batch_of(
    count_E: Sequence[int], device: torch.device | str, bits: int, inputs: int | None = None
) -> Batch:
    """The rows of experts, the first ``count_E[0]`` being those of the first one, and so on.

    ``bits`` are those of their weights. It copies a table to the device. A captured graph takes one
    that was made before.
    """
    if any(count < 0 for count in count_E):
        raise ValueError(f"experts have counts from 0 on, not {list(count_E)}")
    most, capability = max(count_E, default=1), capability_of(device)
    rule = batch_tile(bits, most, 1, parts=False, capability=capability)
    inputs = inputs or rule.inputs
    table = torch.tensor(tiles_of(count_E, inputs), dtype=torch.int32).reshape(-1, 3)
    return Batch(tuple(count_E), inputs, table.to(device, non_blocking=True))


def planes_of(x_TK: Tensor, count: int) -> Tensor:
    """bf16 [count, T, K] that add up to x, each the rounding of what those before it leave."""
    if x_TK.dtype == torch.bfloat16:
        return x_TK[None]
    planes, rest = [], x_TK.float()
    for _ in range(count):
        planes.append(rest.to(torch.bfloat16))
        rest = rest - planes[-1].float()
    return torch.stack(planes)


def grouped_gemm(
    x_TK: Tensor,
    matrices: SlotMatrices,
    slot_E: Tensor,
    count_E: Sequence[int] | Batch,
    tile: BatchTile | None = None,
) -> Tensor:
    """``x W[slot_e].T`` for every expert's rows as fp32 [T, N], accumulated in fp32.

    The first ``count_E[0]`` rows of the contiguous ``x_TK`` are those of the first expert, and so
    on; a ``Batch`` of them may have been made before. Next to plain weights of fp16 and fp32 x is
    rounded to their type; else it is exact. Only tests give ``tile``.
    """
    counts = count_E.counts if isinstance(count_E, Batch) else tuple(count_E)
    _check(x_TK, matrices, slot_E, counts)
    if not launches(x_TK):
        return grouped_gemm_ref(x_TK, matrices, slot_E, counts)
    dtype = getattr(matrices.layout, "dtype", torch.bfloat16)
    x_PTK = planes_of(x_TK, PLANES[x_TK.dtype]) if dtype == torch.bfloat16 else x_TK.to(dtype)[None]
    return multiply_rows(x_PTK, matrices, slot_E, _batch(count_E, matrices, tile), tile=tile)


def grouped_expert(
    x_TK: Tensor,
    first: SlotMatrices,
    down: SlotMatrices,
    slot_E: Tensor,
    count_E: Sequence[int] | Batch,
    planes: int = 2,
    tile: BatchTile | None = None,
) -> Tensor:
    """Whole experts for several rows each, gate above up in ``first``: fp32 [T, H].

    ``x_TK`` is bf16. What lies between the products is kept in ``planes`` of bf16: 2 are right to
    2^-17 of a number, 3 to all of fp32, and 1 is what a model in bf16 keeps. The rest as in `grouped_gemm`.
    """
    counts = count_E.counts if isinstance(count_E, Batch) else tuple(count_E)
    _check(x_TK, first, slot_E, counts)
    if not 1 <= planes <= 3:
        raise ValueError(f"planes={planes} must be from 1 to 3")
    if not launches(x_TK):
        inner = silu_times(grouped_gemm_ref(x_TK, first, slot_E, counts))
        inner = planes_of(inner, planes).float().sum(0)
        return grouped_gemm_ref(inner, down, slot_E, counts)
    if x_TK.dtype != torch.bfloat16 or (first.bits == 2 and first.rows % 4):
        inner = silu_times(grouped_gemm(x_TK, first, slot_E, count_E, tile))
        return grouped_gemm(inner, down, slot_E, count_E, tile)
    batch = _batch(count_E, first, tile)
    h_PTN = multiply_rows(x_TK[None], first, slot_E, batch, planes=planes, tile=tile)
    return multiply_rows(h_PTN, down, slot_E, batch, tile=tile, behind=True)


def _batch(count_E: Sequence[int] | Batch, matrices: SlotMatrices, tile: BatchTile | None) -> Batch:
    if isinstance(count_E, Batch):
        return count_E
    device, inputs = matrices.pool.device, tile.inputs if tile else None
    return batch_of(count_E, device, matrices.bits, inputs)


def _check(x_TK: Tensor, matrices: SlotMatrices, slot_E: Tensor, counts: Sequence[int]) -> None:
    T, K = sum(counts), matrices.columns
    check_needs(slot_E, matrices)
    if list(x_TK.shape) != [T, K] or not x_TK.is_contiguous():
        raise ValueError(f"inputs are {list(x_TK.shape)}, but {T} rows of {K} columns are needed")
    if len(counts) != len(slot_E) or any(count < 0 for count in counts):
        raise ValueError(f"{len(slot_E)} experts need as many counts from 0 on, not {list(counts)}")


def block_sums(x_PTK: Tensor, block: int, *, behind: bool) -> Tensor:
    """The sums fp32 [T, B] of each row's blocks, over all planes."""
    P, T, K = x_PTK.shape
    B, pdl = blocks(K, block), chains(x_PTK)
    sums = torch.empty(T, B, dtype=torch.float32, device=x_PTK.device)
    block_sums_kernel[(T, blocks(B, 16))](
        x_PTK,
        T * K,
        sums,
        K,
        B,
        PLANES=P,
        BK=block,
        BB=16,
        WAIT=pdl and behind,
        TRIGGER=pdl,
        num_warps=2,
        **chained(pdl and behind),
    )
    return sums


def multiply_rows(
    x_PTK: Tensor,
    matrices: SlotMatrices,
    slot_E: Tensor,
    batch: Batch,
    *,
    planes: int = 0,
    tile: BatchTile | None = None,
    behind: bool = False,
) -> Tensor:
    """Launch the product of planes of inputs: fp32 [T, N]; gated, ``planes`` bf16 [.., T, N / 2].

    ``planes`` from 1 on means gated. ``behind``: x was written by the kernel just before, one of
    this package.
    """
    (P, T, K), N, layout, gated = x_PTK.shape, matrices.rows, matrices.layout, planes > 0
    form, G, quantised = form_of(matrices), groups_of(matrices), isinstance(layout, Layout)
    block = min(UNEVEN_BLOCK if K % BLOCK else BLOCK, form["GROUP"])
    B = blocks(K, block)
    most, capability = max(batch.counts, default=1), capability_of(x_PTK.device)
    two_rows = gated and matrices.bits >= 8
    rows, out = matrices.held_rows // (2 if two_rows else 1), N // 2 if gated else N
    tile = tile or batch_tile(
        matrices.bits,
        most,
        B,
        parts=not gated,
        capability=capability,
        byte_rows=rows * len(batch.table),
    )
    steps = blocks(B, tile.parts)
    half = getattr(layout, "meta_dtype", None) == torch.float16
    pairs = half and form["GROUP"] == block and G % 2 == 0 and steps % 2 == 0 and K % block == 0
    pairs = pairs and pairs_scales(matrices.bits, batch.inputs, capability)
    shape, kind = (planes, T, out), torch.bfloat16
    if not gated:
        shape, kind = (tile.parts, T, out), torch.float32
    y = torch.empty(shape, dtype=kind, device=x_PTK.device)
    if not len(batch.table):
        return y if gated else y[0]
    pdl = chains(x_PTK)
    sums = block_sums(x_PTK, block, behind=behind) if quantised else x_PTK
    wait = pdl and (behind or quantised)
    tensor_dots_kernel[(len(batch.table), blocks(rows, tile.rows), tile.parts)](
        x_PTK,
        T * K,
        sums,
        batch.table,
        slot_E,
        **matrices.arguments(),
        y_ptr=y,
        y_plane=T * out,
        part_stride=T * out,
        N=N,
        K=K,
        R=matrices.held_rows,
        G=G,
        B=B,
        ROWS=rows,
        OUT=out,
        **form,
        GATED=gated,
        PLANES=P,
        Y_PLANES=planes,
        BM=batch.inputs,
        BN=tile.rows,
        BK=block,
        STEPS=steps,
        STAGES=tile.stages,
        U=2 if pairs else 1,
        EVEN=K % block == 0,
        COMPILED=is_compiled(),
        WAIT=wait,
        TRIGGER=pdl,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **chained(wait),
    )
    if gated:
        return y
    return y[0] if tile.parts == 1 else add_parts(y)
