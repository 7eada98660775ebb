"""Prefill's grouped matrix product, against fp64 of the stored weights."""

from __future__ import annotations

import pytest
import torch

from helpers.oracles import error, exact, in_slots, random
from real.kernels.grouped_gemm import grouped_gemm, tiles_of

TILE = (32, 64, 128)
COUNTS = [3, 0, 37]
SLOTS = torch.tensor([2, 1, 0], dtype=torch.int32)


def check(
    shape: tuple[int, int, int],
    bits: int,
    x_dtype: torch.dtype,
    device: str,
    tile: tuple[int, int, int] | None = TILE,
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


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (13, 131, 32), (70, 65, 200)], ids=str)
def test_the_rows_of_each_expert_meet_its_own_matrix(
    shape: tuple[int, int, int], bits: int, device: str
) -> None:
    check(shape, bits, torch.float32, device, dtype=torch.float32 if bits == 16 else torch.float16)


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_integers_are_exact_in_half_precision(bits: int, dtype: torch.dtype, device: str) -> None:
    check((65, 130, 64), bits, dtype, device, dtype=dtype if bits == 16 else torch.float16)


@pytest.mark.parametrize("bits", [8, 2])
def test_symmetric_channels(bits: int, device: str) -> None:
    check((33, 70, 70), bits, torch.bfloat16, device, symmetric=True, dtype=torch.float32)


def test_the_tiles_that_a_gpu_gets(device: str) -> None:
    check((72, 200, 32), 4, torch.bfloat16, device, None)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1408, 2048, 64), (768, 2048, 64), (2048, 1408, 64)], ids=str)
def test_the_shapes_of_real_experts(shape: tuple[int, int, int], bits: int, device: str) -> None:
    check(
        shape,
        bits,
        torch.bfloat16,
        device,
        (64, 128, 64),
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
