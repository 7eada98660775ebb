"""One token through quantised matrices in slots, against fp64 of the stored weights."""

from __future__ import annotations

import pytest
import torch

from helpers.oracles import error, exact, in_slots, random
from real.kernels.dequant_gemv import dequant_gemv, tiling
from real.kernels.gated_gemv import gated_gemv
from real.kernels.slot_matrices import in_one_slot

TILE = (64, 256)
"""A large tile for the interpreter, whose programs cost more than their work."""
SHAPES = [(1, 1, 64), (3, 7, 16), (13, 131, 32), (64, 64, 64), (65, 257, 64), (128, 96, 200)]
"""Rows, columns, group: ones, primes, sizes that no tile divides, groups of whole rows."""
SLOTS = torch.tensor([2, 0], dtype=torch.int32)


def check(
    shape: tuple[int, int, int],
    bits: int,
    x_dtype: torch.dtype,
    device: str,
    tile: tuple[int, int] | None,
    **form: object,
) -> None:
    rows, columns, group = shape
    (matrices,) = in_slots(rows, columns, bits, group, device=device, **form)  # type: ignore[arg-type]
    x_JK = random(2, columns, seed=1, dtype=x_dtype)
    y_JN = dequant_gemv(x_JK.to(device), matrices, SLOTS.to(device), tile)
    want = torch.stack(
        [exact(matrices, slot) @ x.double() for slot, x in zip(SLOTS.tolist(), x_JK, strict=True)]
    )
    error(f"{bits} bits of {shape}", y_JN, want)


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_vector_through_matrices_in_slots(
    shape: tuple[int, int, int], bits: int, device: str
) -> None:
    check(shape, bits, torch.float32, device, TILE)


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
    check((33, 70, 70), bits, torch.float32, device, TILE, symmetric=True, dtype=torch.float32)


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


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_tiles_that_a_gpu_gets(bits: int, device: str) -> None:
    check((9, 600, 64), bits, torch.bfloat16, device, None)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1408, 2048, 64), (768, 2048, 64), (2048, 1408, 64)], ids=str)
def test_the_shapes_of_real_experts(shape: tuple[int, int, int], bits: int, device: str) -> None:
    """The matrices of an expert of Qwen1.5-MoE and of Qwen3-30B."""
    check(shape, bits, torch.bfloat16, device, (128, 512))


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (13, 131, 32), (66, 257, 64)], ids=str)
def test_gate_and_up_in_one_pass(shape: tuple[int, int, int], bits: int, device: str) -> None:
    rows, columns, group = shape
    gate, up = in_slots(rows, columns, bits, group, matrices=2, device=device)
    x_K = random(columns, seed=4, dtype=torch.bfloat16)
    got = gated_gemv(x_K.to(device), gate, up, SLOTS.to(device), TILE)
    want = []
    for slot in SLOTS.tolist():
        first, second = exact(gate, slot) @ x_K.double(), exact(up, slot) @ x_K.double()
        want.append(first / (1 + (-first).exp()) * second)
    error(f"{bits} bits of {shape}", got, torch.stack(want))


@pytest.mark.parametrize("bits", [8, 4, 2, 16])
def test_the_references_are_right_too(bits: int) -> None:
    """The references run on every CPU, without Triton."""
    rows, columns, group = 13, 131, 32
    gate, up = in_slots(rows, columns, bits, group, matrices=2)
    x_K = random(columns, seed=4)
    first, second = (
        torch.stack([exact(m, s) @ x_K.double() for s in SLOTS.tolist()]) for m in (gate, up)
    )
    error("gemv", dequant_gemv(x_K[None], gate, SLOTS), first)
    error("gated", gated_gemv(x_K, gate, up, SLOTS), first / (1 + (-first).exp()) * second)
    assert dequant_gemv(x_K[None], gate, SLOTS[:0]).shape == (0, rows)


def test_what_does_not_fit_is_refused() -> None:
    (matrices,) = in_slots(4, 64, 4, 32)
    with pytest.raises(
        ValueError, match=r"inputs are \[3, 64\], but 2 needs of 64 columns take \[1 or 2, 64\]"
    ):
        dequant_gemv(torch.zeros(3, 64), matrices, SLOTS)
    with pytest.raises(ValueError, match=r"a slot table is torch\.int32"):
        dequant_gemv(torch.zeros(2, 64), matrices, SLOTS.long())
    (odd,) = in_slots(4, 64, 4, 24)
    with pytest.raises(ValueError, match="groups of 24 of 64 columns: kernels take powers of two"):
        tiling(odd, 1, None)
    with pytest.raises(ValueError, match="must be of one form in one pool"):
        gated_gemv(torch.zeros(64), matrices, odd, SLOTS)
    assert torch.equal(in_one_slot(odd.weight(0)).weight(0), odd.weight(0))
