"""MoE layers are found by structure, and what cannot be recorded is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from capture.models.discover import CaptureError, discover
from capture.models.norms import gate_norms
from helpers.tiny_models import build


def test_mixtral_layers_are_found_in_order() -> None:
    model = build("mixtral")
    layers = discover(model)
    assert [(layer.site, layer.layer, layer.name) for layer in layers] == [
        (site, site, f"model.layers.{site}.mlp") for site in range(4)
    ]
    assert {(layer.num_experts, layer.top_k, layer.kind) for layer in layers} == {(6, 2, "ffn")}
    assert all(layer.stack is model.model for layer in layers)
    assert all(layer.router is model.model.layers[layer.layer].mlp.gate for layer in layers)


def test_dense_layers_count_as_layers_but_not_as_sites() -> None:
    layers = discover(build("qwen2_moe"))
    assert [(layer.site, layer.layer) for layer in layers] == [(0, 1), (1, 2), (2, 3)]
    assert {(layer.num_experts, layer.top_k) for layer in layers} == {(8, 3)}


def test_a_model_without_experts_is_refused() -> None:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with pytest.raises(CaptureError, match="LlamaForCausalLM: no module takes"):
        discover(LlamaForCausalLM(config))


def test_experts_are_recognised_by_signature_alone() -> None:
    class Anything(nn.Module):
        num_experts = 4

        def forward(
            self, x: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
        ) -> torch.Tensor:
            return x

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wg = nn.Linear(8, 4)
            self.banks = Anything()
            self.top_k = 2

    model = nn.ModuleDict({"layers": nn.ModuleList([Block()])})
    (layer,) = discover(model)
    assert (layer.name, layer.num_experts, layer.top_k) == ("layers.0", 4, 2)
    del model["layers"][0].wg
    with pytest.raises(CaptureError, match=r"layers\.0: no router among \['banks'\]"):
        discover(model)


@pytest.mark.parametrize(("shared", "classes"), [(None, 6), (2, 4)])
def test_rows_of_a_router_for_shared_experts_are_no_null_experts(
    shared: int | None, classes: int
) -> None:
    """Inkling's router has two rows more than experts, which weigh its two shared experts."""

    class Experts(nn.Module):
        num_experts = 4

        def forward(
            self, x: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
        ) -> torch.Tensor:
            return x

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, 8))
            if shared is not None:
                self.n_shared_experts = shared

    block = nn.Module()
    block.gate, block.experts, block.top_k = Router(), Experts(), 2  # type: ignore[assignment]
    (layer,) = discover(nn.ModuleDict({"layers": nn.ModuleList([block])}))
    assert (layer.num_experts, layer.num_classes) == (4, classes)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_gate_norms_are_the_post_attention_norms(family: str) -> None:
    model = build(family)
    layers = discover(model)
    for layer, scale in zip(layers, gate_norms(model, layers), strict=True):
        assert torch.equal(scale, model.model.layers[layer.layer].post_attention_layernorm.weight)
