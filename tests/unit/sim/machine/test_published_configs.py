"""Published models, by the keys of their own ``config.json``, against their published totals.

Each dict has the keys that give sizes as the publisher's file on Hugging Face has them, and such
other keys of that file as no other family has. A published total is rounded, as in a model's name.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.machine.model_config import model_from_config

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
GLM = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "head_dim": 128,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}
"""What GLM-4.5 and GLM-4.5-Air have in common."""
PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "MiniMax-M2": (
        {
            "model_type": "minimax_m2",
            "attn_type_list": [1] * 62,
            "head_dim": 128,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "layernorm_full_attention_beta": 1.0,
            "layernorm_linear_attention_beta": 1.0,
            "layernorm_mlp_beta": 1.0,
            "mlp_intermediate_size": 8192,
            "mtp_transformer_layers": 1,
            "num_attention_heads": 48,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 62,
            "num_key_value_heads": 8,
            "num_local_experts": 256,
            "num_mtp_modules": 3,
            "qk_norm_type": "per_layer",
            "rotary_dim": 64,
            "scoring_func": "sigmoid",
            "shared_intermediate_size": 0,
            "shared_moe_mode": "sigmoid",
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_mtp": True,
            "use_qk_norm": True,
            "use_routing_bias": True,
            "vocab_size": 200064,
        }
        | FP8,
        230e9,
        10e9,
    ),
    "GLM-4.5": (
        GLM
        | {
            "first_k_dense_replace": 3,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_hidden_layers": 92,
            "use_qk_norm": True,
        },
        355e9,
        32e9,
    ),
    "GLM-4.5-Air": (
        GLM
        | {
            "first_k_dense_replace": 1,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "num_hidden_layers": 46,
            "use_qk_norm": False,
        },
        106e9,
        12e9,
    ),
    "Kimi-K2": (
        {
            "model_type": "kimi_k2",
            "attention_bias": False,
            "aux_loss_alpha": 0.001,
            "ep_size": 1,
            "first_k_dense_replace": 1,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 64,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "tie_word_embeddings": False,
            "topk_method": "noaux_tc",
            "v_head_dim": 128,
            "vocab_size": 163840,
        }
        | FP8,
        1.04e12,
        32e9,
    ),
    "dots.llm1": (
        {
            "model_type": "dots1",
            "attention_bias": False,
            "first_k_dense_replace": 1,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "max_window_layers": 62,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "n_shared_experts": 2,
            "num_attention_heads": 32,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 62,
            "num_key_value_heads": 32,
            "scoring_func": "noaux_tc",
            "sliding_window": None,
            "tie_word_embeddings": False,
            "vocab_size": 152064,
        },
        142e9,
        14e9,
    ),
    "Hunyuan-A13B": (
        {
            "model_type": "hunyuan_v1_moe",
            "attention_bias": False,
            "attention_head_dim": 128,
            "cla_share_factor": 2,
            "hidden_size": 4096,
            "intermediate_size": 3072,
            "kv_lora_rank": None,
            "mlp_bias": False,
            "moe_intermediate_size": [3072] * 32,
            "moe_layer_num_skipped": 0,
            "moe_topk": [8] * 32,
            "norm_type": "rms",
            "num_attention_heads": 32,
            "num_experts": 64,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_shared_expert": [1] * 32,
            "tie_word_embeddings": True,
            "use_cla": False,
            "use_mixed_mlp_moe": True,
            "use_qk_norm": True,
            "vit_type": None,
            "vocab_size": 128167,
        },
        80e9,
        13e9,
    ),
    "Llama-4-Maverick": (
        {
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "for_llm_compressor": False,
            "head_dim": 128,
            "hidden_size": 5120,
            "interleave_moe_layer_step": 2,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 1048576,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "tie_word_embeddings": False,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
        400e9,
        17e9,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_gives_the_published_totals(name: str) -> None:
    """Within 2 % in all: a name is rounded, and some count layers that predict several tokens.

    Of one token within a billion, with the LM head, and without the embedding, of which it reads a
    row.
    """
    config, total, active = PUBLISHED[name]
    model = model_from_config(config, "published", name)
    embedding = 0 if model.tied_embeddings else model.head_params
    assert abs(model.total_params - total) < 0.02 * total
    assert abs(model.active_params - embedding - active) < 1e9
    assert model.stored == ("fp8" if "quantization_config" in config else "fp16")


def test_what_a_published_configuration_says_of_its_layers_is_read() -> None:
    maverick = model_from_config(PUBLISHED["Llama-4-Maverick"][0], "maverick", "")
    assert (maverick.sites, maverick.dense_layers_per_site, maverick.windows) == (
        24,
        1,
        (8192, 8192, 8192, 0),
    )
    glm = model_from_config(PUBLISHED["GLM-4.5"][0], "glm", "")
    assert (glm.sites, glm.leading_dense_layers, glm.windows) == (89, 3, ())
    # 14,336 biases of queries, keys and values, 256 of two norms: in all layers, those three too.
    assert (glm.other_layer_params, glm.other_site_params) == (14_336 + 256, 160)
    hunyuan = model_from_config(PUBLISHED["Hunyuan-A13B"][0], "hunyuan", "")
    assert (hunyuan.top_k, hunyuan.shared_intermediate) == (8, 3072)
