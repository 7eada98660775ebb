"""The parts of sums that several programs have computed, added in a fixed order.

Atomic additions would be one launch less, and other bits on every call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import blocks, chained, chains, gdc_launch_dependents, gdc_wait, jit, tl
from real.kernels.tiles import power_of_two

COLUMNS = 32
"""Sums of one program: few, so that even 2048 sums keep half of the multiprocessors busy."""


def add_parts_ref(part_P: Tensor) -> Tensor:
    """The definition: ``part_P`` [P, ..] summed over P."""
    return part_P.sum(dim=0)


@jit
def _add_parts_kernel(
    part_ptr,
    y_ptr,
    TOTAL,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
    BH: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    if TRIGGER:
        gdc_launch_dependents()
    column = tl.program_id(0) * BH + tl.arange(0, BH)
    p = tl.arange(0, BP)
    if WAIT:
        gdc_wait()
    acc = tl.zeros((BP, BH), dtype=tl.float32)
    for p0 in tl.static_range(0, PARTS, BP):
        acc += tl.load(
            part_ptr + (p0 + p).to(tl.int64)[:, None] * TOTAL + column[None, :],
            mask=(p0 + p < PARTS)[:, None] & (column < TOTAL)[None, :],
            other=0.0,
        )
    tl.store(y_ptr + column, tl.sum(acc, axis=0), mask=column < TOTAL)


def add_parts(part_P: Tensor) -> Tensor:
    """The sum over the first dimension of contiguous fp32 [P, ..], right behind its kernel."""
    y, pdl = torch.empty_like(part_P[0]), chains(part_P)
    parts, total = len(part_P), y.numel()
    held = min(64, power_of_two(parts))
    _add_parts_kernel[(blocks(total, COLUMNS),)](
        part_P,
        y,
        total,
        PARTS=parts,
        BP=held,
        BH=COLUMNS,
        WAIT=pdl,
        TRIGGER=pdl,
        num_warps=4 if held * COLUMNS >= 1024 else 1,
        **chained(pdl),
    )
    return y
