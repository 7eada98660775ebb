"""Inputs in fixed point: three signed bytes, right to a fraction of their sixteen's step."""

from __future__ import annotations

import pytest
import torch

from helpers.oracles import random
from real.kernels.fixed_point import WHOLE, fixed_point, fixed_point_ref, read


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (2, 272 * 2)], ids=str)
def test_inputs_are_right_to_three_quarters_of_a_step(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    x_TK = random(*shape, seed=3, dtype=dtype)
    x_TK[0, :2] = torch.tensor([-3e7, 5e-9])
    words, about = (part.cpu() for part in fixed_point(x_TK.to(device)))
    step = about[:, 0].repeat_interleave(16, dim=1).double()
    greatest = x_TK.double().abs().unflatten(1, (-1, 16)).amax(2).repeat_interleave(16, dim=1)
    assert bool((step <= greatest / WHOLE * 1.001).all())
    assert bool(((read((words, about)) - x_TK.double()).abs() <= 0.76 * step).all())


def test_the_kernel_and_the_definition_have_the_same_bits(device: str) -> None:
    x_TK = random(2, 320, seed=5)
    words, about = fixed_point(x_TK.to(device))
    right_words, right_about = fixed_point_ref(x_TK)
    assert torch.equal(words.cpu(), right_words)
    assert torch.equal(about[:, 0].cpu(), right_about[:, 0])


def test_zeros_stay_zeros(device: str) -> None:
    assert not bool(read(tuple(p.cpu() for p in fixed_point(torch.zeros(1, 32).to(device)))).any())


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of 24 inputs are no contiguous multiples of 16"):
        fixed_point(torch.zeros(1, 24))
