"""One token through quantised matrices in slots, against fp64 of the stored weights."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from helpers.oracles import error, exact, in_slots, random
from helpers.usual import usual
from real.kernels.dequant_gemv import dequant_gemv, form_of
from real.kernels.gated_gemv import gated_gemv
from real.kernels.slot_matrices import SlotMatrices, in_one_slot
from real.kernels.tiles import RowTile

TILE = RowTile(64, 512, 4)
"""A large tile for the interpreter, whose programs cost more than their work."""
SHAPES = [(1, 1, 64), (3, 7, 16), (13, 131, 32), (64, 64, 64), (65, 257, 64), (128, 96, 200)]
"""Rows, columns, group: ones, primes, sizes that no tile divides, groups of whole rows."""
WORDS = [(1, 16, 64), (13, 48, 16), (65, 272, 64), (128, 96, 200)]
"""The same of rows that divide into loads of 16 bytes, as integer dots need."""
SLOTS = torch.tensor([2, 0], dtype=torch.int32)


def check(
    shape: tuple[int, int, int],
    bits: int,
    x_dtype: torch.dtype,
    device: str,
    tile: RowTile | None,
    integers: bool | None = None,
    **form: object,
) -> None:
    rows, columns, group = shape
    (matrices,) = in_slots(rows, columns, bits, group, device=device, **form)  # type: ignore[arg-type]
    x_JK = random(2, columns, seed=1, dtype=x_dtype)
    y_JN = dequant_gemv(x_JK.to(device), matrices, SLOTS.to(device), tile, integers=integers)
    want = torch.stack(
        [exact(matrices, slot) @ x.double() for slot, x in zip(SLOTS.tolist(), x_JK, strict=True)]
    )
    error(f"{bits} bits of {shape}", y_JN, want)


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_vector_through_matrices_in_slots(
    shape: tuple[int, int, int], bits: int, device: str
) -> None:
    check(shape, bits, torch.float32, device, TILE)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("shape", "bits", "dtype"),
    usual(
        list(product(WORDS, [4, 2], [torch.float32, torch.bfloat16])),
        [
            *zip(WORDS, [4, 4, 2, 2], [torch.float32, torch.bfloat16] * 2, strict=True),
            *zip(WORDS, [2, 2, 4, 4], [torch.bfloat16, torch.float32] * 2, strict=True),
        ],
    ),
    ids=str,
)
def test_a_vector_in_fixed_point(
    shape: tuple[int, int, int], bits: int, dtype: torch.dtype, device: str
) -> None:
    check(shape, bits, dtype, device, TILE, integers=True)


@pytest.mark.parametrize(
    ("bits", "integers"),
    usual([(16, False), (8, False), (4, True), (2, True)], [(8, False)]),
)
def test_what_lies_behind_the_list_of_slots_is_not_read(
    bits: int, integers: bool, device: str
) -> None:
    """Slots that do not exist stand behind the list: a GPU would fault at them."""
    (matrices,) = in_slots(20, 48, bits, 16, device=device)
    slots = torch.full((8,), 2**31 - 1, dtype=torch.int32)
    slots[:2] = SLOTS
    x_1K = random(1, 48, seed=1)
    for kernel in (dequant_gemv, gated_gemv):
        got = kernel(x_1K.to(device), matrices, slots.to(device)[:2], integers=integers)
        want = torch.stack([exact(matrices, slot) @ x_1K[0].double() for slot in SLOTS.tolist()])
        if kernel is gated_gemv:
            gate, up = want.chunk(2, dim=1)
            want = gate / (1 + (-gate).exp()) * up
        error(f"{bits} bits", got, want)


PARTS = [RowTile(16, 64, 1, 5), RowTile(16, 128, 1, 1, 3), RowTile(16, 64, 1, 2, 3)]


@pytest.mark.alike
@pytest.mark.parametrize(
    ("tile", "integers"),
    usual(list(product(PARTS, [False, True])), [*zip(PARTS, [True, False, True], strict=True)]),
    ids=str,
)
def test_rows_in_steps_and_in_parts(tile: RowTile, integers: bool, device: str) -> None:
    """The tiles reach over the row's end by up to 64 columns."""
    for bits in (4,) if integers else (16, 8, 4, 2):
        check((9, 304, 64), bits, torch.float32, device, tile, integers)


def test_an_outlier_blurs_its_own_sixteen_inputs_alone(device: str) -> None:
    (matrices,) = in_slots(32, 256, 4, 64, device=device)
    x_1K = random(1, 256, seed=1)
    x_1K[0, 100] = 1e7
    got = dequant_gemv(x_1K.to(device), matrices, SLOTS[:1].to(device), TILE, integers=True)
    x_1K[0, 96:112] = 0
    rest = dequant_gemv(x_1K.to(device), matrices, SLOTS[:1].to(device), TILE, integers=True)
    assert bool(got.isfinite().all())
    error("without it", rest, (exact(matrices, 2) @ x_1K[0].double())[None])


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_inputs_cost_no_accuracy(bits: int, dtype: torch.dtype, device: str) -> None:
    check(
        (65, 130, 32),
        bits,
        dtype,
        device,
        TILE,
        dtype=torch.bfloat16 if bits == 16 else torch.float16,
    )


def test_one_input_serves_all_needs(device: str) -> None:
    (matrices,) = in_slots(13, 131, 4, 32, device=device)
    x_1K = random(1, 131, seed=1)
    got = dequant_gemv(x_1K.to(device), matrices, SLOTS.to(device), TILE)
    error(
        "one input for all",
        got,
        torch.stack([exact(matrices, slot) @ x_1K[0].double() for slot in SLOTS.tolist()]),
    )


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_symmetric_channels(bits: int, device: str) -> None:
    form = {"symmetric": True, "dtype": torch.float32}
    check((33, 70, 70), bits, torch.float32, device, TILE, **form)
    if bits < 8:
        check((33, 80, 80), bits, torch.float32, device, TILE, integers=True, **form)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_groups_far_from_zero_lose_only_what_their_zeros_do(bits: int, device: str) -> None:
    """Weights around 0.5 with a spread of 0.05.

    Most of the sum cancels and a tenth is left, so the error may be ten times as large.
    """
    rows, columns = 32, 128
    (matrices,) = in_slots(rows, columns, bits, 64, device=device, offset=0.5)
    x_K = random(columns, seed=3)
    got = dequant_gemv(x_K[None].to(device), matrices, SLOTS[:1].to(device), TILE)
    error("far from zero", got, (exact(matrices, 2) @ x_K.double())[None], 1e-4)


@pytest.mark.alike
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_the_tiles_that_a_gpu_gets(bits: int, device: str) -> None:
    check((5, 768, 64), bits, torch.bfloat16, device, None)
    check((3, 4096 + 600, 64), bits, torch.bfloat16, device, None)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1408, 2048, 64), (768, 2048, 64), (2048, 1408, 64)], ids=str)
def test_the_shapes_of_real_experts(shape: tuple[int, int, int], bits: int, device: str) -> None:
    """The matrices of an expert of Qwen1.5-MoE and of Qwen3-30B."""
    check(shape, bits, torch.bfloat16, device, RowTile(128, 2048, 4))


def gated_of(matrices: SlotMatrices, x_1K: Tensor) -> Tensor:
    """SiLU(gate) * up of each need in fp64, gate being the upper half of the rows."""
    inner = torch.stack([exact(matrices, slot) @ x_1K[0].double() for slot in SLOTS.tolist()])
    gate, up = inner.chunk(2, dim=1)
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize(
    "shape", [(2, 1, 64), (26, 131, 32), (132, 257, 64), (50, 48, 16)], ids=str
)
def test_gate_and_up_in_one_pass(shape: tuple[int, int, int], bits: int, device: str) -> None:
    rows, columns, group = shape
    (first,) = in_slots(rows, columns, bits, group, device=device)
    x_1K = random(1, columns, seed=4, dtype=torch.bfloat16)
    want = gated_of(first, x_1K)
    for integers in (False, True) if columns % 16 == 0 and bits < 8 else (False,):
        got = gated_gemv(x_1K.to(device), first, SLOTS.to(device), TILE, integers=integers)
        error(f"{bits} bits of {shape}", got, want)


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
def test_gate_and_up_with_the_tiles_that_a_gpu_gets(bits: int, device: str) -> None:
    (first,) = in_slots(12, 600, bits, 64, device=device)
    x_1K = random(1, 600, seed=4)
    error("gated", gated_gemv(x_1K.to(device), first, SLOTS.to(device)), gated_of(first, x_1K))


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
def test_the_references_are_right_too(bits: int) -> None:
    """The references run on every CPU, without Triton."""
    rows, columns, group = 26, 131, 32
    (first,) = in_slots(rows, columns, bits, group)
    x_1K = random(1, columns, seed=4)
    want = torch.stack([exact(first, s) @ x_1K[0].double() for s in SLOTS.tolist()])
    error("gemv", dequant_gemv(x_1K, first, SLOTS), want)
    error("gated", gated_gemv(x_1K, first, SLOTS), gated_of(first, x_1K))
    assert dequant_gemv(x_1K, first, SLOTS[:0]).shape == (0, rows)
    assert gated_gemv(x_1K, first, SLOTS[:0]).shape == (0, rows // 2)


def test_what_does_not_fit_is_refused() -> None:
    (matrices,) = in_slots(4, 64, 4, 32)
    with pytest.raises(
        ValueError, match=r"inputs are \[3, 64\], but 2 needs of 64 columns take \[1 or 2, 64\]"
    ):
        dequant_gemv(torch.zeros(3, 64), matrices, SLOTS)
    with pytest.raises(ValueError, match=r"a slot table is torch\.int32"):
        dequant_gemv(torch.zeros(2, 64), matrices, SLOTS.long())
    (odd,) = in_slots(5, 64, 4, 24)
    with pytest.raises(ValueError, match="groups of 24 of 64 columns: kernels take powers of two"):
        form_of(odd)
    with pytest.raises(ValueError, match="5 rows are not a gate's and as many of its up"):
        gated_gemv(torch.zeros(1, 64), odd, SLOTS)
    with pytest.raises(ValueError, match=r"the input is \[64\], but the matrices take \[1, 64\]"):
        gated_gemv(torch.zeros(64), matrices, SLOTS)
    assert torch.equal(in_one_slot(odd.weight(0)).weight(0), odd.weight(0))
