"""Sums of several programs, added in a fixed order."""

from __future__ import annotations

import pytest
import torch

from helpers.oracles import random
from real.kernels.add_parts import COLUMNS, add_parts, add_parts_ref


@pytest.mark.parametrize("shape", [(1, 1), (2, 33), (7, 3, COLUMNS), (64, 5), (65, 2, 31)], ids=str)
def test_parts_are_summed_whatever_their_number_and_the_same_call_has_the_same_bits(
    shape: tuple[int, ...], device: str
) -> None:
    part_P = random(shape[0], int(torch.tensor(shape[1:]).prod()), seed=7).view(shape).float()
    found = add_parts(part_P.to(device))
    assert found.shape == part_P.shape[1:]
    torch.testing.assert_close(
        found.cpu().double(), add_parts_ref(part_P.double()), rtol=1e-5, atol=1e-6
    )
    assert torch.equal(found, add_parts(part_P.to(device)))
