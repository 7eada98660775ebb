"""Channels left out by their activation, and the thresholds for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from capture.tiny.model import load_model
from real.lossy.mixture import all_at, mixing
from real.lossy.sparse import (
    WHERE,
    ActivationSample,
    quantiles,
    require_gated,
    sparse_forward,
    sparse_output,
)
from real.lossy.variants import Variants
from real.store.experts import ExpertForm
from real.store.swapping import expert_forms, swapped_experts
from sim.values.places import ROOT


def _hidden(rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 128, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("where", WHERE)
def test_a_channel_counts_where_its_activation_reaches_the_threshold(
    forms: list[ExpertForm], where: str
) -> None:
    form, hidden, threshold = forms[5], _hidden(), 0.4
    tensors = form.tensors(3)
    m = {name: matrix.double() for name, matrix in form.matrices(tensors).items()}
    x = hidden.double()
    gate, up = F.silu(x @ m["gate"].T), x @ m["up"].T
    kept = {"gate": gate, "up": up, "down": gate * up}[where].abs() >= threshold
    assert 0 < kept.double().mean() < 1
    expected = (gate * up * kept) @ m["down"].T
    found = sparse_output(form, tensors, hidden, where, threshold)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_a_threshold_is_the_smallest_value_that_covers_the_share(share: float) -> None:
    sample = torch.tensor(np.random.default_rng(2).integers(0, 9, 37) / 4, dtype=torch.float32)
    found = float(quantiles(sample, [share])[0])
    values = np.sort(sample.numpy())
    covering = [value for value in values if (values <= value).mean() >= share - 1e-12]
    assert found == min(covering)


def test_thresholds_are_those_of_each_experts_own_rows(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    sample, tokens = ActivationSample(), torch.arange(5, 45)[None]
    seen: dict[tuple[int, int], list[torch.Tensor]] = {}

    def decide(site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
        for expert in range(8):
            rows = hidden[(ids == expert).any(-1)]
            up = rows @ forms[site].matrices(forms[site].tensors(expert))["up"].T
            seen.setdefault((site, expert), []).append(up.abs().flatten())
        return all_at(0)(site, hidden, ids, weights)

    with (
        torch.no_grad(),
        swapped_experts(mixtral, mixing(Variants(forms, ("fp16",)), decide, sample.forward), forms),
    ):
        mixtral(input_ids=tokens)
    found = sample.thresholds(16, 8, (0.5, 0.9))["up"]
    for (site, expert), parts in seen.items():
        values = torch.cat(parts)
        if len(values):
            share = (values < found[site, expert, 1] * (1 - 1e-5)).float().mean()
            assert 0.9 - 2 / len(values) <= share <= 0.9
    assert (found[..., 0] <= found[..., 1]).all()


def test_prompts_compute_whole_experts_where_decoded_tokens_do_not(forms: list[ExpertForm]) -> None:
    form, hidden = forms[0], _hidden()
    forward = sparse_forward("up", torch.full((16, 8), 0.5), decoded_only=True)
    tensors = form.tensors(0)
    assert torch.equal(forward(form, 0, tensors, hidden, 6), form.forward(tensors, hidden))
    alone = forward(form, 0, tensors, hidden[:1], 1)
    assert torch.equal(alone, sparse_output(form, tensors, hidden[:1], "up", 0.5))
    assert not torch.allclose(alone, form.forward(tensors, hidden[:1]))


def test_experts_without_a_gate_are_refused_and_those_with_one_are_tried(
    forms: list[ExpertForm],
) -> None:
    require_gated(forms[0])
    switch = expert_forms(load_model(ROOT / "capture" / "assets" / "tiny_switch"))
    with pytest.raises(ValueError, match=r"has in, out; channels are left out of experts"):
        require_gated(switch[0])


def test_a_site_that_computed_nothing_has_no_threshold(forms: list[ExpertForm]) -> None:
    with pytest.raises(ValueError, match="site 0 computed no expert"):
        ActivationSample().thresholds(1, 8, (0.5,))
