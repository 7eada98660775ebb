"""Prefill's grouped matrix product, against fp64 of the stored weights."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from helpers.oracles import error, exact, in_slots, random
from helpers.usual import each_once, usual
from real.cuda.segments import several_rows
from real.kernels.grouped_gemm import (
    Batch,
    batch_of,
    grouped_expert,
    grouped_gemm,
    planes_of,
    tiles_of,
)
from real.kernels.quantise import dequantise, layout_of, quantise
from real.kernels.slot_matrices import SlotMatrices
from real.kernels.tiles import BatchTile

TILE = BatchTile(32, 64, 4)
COUNTS = [3, 0, 37]
SLOTS = torch.tensor([2, 1, 0], dtype=torch.int32)


def check(
    shape: tuple[int, int, int],
    bits: int,
    x_dtype: torch.dtype,
    device: str,
    tile: BatchTile | None = TILE,
    **form: object,
) -> None:
    rows, columns, group = shape
    (matrices,) = in_slots(rows, columns, bits, group, device=device, **form)  # type: ignore[arg-type]
    x_TK = random(sum(COUNTS), columns, seed=1, dtype=x_dtype)
    got = grouped_gemm(x_TK.to(device), matrices, SLOTS.to(device), COUNTS, tile)
    parts = x_TK.double().split(COUNTS)
    want = torch.cat(
        [part @ exact(matrices, slot).T for part, slot in zip(parts, SLOTS.tolist(), strict=True)]
    )
    error(f"{bits} bits of {shape}", got, want)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("shape", "bits"), each_once([(1, 1, 64), (13, 131, 32), (70, 65, 200)], [8, 4, 2, 16]), ids=str
)
def test_the_rows_of_each_expert_meet_its_own_matrix(
    shape: tuple[int, int, int], bits: int, device: str
) -> None:
    check(shape, bits, torch.float32, device, dtype=torch.float32 if bits == 16 else torch.float16)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("bits", "dtype"), each_once([8, 4, 2, 16], [torch.bfloat16, torch.float16]), ids=str
)
def test_integers_are_exact_in_half_precision(bits: int, dtype: torch.dtype, device: str) -> None:
    check((65, 130, 64), bits, dtype, device, dtype=dtype if bits == 16 else torch.float16)


@pytest.mark.parametrize("bits", [8, 2])
def test_symmetric_channels(bits: int, device: str) -> None:
    check((33, 70, 70), bits, torch.bfloat16, device, symmetric=True, dtype=torch.float32)


def test_the_tiles_that_a_gpu_gets(device: str) -> None:
    check((72, 200, 32), 4, torch.bfloat16, device, None)


@pytest.mark.alike
@pytest.mark.parametrize(("bits", "parts"), each_once([8, 4, 2, 16], [2, 3]))
def test_columns_in_parts_and_scales_in_pairs(bits: int, parts: int, device: str) -> None:
    """Four groups: parts of two take their scales as words, parts of one or two one by one."""
    dtype = torch.bfloat16 if bits == 16 else torch.float16
    check((20, 256, 64), bits, torch.bfloat16, device, BatchTile(8, 32, 1, 3, parts), dtype=dtype)


def whole(first: SlotMatrices, down: SlotMatrices, x_TK: Tensor, counts: list[int]) -> Tensor:
    """The experts' outputs in fp64."""
    rows = []
    for part, slot in zip(x_TK.double().split(counts), SLOTS.tolist(), strict=False):
        gate, up = (part @ exact(first, slot).T).chunk(2, dim=1)
        rows.append((gate / (1 + (-gate).exp()) * up) @ exact(down, slot).T)
    return torch.cat(rows)


def expert_in_slots(
    neurons: int, hidden: int, bits: int, device: str
) -> tuple[SlotMatrices, SlotMatrices]:
    dtype = torch.bfloat16 if bits == 16 else torch.float16
    (first,) = in_slots(2 * neurons, hidden, bits, 32, device=device, dtype=dtype)
    (down,) = in_slots(hidden, neurons, bits, 32, device=device, dtype=dtype)
    return first, down


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(64, 96), (37, 50)], ids=str)
def test_whole_experts_of_few_rows(shape: tuple[int, int], bits: int, device: str) -> None:
    first, down = expert_in_slots(*shape, bits, device)
    counts = [2, 9]
    x_TK = random(11, shape[1], seed=1, dtype=torch.bfloat16)
    batch = batch_of(counts, device, bits, 8)
    assert isinstance(batch, Batch)
    got = grouped_expert(
        x_TK.to(device), first, down, SLOTS[:2].to(device), batch, tile=BatchTile(8, 64, 4)
    )
    error(f"{bits} bits of {shape}", got, whole(first, down, x_TK, counts))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.alike
@pytest.mark.parametrize(
    ("bits", "is_gated", "dtype"),
    usual(
        list(product([8, 4, 2], [True, False], DTYPES)),
        [
            *zip([8, 4, 2], [True] * 3, DTYPES, strict=True),
            *zip([2, 8, 4], [False] * 3, DTYPES, strict=True),
        ],
    ),
    ids=str,
)
def test_an_engines_expert_of_several_rows(
    bits: int, is_gated: bool, dtype: torch.dtype, device: str
) -> None:
    """Found by its place in overlapping windows, at odd sizes, with and without a gate."""
    neurons, hidden, place = 37, 50, 3
    first_rows = 2 * neurons if is_gated else neurons
    draw = [random(first_rows, hidden, seed=1, scale=0.1), random(hidden, neurons, seed=2)]
    stored = [quantise(weight, bits, 32) for weight in draw]
    layouts = [layout_of(matrix) for matrix in stored]
    begin = layouts[0].stored_bytes
    size = begin + layouts[1].stored_bytes
    memory = torch.full((16 * place + size + 16,), 0xFF, dtype=torch.uint8, device=device)
    for layout, matrix, at in zip(layouts, stored, (0, begin), strict=True):
        layout.write(matrix, memory[16 * place + at :][: layout.stored_bytes])
    windows = memory.as_strided((place + 2, size), (16, 1))
    first, down = (
        SlotMatrices(windows, layout, at) for layout, at in zip(layouts, (0, begin), strict=True)
    )
    x_TH = random(5, hidden, seed=3, dtype=dtype)
    slot_1 = torch.tensor([place], dtype=torch.int32, device=device)
    compute = several_rows(first, down, is_gated=is_gated)
    got = compute(x_TH.to(device), slot_1)
    inner = x_TH.double() @ dequantise(stored[0]).double().T
    if is_gated:
        gate, up = inner.chunk(2, dim=1)
        inner = gate / (1 + (-gate).exp()) * up
    else:
        inner = inner.clamp(min=0)
    error(f"{bits} bits", got, inner @ dequantise(stored[1]).double().T)
    assert torch.equal(got, compute(x_TH.to(device), slot_1)), "same call, same bits"


@pytest.mark.alike
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
def test_what_lies_behind_the_lists_of_experts_and_tiles_is_not_read(
    bits: int, device: str
) -> None:
    """Slots and tiles that do not exist stand behind both lists: a GPU would fault at them."""
    dtype = torch.bfloat16 if bits == 16 else torch.float16
    (matrices,) = in_slots(20, 64, bits, 32, device=device, dtype=dtype)
    slots = torch.full((8,), 2**31 - 1, dtype=torch.int32)
    slots[:3] = SLOTS
    made = batch_of(COUNTS, device, bits, 8)
    table = torch.full((len(made.table) + 8, 3), 2**31 - 1, dtype=torch.int32)
    table[: len(made.table)] = made.table.cpu()
    batch = Batch(made.counts, made.inputs, table.to(device)[: len(made.table)])
    x_TK = random(sum(COUNTS), 64, seed=1, dtype=torch.bfloat16)
    got = grouped_gemm(x_TK.to(device), matrices, slots.to(device)[:3], batch)
    parts = zip(x_TK.double().split(COUNTS), SLOTS.tolist(), strict=True)
    error(f"{bits} bits", got, torch.cat([part @ exact(matrices, slot).T for part, slot in parts]))


def test_one_plane_between_the_products_is_a_models_own_precision(device: str) -> None:
    """bf16 rounds by up to 2^-9."""
    first, down = expert_in_slots(64, 96, 4, device)
    x_TK = random(3, 96, seed=1, dtype=torch.bfloat16)
    got = grouped_expert(x_TK.to(device), first, down, SLOTS[:1].to(device), [3], 1, TILE)
    want = whole(first, down, x_TK, [3])
    error("one plane", got, want, 2**-9)
    with pytest.raises(AssertionError, match="is off by"):
        error("one plane", got, want)


def test_planes_add_up_to_their_type() -> None:
    x_TK = random(3, 40, seed=2)
    assert float((planes_of(x_TK, 3).double().sum(0) - x_TK.double()).abs().max()) <= 2.0**-22
    half = random(3, 40, seed=2, dtype=torch.float16)
    assert torch.equal(planes_of(half, 2).double().sum(0), half.double())
    assert planes_of(x_TK.bfloat16(), 3).shape == (1, 3, 40)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1408, 2048, 64), (768, 2048, 64), (2048, 1408, 64)], ids=str)
def test_the_shapes_of_real_experts(shape: tuple[int, int, int], bits: int, device: str) -> None:
    check(
        shape,
        bits,
        torch.bfloat16,
        device,
        BatchTile(64, 128, 4),
        dtype=torch.bfloat16 if bits == 16 else torch.float16,
    )


def test_no_tile_crosses_from_one_expert_to_the_next() -> None:
    assert tiles_of([3, 0, 5], 4) == [(0, 0, 3), (2, 3, 8), (2, 7, 8)]


def test_the_reference_is_right_too_and_refuses_what_does_not_fit() -> None:
    check((13, 131, 32), 4, torch.float32, "cpu")
    (matrices,) = in_slots(4, 64, 4, 32)
    with pytest.raises(ValueError, match=r"inputs are \[4, 64\], but 3 rows of 64 columns"):
        grouped_gemm(torch.zeros(4, 64), matrices, SLOTS[:1], [3])
    with pytest.raises(ValueError, match=r"1 experts need as many counts from 0 on, not \[4, -1\]"):
        grouped_gemm(torch.zeros(3, 64), matrices, SLOTS[:1], [4, -1])
    assert grouped_gemm(torch.zeros(0, 64), matrices, SLOTS[:0], []).shape == (0, 4)
    first, down = expert_in_slots(16, 32, 4, "cpu")
    x_TK = random(5, 32, seed=1, dtype=torch.bfloat16)
    got = grouped_expert(x_TK, first, down, SLOTS[:2], [2, 3])
    error("expert", got, whole(first, down, x_TK, [2, 3]))
    with pytest.raises(ValueError, match="planes=4 must be from 1 to 3"):
        grouped_expert(x_TK, first, down, SLOTS[:2], [2, 3], 4)
