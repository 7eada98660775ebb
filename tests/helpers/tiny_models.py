"""Small random models for the capture tests, with routers that spread their choices."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

FAMILIES = ("mixtral", "qwen2_moe")
COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
}


def build(family: str) -> Any:
    """A model of ``family`` in float32 whose experts run one by one; its weights never change."""
    torch.manual_seed(11)
    if family == "mixtral":
        model: Any = MixtralForCausalLM(
            MixtralConfig(**COMMON, num_local_experts=6, intermediate_size=40)
        )
    else:
        config = Qwen2MoeConfig(
            **{**COMMON, "num_experts_per_tok": 3},
            num_experts=8,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=24,
            intermediate_size=40,
            mlp_only_layers=[0],
            norm_topk_prob=False,
        )
        model = Qwen2MoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Some families initialise routers with 0 and norms with 1: selections would tie, and
            # norms would cancel.
            if name.endswith("gate.weight"):
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.set_experts_implementation("eager")
    return model.eval()
