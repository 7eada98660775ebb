"""What of a config.json is not modelled is refused in words, and an architecture that nobody compared."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sim.machine.config_parts import PARTS_OF
from sim.machine.model_config import ConfigError, model_from_config
from sim.values.places import ROOT

SMALL = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 10,
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # Qwen3-Next, Kimi-Linear, MiniMax-M1; Granite 4, Nemotron 3; LFM2; Zaya.
        (
            {"model_type": "qwen3_next", "linear_num_key_heads": 16, "linear_conv_kernel_dim": 4},
            "layers of linear attention keep a state of a fixed size, which is not modelled"
            " (linear_conv_kernel_dim=4)",
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


def test_the_documentation_has_all_architectures_that_are_read() -> None:
    text = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    listed = text.split("| read, by `model_type` | ")[1].split("\n")[0]
    assert re.findall(r"`([^`]+)`", listed) == sorted(PARTS_OF)
