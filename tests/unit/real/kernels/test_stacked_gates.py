"""HOBBIT's stacked gates and the sequential form, against fp64, a plain sort and softmax."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.oracles import error, random
from real.kernels.stacked_gates import sequential_gates, stacked_gates
from real.kernels.tiles import GateTile

TILE = GateTile(32, 64)
"""Several programs of a gate, and few enough for the interpreter."""
FORMS = [
    (1, 1, 1, 1),
    (2, 8, 2, 64),
    (3, 60, 4, 130),
    (1, 128, 8, 256),
    (2, 7, 7, 33),
    (1, 16, 3, 97),
]
"""Layers, experts, k, hidden size."""


def by_hand(scores: list[float], k: int) -> tuple[list[int], list[float]]:
    """The k best, lower ids first at a tie, and the softmax over them."""
    best = sorted(range(len(scores)), key=lambda e: (-scores[e], e))[:k]
    parts = [math.exp(scores[e] - scores[best[0]]) for e in best]
    return best, [part / sum(parts) for part in parts]


def check(
    name: str, gated: tuple[Tensor, Tensor, Tensor], x_TH: Tensor, weight_PEH: Tensor, k: int
) -> None:
    score_TPE, expert_TPk, weight_TPk = (part.cpu() for part in gated)
    error(name, score_TPE, torch.einsum("th,peh->tpe", x_TH.double(), weight_PEH.double()))
    for t in range(len(x_TH)):
        for p in range(len(weight_PEH)):
            # The order is that of the kernel's own scores: fp64 cannot say which of two scores is
            # greater where they differ by less than the kernel's rounding.
            experts, weights = by_hand(score_TPE[t, p].tolist(), k)
            assert expert_TPk[t, p].tolist() == experts
            assert weight_TPk[t, p].tolist() == pytest.approx(weights, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_stacked_gates_select_as_a_plain_sort_does(
    form: tuple[int, int, int, int], device: str
) -> None:
    layers, experts, k, hidden = form
    x_TH = random(2, hidden, seed=1, dtype=torch.bfloat16)
    weight_PEH = random(layers, experts, hidden, seed=2, dtype=torch.bfloat16)
    check(
        str(form),
        stacked_gates(x_TH.to(device), weight_PEH.to(device), k, TILE),
        x_TH,
        weight_PEH,
        k,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_stacked_and_sequential_gates_are_equal_to_the_bit(dtype: torch.dtype, device: str) -> None:
    x_TH = random(1, 200, seed=1, dtype=dtype).to(device)
    weight_PEH = random(3, 8, 200, seed=2, dtype=dtype).to(device)
    for stacked, sequential in zip(
        stacked_gates(x_TH, weight_PEH, 2), sequential_gates(x_TH, weight_PEH, 2), strict=True
    ):
        assert torch.equal(stacked, sequential)


def test_counters_are_zeros_again_so_that_a_graph_can_run_twice(device: str) -> None:
    x_TH, weight_PEH = random(2, 40, seed=1).to(device), random(3, 5, 40, seed=2).to(device)
    counter = torch.zeros(6, dtype=torch.int32, device=device)
    first = stacked_gates(x_TH, weight_PEH, 2, counter=counter)
    assert counter.tolist() == [0] * 6
    for one, again in zip(first, stacked_gates(x_TH, weight_PEH, 2, counter=counter), strict=True):
        assert torch.equal(one, again)


def test_at_a_tie_the_lower_expert_is_first(device: str) -> None:
    weight_PEH = torch.ones(1, 6, 32)
    weight_PEH[0, 3] = 2
    _, expert_TPk, weight_TPk = stacked_gates(
        torch.ones(1, 32).to(device), weight_PEH.to(device), 4
    )
    assert expert_TPk.tolist() == [[[3, 0, 1, 2]]]
    assert weight_TPk[0, 0].cpu().tolist() == pytest.approx(
        by_hand([32, 32, 32, 64, 32, 32], 4)[1], abs=1e-9
    )


def test_an_expert_that_is_masked_out_is_selected_last(device: str) -> None:
    weight_PEH = torch.zeros(1, 3, 32)
    weight_PEH[0, 1, 0] = -math.inf
    _, expert_TPk, weight_TPk = stacked_gates(
        torch.ones(1, 32).to(device), weight_PEH.to(device), 3
    )
    assert expert_TPk.tolist() == [[[0, 2, 1]]]
    assert weight_TPk.cpu().tolist() == [[[0.5, 0.5, 0.0]]]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_reference_is_right_too(form: tuple[int, int, int, int]) -> None:
    layers, experts, k, hidden = form
    x_TH, weight_PEH = random(3, hidden, seed=1), random(layers, experts, hidden, seed=2)
    check(str(form), stacked_gates(x_TH, weight_PEH, k), x_TH, weight_PEH, k)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gates of \[1, 4, 8\] do not fit inputs of \[1, 9\]"):
        stacked_gates(torch.zeros(1, 9), torch.zeros(1, 4, 8), 2)
    with pytest.raises(ValueError, match=r"counter for 1 tokens at 3 layers is torch.int32 \[3\]"):
        stacked_gates(
            torch.zeros(1, 8), torch.zeros(3, 4, 8), 2, counter=torch.zeros(2, dtype=torch.int32)
        )
    with pytest.raises(ValueError, match="k=5 must be from 1 to the 4 experts"):
        stacked_gates(torch.zeros(1, 8), torch.zeros(1, 4, 8), 5)
