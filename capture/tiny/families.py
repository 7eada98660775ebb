"""The architectures that the project trains: how each is built, fed and read.

Each is one `Family`, so that other modules need no branches. A *site* is a router with its experts;
sites stand in the order of execution. A *stack* is the part of a model that runs over one sequence
of tokens. A decoder-only model has one stack, an encoder-decoder two, whose sites see different
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from capture.tiny.recipes import Recipe
from capture.tiny.tokenizer import END_OF_TEXT_ID


@dataclass(frozen=True, eq=False)
class Site:
    """A router and its experts, with the norms around them.

    ``router_weight`` is [E, H]; ``norm_gain`` [H] is that of the norm before the router.
    ``layer_norm`` is the first norm of the layer, whose input is the residual stream.
    """

    stack: str
    router: nn.Module
    router_weight: nn.Parameter
    norm_gain: nn.Parameter
    layer_norm: nn.Module
    experts: nn.Module


@dataclass(frozen=True)
class Routed:
    """What a router returned: ``logits`` [T, E], ``weights`` and ``experts`` [T, K].

    Choices stand by falling weight.
    """

    logits: torch.Tensor
    weights: torch.Tensor
    experts: torch.Tensor


@dataclass(frozen=True)
class Family:
    """An architecture.

    - ``fresh(recipe)``: builds a model whose weights come from torch's global generator.
    - ``model_class``, ``load_options``: how a checkpoint is loaded.
    - ``residual_outputs``, ``embeddings``, ``undecayed``: ends of the names of parameters that add
      to the residual stream, that are embeddings, and that get no weight decay.
    - ``sites(model)``: the model's sites; ``routed(outputs)``: what a router's outputs mean.
    - ``predict(model, windows [S, T], prefix)``: logits [S, T - prefix, vocab] of the tokens after
      the prefix.
    - ``expert(experts, index, x [T, H])``: x W_up before any activation, and the expert's output
      [T, H].
    - ``window``, ``prefix``: tokens of an evaluated window, and how many of them are not predicted.
    """

    fresh: Callable[[Recipe], Any]
    model_class: type[PreTrainedModel]
    load_options: Mapping[str, Any]
    residual_outputs: tuple[str, ...]
    embeddings: tuple[str, ...]
    undecayed: tuple[str, ...]
    sites: Callable[[Any], list[Site]]
    routed: Callable[[Sequence[torch.Tensor]], Routed]
    predict: Callable[[Any, torch.Tensor, int], torch.Tensor]
    expert: Callable[[Any, int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    window: int
    prefix: int


def family_of(model: PreTrainedModel) -> Family:
    """The family of ``model``; raises ValueError if the project trains none of that type."""
    return family_named(model.config.model_type)


def family_named(model_type: str) -> Family:
    """The family by its ``model_type`` in transformers; raises ValueError if there is none."""
    if model_type not in FAMILIES:
        raise ValueError(
            f"cannot train or evaluate a model of type {model_type!r}; known: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


# Decoder-only models with fused experts


def _decoder_settings(recipe: Recipe) -> dict[str, Any]:
    return {
        "vocab_size": recipe.vocab,
        "hidden_size": recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "num_experts_per_tok": recipe.top_k,
        "max_position_embeddings": 2048,
        "initializer_range": recipe.init_std,
        "router_aux_loss_coef": recipe.balance_loss,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "attn_implementation": "sdpa",
        "experts_implementation": "eager",
    }


def _fresh_mixtral(recipe: Recipe) -> MixtralForCausalLM:
    settings = {
        "intermediate_size": recipe.inter,
        "num_local_experts": recipe.experts,
        "tie_word_embeddings": False,
    }
    return MixtralForCausalLM(
        MixtralConfig(**_decoder_settings(recipe) | settings | dict(recipe.config))
    )


def _fresh_qwen2moe(recipe: Recipe) -> Qwen2MoeForCausalLM:
    settings = {"moe_intermediate_size": recipe.inter, "num_experts": recipe.experts}
    return Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**_decoder_settings(recipe) | settings | dict(recipe.config))
    )


def _decoder_sites(model: Any) -> list[Site]:
    return [
        Site(
            stack="decoder",
            router=layer.mlp.gate,
            router_weight=layer.mlp.gate.weight,
            norm_gain=layer.post_attention_layernorm.weight,
            layer_norm=layer.input_layernorm,
            experts=layer.mlp.experts,
        )
        for layer in model.model.layers
    ]


def _decoder_routed(outputs: Sequence[torch.Tensor]) -> Routed:
    return Routed(*outputs)


def _decoder_predict(model: Any, windows: torch.Tensor, prefix: int) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=windows[:, :-1], use_cache=False).logits
    return logits[:, prefix - 1 :]


def _gated_expert(
    experts: Any, index: int, inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = F.linear(inputs, experts.gate_up_proj[index]).chunk(2, -1)
    return up, F.linear(F.silu(gate) * up, experts.down_proj[index])


# Switch Transformers


def _fresh_switch(recipe: Recipe) -> SwitchTransformersForConditionalGeneration:
    settings = {
        "vocab_size": recipe.vocab,
        "d_model": recipe.hidden,
        "d_ff": recipe.inter,
        "num_layers": recipe.layers,
        "num_decoder_layers": recipe.layers,
        "num_sparse_encoder_layers": recipe.layers // 2,
        "num_sparse_decoder_layers": recipe.layers // 2,
        "num_heads": recipe.heads,
        "num_experts": recipe.experts,
        # No jitter: transformers would multiply this noise into the gate input in place.
        "router_jitter_noise": 0.0,
        "dropout_rate": 0.0,
        "router_z_loss_coef": recipe.z_loss,
        "router_aux_loss_coef": recipe.balance_loss,
        "decoder_start_token_id": END_OF_TEXT_ID,
        "pad_token_id": END_OF_TEXT_ID,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "attn_implementation": "eager",
    }
    model = SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(**settings | dict(recipe.config))
    )
    # transformers draws routers with a deviation of 1, which saturates them before the first step.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, recipe.init_std)
        # A head that shares the embeddings divides by the root of the width. Giving half of that
        # back made training fastest.
        model.decoder.final_layer_norm.weight.fill_(recipe.hidden**0.5 / 2)
    return model


def _switch_sites(model: Any) -> list[Site]:
    return [
        Site(
            stack=stack,
            router=block.layer[-1].mlp.router,
            router_weight=block.layer[-1].mlp.router.classifier.weight,
            norm_gain=block.layer[-1].layer_norm.weight,
            layer_norm=block.layer[0].layer_norm,
            experts=block.layer[-1].mlp.experts,
        )
        for stack in ("encoder", "decoder")
        for block in getattr(model, stack).block
        if block.is_sparse
    ]


def _switch_routed(outputs: Sequence[torch.Tensor]) -> Routed:
    one_hot, probability, logits = (output.reshape(-1, output.shape[-1]) for output in outputs)
    return Routed(logits, probability, one_hot.argmax(-1, keepdim=True))


def _switch_predict(model: Any, windows: torch.Tensor, prefix: int) -> torch.Tensor:
    targets = windows[:, prefix:]
    shifted = F.pad(targets[:, :-1], (1, 0), value=model.config.decoder_start_token_id)
    logits: torch.Tensor = model(
        input_ids=windows[:, :prefix], decoder_input_ids=shifted, use_cache=False
    ).logits
    return logits


def _plain_expert(
    experts: Any, index: int, inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    expert = experts[f"expert_{index}"]
    up = expert.wi(inputs)
    return up, expert.wo(expert.act(up))


_DECODER_ONLY: Final[Mapping[str, Any]] = MappingProxyType(
    {
        # The fastest implementations on a CPU at these sizes.
        "load_options": {"attn_implementation": "sdpa", "experts_implementation": "eager"},
        "embeddings": ("embed_tokens.weight",),
        "undecayed": ("embed_tokens.weight", "mlp.gate.weight"),
        "sites": _decoder_sites,
        "routed": _decoder_routed,
        "predict": _decoder_predict,
        "expert": _gated_expert,
        "window": 512,
        "prefix": 1,
    }
)

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "mixtral": Family(
            fresh=_fresh_mixtral,
            model_class=MixtralForCausalLM,
            residual_outputs=("o_proj.weight", "experts.down_proj"),
            **_DECODER_ONLY,
        ),
        "qwen2_moe": Family(
            fresh=_fresh_qwen2moe,
            model_class=Qwen2MoeForCausalLM,
            residual_outputs=(
                "o_proj.weight",
                "experts.down_proj",
                "shared_expert.down_proj.weight",
            ),
            **_DECODER_ONLY,
        ),
        "switch_transformers": Family(
            fresh=_fresh_switch,
            model_class=SwitchTransformersForConditionalGeneration,
            load_options={"attn_implementation": "eager"},
            residual_outputs=(".o.weight", ".wo.weight"),
            embeddings=("shared.weight",),
            undecayed=(
                "shared.weight",
                "router.classifier.weight",
                "relative_attention_bias.weight",
            ),
            sites=_switch_sites,
            routed=_switch_routed,
            predict=_switch_predict,
            expert=_plain_expert,
            window=256,
            prefix=64,
        ),
    }
)
"""The families, by ``model_type`` in transformers' configurations."""
