"""What tests of kernels share: matrices in slots, and the distance of a result from fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.quantise import Layout, layout_of, quantise, quantise_channels
from real.kernels.slot_matrices import PlainLayout, SlotMatrices

FP32_ERROR = 1e-5
"""Allowed relative error of a result accumulated in fp32; inputs of any type count as exact."""


def random(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def in_slots(
    rows: int,
    columns: int,
    bits: int,
    group: int,
    *,
    slots: int = 3,
    matrices: int = 1,
    symmetric: bool = False,
    dtype: torch.dtype = torch.float16,
    device: str = "cpu",
    offset: float = 0.0,
) -> list[SlotMatrices]:
    """Matrices in every slot of a pool, side by side after 32 bytes of something else.

    With 16 bits they are plain ``dtype``.
    """
    layout: Layout | PlainLayout = PlainLayout(rows, columns, dtype)
    if bits < 16:
        layout = layout_of(_stored(random(rows, columns), bits, group, symmetric, dtype))
    size = layout.stored_bytes
    pool = torch.randint(
        0,
        255,
        (slots, 32 + matrices * size),
        generator=torch.Generator().manual_seed(7),
        dtype=torch.uint8,
    )
    for slot in range(slots):
        for number in range(matrices):
            weight = random(rows, columns, seed=10 * slot + number, scale=0.05) + offset
            stored = weight if bits == 16 else _stored(weight, bits, group, symmetric, dtype)
            begin = 32 + number * size
            layout.write(stored, pool[slot, begin : begin + size])  # type: ignore[arg-type]
    pool = pool.to(device)
    return [SlotMatrices(pool, layout, 32 + number * size) for number in range(matrices)]


def _stored(weight: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype):
    return (
        quantise_channels(weight, bits, dtype)
        if symmetric
        else quantise(weight, bits, group, dtype)
    )


def exact(matrices: SlotMatrices, slot: int) -> Tensor:
    """The matrix stored in a slot, as fp64."""
    return SlotMatrices(matrices.pool.cpu(), matrices.layout, matrices.at).weight(slot).double()


def error(name: str, got: Tensor, want: Tensor, most: float = FP32_ERROR) -> None:
    """Fail unless the norm of the difference is within ``most`` of the norm of ``want``.

    NaN always fails.
    """
    assert got.shape == want.shape, name
    off = (
        float((got.cpu().double() - want).norm() / want.norm().clamp(min=1e-30))
        if want.numel()
        else 0.0
    )
    assert off <= most, f"{name} is off by {off:.3g}, at most {most:.3g}"
