"""Sizes from a config.json, against the parameters that transformers itself makes, without memory.

A configuration is the default of its architecture, with few layers. Where a key is seldom given,
it is here: biases, leading layers, shared experts, other words for one thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.machine.config_parts import PARTS_OF
from sim.machine.model_config import model_from_config, read_config

BIASED = {"attention_bias": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {"num_hidden_layers": 5, "num_dense_layers": 2} | BIASED,
    "aria_text": {"num_hidden_layers": 2},
    "axk1": {"num_hidden_layers": 4, "first_k_dense_replace": 2} | BIASED,
    "beam": {"num_hidden_layers": 6} | BIASED,
    "cohere2_moe": {
        "num_hidden_layers": 6,
        "first_k_dense_replace": 2,
        "num_shared_experts": 2,
        "prefix_dense_intermediate_size": 100,
    },
    "deepseek_v2": {"num_hidden_layers": 3, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    "deepseek_v3": {"num_hidden_layers": 4} | BIASED,
    "dots1": {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
    }
    | BIASED,
    "ernie4_5_moe": {"num_hidden_layers": 3, "moe_layer_end_index": 2},
    "exaone_moe": {"num_hidden_layers": 4, "num_shared_experts": 2},
    "flex_olmo": {"num_hidden_layers": 2},
    "flint": {"num_hidden_layers": 5},
    "glm4_moe": {"num_hidden_layers": 3, "head_dim": 128, "use_qk_norm": True} | BIASED,
    "glm4_moe_lite": {"num_hidden_layers": 3} | BIASED,
    "glm4v_moe_text": {"num_hidden_layers": 3, "head_dim": 128},
    "gpt_oss": {"num_hidden_layers": 2},
    "granitemoe": {"num_hidden_layers": 2},
    "granitemoe_swa": {"num_hidden_layers": 4, "shared_intermediate_size": 300} | BIASED,
    "granitemoeshared": {"num_hidden_layers": 2, "shared_intermediate_size": 300} | BIASED,
    "hunyuan_v1_moe": {"num_hidden_layers": 2, "head_dim": 128, "num_experts": 8, "moe_topk": 2}
    | BIASED,
    "hy_v3": {"num_hidden_layers": 3} | BIASED,
    "kolibri1": {"num_hidden_layers": 5},
    "laguna": {"num_hidden_layers": 3, "gating": "per-element"} | BIASED,
    "llama4_text": {"num_hidden_layers": 4, "interleave_moe_layer_step": 2} | BIASED,
    "mellum": {"num_hidden_layers": 2} | BIASED,
    "minimax_m2": {"num_hidden_layers": 2},
    "mistral4": {"num_hidden_layers": 3, "first_k_dense_replace": 1} | BIASED,
    "mixtral": {"num_hidden_layers": 2},
    "nllb-moe": {"encoder_layers": 8, "decoder_layers": 8, "num_experts": 8, "router_bias": True},
    "olmoe": {"num_hidden_layers": 2} | BIASED,
    "phimoe": {"num_hidden_layers": 2, "lm_head_bias": True} | BIASED,
    "qwen2_moe": {"num_hidden_layers": 3, "mlp_only_layers": [0]},
    "qwen3_moe": {"num_hidden_layers": 4, "decoder_sparse_step": 2} | BIASED,
    "qwen3_vl_moe_text": {"num_hidden_layers": 3, "tie_word_embeddings": True},
    "solar_open": {"num_hidden_layers": 2} | BIASED,
    "switch_transformers": {
        "num_sparse_encoder_layers": 6,
        "num_sparse_decoder_layers": 6,
        "router_bias": True,
        "feed_forward_proj": "gated-gelu",
    },
}
"""What differs from the defaults of each architecture."""
HEADLESS = ("glm4v_moe_text", "qwen3_vl_moe_text")
"""Parts of models of sight, whose LM head transformers makes in the whole only."""


def test_every_architecture_that_is_read_is_made_but_for_older_names() -> None:
    assert set(PARTS_OF) - set(FAMILIES) == {"deepseek", "hunyuan", "kimi_k2"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_transformers_makes_is_counted(family: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if family not in mapping:
        pytest.skip(f"transformers {transformers.__version__} does not have {family}")
    config = mapping[family](**FAMILIES[family])
    config.save_pretrained(tmp_path)
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    elif family == "mistral4":  # the only way to its LM head
        auto = transformers.AutoModelForImageTextToText
    elif family in HEADLESS:
        auto = transformers.AutoModel
    with torch.device("meta"):
        whole = auto.from_config(config)
    stored = whole.state_dict()
    made = sum(tensor.numel() for tensor in whole.parameters()) + sum(
        tensor.numel() for key, tensor in whole.named_buffers() if key in stored
    )
    model = model_from_config(read_config(tmp_path / "config.json"), "made", "transformers")
    head = model.head_params if family in HEADLESS and not model.tied_embeddings else 0
    assert model.total_params == made + head
