"""What layers have beside projections, experts, a router and two norms, by ``model_type``.

Each was compared with the parameters that transformers makes, but for three that name an
architecture which it has by another name: ``deepseek``, ``hunyuan`` and ``kimi_k2``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from sim.machine.attention import LatentAttention
from sim.machine.config_values import Config, ConfigError, optional


@dataclass(frozen=True)
class Widths:
    """The widths that the parts of a layer are made of."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    latent: LatentAttention | None

    @property
    def projected(self) -> int:
        """The width of all queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


LAYER: dict[str, Callable[[Widths], int]] = {
    "norms of a head": lambda w: 2 * w.head_dim,
    "norms of all heads": lambda w: (w.heads + w.kv_heads) * w.head_dim,
    "biases of norms": lambda w: 2 * w.hidden,
    "two more norms": lambda w: 2 * w.hidden,
    "one norm fewer": lambda w: -w.hidden,
    "sinks": lambda w: w.heads,
    "gate of each output": lambda w: w.hidden * w.heads * w.head_dim,
    "gate of each head": lambda w: w.hidden * w.heads,
    "biases of gates by head": lambda w: w.heads,
}
"""What every layer of a model has, with experts or without."""
SITE: dict[str, Callable[[Widths], int]] = {
    "biases of the router": lambda w: w.experts,
    "corrections of the router": lambda w: w.experts,
    "gate of the shared expert": lambda w: w.hidden,
    "norm after experts": lambda w: w.hidden,
}
"""What only layers with experts have."""
CORRECTED = "corrections of the router"
PARTS_OF: dict[str, tuple[str, ...]] = {
    "afmoe": ("norms of a head", "gate of each output", "two more norms", CORRECTED),
    "aria_text": (),
    "axk1": (CORRECTED, "norm after experts"),
    "beam": (
        *("norms of a head", "gate of each output", "biases of gates by head"),
        *("two more norms", CORRECTED),
    ),
    "cohere2_moe": ("one norm fewer",),
    "deepseek": (),
    "deepseek_v2": (),
    "deepseek_v3": (CORRECTED,),
    "dots1": ("norms of a head", CORRECTED),
    "ernie4_5_moe": (CORRECTED,),
    "exaone_moe": ("norms of a head", CORRECTED),
    "flex_olmo": ("norms of all heads",),
    "flint": ("norms of a head", "sinks"),
    "glm4_moe": (CORRECTED,),
    "glm4_moe_lite": (CORRECTED,),
    "glm4v_moe_text": (CORRECTED,),
    "gpt_oss": ("sinks", "biases of the router"),
    "granitemoe": (),
    "granitemoe_swa": ("sinks",),
    "granitemoeshared": (),
    "hunyuan": ("norms of a head",),
    "hunyuan_v1_moe": ("norms of a head",),
    "hy_v3": ("norms of a head", CORRECTED),
    "kimi_k2": (CORRECTED,),
    "kolibri1": ("norms of a head", "two more norms", CORRECTED),
    "laguna": ("norms of a head", CORRECTED),
    "llama4_text": (),
    "mellum": ("norms of a head",),
    "minimax_m2": ("norms of all heads", CORRECTED),
    "mistral4": (),
    "mixtral": (),
    "nllb-moe": (),
    "olmoe": ("norms of all heads",),
    "phimoe": ("biases of norms",),
    "qwen2_moe": ("gate of the shared expert",),
    "qwen3_moe": ("norms of a head",),
    "qwen3_vl_moe_text": ("norms of a head",),
    "solar_open": (CORRECTED,),
    "switch_transformers": (),
}
"""The parts of each ``model_type`` that is read, whatever its other keys say."""
ASKED: dict[str, tuple[str, object, dict[object, str]]] = {
    "glm4_moe": ("use_qk_norm", False, {False: "", True: "norms of a head"}),
    "laguna": (
        "gating",
        True,
        {
            True: "gate of each head",
            "per-head": "gate of each head",
            "per-element": "gate of each output",
        },
    ),
}
"""By ``model_type``, a key that gives each layer a part more: its value unless told, and the part
of each value. Elsewhere ``use_qk_norm`` says nothing: norms have no weights (Llama 4), or are there.
"""
OUTPUT_UNBIASED = ("glm4_moe", "glm4v_moe_text", "solar_open")
"""Where ``attention_bias`` leaves out the output's projection."""

BIASED = ("gpt_oss", "glm4v_moe_text")
"""Where ``attention_bias`` is true unless told."""


def parts(config: Config, widths: Widths) -> tuple[int, int]:
    """``Model.other_layer_params`` and ``Model.other_site_params``."""
    kind = str(config.get("model_type"))
    own = PARTS_OF.get(kind, ())
    layer = sum(LAYER[part](widths) for part in own if part in LAYER)
    site = sum(SITE[part](widths) for part in own if part in SITE)
    if kind in ASKED:
        layer += _asked(config, kind, widths)
    # qkv_bias is Qwen2-MoE's key, true by default.
    if config.get("qkv_bias", kind == "qwen2_moe"):
        layer += widths.projected
    if config.get("attention_bias", kind in BIASED):
        layer += _biases(widths, output=kind not in OUTPUT_UNBIASED)
    if config.get("router_bias"):
        site += SITE["biases of the router"](widths)
    return layer, site


def _asked(config: Config, kind: str, widths: Widths) -> int:
    """The parameters of the part that a key gives each layer."""
    key, default, part_of = ASKED[kind]
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool | str) or value not in part_of:
        known = ", ".join(json.dumps(one) for one in part_of)
        raise ConfigError(
            f"{key}={json.dumps(value)} of model_type={kind} is not known; known: {known}"
        )
    part = part_of[value]
    return LAYER[part](widths) if part else 0


def _biases(widths: Widths, *, output: bool) -> int:
    """The biases of attention; of compressed attention those that make the compressed vectors."""
    latent = widths.latent
    made = widths.projected
    if latent is not None:
        made = latent.query_rank + latent.kv_rank + latent.rope_dim
    return made + (widths.hidden if output else 0)


def parts_once(config: Config, hidden: int, width: int, heads: int, dense_layers: int) -> int:
    """``Model.other_params``: relative positions by head, biases outside of experts.

    Those of both sides of an encoder-decoder model are counted.
    """
    kind = str(config.get("model_type"))
    if kind == "switch_transformers":
        return 2 * heads * (optional(config, "relative_attention_num_buckets") or 32)
    if kind == "phimoe":
        return hidden + (optional(config, "vocab_size") if config.get("lm_head_bias") else 0)
    if kind == "nllb-moe":
        # Biases in units of hidden: an encoder layer has one attention (4) and two norms (2), a
        # decoder layer two (8) and three (3), together 17. Each side ends with one more norm.
        return hidden * (17 * optional(config, "encoder_layers") + 2) + dense_layers * (
            width + hidden
        )
    return 0
