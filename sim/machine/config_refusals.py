"""Why a transformers ``config.json`` is refused: what is not modelled, and what nobody knows."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sim.machine.config_keys import MORE, MUST_BE, NO_SIZE, READ
from sim.machine.config_parts import PARTS_OF
from sim.machine.config_values import Config, ConfigError, listing
from sim.machine.config_windows import WINDOW_OF

LINEAR = "layers of linear attention keep a state of a fixed size, which is not modelled"
MAMBA = "layers of Mamba keep a state of a fixed size, which is not modelled"
CONVOLUTION = "layers of convolutions keep their last inputs, which is not modelled"
PICKED = "attention that picks its tokens, and the keys by which it does, are not modelled"
HEADS = "heads that are more or wider in some layers than in others are not modelled"
STREAMS = "hidden states of several streams (hyper-connections) are not modelled"
REASONS = {
    "linear_": LINEAR,  # before Mamba: Qwen3.5 has mamba_ssm_dtype, the type of its state
    "kda_": LINEAR,
    "mamba_": MAMBA,
    "ssm_": MAMBA,
    "hc_": STREAMS,
    "per_layer_config": HEADS,
    "global_head_dim": HEADS,
    "num_global_key_value_heads": HEADS,
    "num_sliding_": HEADS,
    "swa_head_dim": HEADS,
    "swa_num_": HEADS,
    "hybrid_layer_pattern": HEADS,
    "attention_other_setting": HEADS,
    "index_": PICKED,
    "indexer_": PICKED,
    "compress_": PICKED,
    "conv_": CONVOLUTION,
    "cca_": CONVOLUTION,
}
"""How keys begin that tell of what is not modelled, the most telling first."""
REASON_OF_TYPE = {
    "linear_attention": LINEAR,
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "conv": CONVOLUTION,
}
"""The same of words in ``layer_types``."""
REASON_OF_KIND = {
    "doge": "experts of one neuron each are not modelled",
    "jetmoe": "attention whose heads are chosen like experts is not modelled",
    "longcat_flash": "experts that run beside the layer's second attention are not modelled",
    "mimo_v2_flash": HEADS,
    "minimax": LINEAR,
    "minimax_m1": LINEAR,
    "minimax_text_01": LINEAR,
}
"""The same of a ``model_type``."""


def check_known(config: Config, name: str) -> None:
    """Raise ConfigError unless every key, layer and part of the model can be counted."""
    if reason := _reason(config):
        raise ConfigError(
            f"{name}: {reason}; what comes nearest may be written as conf/model/NAME.yaml by hand"
            " (docs/machines.md, Models)"
        )
    _check_kind(config, name)
    _check_keys(config, name)
    for key, known in MUST_BE.items():
        value = config.get(key)
        values = value if isinstance(value, list) else [value]
        if wrong := [one for one in values if one is not None and one not in known]:
            raise ConfigError(
                f"{name}: {key} has {json.dumps(wrong[0])}; only with"
                f" {' or '.join(json.dumps(one) for one in known)} are the sizes known"
            )
    types = set(map(str, listing(config, "layer_types")))
    if types - WINDOW_OF.keys():
        raise ConfigError(
            f"{name}: layer_types has {', '.join(sorted(types - WINDOW_OF.keys()))}; only layers of"
            " full or sliding attention have the sizes that are computed here"
        )


def _check_kind(config: Config, name: str) -> None:
    """First of all: whoever takes keys out of a copy should not learn of this afterwards."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in PARTS_OF:
        return
    nested = any(isinstance(value, Mapping) for value in config.values())
    if not nested and not any("expert" in key for key in config):
        raise ConfigError(
            f"{name}: model_type={kind!r} has no experts (none of {', '.join(READ['experts'])});"
            " only Mixture-of-Experts models are simulated"
        )
    raise ConfigError(
        f"{name}: model_type={kind!r} is none whose parameters were compared (docs/machines.md,"
        " Models, has all); where its layers are those of one of these, say its model_type in a"
        " copy of the file, else write conf/model/NAME.yaml by hand"
    )


def _check_keys(config: Config, name: str) -> None:
    read = {key for keys in READ.values() for key in keys} | set(MORE) | set(MUST_BE)
    unknown = {
        key: config[key]
        for key in sorted(set(config) - read - set(NO_SIZE))
        if config[key] is not None
    }
    if unknown:
        found = ", ".join(f"{key}={json.dumps(value)[:60]}" for key, value in unknown.items())
        raise ConfigError(
            f"{name}: nobody knows whether these keys change sizes: {found}; take out of a copy of"
            " the file those that do not, or write conf/model/NAME.yaml by hand (docs/machines.md)"
        )


def _reason(config: Config) -> str | None:
    """What the model has that is not modelled, with the key that tells of it."""
    for begins, reason in REASONS.items():
        for key in sorted(config):
            if key.startswith(begins) and config[key]:
                return f"{reason} ({key}={json.dumps(config[key])[:60]})"
    for one in listing(config, "layer_types"):
        if one in REASON_OF_TYPE:
            return f"{REASON_OF_TYPE[one]} (layer_types has {one})"
    if 0 in listing(config, "attn_type_list"):
        return f"{LINEAR} (attn_type_list has 0)"
    if (kind := str(config.get("model_type"))) in REASON_OF_KIND:
        return f"{REASON_OF_KIND[kind]} (model_type={kind})"
    return None
