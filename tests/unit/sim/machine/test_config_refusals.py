"""What a config.json has that is not modelled, nobody knows or cannot be is refused, with the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sim.machine.config_parts import PARTS_OF
from sim.machine.config_values import ConfigError
from sim.machine.model_config import model_from_config
from sim.values.places import ROOT
from unit.sim.machine.test_config_sizes import SIDES, SMALL


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # Qwen3-Next, Kimi-Linear, MiniMax-M1; Granite 4, Nemotron 3; LFM2; Zaya.
        (
            {"model_type": "qwen3_next", "linear_num_key_heads": 16, "linear_conv_kernel_dim": 4},
            "layers of linear attention keep a state of a fixed size, which is not modelled"
            " (linear_conv_kernel_dim=4)",
        ),
        (
            {"mamba_ssm_dtype": "float32", "linear_conv_kernel_dim": 4},  # Qwen3.5
            "layers of linear attention keep a state of a fixed size",
        ),
        ({"linear_attn_config": {"kda_layers": [1]}}, "layers of linear attention keep a state"),
        (
            {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1]},
            "layers of linear attention keep a state of a fixed size, which is not modelled"
            " (attn_type_list has 0)",
        ),
        ({"model_type": "minimax"}, "layers of linear attention keep a state of a fixed size"),
        (
            {"mamba_expand": 2, "conv_kernel": 4},
            "layers of Mamba keep a state of a fixed size, which is not modelled (mamba_expand=2)",
        ),
        (
            {"layer_types": ["full_attention", "mamba", "mamba", "mamba"]},
            "layers of Mamba keep a state of a fixed size, which is not modelled (layer_types has"
            " mamba)",
        ),
        (
            {"conv_L_cache": 3},
            "layers of convolutions keep their last inputs, which is not modelled (conv_L_cache=3)",
        ),
        ({"cca_time0": 2}, "layers of convolutions keep their last inputs, which is not modelled"),
        # DeepSeek-V3.2 and GLM-5; DeepSeek-V4; MiMo-V2-Flash, Gemma 4; those by their type.
        (
            {"index_topk": 2048, "index_n_heads": 64},
            "attention that picks its tokens, and the keys by which it does, are not modelled"
            " (index_n_heads=64)",
        ),
        (
            {"hc_mult": 4, "index_topk": 512},
            "hidden states of several streams (hyper-connections) are not modelled (hc_mult=4)",
        ),
        (
            {"swa_num_key_value_heads": 8},
            "heads that are more or wider in some layers than in others are not modelled",
        ),
        ({"global_head_dim": 512}, "heads that are more or wider in some layers than in others"),
        (
            {"model_type": "longcat_flash"},
            "experts that run beside the layer's second attention are not modelled"
            " (model_type=longcat_flash)",
        ),
        ({"model_type": "jetmoe"}, "attention whose heads are chosen like experts is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_in_words(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^small: {re.escape(reason)}"):
        model_from_config(SMALL | changes, "small", "a test")


def test_a_key_that_turns_it_off_is_no_reason() -> None:
    """Such keys are known then to have no layers; they are refused as those that nobody knows."""
    with pytest.raises(ConfigError, match="nobody knows whether these keys change sizes: conv_"):
        model_from_config(SMALL | {"conv_bias": False}, "small", "a test")
    model_from_config(SMALL | {"linear_attn_config": None}, "small", "a test")


@pytest.mark.parametrize(
    "key", ["layer_types", "mlp_only_layers", "moe_layers", "attn_type_list", "no_rope_layers"]
)
@pytest.mark.parametrize("value", [3, "full_attention", [[1]]])
def test_what_is_no_list_of_layers_is_refused_with_its_value(key: str, value: object) -> None:
    """It ended in a traceback."""
    config = SMALL | {"model_type": "llama4_text", key: value}
    with pytest.raises(ConfigError, match=rf"^{key}={re.escape(str(value))} must be a list of"):
        model_from_config(config, "small", "a test")


@pytest.mark.parametrize("kind", ["a_new_one", None, ["x"]])
def test_an_architecture_that_nobody_compared_is_refused(kind: object) -> None:
    """It was read without its norms, biases and whatever else no key tells of."""
    with pytest.raises(ConfigError, match=f"^small: model_type={re.escape(repr(kind))} is"):
        model_from_config(SMALL | {"model_type": kind}, "small", "a test")


def test_an_architecture_is_refused_before_its_keys() -> None:
    """Whoever took out the keys that were told first learned only then that it was for nothing."""
    with pytest.raises(ConfigError, match=r"^small: model_type='bailing_moe' is none whose"):
        model_from_config(SMALL | {"model_type": "bailing_moe", "norm_head": False}, "small", "")


def test_a_model_without_experts_is_told_so() -> None:
    """It was sent to look for an architecture whose layers are alike."""
    dense = {key: value for key, value in SMALL.items() if "expert" not in key}
    with pytest.raises(ConfigError, match=r"^small: model_type='llama' has no experts"):
        model_from_config(dense | {"model_type": "llama"}, "small", "a test")
    # DBRX says of its experts elsewhere.
    dbrx = {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}
    with pytest.raises(ConfigError, match=r"^small: model_type='dbrx' is none whose"):
        model_from_config(dense | dbrx, "small", "a test")


def test_the_documentation_has_all_architectures_that_are_read() -> None:
    text = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    listed = text.split("| read, by `model_type` | ")[1].split("\n")[0]
    assert re.findall(r"`([^`]+)`", listed) == sorted(PARTS_OF)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"b": [1] * 40, "a": 1, "c": None},
            f"nobody knows whether these keys change sizes: a=1, b={str([1] * 40)[:60]}; take",
        ),
        ({"layer_types": ["x", "full_attention", "m"]}, "layer_types has m, x; only"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types has 5 entries for 6 layers"),
        (
            {"sliding_window": 7, "layer_types": [*["sliding_attention"] * 5, "full_attention"]},
            "small: layer_types names full_attention, sliding_attention, but the code of"
            " model_type=mixtral reads no such list, and gives all its layers sliding_attention;",
        ),
        (
            {"model_type": "llama4_text", "no_rope_layers": [1] * 5},
            "small: no_rope_layers has 5 entries for 6 layers",
        ),
        ({"mlp_layer_types": ["dense"] * 5}, "small: mlp_layer_types has 5 entries for 6 layers"),
        (
            {"mlp_layer_types": ["dense", *["x"] * 5]},
            "small: mlp_layer_types has x; nobody knows these",
        ),
        (
            {"mlp_layer_types": ["dense", *["sparse"] * 5], "mlp_only_layers": [0, 1]},
            "small: mlp_layer_types and mlp_only_layers name one thing (layers without experts)",
        ),
        (
            {"moe_topk": [2, 2, 2, 1, 1, 1]},
            "moe_topk=[2, 2, 2, 1, 1, 1] differs by layer; it must be one size",
        ),
        ({"mlp_bias": True}, "small: mlp_bias has true; only with false are the sizes known"),
        ({"use_cla": True}, "small: use_cla has true; only with false are the sizes known"),
        (
            {"qk_norm_type": "per_head"},
            'small: qk_norm_type has "per_head"; only with "per_layer" are the sizes known',
        ),
        (
            {"model_type": "laguna", "gating": "per-layer"},
            'gating="per-layer" of model_type=laguna is not known; known: true, "per-head",',
        ),
        (
            {"model_type": "flint", "sliding_window": None},
            "its layers have sliding_attention, and sliding_window is not given",
        ),
        (
            {"model_type": "solar_open", "layer_types": ["chunked_attention"] * 6},
            "names chunked_attention, but the code of model_type=solar_open reads no such list, and"
            " gives all its layers full_attention; take layer_types out of a copy of the file",
        ),
        (
            {"n_shared_experts": 1, "num_shared_experts": 2},
            "small: {'n_shared_experts': 1, 'num_shared_experts': 2} name one thing and differ",
        ),
        ({"hidden_size": True}, "hidden_size=True must be a whole number of 0 to 1,073,741,824"),
        ({"hidden_size": 8.0}, "hidden_size=8.0 must be a whole number of 0 to 1,073,741,824"),
        ({"hidden_size": 1 << 31}, "hidden_size=2147483648 must be a whole number of 0 to 1,073"),
        ({"num_hidden_layers": 10_001}, "small: 10001 layers, and at most 10,000 are read"),
        (
            {"hidden_size": 0},
            "small: none of hidden_size, d_model is given (this is the model's hidden)",
        ),
        ({"moe_layer_end_index": 6}, "small: moe_layer_end_index=6 leaves layers"),
        (
            {"mlp_only_layers": [*range(1, 11)], "num_hidden_layers": 12},
            "small: layers [1, 2, 3, 4, 5, 6, 7, 8] of 12 have no experts; only the first",
        ),
        (
            {"mlp_only_layers": [0], "first_k_dense_replace": 2},
            "small: first_k_dense_replace and mlp_only_layers name one thing (layers without",
        ),
        (
            {"moe_layer_freq": 2, "first_k_dense_replace": 2},  # the first of every two has some
            "small: layers [0, 1, 3, 5] of 6 have no experts; only the first ones may lack",
        ),
        (
            {"moe_layer_interval": 4},
            "small: layers [0, 1, 2, 4, 5] of 6 have no experts; only the first ones may lack",
        ),
        (
            {"mlp_only_layers": [*range(6)]},
            "small: layers [0, 1, 2, 3, 4, 5] of 6 have no experts; only the first ones may lack",
        ),
        (
            SIDES | {"encoder_sparse_step": 4, "num_sparse_decoder_layers": 3},
            "small: 1 of 6 encoder layers have experts, one in 4: these do not go together",
        ),
        ({"num_experts_per_tok": 5}, "small: model.top_k=5 exceeds model.experts=4"),
    ],
)
def test_what_gives_no_sizes_is_refused_with_what_was_found(
    changes: dict[str, Any], message: str
) -> None:
    config = {key: value for key, value in (SMALL | changes).items() if value != "absent"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        model_from_config(config, "small", "a test")
