"""A tiny random model of each MoE architecture that transformers can build from a configuration.

`ARCHITECTURES` are the model types; `AVAILABLE` leaves out those that the installed version does
not know. Routers get enough spread, and selection biases other than zero, so that no selection is a
tie and no rule trivial.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, HIDDEN, EXPERTS, TOP_K = 160, 64, 8, 2
LAYERS = 3

# Settings that most configurations have under the same name; unknown names are left out.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "shared_intermediate_size": 40,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
    "router_jitter_noise": 0.0,
}
GROUPED = {
    "n_routed_experts": 16,
    "num_experts": 16,
    "num_local_experts": 16,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 4,
    "head_dim": None,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 4,
}
LATENT = {"num_key_value_heads": 4, "head_dim": None}
SPARSE = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
# By model type, the settings that differ from COMMON; None leaves a common key out.
OWN: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "phimoe": {"router_jitter_noise": 0.01},
    "olmoe": {},
    "flex_olmo": {},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen3_next": LINEAR,
    "deepseek_v2": {**GROUPED, "topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0},
    "deepseek_v3": GROUPED,
    "deepseek_v32": {
        **GROUPED,
        **SPARSE,
        "index_topk": 8,
        "index_head_dim": 16,
        "index_n_heads": 2,
    },
    "deepseek_v4": {
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_topk": 4,
        "index_head_dim": 16,
        "index_n_heads": 2,
    },
    "gpt_oss": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granitemoe_swa": {},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 8,
        "layer_types": ["mamba", "attention", "mamba"],
    },
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "ernie4_5_moe": {
        "moe_num_experts": EXPERTS,
        "moe_k": TOP_K,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "num_experts": None,
        "num_experts_per_tok": None,
    },
    "glm4_moe": {},
    "glm4_moe_lite": {**LATENT, **SPARSE},
    "llama4_text": {
        "intermediate_size_mlp": 48,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "num_hidden_layers": 4,
    },
    "minimax": {"num_hidden_layers": 4},
    "minimax_m2": {},
    "hunyuan_v1_moe": {"moe_topk": TOP_K},
    "dots1": {},
    "exaone_moe": SPARSE,
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "longcat_flash": {
        "num_layers": 2,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 32,
        "zero_expert_num": 4,
        "moe_topk": 3,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_hidden_layers": None,
    },
    "nemotron_h": {
        "num_hidden_layers": None,
        "layers_block_type": ["mamba", "moe", "attention", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
        "moe_latent_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"kv_channels": 16, "num_attention_heads": None},
    "aria_text": {"moe_num_experts": EXPERTS, "moe_topk": TOP_K, "moe_num_shared_experts": 1},
    "afmoe": {"num_dense_layers": 1},
    "gemma4_text": {
        "enable_moe_block": True,
        "top_k_experts": TOP_K,
        "hidden_size_per_layer_input": 0,
        "num_hidden_layers": 6,
        "global_head_dim": 16,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "zaya": {"router_hidden_size": 32, "num_experts_per_tok": 1, "num_hidden_layers": 4},
    "cohere2_moe": {"num_hidden_layers": 4},
    "mimo_v2_flash": {},
    "kimi_linear": {
        **LATENT,
        "num_hidden_layers": 4,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "num_experts_per_token": TOP_K,
        "num_experts_per_tok": None,
        "num_expert_group": 1,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    "hy_v3": {},
    "laguna": {},
    "mellum": {},
    "solar_open": {},
    "mistral4": LATENT,
    "axk1": LATENT,
    "qwen3_5_moe_text": LINEAR,
    "qwen3_vl_moe_text": {},
    "deepseek_ocr2_text": {"n_shared_experts": 2, "num_key_value_heads": 4, **SPARSE},
    "axk2": LATENT,
    "bailing_hybrid": {**LATENT, "num_hidden_layers": 8},
    "dots3_note_text": {"num_key_value_heads": 4},
    "glm4v_moe_text": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
        }
    },
    "glm_moe_dsa": {
        **LATENT,
        **SPARSE,
        "index_topk": 8,
        "index_head_dim": 16,
        "index_n_heads": 2,
    },
    "hy_v4": {},
    "kolibri1": {},
    "lara_mini": {},
    "minimax_m3_vl_text": {},
    "mistral_large4_text": LATENT,
    "muse_spark_text": {},
    "sarvam_mla": LATENT,
    "sarvam_moe": {},
}
WHOLE: dict[str, dict[str, Any]] = {
    "dbrx": {
        "d_model": HIDDEN,
        "n_heads": 4,
        "n_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_seq_len": 512,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "pad_token_id": 0,
        "eos_token_id": 2,
        "ffn_config": {
            "ffn_hidden_size": 32,
            "moe_num_experts": EXPERTS,
            "moe_top_k": TOP_K,
            "moe_jitter_eps": 0.0,
            "hidden_size": HIDDEN,
        },
        "initializer_range": 0.2,
    },
    "switch_transformers": {
        "vocab_size": VOCABULARY,
        "d_model": HIDDEN,
        "d_kv": 16,
        "d_ff": 48,
        "num_layers": 4,
        "num_decoder_layers": 4,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 2,
        "num_heads": 4,
        "num_experts": EXPERTS,
        "expert_capacity": 3,
        "router_jitter_noise": 0.01,
        "initializer_factor": 3.0,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    "nllb-moe": {
        "vocab_size": VOCABULARY,
        "d_model": HIDDEN,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "num_experts": EXPERTS,
        "expert_capacity": 16,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 2,
        "init_std": 1.0,
        "max_position_embeddings": 256,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    },
}
ARCHITECTURES = [*OWN, *WHOLE]
ENCODER_DECODER = ("switch_transformers", "nllb-moe")


def _config_class(name: str) -> Any:
    if name == "deepseek_ocr2_text":
        from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import (
            DeepseekOcr2TextConfig,
        )

        return DeepseekOcr2TextConfig
    return CONFIG_MAPPING[name]


def is_available(name: str) -> bool:
    """Whether the installed transformers knows this model type."""
    try:
        _config_class(name)
    except (KeyError, ImportError):
        return False
    return True


AVAILABLE = [name for name in ARCHITECTURES if is_available(name)]


def config_of(name: str) -> Any:
    config = _config_class(name)
    if name in WHOLE:
        return config(**WHOLE[name])
    known = set(inspect.signature(config.__init__).parameters) | set(
        getattr(config, "__dataclass_fields__", {})
    )
    known |= set(config.attribute_map)
    given = {key: value for key, value in COMMON.items() if key in known} | OWN[name]
    return config(**{key: value for key, value in given.items() if value is not None})


def tiny(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of architecture ``name`` in evaluation mode; the same weights at each call."""
    torch.manual_seed(0)
    config = config_of(name)
    if name in ENCODER_DECODER:
        model: Any = AutoModelForSeq2SeqLM.from_config(config)
    elif name == "deepseek_ocr2_text":
        from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

        model = DeepseekOcr2TextModel(config)
    else:
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = AutoModel.from_config(config)
    spread(model)
    return model.to(dtype).eval()


@torch.no_grad()
def spread(model: nn.Module) -> None:
    """Give routers and selection biases values that make selections differ.

    Routers that start at zero get weights that tell tokens apart, and biases get values that change
    selections.
    """
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        # The padding token's embedding is zero. If the model generated it, all experts would tie.
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].normal_(0, 0.2, generator=generator)
    biases = ("e_score_correction_bias", "expert_bias", "moe_statics", "balancing_biases")
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if any(bias in name for bias in biases) and values.is_floating_point():
            values.copy_(torch.rand(values.shape, generator=generator) * 0.3 - 0.15)
        elif name.endswith("tid2eid"):
            rows = [
                torch.randperm(EXPERTS, generator=generator)[: values.shape[1]]
                for _ in range(len(values))
            ]
            values.copy_(torch.stack(rows))
        elif (
            ("gate." in name or "router." in name)
            and values.dim() == 2
            and values.float().std() < 1e-6
        ):
            values.copy_(torch.randn(values.shape, generator=generator) * 0.2)
