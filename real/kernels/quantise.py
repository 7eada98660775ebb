"""Weights in 8, 4 or 2 bits, rounded to nearest by groups or by channels, and packed as HQQ packs.

Legend. N outputs (rows), K inputs (columns), G groups a row, P = 8 / bits weights a byte, R =
ceil(N / P) packed rows.

A group is ``group`` neighbouring weights of one row; the last one of a row may be shorter. A weight
is stored as an integer q of that many bits, and read as ``(q - zero) * scale``.

Packing. Byte (r, k) holds the weights (r, k), (r + R, k), (r + 2 R, k), ..: equal slabs of rows,
the first slab in the highest bits. So one pass over an input yields P outputs, and nothing is
shuffled. Where P divides N, this is HQQ's ``BitPack.pack_8bit_u8``, ``pack_4bit_u8``,
``pack_2bit_u8`` of ``axis=1``, bit for bit; rows that fill up the last slab are 0.

Error. Scale and zero are rounded to their stored type before q is chosen, so only the clamp of q to
its range can cost more than half a step: |w - read| <= scale * (1/2 + (qmax + |zero|) * (u + 8 v)).
Here qmax = 2^bits - 1, u is the unit roundoff of the stored type, and v that of fp32. Counted in
steps, u comes from the range (qmax u) and from the zero (|zero| u). All other roundings are fp32's:
three in the step, one in the zero, two in q, two in reading, each of a number no larger than qmax +
|zero|.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

BITS = (8, 4, 2)
ALIGNMENT = 16
"""The parts of a stored matrix begin at multiples of so many bytes: one thread's load on a GPU."""
MAX_ZERO = 2.0**15
"""The largest magnitude of a zero: half precision could hold little more."""


def packed_rows(rows: int, bits: int) -> int:
    """R, the number of rows of bytes that hold ``rows`` rows of weights."""
    return ceil(rows * bits / 8)


@dataclass(frozen=True, eq=False)
class Quantised:
    """A quantised matrix of ``rows`` x ``columns`` weights.

    ``packed`` is uint8 [R, K]; ``scale`` and ``zero`` are [N, G] of one floating type. ``zero`` is
    None for a symmetric form: its zero is ``qmax // 2`` everywhere, and is not stored.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int
    group: int
    rows: int

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits={self.bits} must be one of {', '.join(map(str, BITS))}")
        if self.group < 1 or self.packed.dim() != 2:
            raise ValueError(
                f"group={self.group} must be at least 1 and packed {list(self.packed.shape)} a"
                " matrix"
            )
        want = {
            "packed": [packed_rows(self.rows, self.bits), self.columns],
            "scale": [self.rows, self.groups],
            "zero": [self.rows, self.groups],
        }
        for name, shape in want.items():
            part = getattr(self, name)
            if part is not None and list(part.shape) != shape:
                raise ValueError(
                    f"{name} is {list(part.shape)}, but {self.rows} x {self.columns} weights of"
                    f" {self.bits} bits in groups of {self.group} need {shape}"
                )

    @property
    def columns(self) -> int:
        return int(self.packed.shape[1])

    @property
    def groups(self) -> int:
        """The number of groups a row, G."""
        return ceil(self.columns / self.group)

    @property
    def symmetric_zero(self) -> int:
        return ((1 << self.bits) - 1) // 2

    @property
    def num_bytes(self) -> int:
        """The bytes of the parts, without the padding between them."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    def _parts(self) -> list[Tensor]:
        return [part for part in (self.packed, self.scale, self.zero) if part is not None]

    def to(self, device: torch.device | str) -> Quantised:
        zero = None if self.zero is None else self.zero.to(device)
        return Quantised(
            self.packed.to(device), self.scale.to(device), zero, self.bits, self.group, self.rows
        )


@dataclass(frozen=True)
class Layout:
    """Where the parts of a stored matrix lie in its bytes; the same for all matrices of a form."""

    rows: int
    columns: int
    bits: int
    group: int
    meta_dtype: torch.dtype = torch.float16
    symmetric: bool = False

    @property
    def scale_at(self) -> int:
        return _aligned(packed_rows(self.rows, self.bits) * self.columns)

    @property
    def zero_at(self) -> int:
        return _aligned(self.scale_at + self._meta_bytes)

    @property
    def stored_bytes(self) -> int:
        """The bytes that a matrix takes, padding included: the next matrix may follow at once."""
        return (
            _aligned(self.scale_at + self._meta_bytes)
            if self.symmetric
            else _aligned(self.zero_at + self._meta_bytes)
        )

    @property
    def _meta_bytes(self) -> int:
        return self.rows * ceil(self.columns / self.group) * self.meta_dtype.itemsize

    def write(self, matrix: Quantised, buffer: Tensor) -> None:
        """Store a matrix of this form in ``stored_bytes`` of uint8; the padding becomes 0."""
        if (matrix.zero is None) != self.symmetric:
            raise ValueError(
                f"a layout with symmetric={self.symmetric} cannot hold a matrix with"
                f" zero={matrix.zero}"
            )
        own = self.read(buffer)
        buffer[: self.stored_bytes] = 0
        for name in ("packed", "scale", "zero"):
            part, place = getattr(matrix, name), getattr(own, name)
            if part is None:
                continue
            if part.shape != place.shape or part.dtype != place.dtype:
                raise ValueError(
                    f"{name} is {part.dtype} {list(part.shape)}, but {self} has {place.dtype}"
                    f" {list(place.shape)}"
                )
            place.copy_(part)

    def read(self, buffer: Tensor) -> Quantised:
        """A matrix whose parts are views of the first ``stored_bytes`` of a uint8 buffer.

        The buffer must begin aligned.
        """
        if buffer.dtype != torch.uint8 or buffer.dim() != 1 or buffer.numel() < self.stored_bytes:
            raise ValueError(
                f"a buffer of {buffer.dtype} {list(buffer.shape)} cannot hold {self}: it needs "
                f"{self.stored_bytes} bytes of torch.uint8"
            )
        groups = ceil(self.columns / self.group)
        held = packed_rows(self.rows, self.bits)
        packed = buffer[: held * self.columns].view(held, self.columns)

        def meta(at: int) -> Tensor:
            return buffer[at : at + self._meta_bytes].view(self.meta_dtype).view(self.rows, groups)

        zero = None if self.symmetric else meta(self.zero_at)
        return Quantised(packed, meta(self.scale_at), zero, self.bits, self.group, self.rows)


def layout_of(matrix: Quantised) -> Layout:
    """The form of a matrix."""
    return Layout(
        matrix.rows,
        matrix.columns,
        matrix.bits,
        matrix.group,
        matrix.scale.dtype,
        symmetric=matrix.zero is None,
    )


def _aligned(num_bytes: int) -> int:
    return ceil(num_bytes / ALIGNMENT) * ALIGNMENT


# ---- to integers and back


def quantise(
    weight: Tensor, bits: int, group: int, meta_dtype: torch.dtype = torch.float16
) -> Quantised:
    """Round each weight to the nearest of ``2 ** bits`` equal steps over the range of its group.

    ``weight`` is floating [N, K]; a group's range is from its least to its greatest weight. A group
    of equal weights keeps them, to ``meta_dtype``'s precision. Raise ValueError for another shape,
    for weights that are not finite, and for a range that ``meta_dtype`` cannot hold.
    """
    _check(weight, bits, group)
    grouped = _grouped(weight.detach().float(), group)
    least, greatest = grouped.amin(2), grouped.amax(2)
    info, qmax = torch.finfo(meta_dtype), (1 << bits) - 1
    # Halves are subtracted, because the range of two large numbers may overflow.
    step = (greatest / 2 - least / 2) / (qmax / 2)
    step = torch.maximum(
        step, torch.maximum(least.abs() / MAX_ZERO, torch.full_like(least, info.tiny))
    )
    if bool((step > info.max).any()):
        raise ValueError(
            f"a group's step of {step.max():.4g} is beyond {meta_dtype}; store scales as"
            " torch.float32"
        )
    scale = step.to(meta_dtype)
    zero = (-least / scale.float()).to(meta_dtype)
    integers = (
        (grouped / scale.float()[:, :, None] + zero.float()[:, :, None]).round_().clamp_(0, qmax)
    )
    return _packed(integers, weight, scale, zero, bits, group)


def quantise_channels(
    weight: Tensor, bits: int, meta_dtype: torch.dtype = torch.float32
) -> Quantised:
    """Round with one symmetric scale for each output channel.

    The scale is max |w| of the channel's row over ``2 ** (bits - 1) - 1``.

    Source: EdgeMoE (arXiv:2308.14352), channel-wise linear quantisation. Its paper leaves the -1
    open, which makes the levels symmetric around 0.
    """
    group = weight.shape[1] if weight.dim() == 2 else 1
    _check(weight, bits, group)
    grouped = weight.detach().float()[:, None, :]
    largest = (1 << (bits - 1)) - 1
    scale = (
        grouped.abs().amax(2).div_(largest).clamp_(min=torch.finfo(meta_dtype).tiny).to(meta_dtype)
    )
    if not bool(scale.isfinite().all()):
        raise ValueError(f"a channel's scale is beyond {meta_dtype}; store scales as torch.float32")
    integers = (
        (grouped / scale.float()[:, :, None]).round_().clamp_(-largest, largest).add_(largest)
    )
    return _packed(integers, weight, scale, None, bits, group)


def dequantise(matrix: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights [N, K] in ``dtype``, computed in fp32."""
    integers = _grouped(unpack(matrix.packed, matrix.bits, matrix.rows).float(), matrix.group)
    zero = matrix.symmetric_zero if matrix.zero is None else matrix.zero.float()[:, :, None]
    read = (integers - zero) * matrix.scale.float()[:, :, None]
    return read.flatten(1)[:, : matrix.columns].to(dtype)


def error_bound(matrix: Quantised) -> Tensor:
    """The most by which a weight of each group can be off when read as fp32: fp64 [N, G].

    The module's text has the formula.
    """
    scale, qmax = matrix.scale.double(), (1 << matrix.bits) - 1
    if matrix.zero is None:
        zero = torch.full_like(scale, matrix.symmetric_zero)
    else:
        zero = matrix.zero.double().abs()
    roundoff = torch.finfo(matrix.scale.dtype).eps / 2 + 8 * 2.0**-24
    return scale * (0.5 + (qmax + zero) * roundoff)


def pack(integers: Tensor, bits: int) -> Tensor:
    """Pack uint8 [N, K], whose values need no more than ``bits``, into uint8 [R, K]."""
    rows, columns = integers.shape
    held = packed_rows(rows, bits)
    packed = torch.zeros(held, columns, dtype=torch.uint8, device=integers.device)
    for slab, begin in enumerate(range(0, rows, held)):
        part = integers[begin : begin + held]
        packed[: len(part)] |= part << (8 - bits * (slab + 1))
    return packed


def unpack(packed: Tensor, bits: int, rows: int) -> Tensor:
    """The first ``rows`` of packed integers, uint8 [N, K]."""
    slabs = [(packed >> shift) & ((1 << bits) - 1) for shift in range(8 - bits, -1, -bits)]
    return torch.cat(slabs)[:rows]


def _packed(
    integers: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bits: int, group: int
) -> Quantised:
    rows, columns = weight.shape
    packed = pack(integers.flatten(1)[:, :columns].to(torch.uint8), bits)
    return Quantised(packed, scale, zero, bits, group, rows)


def _grouped(weight: Tensor, group: int) -> Tensor:
    """The weights by groups, [N, G, group].

    A short last group is filled up with its own last weight, which changes neither end of its
    range.
    """
    columns = weight.shape[1]
    missing = -columns % group
    if missing:
        weight = torch.cat([weight, weight[:, -1:].expand(-1, missing)], dim=1)
    return weight.reshape(len(weight), -1, group)


def _check(weight: Tensor, bits: int, group: int) -> None:
    if bits not in BITS:
        raise ValueError(f"bits={bits} must be one of {', '.join(map(str, BITS))}")
    if weight.dim() != 2 or not weight.numel() or not weight.is_floating_point():
        raise ValueError(
            f"weights must be a floating matrix with at least one entry, not {weight.dtype} "
            f"{list(weight.shape)}"
        )
    if group < 1:
        raise ValueError(f"group={group} must be at least 1")
    if not bool(weight.isfinite().all()):
        raise ValueError(
            f"{int((~weight.isfinite()).sum())} of {weight.numel()} weights are not finite"
        )


# ---- HQQ


def quantise_hqq(
    weight: Tensor, bits: int, group: int, meta_dtype: torch.dtype = torch.float16
) -> Quantised:
    """Half-quadratic quantisation by the package ``hqq``, which fits the zeros to a norm below 1.

    Raise ImportError without that package, ValueError for a shape that it cannot pack.

    Source: Badri and Shaji, Half-Quadratic Quantization of large machine learning models, 2023;
    package hqq 0.2.8.
    """
    _check(weight, bits, group)
    rows, columns = weight.shape
    if rows % (8 // bits) or columns % group:
        raise ValueError(
            f"HQQ packs {8 // bits} equal slabs of whole groups: {rows} x {columns} weights do not"
            f" divide into {8 // bits} slabs and groups of {group}; round them to nearest instead"
        )
    try:
        from hqq.core.quantize import Quantizer
    except ImportError as error:
        raise ImportError(
            "half-quadratic quantisation needs the package hqq: pip install hqq"
        ) from error
    # axis=1 groups along the inputs; the package's own default is 0.
    packed, meta = Quantizer.quantize(
        weight.detach().float(),
        nbits=bits,
        group_size=group,
        axis=1,
        device=str(weight.device),
        compute_dtype=torch.float32,
        optimize=True,
        bitpack=True,
    )
    return from_hqq(packed, meta, meta_dtype)


def from_hqq(
    packed: Tensor, meta: Mapping[str, Any], meta_dtype: torch.dtype = torch.float16
) -> Quantised:
    """The matrix that the package ``hqq`` returned for ``axis=1``. Raise ValueError for others."""
    if meta["axis"] != 1:
        raise ValueError(
            f"groups along axis={meta['axis']} cannot be read by rows: quantise with axis=1"
        )
    rows, columns = meta["shape"]
    bits, group = int(meta["nbits"]), int(meta["group_size"])
    groups = columns // group
    scale, zero = (meta[name].reshape(rows, groups).to(meta_dtype) for name in ("scale", "zero"))
    return Quantised(
        packed.reshape(packed_rows(rows, bits), columns), scale, zero, bits, group, rows
    )
