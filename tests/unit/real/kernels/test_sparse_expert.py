"""FloE's sparse expert, masked and gathered, against fp64 of the neurons that are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.oracles import error, random
from real.kernels.sparse_expert import gathered_expert, listed_expert, sparse_expert
from real.kernels.tiles import NeuronTile

TILE = NeuronTile(3, 8, 4)
SLOTS = torch.tensor([1, 0], dtype=torch.int32)
SHAPES = [(1, 1), (7, 5), (130, 96), (64, 300)]
"""Neurons, hidden size."""


def made(
    neurons: int, hidden: int, share: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, up projections of two needs, pairs of three slots, and thresholds that keep the share."""
    v_JI = random(2, neurons, seed=2)
    kept = round(neurons * share)
    ranked = v_JI.abs().sort(dim=1, descending=True).values
    threshold_J = ranked[:, kept - 1] if kept else ranked[:, 0] * 1.01
    pairs = random(3, neurons, 2 * hidden, seed=3, scale=0.1, dtype=dtype)
    return random(hidden, seed=1, dtype=dtype), v_JI, pairs, threshold_J.contiguous()


def wanted(x_H: Tensor, v_JI: Tensor, pairs: Tensor, threshold_J: Tensor) -> Tensor:
    """The output over every neuron of the slot in fp64, with those below the threshold times 0."""
    rows = []
    for j, slot in enumerate(SLOTS.tolist()):
        gate_IH, down_IH = pairs[slot].double().chunk(2, dim=1)
        gate_I = gate_IH @ x_H.double()
        keep_I = v_JI[j].abs() >= threshold_J[j]
        rows.append((gate_I / (1 + (-gate_I).exp()) * v_JI[j].double() * keep_I) @ down_IH)
    return torch.stack(rows)


@pytest.mark.alike
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_masked(shape: tuple[int, int], share: float, device: str) -> None:
    x_H, v_JI, pairs, threshold_J = made(*shape, share, torch.bfloat16)
    got = sparse_expert(
        *(part.to(device) for part in (x_H, v_JI, pairs, SLOTS, threshold_J)), tile=TILE
    )
    error(f"{share:.0%} of {shape}", got, wanted(x_H, v_JI, pairs, threshold_J))
    if round(shape[0] * share) == 0:
        assert not bool(got.any()), "nothing is kept, so nothing may come out"


@pytest.mark.alike
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_tiles_that_a_gpu_gets(dtype: torch.dtype, device: str) -> None:
    x_H, v_JI, pairs, threshold_J = made(40, 50, 0.2, dtype)
    got = sparse_expert(*(part.to(device) for part in (x_H, v_JI, pairs, SLOTS, threshold_J)))
    error(str(dtype), got, wanted(x_H, v_JI, pairs, threshold_J))


def gathered(
    v_JI: Tensor, pairs: Tensor, threshold_J: Tensor, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slots with the kept neurons of each need, the last first; all else in them is NaN."""
    v_JC, rows = (
        torch.full((2, capacity), torch.nan),
        torch.full((3, capacity, pairs.shape[2]), torch.nan),
    )
    count_J = torch.zeros(2, dtype=torch.int32)
    for j, slot in enumerate(SLOTS.tolist()):
        kept = (v_JI[j].abs() >= threshold_J[j]).nonzero()[:, 0].flip(0)
        v_JC[j, : len(kept)], rows[slot, : len(kept)] = v_JI[j, kept], pairs[slot, kept].float()
        count_J[j] = len(kept)
    return v_JC, rows.to(pairs.dtype), SLOTS, count_J


@pytest.mark.alike
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_gathered(shape: tuple[int, int], share: float, device: str) -> None:
    """What lies behind the count (here NaN) must never be read."""
    x_H, v_JI, pairs, threshold_J = made(*shape, share, torch.bfloat16)
    held = gathered(v_JI, pairs, threshold_J, shape[0] + 3)
    got = gathered_expert(*(part.to(device) for part in (x_H, *held)), tile=TILE)
    error(f"{share:.0%} of {shape}", got, wanted(x_H, v_JI, pairs, threshold_J))


@pytest.mark.alike
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_listed(shape: tuple[int, int], share: float, device: str) -> None:
    """The same, with all neurons' up projections and a list of those that the rows are."""
    x_H, v_JI, pairs, threshold_J = made(*shape, share, torch.bfloat16)
    _, rows, slots, count_J = gathered(v_JI, pairs, threshold_J, shape[0])
    neuron_LJ = named(v_JI, threshold_J, shape[0])
    held = (x_H, v_JI, rows, slots, count_J, neuron_LJ)
    got = listed_expert(*(part.to(device) for part in held), tile=TILE)
    error(f"{share:.0%} of {shape}", got, wanted(x_H, v_JI, pairs, threshold_J))


def named(v_JI: Tensor, threshold_J: Tensor, rows: int) -> Tensor:
    """The kept neurons of each need, the last first; behind them such as do not exist."""
    neuron_LJ = torch.full((rows, len(v_JI)), 2**31 - 1, dtype=torch.int32)
    for j, v_I in enumerate(v_JI):
        kept = (v_I.abs() >= threshold_J[j]).nonzero()[:, 0].flip(0)
        neuron_LJ[: len(kept), j] = kept
    return neuron_LJ


@pytest.mark.parametrize("given", ["the list", "the rows"])
def test_a_count_beyond_what_is_given_reads_no_further(given: str, device: str) -> None:
    """Both needs count all 64 neurons; only 40 rows, or the names of 40, are given."""
    x_H, v_JI, pairs, _ = made(64, 30, 1.0, torch.float32)
    count_J = torch.full((2,), 64, dtype=torch.int32)
    neuron_LJ = torch.arange(64, dtype=torch.int32)[:, None].expand(-1, 2).contiguous()
    v_JI[:, 40:] = torch.nan
    v_kept = v_JI.clone()
    v_kept[:, 40:] = 0
    want = wanted(x_H, v_kept, pairs, torch.zeros(2))
    if given == "the list":
        held = (x_H, v_JI, pairs, SLOTS, count_J, neuron_LJ[:40])
        got = listed_expert(*(part.to(device) for part in held), tile=TILE)
    else:
        held = (x_H, v_JI[:, :40].contiguous(), pairs[:, :40].contiguous(), SLOTS, count_J)
        got = gathered_expert(*(part.to(device) for part in held), tile=TILE)
    error(given, got, want)


def test_the_masked_form_finds_neurons_in_several_pieces(device: str) -> None:
    """2100 neurons are three pieces to count; runs begin and end within them."""
    x_H, v_JI, pairs, threshold_J = made(2100, 8, 0.4, torch.float32)
    v_JI[:, 1000:1100] = 0
    got = sparse_expert(
        *(part.to(device) for part in (x_H, v_JI, pairs, SLOTS, threshold_J)),
        tile=NeuronTile(3, 128, 4),
    )
    error("pieces", got, wanted(x_H, v_JI, pairs, threshold_J))


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_shape_of_a_real_expert(share: float, device: str) -> None:
    x_H, v_JI, pairs, threshold_J = made(1408, 2048, share, torch.bfloat16)
    got = sparse_expert(
        *(part.to(device) for part in (x_H, v_JI, pairs, SLOTS, threshold_J)),
        tile=NeuronTile(4, 128, 4),
    )
    error("1408 x 2048", got, wanted(x_H, v_JI, pairs, threshold_J))


def test_the_references_are_right_too() -> None:
    x_H, v_JI, pairs, threshold_J = made(130, 96, 0.3, torch.float32)
    want = wanted(x_H, v_JI, pairs, threshold_J)
    error("masked", sparse_expert(x_H, v_JI, pairs, SLOTS, threshold_J), want)
    held = gathered(v_JI, pairs, threshold_J, 130)
    error("gathered", gathered_expert(x_H, *held), want)
    neuron_LJ = named(v_JI, threshold_J, 130).clamp(max=129)
    error("listed", listed_expert(x_H, v_JI, *held[1:], neuron_LJ), want)


def test_what_does_not_fit_is_refused() -> None:
    x_H, v_JI, pairs, threshold_J = made(8, 4, 0.5, torch.float32)
    with pytest.raises(
        ValueError, match=r"pairs are \[.., 8, 8\] with contiguous rows, not \[3, 7, 8\]"
    ):
        sparse_expert(x_H, v_JI, pairs[:, :7], SLOTS, threshold_J)
    with pytest.raises(ValueError, match="2 needs take int32 slots and float32 thresholds"):
        sparse_expert(x_H, v_JI, pairs, SLOTS.long(), threshold_J)
    with pytest.raises(
        ValueError, match=r"2 needs take as many int32 slots, not torch.int32 \[1\]"
    ):
        gathered_expert(x_H, v_JI, pairs, SLOTS[:1], SLOTS)
    with pytest.raises(
        ValueError, match=r"2 needs take as many int32 counts, not torch.int64 \[2\]"
    ):
        gathered_expert(x_H, v_JI, pairs, SLOTS, SLOTS.long())
    with pytest.raises(ValueError, match=r"2 needs take a contiguous int32 list \[rows, 2\], not"):
        listed_expert(x_H, v_JI, pairs, SLOTS, SLOTS, SLOTS)
