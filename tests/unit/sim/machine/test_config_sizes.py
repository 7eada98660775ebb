"""Every size that a transformers config.json gives, worked out by hand for one small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.machine.attention import LatentAttention
from sim.machine.model import Model
from sim.machine.model_config import config_text, model_from_config

SMALL: dict[str, Any] = {
    "model_type": "mixtral",
    "num_hidden_layers": 6,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 3,
    "vocab_size": 10,
}
"""All projections of queries, keys and values have (4 + 2 x 2) x 3 = 24 outputs; the norms of all
queries and keys (4 + 2) x 3 = 18.
"""
SIDES = {"is_encoder_decoder": True, "num_decoder_layers": 6, "num_hidden_layers": 6}
SPARSE = {"num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3}


def read(**changes: Any) -> Model:
    config = {key: value for key, value in (SMALL | changes).items() if value != "absent"}
    return model_from_config(config, "small", "a test")


def test_a_plain_configuration_gives_every_size() -> None:
    assert vars(read()) == vars(
        Model(
            name="small",
            sites=6,
            experts=4,
            top_k=2,
            hidden=8,
            expert_intermediate=16,
            heads=4,
            kv_heads=2,
            head_dim=3,
            vocab=10,
            source="a test",
        )
    )


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"num_key_value_heads": "absent"}, {"kv_heads": 4}),
        ({"head_dim": "absent"}, {"head_dim": 2}),
        ({"head_dim": "absent", "d_kv": 5}, {"head_dim": 5}),
        ({"moe_intermediate_size": 6}, {"expert_intermediate": 6, "dense_intermediate": 0}),
        ({"tie_word_embeddings": True}, {"tied_embeddings": True}),
        # The shared experts: a width of their own, or so many of an expert's.
        ({"n_shared_experts": 3}, {"shared_intermediate": 48}),
        (
            {"moe_num_shared_experts": 2, "moe_intermediate_size": 6},
            {"shared_intermediate": 12, "expert_intermediate": 6},
        ),
        (
            {"n_shared_experts": 3, "shared_expert_intermediate_size": 7},
            {"shared_intermediate": 7},
        ),
        # A gate of the shared expert. Biases: of queries, keys and values 24, of the output 8.
        ({"model_type": "qwen2_moe"}, {"other_layer_params": 24, "other_site_params": 8}),
        (
            {"model_type": "qwen2_moe", "qkv_bias": False},
            {"other_layer_params": 0, "other_site_params": 8},
        ),
        ({"qkv_bias": True}, {"other_layer_params": 24}),
        ({"attention_bias": True}, {"other_layer_params": 32}),
        ({"router_bias": True}, {"other_site_params": 4}),
        # Shared experts by other words; one that no key names.
        ({"num_shared_experts": 3}, {"shared_intermediate": 48}),
        ({"shared_intermediate_size": 7}, {"shared_intermediate": 7}),
        (
            {"model_type": "llama4_text", "use_qk_norm": True, "attention_chunk_size": 9},
            {"shared_intermediate": 16, "windows": (9, 9, 9, 0)},
        ),
        (
            {"model_type": "hunyuan", "num_shared_expert": [2] * 6, "use_cla": False}
            | {"moe_intermediate_size": 6},
            {"expert_intermediate": 6, "shared_intermediate": 32, "other_layer_params": 6},
        ),
        # Gates of attention: of each of 4 x 3 outputs for 8 inputs, or one of each head.
        (
            {"model_type": "afmoe", "global_attn_every_n_layers": 3, "sliding_window": 7},
            {
                "other_layer_params": 6 + 96 + 16,
                "other_site_params": 4,
                "windows": (7, 7, 0),
            },
        ),
        (
            {"model_type": "laguna", "gating": "per-element"},
            {"other_layer_params": 6 + 96, "other_site_params": 4},
        ),
        ({"model_type": "laguna"}, {"other_layer_params": 6 + 32, "other_site_params": 4}),
        (
            {"model_type": "laguna", "gating": "per-head"},
            {"other_layer_params": 6 + 32, "other_site_params": 4},
        ),
        (
            {"model_type": "beam", "sliding_window": 7},
            {
                "windows": (7, 7, 7, 7, 7, 0),
                "other_layer_params": 6 + 96 + 4 + 16,
                "other_site_params": 4,
            },
        ),
        (
            {"model_type": "cohere2_moe", "sliding_window_pattern": 1},
            {"other_layer_params": -8, "tied_embeddings": True},
        ),
        (
            {"model_type": "cohere2_moe", "tie_word_embeddings": False, "sliding_window": 7},
            {"other_layer_params": -8, "windows": (7, 7, 7, 0)},
        ),
        ({"model_type": "axk1"}, {"other_site_params": 4 + 8}),
        # A size once for each layer.
        ({"moe_intermediate_size": [6] * 6}, {"expert_intermediate": 6}),
        ({"num_attention_heads_per_layer": [4] * 6}, {}),
        # A norm of one head's queries, and one of its keys.
        ({"model_type": "qwen3_moe"}, {"other_layer_params": 6}),
        ({"use_qk_norm": True}, {}),
        ({"model_type": "olmoe"}, {"other_layer_params": 18}),
        ({"model_type": "flex_olmo"}, {"other_layer_params": 18}),
        (
            {"model_type": "flint"},
            {"other_layer_params": 10, "windows": (0, 0, 513, 513, 513)},
        ),  # and a sink of each head
        # A correction of the gate for each expert.
        ({"model_type": "deepseek_v3"}, {"other_site_params": 4}),
        ({"model_type": "glm4_moe"}, {"other_site_params": 4}),
        (
            {"model_type": "glm4_moe", "use_qk_norm": True, "attention_bias": True},
            {"other_layer_params": 6 + 24, "other_site_params": 4},  # the output has no bias
        ),
        (
            {"model_type": "minimax_m2", "use_qk_norm": True},
            {"other_layer_params": 18, "other_site_params": 4},
        ),
        ({"model_type": "ernie4_5_moe"}, {"other_site_params": 4}),
        # Biases of two norms; of the last norm; of the vocabulary's matrix.
        ({"model_type": "phimoe"}, {"other_layer_params": 16, "other_params": 8}),
        (
            {"model_type": "phimoe", "lm_head_bias": True},
            {"other_layer_params": 16, "other_params": 18},
        ),
        # 32 biases of attention and 4 sinks, 4 biases of the router; an expert's 2 x 16 + 8.
        (
            {"model_type": "gpt_oss", "sliding_window": 7},
            {
                "other_layer_params": 36,
                "other_site_params": 4,
                "expert_biases": 40,
                "windows": (7, 0),
            },
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": 7, "attention_bias": False},
            {
                "other_layer_params": 4,
                "other_site_params": 4,
                "expert_biases": 40,
                "windows": (7, 0),
            },
        ),
        # Windows: where layers say so, by the shortest pattern; else of all, or as the kind has it.
        ({"sliding_window": 7}, {"windows": (7,)}),
        ({"sliding_window": 7, "use_sliding_window": False}, {"windows": (7,)}),
        ({"sliding_window": 7, "model_type": "granitemoe"}, {}),
        ({"sliding_window": 7, "model_type": "solar_open"}, {"other_site_params": 4}),
        ({"sliding_window": 7, "model_type": "qwen3_moe"}, {"other_layer_params": 6}),
        (
            {"sliding_window": 7, "model_type": "qwen3_moe", "use_sliding_window": True},
            {"other_layer_params": 6, "windows": (7,)},
        ),
        ({"sliding_window": 7, "max_position_embeddings": 8}, {"windows": (7,)}),
        ({"sliding_window": 7, "max_position_embeddings": 7}, {}),
        ({"layer_types": ["full_attention"] * 6}, {}),
        (
            {
                "model_type": "flint",
                "sliding_window": 7,
                "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
            },
            {"windows": (7, 7, 0), "other_layer_params": 10},
        ),
        (
            {"sliding_window": 7, "model_type": "flint"}
            | {"layer_types": ["full_attention", *["sliding_attention"] * 5]},
            {"windows": (0, 7, 7, 7, 7, 7), "other_layer_params": 10},
        ),
        (
            {
                "model_type": "llama4_text",
                "attention_chunk_size": 9,
                "layer_types": [
                    "chunked_attention" if n != 3 else "full_attention" for n in range(6)
                ],
            },
            {"windows": (9, 9, 9, 0), "shared_intermediate": 16},
        ),
        (
            {"sliding_window": 7, "model_type": "dots1", "max_window_layers": 4},
            {"windows": (0, 0, 0, 0, 7, 7), "other_layer_params": 6, "other_site_params": 4},
        ),
        (
            {"sliding_window": 7, "model_type": "dots1", "max_window_layers": 6},
            {"other_layer_params": 6, "other_site_params": 4},
        ),
        # Layers without experts.
        (
            {"first_k_dense_replace": 2, "moe_intermediate_size": 6},
            {
                "sites": 4,
                "leading_dense_layers": 2,
                "dense_intermediate": 16,
                "expert_intermediate": 6,
            },
        ),
        (
            {"moe_layer_start_index": 1, "moe_layer_end_index": 5},
            {"sites": 5, "leading_dense_layers": 1, "dense_intermediate": 16},
        ),
        ({"moe_layer_end_index": -1}, {}),
        ({"mlp_only_layers": []}, {}),
        (
            {"mlp_only_layers": [1, 0], "first_k_dense_replace": 2},
            {"sites": 4, "leading_dense_layers": 2, "dense_intermediate": 16},
        ),
        ({"moe_layer_freq": [1] * 6}, {}),
        (
            {"mlp_layer_types": ["dense", *["sparse"] * 5], "num_dense_layers": 1},
            {"sites": 5, "leading_dense_layers": 1, "dense_intermediate": 16},
        ),
        (
            {"is_moe_layer": [False, False, True] * 2, "intermediate_size_mlp": 5},
            {"sites": 2, "dense_layers_per_site": 2, "dense_intermediate": 5},
        ),
        (
            {"moe_layers": [1, 3, 5], "prefix_dense_intermediate_size": 5},
            {"sites": 3, "dense_layers_per_site": 1, "dense_intermediate": 5},
        ),
        (
            {"interleave_moe_layer_step": 2, "dense_intermediate_size": 5},
            {"sites": 3, "dense_layers_per_site": 1, "dense_intermediate": 5},
        ),
        (
            {"intermediate_size": "absent", "moe_intermediate_size": 16},
            {},
        ),
        ({"moe_layer_freq": 1}, {}),
        (
            {"moe_layer_freq": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 6},
            {
                "sites": 5,
                "leading_dense_layers": 1,
                "dense_intermediate": 16,
                "expert_intermediate": 6,
            },
        ),
        (
            {"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]},
            {
                "sites": 2,
                "leading_dense_layers": 2,
                "dense_layers_per_site": 1,
                "dense_intermediate": 16,
            },
        ),
        (
            {"moe_layer_interval": 2, "decoder_sparse_step": 1},
            {"sites": 3, "dense_layers_per_site": 1, "dense_intermediate": 16},
        ),
        ({"decoder_sparse_step": 0}, {}),
        # Two sides: half of six layers have experts on each; embeddings are one, unless told.
        (
            SIDES | SPARSE,
            {
                "sites": 6,
                "encoder_sites": 3,
                "dense_layers_per_site": 1,
                "dense_intermediate": 16,
                "expert_matrices": 2,
                "tied_embeddings": True,
            },
        ),
        (
            SIDES
            | {"num_decoder_layers": "absent", "decoder_layers": 6, "dense_act_fn": "relu"}
            | {"encoder_sparse_step": 1, "decoder_sparse_step": 1, "tie_word_embeddings": False},
            {"sites": 12, "encoder_sites": 6, "expert_matrices": 2},
        ),
        (
            SIDES
            | {"encoder_sparse_step": 1, "decoder_sparse_step": 1}
            | {"feed_forward_proj": "gated-gelu"},
            {"sites": 12, "encoder_sites": 6, "tied_embeddings": True, "expert_matrices": 2},
        ),
        # 32 buckets on each side, for each of four heads; or as many as are given.
        (
            SIDES | SPARSE | {"model_type": "switch_transformers"},
            {"top_k": 1, "other_params": 256},
        ),
        (
            SIDES
            | SPARSE
            | {"model_type": "switch_transformers", "relative_attention_num_buckets": 5},
            {"other_params": 40},
        ),
        # Hidden: 17 x 6 layers and 2 norms; six layers without experts have 16 + 8 more.
        (
            SIDES
            | SPARSE
            | {"model_type": "nllb-moe", "num_hidden_layers": "absent", "encoder_layers": 6},
            {"top_k": 2, "other_params": 8 * 104 + 6 * 24, "expert_biases": 24},
        ),
    ],
)
def test_what_a_key_adds_to_the_sizes(changes: dict[str, Any], sizes: dict[str, Any]) -> None:
    found, plain = vars(read(**changes)), vars(read())
    if "is_encoder_decoder" in changes:
        assert {key: found[key] for key in sizes} == sizes
    else:
        assert {key: value for key, value in found.items() if value != plain[key]} == {
            key: value for key, value in sizes.items() if value != plain[key]
        }


def test_compressed_attention_gives_its_widths_and_a_head_is_as_wide_as_its_queries() -> None:
    widths = {"kv_lora_rank": 5, "qk_rope_head_dim": 2, "qk_nope_head_dim": 7, "v_head_dim": 6}
    found = read(**widths)
    assert (found.latent, found.head_dim) == (LatentAttention(0, 5, 2, 7, 6), 9)
    assert read(**widths, q_lora_rank=4).latent == LatentAttention(4, 5, 2, 7, 6)
    assert read(kv_lora_rank=None, q_lora_rank=4).latent is None
    biased = read(**widths, q_lora_rank=4, attention_bias=True)
    assert biased.other_layer_params == 4 + (5 + 2) + 8, "of what is compressed, and of the output"


def test_the_file_of_a_model_has_what_is_not_as_usual() -> None:
    latent = LatentAttention(0, 5, 2, 7, 6)
    model = Model("small", 6, 4, 2, 8, 16, 4, 2, 9, 10, "a test", latent=latent, kv_bits=8.0)
    assert config_text(model, Path("some/config.json")).splitlines() == [
        "# small, from config.json by python -m sim.models.",
        "_target_: sim.machine.Model",
        'name: "small"',
        "sites: 6",
        "experts: 4",
        "top_k: 2",
        "hidden: 8",
        "expert_intermediate: 16",
        "heads: 4",
        "kv_heads: 2",
        "head_dim: 9",
        "vocab: 10",
        'source: "a test"',
        "latent:",
        "  _target_: sim.machine.LatentAttention",
        "  query_rank: 0",
        "  kv_rank: 5",
        "  rope_dim: 2",
        "  nope_dim: 7",
        "  value_dim: 6",
        "kv_bits: 8.0",
        "gates_of: null",
        "sizes_of: null",
    ]
