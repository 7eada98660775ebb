"""How an expert is stored at one precision: its tensors in a blob.

At 32 and 16 bits tensors are stored as they are; at 8, 4 and 2 bits they are rounded by groups of a
row, and scales and zeros stand with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from real.kernels.quantise import Layout, dequantise, quantise
from real.store.experts import Tensors
from real.store.neurons import PRECISION

ALIGNMENT = 4096
RAW = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GROUPED = {
    "int8": (8, 64),
    "int4": (4, 64),
    "int2": (2, 64),
    "hqq4_g64": (4, 64),
    "hqq2_g64": (2, 64),
    "hqq2_g16": (2, 16),
}
"""Bits, and how many weights of a row share a scale and a zero in half precision."""
TENSOR_ALIGNMENT = 16


class StoreError(ValueError):
    """A store cannot be made, opened or read; the message says why, and the way out."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a blob.

    - ``shape``: as the model has it. ``begin``: its first byte in the blob.
    - ``bits``, ``group``: how it is rounded; with 0 bits it is stored as it is, in ``dtype``.
    - ``flipped``: the model's tensor is [in, out], the stored matrix [out, in].
    """

    name: str
    shape: tuple[int, ...]
    begin: int
    dtype: str
    bits: int = 0
    group: int = 0
    flipped: bool = False

    @property
    def num_bytes(self) -> int:
        if self.bits:
            return self.layout.stored_bytes
        return aligned(math.prod(self.shape) * self._dtype.itemsize, TENSOR_ALIGNMENT)

    @property
    def layout(self) -> Layout:
        rows, columns = reversed(self.shape) if self.flipped else self.shape
        return Layout(rows, columns, self.bits, self.group)

    @property
    def _dtype(self) -> torch.dtype:
        return RAW[self.dtype]

    def write(self, values: torch.Tensor, blob: torch.Tensor) -> None:
        place = blob[self.begin : self.begin + self.num_bytes]
        if self.bits:
            self.layout.write(
                quantise(values.T if self.flipped else values, self.bits, self.group), place
            )
        else:
            place[: values.numel() * self._dtype.itemsize].view(self._dtype).view(self.shape).copy_(
                values
            )

    def read(self, blob: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in ``dtype``; a view of the blob where it is stored in that dtype."""
        place = blob[self.begin : self.begin + self.num_bytes]
        if not self.bits:
            return (
                place[: math.prod(self.shape) * self._dtype.itemsize]
                .view(self._dtype)
                .view(self.shape)
                .to(dtype)
            )
        matrix = dequantise(self.layout.read(place), dtype)
        return matrix.T if self.flipped else matrix


@dataclass(frozen=True)
class Variant:
    """How experts are stored at one precision.

    ``begin`` is the first byte of the precision's region. From one expert to the next it is
    ``stride`` bytes.
    """

    precision: str
    tensors: tuple[StoredTensor, ...]
    num_bytes: int
    begin: int = 0

    @property
    def stride(self) -> int:
        return aligned(self.num_bytes, ALIGNMENT)

    def encode(self, tensors: Tensors) -> torch.Tensor:
        """The blob of an expert, uint8.

        Raise StoreError for a weight that is not finite, or not within the precision's range.
        """
        blob = torch.zeros(self.num_bytes, dtype=torch.uint8)
        for tensor in self.tensors:
            tensor.write(tensors[tensor.name], blob)
            if not tensor.bits and not bool(tensor.read(blob, RAW[tensor.dtype]).isfinite().all()):
                raise StoreError(
                    f"{tensor.name} has weights that are not finite as {self.precision}"
                )
        return blob

    def decode(self, blob: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The stored tensors of a blob, in ``dtype``."""
        return {tensor.name: tensor.read(blob, dtype) for tensor in self.tensors}


def variant_of(precision: str, like: Tensors, flipped: frozenset[str] = frozenset()) -> Variant:
    """How experts are stored at a precision; ``like`` has the shapes of an expert's stored tensors.

    Raise StoreError for a precision that has no stored form.
    """
    if precision not in RAW and precision not in GROUPED:
        known = ", ".join([*RAW, *GROUPED, PRECISION])
        raise StoreError(
            f"precision {precision} cannot be stored; a store holds {known}: choose another one"
        )
    bits, group = GROUPED.get(precision, (0, 0))
    tensors, begin = [], 0
    for name, values in like.items():
        is_grouped = bits > 0 and values.dim() == 2
        dtype = precision if precision in RAW else "fp16"
        tensor = StoredTensor(
            name,
            tuple(values.shape),
            begin,
            dtype,
            bits if is_grouped else 0,
            group if is_grouped else 0,
            is_grouped and name in flipped,
        )
        tensors.append(tensor)
        begin += tensor.num_bytes
    return Variant(precision, tuple(tensors), begin)


def variant_from(plain: Mapping[str, Any]) -> Variant:
    """The variant that ``asdict`` turned into plain values."""
    tensors = tuple(
        StoredTensor(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in plain["tensors"]
    )
    return Variant(**{**plain, "tensors": tensors})


def is_lossless(variant: Variant, blob: torch.Tensor, tensors: Tensors) -> bool:
    """Whether a blob has all of an expert's tensors bit for bit."""
    return all(
        not t.bits and torch.equal(t.read(blob, tensors[t.name].dtype), tensors[t.name])
        for t in variant.tensors
    )


def aligned(num_bytes: int, to: int) -> int:
    """The next multiple of ``to`` bytes."""
    return -(-num_bytes // to) * to
