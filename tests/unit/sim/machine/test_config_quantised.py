"""A config.json whose quantization_config is one of compressed-tensors: bits of experts and of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from sim.machine.config_values import ConfigError
from sim.machine.model import Model
from sim.machine.model_config import model_from_config

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "hidden_size": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
}
"""Without the keys of compressed attention, so that its projections have 64, 32, 32 and 64
parameters: 192 in each of 3 layers. The shared expert of a layer has 384, the dense layer 768, the
LM head 80.
"""
ONLY_EXPERTS = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
]
"""As Kimi-K2-Thinking and its successors have it."""


def weights(**changes: Any) -> dict[str, Any]:
    usual = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    return usual | {"symmetric": True} | changes


def quantised(ignore: list[str], *groups: tuple[list[str], dict[str, Any]]) -> dict[str, Any]:
    told = groups or ((["Linear"], weights()),)
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "ignore": ignore,
            "config_groups": {
                f"group_{n}": {"targets": targets, "weights": of}
                for n, (targets, of) in enumerate(told)
            },
        }
    }


def read(part: dict[str, Any], **changes: Any) -> Model:
    return model_from_config(SMALL | part | changes, "small", "a test")


def test_experts_alone_have_fewer_bits_where_all_else_is_ignored() -> None:
    model = read(quantised(ONLY_EXPERTS))
    assert (model.stored, model.dense_bits) == ("int4_g32", 16)
    assert model.keeps("int4_g32")
    # 3 x 8 x 16 weights of half a byte, and a 16-bit scale for each 32.
    assert model.expert_bytes(model.stored) == 384 // 2 + 384 // 32 * 2


@pytest.mark.parametrize(
    ("ignore", "params"),
    [
        (["lm_head", "re:.*self_attn.*"], 2 * 384 + 768),
        (["lm_head", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj"], 3 * 192),
        (["lm_head"], 3 * 192 + 2 * 384 + 768),
        ([], 3 * 192 + 2 * 384 + 768 + 80),
        (["re:.*layers.0.*", "model.layers.2.self_attn.q_proj"], 2 * 192 - 64 + 2 * 384 + 80),
    ],
)
def test_the_bits_of_the_rest_are_those_of_what_is_not_ignored(
    ignore: list[str], params: int
) -> None:
    """Each such parameter has 4.5 bits in place of 16."""
    model = read(quantised(ignore))
    assert model.stored == "int4_g32"
    assert model.dense_bits == round(16 - params * 11.5 / model.dense_params, 2)


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        (weights(group_size=128), "int4_g128"),
        (weights(num_bits=8, strategy="channel", group_size=None), "int8"),
        (weights(num_bits=8, type="float", strategy="block", group_size=None), "fp8"),
        (weights(type="float", strategy="tensor_group", group_size=16), "nvfp4"),
        (weights(type="float", scale_dtype="torch.uint8"), "mxfp4"),
        (weights(scale_dtype="torch.bfloat16"), "int4_g32"),
    ],
)
def test_bits_kind_and_group_tell_the_precision(told: dict[str, Any], stored: str) -> None:
    assert read(quantised(ONLY_EXPERTS, (["Linear"], told))).stored == stored


def test_a_pattern_says_more_than_the_class_of_all_layers() -> None:
    groups = (
        (["Linear"], weights(num_bits=8, strategy="channel")),
        (["re:.*experts.[0-9]"], weights()),
    )
    model = read(quantised(["re:.*self_attn.*", "lm_head"], *groups))
    assert model.stored == "int4_g32"
    assert model.dense_bits == round(16 - (2 * 384 + 768) * 8 / model.dense_params, 2)


def test_experts_that_are_ignored_are_as_they_were() -> None:
    assert (
        read(quantised([r"re:.*mlp\.experts\..*", "lm_head", "re:.*self_attn.*"])).stored == "fp16"
    )
    assert read(quantised([], (["re:.*self_attn.*"], weights()))).stored == "fp16"


@pytest.mark.parametrize(
    ("kept", "params"),
    [
        ({}, 3 * 192 + 2 * 384 + 768),
        ({"modules_to_not_convert": ["lm_head", "gate"]}, 3 * 192 + 2 * 384 + 768),
        ({"modules_to_not_convert": ["model.layers.*.self_attn"]}, 2 * 384 + 768),
        ({"modules_to_not_convert": ["self_attn", "down_proj"]}, (2 * 384 + 768) * 2 // 3),
        ({"ignored_layers": ["model.layers.1.self_attn.q_proj"]}, 3 * 192 - 64 + 2 * 384 + 768),
    ],
)
def test_fp8_leaves_what_its_list_names(kept: dict[str, list[str]], params: int) -> None:
    """The list was not read: attention in 16 bits was counted in 8."""
    model = read({"quantization_config": {"quant_method": "fp8", **kept}})
    assert model.stored == "fp8"
    bits = 16 - params * (8 - 32 / 128**2) / model.dense_params
    assert model.dense_bits == round(bits, 2)


def test_experts_that_fp8_leaves_are_as_they_were() -> None:
    for name in ("experts", "model.layers.*.mlp.experts"):
        part = {"quant_method": "fp8", "modules_to_not_convert": [name]}
        assert read({"quantization_config": part}).stored == "fp16"
    part["modules_to_not_convert"] = ["model.layers.1.mlp.experts"]
    with pytest.raises(ConfigError, match="stores some experts as fp16 and others as fp8"):
        read({"quantization_config": part})
    with pytest.raises(ConfigError, match="modules_to_not_convert=lm_head must be a list"):
        read({"quantization_config": part | {"modules_to_not_convert": "lm_head"}})


def test_names_of_experts_are_those_of_the_architecture() -> None:
    part = quantised(["lm_head", "re:.*block_sparse_moe.experts.*"])
    assert read(part).stored == "int4_g32"
    assert (
        read(part, model_type="mixtral", n_shared_experts=0, first_k_dense_replace=0).stored
        == "fp16"
    )


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (quantised([], (["Linear"], weights(num_bits=3))), "num_bits=3, strategy=group"),
        (quantised([], (["Linear"], weights(group_size=48))), "group_size=48"),
        (quantised([], (["Linear"], weights(symmetric=False))), "symmetric=False"),
        (quantised([], (["Linear"], weights(scale_dtype="float32"))), "scale_dtype=float32; known"),
        (
            quantised(["model.layers.1.mlp.experts.3.up_proj"]),
            "some experts as fp16 and others as int4_g32; one precision of all is modelled",
        ),
        (quantised(["re:.*layers.2.*"]), "some experts as fp16 and others as int4_g32"),
        (quantised(["re:("]), "no pattern"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "no config_groups"),
    ],
)
def test_what_cannot_be_told_is_refused(part: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"small: .*{says}"):
        read(part)
