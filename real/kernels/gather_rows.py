"""Rows of a matrix in host memory, brought to the device by a kernel that reads them (zero-copy).

    target[c] = source[row_c]        for the C chosen rows, in the order in which they are named

Pinned memory is mapped into a GPU's address space: loads from it go over the link, and nothing is
staged. A copy engine needs memory in one piece; a kernel picks row by row. The price is
multiprocessors that wait for the link. A link is full when as many bytes are on the way as its
bandwidth times its latency, so a few programs suffice.

Legend. I rows of ``width`` bytes each; C chosen rows; one program brings ``columns`` of them
(FloE's word for what is gathered: a neuron's gate column and its down row). Bytes are moved in
words, of the largest size at whose multiples all rows begin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import blocks, jit, launches, power_of_two, tl

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
TILE_WORDS = 2048
"""Words on the way for one program of 128 threads.

Of the widest words these are eight loads of 16 B a thread, in 32 registers. As many bytes of
narrower words would need that many more addresses, and spill.
"""
TILE_ROWS = 8
"""The most rows of a tile, where rows are short."""


def gather_rows_ref(source: Tensor, row_C: Tensor, target: Tensor) -> None:
    """The definition: copy the chosen rows into the first C rows of ``target``."""
    torch.index_select(source, 0, row_C.to(torch.int64), out=target[: len(row_C)])


@jit
def _gather_rows_kernel(
    source_ptr, row_ptr, target_ptr, C, W, columns, BR: tl.constexpr, BW: tl.constexpr
):
    """Bring the rows from number ``columns * program`` on, BR x BW words at a time."""
    begin = tl.program_id(0) * columns
    end = tl.minimum(begin + columns, C)
    for c0 in range(begin, end, BR):
        c = c0 + tl.arange(0, BR)
        row = tl.load(row_ptr + c, mask=c < end, other=0).to(tl.int64)
        for w0 in range(0, W, BW):
            w = w0 + tl.arange(0, BW)
            mask = (c < end)[:, None] & (w < W)[None, :]
            # No byte is read twice, so none needs to stay in a multiprocessor's cache.
            held = tl.load(
                source_ptr + row[:, None] * W + w[None, :], mask=mask, cache_modifier=".cg"
            )
            tl.store(target_ptr + c.to(tl.int64)[:, None] * W + w[None, :], held, mask=mask)


def gather_rows(
    source: Tensor,
    row_C: Tensor,
    target: Tensor,
    columns: int = 1,
    tile: tuple[int, int] | None = None,
) -> None:
    """Write rows ``row_C`` of ``source`` to the first C rows of ``target``, and no others.

    ``source`` uint8 [I, width] and ``row_C`` int32 [C] are on the device or in pinned host memory,
    ``target`` uint8 [.., width] on the device; rows lie side by side. Indices are not checked: the
    caller answers for 0 <= row < I. ``columns`` is how many rows one program brings. Only tests
    give ``tile``, of rows x words.
    """
    if columns < 1:
        raise ValueError(f"columns={columns} must be at least 1")
    if row_C.dtype != torch.int32 or row_C.dim() != 1 or not row_C.is_contiguous():
        raise ValueError(
            f"rows are told as contiguous torch.int32 [C], not {row_C.dtype} {list(row_C.shape)}"
        )
    for name, matrix in (("source", source), ("target", target)):
        if matrix.dtype != torch.uint8 or matrix.dim() != 2 or not matrix.is_contiguous():
            raise ValueError(
                f"{name} is contiguous torch.uint8 [rows, bytes], not {matrix.dtype} "
                f"{list(matrix.shape)}"
            )
    count, width = len(row_C), source.shape[1]
    if target.shape[1] != width or len(target) < count:
        raise ValueError(f"{count} rows of {width} B do not fit a target of {list(target.shape)}")
    if not launches(target):
        gather_rows_ref(source, row_C, target)
        return
    if not count or not width:
        return
    word = word_of(source, target)
    words = width // word.itemsize
    across = min(power_of_two(words), TILE_WORDS)
    down = min(TILE_ROWS, power_of_two(columns), TILE_WORDS // across)
    down, across = tile or (down, across)
    _gather_rows_kernel[(blocks(count, columns),)](
        source.view(word),
        row_C,
        target.view(word),
        count,
        words,
        columns,
        BR=down,
        BW=across,
        num_warps=4,
    )


def word_of(source: Tensor, target: Tensor) -> torch.dtype:
    """The largest word at whose multiples every row of both begins."""
    places = (source.shape[1], source.data_ptr(), target.data_ptr())
    return next(word for word in WORDS if all(place % word.itemsize == 0 for place in places))
