"""Matrices of one form in the slots of a pool: where kernels read experts from.

Every slot holds one expert, whose matrices begin at the same offset in each. A kernel finds its
slot in a table in device memory. A captured CUDA graph freezes addresses, but not that table, so
one graph serves every slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from real.kernels.quantise import ALIGNMENT, Layout, Quantised, dequantise, layout_of, packed_rows

PLAIN_BITS = 16
"""The ``BITS`` of a kernel for weights stored as floating numbers, whatever their width."""


@dataclass(frozen=True)
class PlainLayout:
    """The form of a matrix of floating weights, stored row by row."""

    rows: int
    columns: int
    dtype: torch.dtype

    @property
    def stored_bytes(self) -> int:
        """The bytes that a matrix takes, padding included."""
        return -(-self.rows * self.columns * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def read(self, buffer: Tensor) -> Tensor:
        """The matrix [N, K], a view of the first bytes of a uint8 buffer."""
        return (
            buffer[: self.rows * self.columns * self.dtype.itemsize]
            .view(self.dtype)
            .view(self.rows, self.columns)
        )

    def write(self, matrix: Tensor, buffer: Tensor) -> None:
        if list(matrix.shape) != [self.rows, self.columns]:
            raise ValueError(f"a matrix of {list(matrix.shape)} does not fit {self}")
        self.read(buffer).copy_(matrix)


@dataclass(frozen=True, eq=False)
class SlotMatrices:
    """One matrix of each slot, ``at`` bytes from the slot's beginning.

    ``pool`` is uint8 [S, slot bytes] with contiguous rows. Slots may overlap: a pool may have one
    at each of many places.
    """

    pool: Tensor
    layout: Layout | PlainLayout
    at: int = 0

    def __post_init__(self) -> None:
        if self.pool.dtype != torch.uint8 or self.pool.dim() != 2 or self.pool.stride(1) != 1:
            raise ValueError(
                f"a pool is torch.uint8 [slots, bytes] with contiguous rows, not {self.pool.dtype} "
                f"{list(self.pool.shape)} with strides {self.pool.stride()}"
            )
        if (
            self.at % ALIGNMENT
            or self.slot_bytes % ALIGNMENT
            or self.step_bytes % ALIGNMENT
            or self.at < 0
        ):
            raise ValueError(
                f"offset {self.at}, slot size {self.slot_bytes} and step {self.step_bytes} must be "
                f"multiples of {ALIGNMENT} B"
            )
        if self.at + self.layout.stored_bytes > self.slot_bytes:
            raise ValueError(
                f"{self.layout} takes {self.layout.stored_bytes} B from {self.at} on, but a slot"
                f" has {self.slot_bytes}"
            )

    @property
    def slot_bytes(self) -> int:
        return int(self.pool.shape[1])

    @property
    def step_bytes(self) -> int:
        """The bytes from one slot's beginning to the next."""
        return self.pool.stride(0)

    @property
    def rows(self) -> int:
        return self.layout.rows

    @property
    def columns(self) -> int:
        return self.layout.columns

    @property
    def bits(self) -> int:
        return self.layout.bits if isinstance(self.layout, Layout) else PLAIN_BITS

    @property
    def held_rows(self) -> int:
        """The number of rows of bytes, or of weights where these are plain."""
        return packed_rows(self.rows, self.bits) if isinstance(self.layout, Layout) else self.rows

    def bytes_of(self, slot: int) -> Tensor:
        return self.pool[slot, self.at : self.at + self.layout.stored_bytes]

    def weight(self, slot: int) -> Tensor:
        """The matrix [N, K] of a slot as fp32: what every kernel computes with."""
        read = self.layout.read(self.bytes_of(slot))
        return dequantise(read) if isinstance(read, Quantised) else read.float()

    def arguments(self) -> dict[str, Any]:
        """Arguments of a kernel: the pool as weights and as scales, and where matrices lie in it.

        Places are counted in elements of either.
        """
        layout = self.layout
        if isinstance(layout, PlainLayout):
            size = layout.dtype.itemsize
            weights = self.pool.view(layout.dtype)
            return {
                "weight_ptr": weights,
                "weight_at": self.at // size,
                "weight_stride": self.step_bytes // size,
                "meta_ptr": weights,
                "scale_at": 0,
                "zero_at": 0,
                "meta_stride": 0,
            }
        size = layout.meta_dtype.itemsize
        return {
            "weight_ptr": self.pool,
            "weight_at": self.at,
            "weight_stride": self.step_bytes,
            "meta_ptr": self.pool.view(layout.meta_dtype),
            "scale_at": (self.at + layout.scale_at) // size,
            "zero_at": 0 if layout.symmetric else (self.at + layout.zero_at) // size,
            "meta_stride": self.step_bytes // size,
        }


def in_one_slot(matrix: Quantised | Tensor) -> SlotMatrices:
    """A pool of a single slot that holds ``matrix``, for a matrix that never moves."""
    layout: Layout | PlainLayout
    if isinstance(matrix, Quantised):
        layout, device = layout_of(matrix), matrix.packed.device
    else:
        layout, device = PlainLayout(matrix.shape[0], matrix.shape[1], matrix.dtype), matrix.device
    pool = torch.zeros(1, layout.stored_bytes, dtype=torch.uint8, device=device)
    layout.write(matrix, pool[0])  # type: ignore[arg-type]
    return SlotMatrices(pool, layout)


def check_needs(slot_J: Tensor, matrices: SlotMatrices) -> None:
    """Raise ValueError unless the slot table of the needs is int32 and lies where the pool does."""
    if slot_J.dtype != torch.int32 or slot_J.dim() != 1 or slot_J.device != matrices.pool.device:
        raise ValueError(
            f"a slot table is torch.int32 [J] on {matrices.pool.device}, not {slot_J.dtype}"
            f" {list(slot_J.shape)} on {slot_J.device}"
        )
