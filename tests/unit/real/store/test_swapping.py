"""Experts of transformers' models as matrices, computed elsewhere: bit for bit, and restored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

from capture.models.discover import discover
from capture.recording.hooks import RouterHooks
from capture.tiny.model import load_model
from helpers.architectures import AVAILABLE, tiny
from real.store.experts import SwapError
from real.store.swapping import compute_all, expert_forms, expert_weights, swapped_experts
from sim.values.places import ROOT

ASSETS = ROOT / "capture" / "assets"
BUNDLED = ("tiny_mixtral", "tiny_qwen2moe", "tiny_switch")
REFUSED = {
    "llama4_text": "as Dense",
    "longcat_flash": "null experts",
    "jetmoe": "as Sorted",
    "dbrx": "layout of",
    "nllb-moe": "as Combined",
}


def _run(model: Any) -> torch.Tensor:
    """Logits (or what else comes out first) for two padded prompts."""
    ids = torch.randint(4, 100, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    extra = {}
    if model.config.is_encoder_decoder:
        extra = {"decoder_input_ids": ids[:, :4]}
    else:
        ids[1, :4], mask[1, :4] = 0, 0
    with torch.no_grad():
        output: torch.Tensor = model(input_ids=ids, attention_mask=mask, **extra)[0]
    return output


def _eager(model: Any) -> Any:
    transformers.logging.set_verbosity_error()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


SWAPPED = [name for name in AVAILABLE if name not in REFUSED]
USUAL = (
    ("mixtral", torch.float32),
    ("gpt_oss", torch.bfloat16),
    ("nemotron_h", torch.bfloat16),
    ("switch_transformers", torch.float32),
    ("aria_text", torch.float32),
)
"""One model of each layout."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name,
            dtype,
            id=f"{name}-{dtype}".replace("torch.", ""),
            marks=() if (name, dtype) in USUAL else pytest.mark.thorough,
        )
        for name in SWAPPED
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_swapped_experts_compute_the_bits_of_the_eager_model(name: str, dtype: torch.dtype) -> None:
    model = _eager(tiny(name, dtype))
    plain = _run(model)
    forms = expert_forms(model)
    seen: list[int] = []

    def compute(
        site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        seen.append(site)
        # Copies elsewhere in memory: nothing may depend on the model's own tensors.
        return compute_all(
            forms[site],
            lambda expert: {name: t.clone() for name, t in forms[site].tensors(expert).items()},
            hidden,
            ids,
            weights,
        )

    with swapped_experts(model, compute, forms):
        assert torch.equal(_run(model), plain)
    assert sorted(set(seen)) == list(range(len(forms)))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_swapped_is_refused_by_name(name: str) -> None:
    model = tiny(name)
    with pytest.raises(SwapError, match=REFUSED[name]) as refused:
        expert_forms(model)
    assert type(discover(model)[0].experts).__name__ in str(refused.value)


@pytest.mark.alike
@pytest.mark.parametrize("name", BUNDLED)
def test_leaving_the_block_restores_the_model_exactly(name: str) -> None:
    model = _eager(load_model(ASSETS / name))
    plain = _run(model)
    before = [dict(layer.experts.__dict__) for layer in discover(model)]
    with swapped_experts(model, lambda site, hidden, ids, weights: torch.zeros_like(hidden)):
        assert not torch.equal(_run(model), plain)
    with pytest.raises(RuntimeError, match="stop"), swapped_experts(model, _fail):
        _run(model)
    assert [dict(layer.experts.__dict__) for layer in discover(model)] == before
    assert torch.equal(_run(model), plain)


def _fail(*_arguments: object) -> torch.Tensor:
    raise RuntimeError("stop")


@pytest.mark.parametrize("name", BUNDLED)
def test_an_expert_is_what_its_named_matrices_say(name: str) -> None:
    """Formulas of the papers: SwiGLU for the decoders, a plain ReLU network for Switch."""
    model = load_model(ASSETS / name)
    form = expert_forms(model)[1]
    matrices = expert_weights(model, 1, 3)
    hidden = torch.randn(4, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    if name == "tiny_switch":
        assert set(matrices) == {"in", "out"}
        expected = torch.relu(hidden @ matrices["in"].T) @ matrices["out"].T
    else:
        assert set(matrices) == {"gate", "up", "down"}
        expected = (F.silu(hidden @ matrices["gate"].T) * (hidden @ matrices["up"].T)) @ matrices[
            "down"
        ].T
    with torch.no_grad():
        assert torch.allclose(form.forward(form.tensors(3), hidden), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt_oss", "aria_text", "nemotron_h"])
def test_transposed_interleaved_and_gateless_layouts_give_matrices_of_out_by_in(name: str) -> None:
    model = tiny(name)
    form = expert_forms(model)[0]
    matrices, stored = expert_weights(model, 0, 2), form.tensors(2)
    if name == "nemotron_h":
        assert torch.equal(matrices["in"], stored["up_proj"])
        return
    inner = matrices["gate"].shape[0]
    assert matrices["down"].shape == (64, inner)
    at = 2 * 5 if name == "gpt_oss" else 5
    assert torch.equal(matrices["gate"][5], stored["gate_up_proj"][:, at])
    if name == "gpt_oss":
        assert torch.equal(matrices["up_bias"][5], stored["gate_up_proj_bias"][at + 1])


@pytest.mark.parametrize(
    "name", ["mixtral", "gpt_oss", "aria_text", "nemotron_h", "switch_transformers"]
)
def test_stored_tensors_come_back_from_the_matrices(name: str) -> None:
    form = expert_forms(tiny(name))[0]
    tensors = form.tensors(1)
    again = form.stored(form.matrices(tensors))
    assert list(again) == list(tensors)
    assert all(torch.equal(again[key], tensors[key]) for key in tensors)


def test_hooks_see_the_same_choices_in_a_swapped_model() -> None:
    model = _eager(load_model(ASSETS / "tiny_mixtral"))
    layers = discover(model)
    with RouterHooks(layers) as plain:
        _run(model)
    forms = expert_forms(model)
    compute = lambda site, h, i, w: compute_all(forms[site], forms[site].tensors, h, i, w)  # noqa: E731
    with swapped_experts(model, compute, forms), RouterHooks(layers) as swapped:
        _run(model)
    assert (plain.take().ids == swapped.take().ids).all()


def test_a_model_that_computes_something_else_is_not_taken_for_a_gated_expert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny("mixtral")
    experts = discover(model)[0].experts

    def twice(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        return 2 * own(self, hidden_states, top_k_index, top_k_weights)

    own = type(experts).forward.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(type(experts), "forward", twice)
    with pytest.raises(SwapError, match="computes something else"):
        expert_forms(model)
