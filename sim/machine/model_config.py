"""Computes a model's sizes from its transformers ``config.json``, without weights or torch.

Every key is either read, or known to change no size, or refused: an unknown key may hide a layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from sim.machine.attention import LatentAttention
from sim.machine.config_keys import (
    DENSE_WIDTH,
    HEAD_DIM,
    ONE_SHARED,
    SHARED_COUNT,
    SHARED_WIDTH,
    TIED,
    TOP_K_OF,
)
from sim.machine.config_layers import layers_of
from sim.machine.config_parts import Widths, parts, parts_once
from sim.machine.config_quantised import is_read, precisions_of
from sim.machine.config_refusals import check_known
from sim.machine.config_values import Config, ConfigError, agreed, flag, number, optional
from sim.machine.config_windows import windows_of
from sim.machine.model import Model

QUANTIZED, TIE = "quantization_config", "tie_word_embeddings"
TEXT = ("text_config", "llm_config", "language_config")
"""Where a model of more than text has the sizes of its text (InternVL, DeepSeek-VL2)."""


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a ``config.json``; that of its text, where it is of more than text.

    Raise ConfigError for a file that cannot be read or is no configuration.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; give from= a transformers config.json"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no JSON ({error}); give from= a transformers config.json"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} holds a {type(found).__name__}, not the keys and values of a config.json"
        )
    config = found
    if text := next((found[key] for key in TEXT if isinstance(found.get(key), dict)), None):
        # What is said of the whole holds for its text, unless that says otherwise.
        config = {key: found[key] for key in (QUANTIZED, TIE) if key in found} | text
    return {str(key): value for key, value in config.items()}


def model_from_config(config: Config, name: str, source: str) -> Model:
    """The sizes of the model that ``config`` describes.

    Raise ConfigError where it lacks a size, or has unknown keys or unsupported layers.
    """
    check_known(config, name)
    hidden = number(config, "hidden", name)
    expert_width = optional(config, "moe_intermediate_size") or number(config, "width", name)
    heads = number(config, "heads", name)
    latent = _latent(config)
    head_dim = (
        latent.nope_dim + latent.rope_dim if latent else _head_dim(config, hidden, heads, name)
    )
    leading, per_site, sites, encoder = layers_of(config, name)
    dense = _dense_width(config, name) if leading or per_site else 0
    kv_heads = optional(config, "num_key_value_heads") or heads
    if heads % kv_heads:
        raise ConfigError(f"{name}: {heads} heads are no multiple of {kv_heads} key-value heads")
    experts = number(config, "experts", name)
    kind = str(config.get("model_type"))
    is_gpt_oss = kind == "gpt_oss"
    in_layer, in_site = parts(config, Widths(hidden, heads, kv_heads, head_dim, experts, latent))
    try:
        model = Model(
            name=name,
            sites=sites,
            experts=experts,
            top_k=TOP_K_OF.get(kind) or number(config, "top_k", name),
            hidden=hidden,
            expert_intermediate=expert_width,
            expert_matrices=2
            if encoder
            else 3,  # Switch and NLLB-MoE have no gate, whatever is said
            expert_biases=(
                2 * expert_width + hidden
                if is_gpt_oss
                else expert_width + hidden
                if kind == "nllb-moe"
                else 0
            ),
            shared_intermediate=_shared(config, kind, expert_width, name),
            leading_dense_layers=leading,
            dense_layers_per_site=per_site,
            dense_intermediate=dense,
            encoder_sites=encoder,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            latent=latent,
            other_layer_params=in_layer,
            other_site_params=in_site,
            other_params=parts_once(config, hidden, dense, heads, sites * per_site),
            vocab=number(config, "vocab", name),
            tied_embeddings=flag(config, TIE, encoder > 0 or kind in TIED),
            windows=windows_of(config, leading + sites * (1 + per_site), name),
            source=source,
        )
        if is_read(part := config.get(QUANTIZED)):
            stored, bits = precisions_of(config, part, model)
            return replace(model, stored=stored, dense_bits=bits)
        return model
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def not_read(config: Config) -> str | None:
    """What the file says of how its weights are quantised, where nobody here reads that."""
    part = config.get(QUANTIZED)
    if not part or is_read(part):
        return None
    told = part.get("quant_method") if isinstance(part, Mapping) else part
    return (
        f"{QUANTIZED} of quant_method={told} is not read: these are the sizes of the model that was"
        f" quantised, in 16 bits; of runs with it, say precision= and ++model.dense_bits="
    )


def _head_dim(config: Config, hidden: int, heads: int, name: str) -> int:
    given = agreed(config, HEAD_DIM, name)
    if not given and hidden % heads:
        raise ConfigError(
            f"{name}: hidden {hidden} is no multiple of {heads} heads, and head_dim is not given"
        )
    return given or hidden // heads


def _dense_width(config: Config, name: str) -> int:
    """The width of layers without experts, where it is not that of the experts' key."""
    return agreed(config, DENSE_WIDTH, name) or number(config, "width", name)


def _shared(config: Config, kind: str, expert_width: int, name: str) -> int:
    count = agreed(config, SHARED_COUNT, name)
    if kind in ONE_SHARED:
        count, expert_width = count or 1, number(config, "width", name)
    return agreed(config, SHARED_WIDTH, name) or count * expert_width


def _latent(config: Config) -> LatentAttention | None:
    if not optional(config, "kv_lora_rank"):
        return None
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return LatentAttention(*(optional(config, key) for key in names))


def config_text(model: Model, source: Path) -> str:
    """``model`` as the text of a file of ``conf/model``."""
    lines = [
        f"# {model.name}, from {source.name} by python -m sim.models.",
        "_target_: sim.machine.Model",
    ]
    for field in fields(Model):
        value = getattr(model, field.name)
        if field.name in ("gates_of", "sizes_of") or value != field.default:
            lines += _yaml(field.name, value)
    return "\n".join(lines) + "\n"


def _yaml(name: str, value: object) -> list[str]:
    if isinstance(value, LatentAttention):
        widths = (field for field in fields(value) if field.default is MISSING)
        return [
            f"{name}:",
            "  _target_: sim.machine.LatentAttention",
            *(f"  {field.name}: {getattr(value, field.name)}" for field in widths),
        ]
    return [f"{name}: {json.dumps(value)}"]
