"""Rows that a kernel reads where they lie: the named rows come, and nothing else is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from real.kernels.gather_rows import WORDS, gather_rows, word_of

WIDTHS = (1, 7, 24, 26, 28, 131, 320)
"""Ones, primes, multiples of 8, 2 and 4 only, and more than a tile's words."""


def source(rows: int, width: int) -> Tensor:
    return torch.randint(
        0, 256, (rows, width), generator=torch.Generator().manual_seed(width), dtype=torch.uint8
    )


def chosen(rows: int, count: int) -> Tensor:
    """Rows in no order; some come more than once where the matrix has fewer than ``count``."""
    return torch.randint(
        0, rows, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.int32
    )


def nan_filled(rows: int, width: int, device: str) -> Tensor:
    """Bytes that read as NaN in any floating type."""
    return torch.full((rows, width), 0xFF, dtype=torch.uint8, device=device)


def resting(matrix: Tensor, device: str) -> Tensor:
    """A matrix where a kernel of that device is to read it: for a GPU in pinned host memory."""
    return matrix.pin_memory() if device == "cuda" else matrix


def check(got: Tensor, matrix: Tensor, row_C: Tensor) -> None:
    """Compare row by row, by Python's own indexing."""
    bytes_of = matrix.numpy()
    for place, row in enumerate(row_C.tolist()):
        assert got[place].cpu().numpy().tobytes() == bytes_of[row].tobytes(), (
            f"place {place} of row {row}"
        )
    assert bool((got[len(row_C) :] == 0xFF).all()), "written past the chosen rows"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("rows", "count", "columns"), [(1, 1, 1), (13, 5, 1), (13, 0, 4), (67, 31, 7), (64, 64, 50)]
)
def test_the_named_rows_arrive_in_their_order(
    width: int, rows: int, count: int, columns: int, device: str
) -> None:
    matrix, row_C = source(rows, width), chosen(rows, count)
    target = nan_filled(count + 2, width, device)
    gather_rows(resting(matrix, device), resting(row_C, device), target, columns, tile=(4, 32))
    check(target, matrix, row_C)


@pytest.mark.parametrize("columns", [1, 5, 50])
@pytest.mark.parametrize("width", [40, 16384 + 48])
def test_the_tiles_that_a_gpu_gets(width: int, columns: int, device: str) -> None:
    matrix, row_C = source(30, width), chosen(30, 17)
    target = nan_filled(18, width, device)
    gather_rows(resting(matrix, device), resting(row_C, device), target, columns)
    check(target, matrix, row_C)


def test_memory_that_begins_anywhere_is_moved_in_words_that_fit(device: str) -> None:
    memory = torch.arange(64 * 25, dtype=torch.int64).to(torch.uint8)
    for begin in range(9):
        matrix = memory[begin : begin + 60 * 24].view(60, 24).to(device)
        target = nan_filled(11, 24, device)
        row_C = chosen(60, 10)
        gather_rows(matrix, row_C.to(device), target, 3, tile=(2, 4))
        check(target, matrix.cpu(), row_C)


@pytest.mark.parametrize("columns", [1, 4, 50])
def test_what_lies_behind_the_list_of_rows_is_not_read(columns: int, device: str) -> None:
    """Rows that do not exist stand behind the list: a GPU would fault at them."""
    matrix, row_C = source(13, 26), torch.full((64,), 2**31 - 1, dtype=torch.int32)
    row_C[:5] = chosen(13, 5)
    target = nan_filled(9, 26, device)
    gather_rows(resting(matrix, device), resting(row_C, device)[:5], target, columns)
    check(target, matrix, row_C[:5])


def test_the_reference_is_right_too() -> None:
    matrix, row_C = source(67, 26), chosen(67, 31)
    target = nan_filled(40, 26, "cpu")
    gather_rows(matrix, row_C, target, 4)
    check(target, matrix, row_C)


def test_words_are_the_largest_that_every_row_begins_at() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    begin = -memory.data_ptr() % 8
    for width, at, want in ((16, 0, 8), (16, 4, 4), (20, 0, 4), (14, 0, 2), (16, 1, 1), (7, 0, 1)):
        matrix = memory[begin + at : begin + at + 3 * width].view(3, width)
        aligned = memory[begin : begin + 3 * width].view(3, width)
        assert word_of(matrix, aligned).itemsize == word_of(aligned, matrix).itemsize == want
    assert [word.itemsize for word in WORDS] == [8, 4, 2, 1]


def test_what_does_not_fit_is_refused() -> None:
    matrix, row_C = source(10, 8), chosen(10, 4)
    with pytest.raises(ValueError, match="columns=0 must be at least 1"):
        gather_rows(matrix, row_C, nan_filled(4, 8, "cpu"), 0)
    with pytest.raises(
        ValueError, match=r"rows are told as contiguous torch.int32 \[C\], not torch.int64"
    ):
        gather_rows(matrix, row_C.long(), nan_filled(4, 8, "cpu"))
    with pytest.raises(
        ValueError,
        match=r"source is contiguous torch.uint8 \[rows, bytes\], not torch.uint8 \[10, 4\]",
    ):
        gather_rows(matrix[:, ::2], row_C, nan_filled(4, 4, "cpu"))
    with pytest.raises(ValueError, match=r"4 rows of 8 B do not fit a target of \[3, 8\]"):
        gather_rows(matrix, row_C, nan_filled(3, 8, "cpu"))
    with pytest.raises(ValueError, match=r"4 rows of 8 B do not fit a target of \[4, 7\]"):
        gather_rows(matrix, row_C, nan_filled(4, 7, "cpu"))
