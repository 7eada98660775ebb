"""Rounding to few bits and packing, against plain Python over single weights."""

from __future__ import annotations

import importlib.util
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from real.kernels.quantise import (
    Layout,
    Quantised,
    dequantise,
    error_bound,
    from_hqq,
    layout_of,
    pack,
    packed_rows,
    quantise,
    quantise_channels,
    quantise_hqq,
    unpack,
)

SHAPES = [
    (1, 1, 1),
    (1, 7, 64),
    (3, 5, 2),
    (7, 13, 4),
    (8, 64, 64),
    (13, 130, 64),
    (64, 96, 32),
    (5, 64, 200),
]
"""Rows, columns, group: ones, primes, groups that do not divide the columns, one group a row."""
METAS = [torch.float16, torch.bfloat16, torch.float32]


def weights(rows: int, columns: int, seed: int = 0, offset: float = 0.0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=made) * 0.02 + offset


def plain_pack(integers: list[list[int]], bits: int) -> list[list[int]]:
    """The packing, weight by weight.

    Row n = R * slab + r lies in row r of bytes, the first slab in the high bits.
    """
    rows, per = len(integers), 8 // bits
    held = -(-rows // per)
    packed = [[0] * len(integers[0]) for _ in range(held)]
    for n, row in enumerate(integers):
        slab, r = divmod(n, held)
        for k, q in enumerate(row):
            packed[r][k] += q * 2 ** (bits * (per - 1 - slab))
    return packed


def plain_read(matrix: Quantised) -> list[list[Fraction]]:
    """Every weight in exact arithmetic, from the stored bytes alone."""
    per, held = 8 // matrix.bits, len(matrix.packed)
    packed, scale = matrix.packed.tolist(), matrix.scale.double().tolist()
    zero = None if matrix.zero is None else matrix.zero.double().tolist()
    read = []
    for n in range(matrix.rows):
        slab, r = divmod(n, held)
        row = []
        for k in range(matrix.columns):
            q = packed[r][k] // 2 ** (matrix.bits * (per - 1 - slab)) % 2**matrix.bits
            g = k // matrix.group
            z = Fraction(2 ** (matrix.bits - 1) - 1) if zero is None else Fraction(zero[n][g])
            row.append((q - z) * Fraction(scale[n][g]))
        read.append(row)
    return read


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 31])
def test_packing_is_that_of_single_weights_and_is_undone(bits: int, rows: int) -> None:
    integers = torch.randint(
        0, 2**bits, (rows, 5), generator=torch.Generator().manual_seed(rows), dtype=torch.uint8
    )
    packed = pack(integers, bits)
    assert packed.tolist() == plain_pack(integers.tolist(), bits)
    assert torch.equal(unpack(packed, bits, rows), integers)


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("meta", METAS, ids=str)
def test_reading_is_that_of_single_weights(
    bits: int, shape: tuple[int, int, int], meta: torch.dtype
) -> None:
    rows, columns, group = shape
    matrix = quantise(weights(rows, columns), bits, group, meta)
    read, plain = dequantise(matrix).tolist(), plain_read(matrix)
    largest = max(abs(w) for row in plain for w in row)
    for n in range(rows):
        for k in range(columns):
            assert abs(Fraction(read[n][k]) - plain[n][k]) <= largest * Fraction(4, 2**24)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("meta", METAS, ids=str)
@pytest.mark.parametrize("offset", [0.0, 0.1, -3.0, 1000.0], ids=str)
def test_no_weight_is_off_by_more_than_the_derived_bound(
    bits: int, meta: torch.dtype, offset: float
) -> None:
    weight = weights(13, 130, offset=offset)
    matrix = quantise(weight, bits, 64, meta)
    bound = error_bound(matrix).repeat_interleave(64, dim=1)[:, :130]
    off = (dequantise(matrix).double() - weight.double()).abs()
    assert bool((off <= bound).all()), f"{(off / bound).max():.3f} times the bound"
    assert bool((off.amax() > 0.25 * matrix.scale.double().min()).all()), (
        "a bound that is never neared shows nothing"
    )


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_on_a_grid_of_its_own_steps_every_weight_comes_back_as_it_was(bits: int) -> None:
    """With the least and the greatest weight at the range's ends all numbers are exact."""
    integers = torch.randint(0, 2**bits, (12, 64), generator=torch.Generator().manual_seed(1))
    integers[:, ::32], integers[:, 1::32] = 0, 2**bits - 1
    weight = (integers - 2 ** (bits - 1)) * 0.125
    matrix = quantise(weight, bits, 32)
    assert torch.equal(unpack(matrix.packed, bits, 12).long(), integers)
    assert torch.equal(matrix.scale, torch.full((12, 2), 0.125, dtype=torch.float16))
    assert torch.equal(dequantise(matrix), weight)


def test_a_short_last_group_is_a_group_of_its_own() -> None:
    weight = weights(4, 70, offset=1.0)
    matrix, last = quantise(weight, 4, 64), quantise(weight[:, 64:], 4, 6)
    assert torch.equal(dequantise(matrix)[:, 64:], dequantise(last))
    assert torch.equal(matrix.scale[:, 1:], last.scale)


@pytest.mark.parametrize("value", [0.0, 0.75, -2.0, 1e-5, 300.0])
def test_a_group_of_equal_weights_keeps_them(value: float) -> None:
    matrix = quantise(torch.full((2, 64), value), 4, 64)
    assert float((dequantise(matrix) - value).abs().max()) <= max(abs(value) * 2**-10, 2.0**-15)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_channels_have_one_symmetric_scale_each(bits: int) -> None:
    weight = weights(7, 13)
    weight[2] = 0
    matrix = quantise_channels(weight, bits)
    largest = 2 ** (bits - 1) - 1
    for n, row in enumerate(weight.tolist()):
        scale = max(abs(w) for w in row) / largest
        assert matrix.scale[n, 0].item() == pytest.approx(scale, rel=2**-23, abs=1e-37)
        for k, w in enumerate(row):
            read = scale * round(w / scale) if scale else 0.0
            assert dequantise(matrix)[n, k].item() == pytest.approx(read, rel=2**-21, abs=1e-30)
    # A symmetric form: negating before and negating after give the same.
    assert torch.equal(dequantise(quantise_channels(-weight, bits)), -dequantise(matrix))
    assert matrix.num_bytes == math.ceil(7 * bits / 8) * 13 + 4 * 7


@pytest.mark.parametrize(("bits", "bits_per_weight"), [(8, 8.5), (4, 4.5), (2, 2.5)])
def test_bytes_are_those_that_the_simulator_counts(bits: int, bits_per_weight: float) -> None:
    """fp16 scale and zero for each 64 weights cost half a bit a weight.

    The precisions hqq4_g64 and hqq2_g64 count the same.
    """
    matrix = quantise(weights(64, 256), bits, 64)
    assert matrix.num_bytes == 64 * 256 * bits_per_weight / 8
    assert layout_of(matrix).stored_bytes == matrix.num_bytes


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stored_matrix_is_read_back_from_views_of_its_bytes(
    bits: int, shape: tuple[int, int, int]
) -> None:
    rows, columns, group = shape
    for matrix in (
        quantise(weights(rows, columns), bits, group),
        quantise_channels(weights(rows, columns), bits),
    ):
        layout = layout_of(matrix)
        buffer = torch.full((layout.stored_bytes + 32,), 255, dtype=torch.uint8)
        layout.write(matrix, buffer)
        assert bool((buffer[layout.stored_bytes :] == 255).all()), "written past the end"
        again = layout.read(buffer)
        assert torch.equal(dequantise(again), dequantise(matrix))
        assert again.packed.data_ptr() == buffer.data_ptr()
        assert (
            again.num_bytes == matrix.num_bytes <= layout.stored_bytes < matrix.num_bytes + 3 * 16
        )


@pytest.mark.parametrize(
    ("weight", "bits", "group", "said"),
    [
        (torch.ones(2, 2), 3, 64, "bits=3 must be one of 8, 4, 2"),
        (torch.ones(2, 2), 4, 0, "group=0 must be at least 1"),
        (torch.ones(2), 4, 1, "must be a floating matrix"),
        (torch.ones(0, 2), 4, 1, "at least one entry"),
        (torch.ones(2, 2, dtype=torch.int8), 4, 1, "not torch.int8"),
        (torch.tensor([[1.0, math.nan], [math.inf, 0.0]]), 4, 2, "2 of 4 weights are not finite"),
        (torch.tensor([[-1e8, 1e8]]), 2, 2, "beyond torch.float16; store scales as torch.float32"),
    ],
)
def test_what_cannot_be_rounded_is_refused(
    weight: Tensor, bits: int, group: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        quantise(weight, bits, group)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    matrix = quantise(weights(8, 64), 4, 32)
    with pytest.raises(ValueError, match=r"scale is \[8, 1\], but 8 x 64 .* need \[8, 2\]"):
        Quantised(matrix.packed, matrix.scale[:, :1], matrix.zero, 4, 32, 8)
    with pytest.raises(ValueError, match="it needs 320 bytes"):
        Layout(8, 64, 4, 32).read(torch.zeros(319, dtype=torch.uint8))
    with pytest.raises(ValueError, match="symmetric=True cannot hold"):
        Layout(8, 64, 4, 32, symmetric=True).write(matrix, torch.zeros(400, dtype=torch.uint8))
    with pytest.raises(
        ValueError, match=r"scale is torch.float16 \[8, 2\], but .* has torch.float32"
    ):
        Layout(8, 64, 4, 32, torch.float32).write(matrix, torch.zeros(500, dtype=torch.uint8))


def test_hqq_is_asked_for_whole_slabs_and_groups() -> None:
    with pytest.raises(ValueError, match="6 x 64 weights do not divide into 4 slabs"):
        quantise_hqq(weights(6, 64), 2, 64)
    with pytest.raises(ValueError, match="axis=0 cannot be read by rows"):
        from_hqq(torch.zeros(1), {"axis": 0})


@pytest.mark.skipif(
    importlib.util.find_spec("hqq") is None, reason="the package hqq is not installed"
)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_layout_is_hqqs_and_its_zeros_fit_better(bits: int) -> None:
    from hqq.core.bitpack import BitPack

    integers = torch.randint(
        0, 2**bits, (16, 128), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )
    theirs = {8: BitPack.pack_8bit_u8, 4: BitPack.pack_4bit_u8, 2: BitPack.pack_2bit_u8}[bits]
    assert torch.equal(pack(integers, bits), theirs(integers.view(32, 64)).view(-1, 128))
    # Half-quadratic quantisation chooses the zeros that minimise a norm below 1.
    weight = torch.distributions.StudentT(3.0).sample((64, 256)) * 0.02
    own, fitted = (
        dequantise(q) - weight for q in (quantise(weight, bits, 64), quantise_hqq(weight, bits, 64))
    )
    assert packed_rows(64, bits) == len(quantise_hqq(weight, bits, 64).packed)
    assert float(fitted.abs().pow(0.7).mean()) <= float(own.abs().pow(0.7).mean()) * 1.001
