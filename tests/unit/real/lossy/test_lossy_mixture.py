"""Variants of experts, and the sum of a site whose choices are served by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from real.kernels.quantise import dequantise, quantise, quantise_channels
from real.live.asked import Asked
from real.lossy.mixture import LEFT_OUT, Served, all_at, mix, mixing
from real.lossy.paused import PausedModel, served_by
from real.lossy.variants import Scheme, Variants
from real.store.experts import ExpertForm
from real.store.swapping import compute_all, swapped_experts

ROWS = 9


def _gate(
    forms: list[ExpertForm], seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, ids and weights of some rows."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, 128, generator=draw)
    ids = torch.stack([torch.randperm(8, generator=draw)[:2] for _ in range(ROWS)])
    return hidden, ids, torch.softmax(torch.randn(ROWS, 2, generator=draw), -1)


def _by_hand(
    forms: list[ExpertForm], site: int, hidden: torch.Tensor, served: Served, weights_of: Any
) -> torch.Tensor:
    """The sum in float64, row by row and choice by choice."""
    total = torch.zeros(hidden.shape, dtype=torch.float64)
    for row in range(len(hidden)):
        for rank in range(served.ids.shape[1]):
            code = int(served.codes[row, rank])
            if code == LEFT_OUT:
                continue
            m = {
                name: w.double()
                for name, w in weights_of(code, site, int(served.ids[row, rank])).items()
            }
            x = hidden[row].double()
            out = m["down"] @ (F.silu(m["gate"] @ x) * (m["up"] @ x))
            total[row] += float(served.weights[row, rank]) * out
    return total


def test_the_highest_precision_is_the_models_own_storage(forms: list[ExpertForm]) -> None:
    variants = Variants(forms, ("fp16", "int4"))
    for name, values in variants.tensors(0, 3, 5).items():
        assert values.data_ptr() == forms[3].tensors(5)[name].data_ptr()


@pytest.mark.parametrize(
    ("by", "rounded"),
    [
        ("groups", lambda w: dequantise(quantise(w, 4, 64))),
        ("channels", lambda w: dequantise(quantise_channels(w, 4))),
    ],
)
def test_integers_are_those_of_the_named_quantiser(
    forms: list[ExpertForm], by: str, rounded: Any
) -> None:
    variants = Variants(forms, ("int4",), Scheme(by))
    own = forms[2].matrices(forms[2].tensors(1))
    for name, matrix in forms[2].matrices(dict(variants.tensors(0, 2, 1))).items():
        assert torch.equal(matrix, rounded(own[name].contiguous()))
        assert not torch.equal(matrix, own[name])


def test_floe_rounds_the_up_projection_alone(forms: list[ExpertForm]) -> None:
    own = forms[0].matrices(forms[0].tensors(0))
    made = forms[0].matrices(dict(Variants(forms, ("floe",)).tensors(0, 0, 0)))
    assert {name for name in own if torch.equal(own[name], made[name])} == {"gate", "down"}


def test_what_was_given_up_for_room_is_made_again_alike(forms: list[ExpertForm]) -> None:
    roomy, tight = Variants(forms, ("int2",)), Variants(forms, ("int2",), kept_bytes=1)
    for expert in (0, 1, 0, 2, 1):
        for name, values in roomy.tensors(0, 1, expert).items():
            assert torch.equal(values, tight.tensors(0, 1, expert)[name])
    assert len(tight._kept) == 1


def test_a_precision_that_nothing_makes_is_refused_by_name(forms: list[ExpertForm]) -> None:
    with pytest.raises(ValueError, match="no quantiser makes precision mxfp4"):
        Variants(forms, ("mxfp4",))
    with pytest.raises(ValueError, match="unknown quantiser=rows"):
        Scheme("rows")


def test_served_as_stored_a_site_has_the_bits_of_the_model(forms: list[ExpertForm]) -> None:
    hidden, ids, weights = _gate(forms)
    served = Served(ids, weights, torch.zeros_like(ids))
    own = compute_all(forms[4], forms[4].tensors, hidden, ids, weights)
    assert torch.equal(mix(Variants(forms, ("fp16", "int2")), 4, hidden, served), own)


def test_mixed_skipped_and_exchanged_choices_add_up_as_by_hand(forms: list[ExpertForm]) -> None:
    hidden, ids, weights = _gate(forms)
    draw = torch.Generator().manual_seed(7)
    codes = torch.randint(-1, 3, ids.shape, generator=draw)
    served = Served((ids + torch.randint(0, 3, ids.shape, generator=draw)) % 8, weights, codes)
    assert {-1, 0, 1, 2} == set(codes.unique().tolist())
    variants = Variants(forms, ("fp16", "int4", "int2"))

    def weights_of(code: int, site: int, expert: int) -> dict[str, torch.Tensor]:
        return forms[site].matrices(dict(variants.tensors(code, site, expert)))

    found = mix(variants, 6, hidden, served)
    torch.testing.assert_close(
        found.double(), _by_hand(forms, 6, hidden, served, weights_of), rtol=1e-5, atol=1e-6
    )


def test_a_decision_on_a_union_is_handed_to_every_choice_of_it() -> None:
    asked = Asked(0, torch.zeros(3, 4), torch.tensor([[2, 5], [5, 8], [2, -1]]), torch.ones(3, 2))
    served = served_by(asked, experts=[5, 2], serving=[5, 3], codes=[-1, 1], num_experts=8)
    assert served.ids.tolist() == [[3, 5], [5, 8], [3, -1]]
    assert served.codes.tolist() == [[1, -1], [-1, -1], [1, -1]]


def test_a_pass_stops_at_every_site_and_gives_the_logits_of_the_model(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    tokens = torch.tensor([[5, 9, 100, 7]])
    with torch.no_grad():
        own = mixtral(input_ids=tokens).logits
    variants = Variants(forms, ("fp16",))
    with PausedModel(mixtral, variants) as paused:
        answer = paused.begin(lambda: mixtral(input_ids=tokens).logits)
        sites = []
        while isinstance(answer, Asked):
            sites.append(answer.site)
            answer = paused.go_on(Served(answer.ids, answer.weights, torch.zeros_like(answer.ids)))
    assert sites == list(range(16))
    assert torch.equal(answer, own)


def test_a_pass_given_up_half_way_leaves_the_model_as_it_was(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    tokens = torch.tensor([[5, 9, 100, 7]])
    with torch.no_grad():
        own = mixtral(input_ids=tokens).logits
        with PausedModel(mixtral, Variants(forms, ("int2",))) as paused:
            paused.begin(lambda: mixtral(input_ids=tokens).logits)
        assert torch.equal(mixtral(input_ids=tokens).logits, own)


def test_an_error_of_the_model_is_raised_in_the_caller(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    with PausedModel(mixtral, Variants(forms, ("fp16",))) as paused, pytest.raises(IndexError):
        paused.begin(lambda: mixtral(input_ids=torch.tensor([[999999]])).logits)


def test_experts_at_one_low_precision_are_a_model_with_these_weights(
    mixtral: Any, forms: list[ExpertForm]
) -> None:
    variants, tokens = Variants(forms, ("int4",)), torch.tensor([[5, 9, 100, 7]])
    with torch.no_grad(), swapped_experts(mixtral, mixing(variants, all_at(0)), forms):
        ours = mixtral(input_ids=tokens).logits
    saved = {name: values.clone() for name, values in mixtral.state_dict().items()}
    try:
        with torch.no_grad():
            for form in forms:
                for expert in range(8):
                    for name, values in variants.tensors(0, form.layer.site, expert).items():
                        form.layer.experts.get_parameter(name).data[expert] = values
            overwritten = mixtral(input_ids=tokens).logits
    finally:
        mixtral.load_state_dict(saved)
    assert torch.equal(ours, overwritten)
