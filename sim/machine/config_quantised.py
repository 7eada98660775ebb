"""The bits of a model by the ``quantization_config`` of its ``config.json``.

- ``fp8`` stores all matrices so, but for those in ``modules_to_not_convert``.
- ``mxfp4`` stores experts so, and nothing else.
- ``compressed-tensors`` has groups that say how they store the layers that they target. ``ignore``
  names those that stay as they were: by class (``Linear``), by name, or by a pattern (``re:``).

Embedding and routers stay as they were. Other ways to quantise are not the publishers' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import filter as filter_names
from functools import cache
from itertools import combinations
from typing import Any, TypeGuard

from sim.machine.config_values import Config, ConfigError
from sim.machine.model import Model
from sim.machine.precision import AS_STORED, PRECISIONS

METHOD, LINEAR, PATTERN = "compressed-tensors", "Linear", "re:"
EXPERTS, HEAD = "experts", "lm_head"
KEPT_BY = ("modules_to_not_convert", "ignored_layers")
"""Where FP8's file may say what it leaves as it was."""
BEFORE = ("model.", "language_model.model.", "model.language_model.", "")
"""What the names of a text model's layers begin with, alone or as part of a whole."""
EXPERTS_IN = {"mixtral": "block_sparse_moe", "minimax_m2": "block_sparse_moe"} | {
    "phimoe": "block_sparse_moe",
    "llama4_text": "feed_forward",
}
BY_NUMBER = ("mixtral", "minimax_m2", "phimoe")
"""Architectures whose experts' projections are w1, w2 and w3."""
SHARED_IN = {
    "qwen2_moe": "mlp.shared_expert",
    "llama4_text": "feed_forward.shared_expert",
    "hunyuan": "mlp.shared_mlp",
    "hunyuan_v1_moe": "mlp.shared_mlp",
}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
KNOWN = {
    ("int", 4, 32): "int4_g32",
    ("int", 4, 128): "int4_g128",
    ("float", 4, 16): "nvfp4",
    ("float", 4, 32): "mxfp4",
    ("int", 8, 0): "int8",
    ("float", 8, 0): "fp8",
}
"""The precision of weights by kind, bits and group; 0: a scale for each row, block or tensor.

Such a scale adds less than a fiftieth of a bit.
"""
WHOLE = ("channel", "tensor", "block")
SCALES = {"int": ("bfloat16", "float16"), "nvfp4": ("float8_e4m3fn",), "mxfp4": ("uint8",)}
"""The types of scales that these precisions count, where a file says one."""


def is_read(part: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(part, Mapping) and part.get("quant_method") in (METHOD, "fp8", "mxfp4")


def precisions_of(config: Config, part: Mapping[str, Any], model: Model) -> tuple[str, float]:
    """The precision of the experts, and the mean bits of all other parameters.

    Raise ConfigError where experts differ among each other, or have bits that no precision has.
    """
    method = part["quant_method"]
    if method == "mxfp4":
        return method, model.dense_bits
    if model.encoder_sites:
        raise ConfigError(f"{model.name}: quant_method={method} of an encoder-decoder model")
    groups = _Groups(part, model.name) if method == METHOD else _AllBut(part, model.name)
    kind = str(config.get("model_type"))
    found = {groups.precision_of(name) for name in _experts(model, kind)}
    if len(found) != 1:
        raise ConfigError(
            f"{model.name}: quantization_config stores some experts as"
            f" {' and others as '.join(sorted(found))}; one precision of all is modelled, so write"
            " conf/model/NAME.yaml by hand (stored: the one that most have)"
        )
    (experts,) = found
    saved = sum(
        params * (model.dense_bits - PRECISIONS[precision].gate)
        for name, params in _others(model, kind)
        if (precision := groups.precision_of(name)) != AS_STORED[1]
    )
    return experts, round(model.dense_bits - saved / model.dense_params, 2)


class _Groups:
    """What ``quantization_config`` says of each layer."""

    def __init__(self, part: Mapping[str, Any], name: str) -> None:
        self._name = name
        ignored, groups = part.get("ignore") or [], part.get("config_groups")
        if not isinstance(groups, Mapping) or not groups or not isinstance(ignored, list):
            raise ConfigError(
                f"{name}: quantization_config of {METHOD} has no config_groups that tell its bits;"
                " write conf/model/NAME.yaml by hand"
            )
        self._ignored = _Names(ignored, name)
        self._groups = [
            (_Names(one.get("targets") or [], name), self._precision(one.get("weights"), where))
            for where, one in groups.items()
            if isinstance(one, Mapping)
        ]

    def precision_of(self, layer: str) -> str:
        """How the layer of this name is stored: by the most telling group that targets it."""
        if self._ignored.have(layer):
            return AS_STORED[1]
        for precise in (True, False):
            for targets, precision in self._groups:
                if targets.have(layer) if precise else targets.are_all:
                    return precision
        return AS_STORED[1]

    def _precision(self, weights: object, where: str) -> str:
        if not isinstance(weights, Mapping):
            return AS_STORED[1]
        kind, bits = str(weights.get("type", "int")), weights.get("num_bits")
        strategy, size = weights.get("strategy"), weights.get("group_size") or 0
        group = 0 if strategy in WHOLE else size
        known = KNOWN.get((kind, bits, group)) if isinstance(bits, int) else None
        scale = str(weights.get("scale_dtype") or "").removeprefix("torch.")
        wanted = SCALES.get(known or "", SCALES.get(kind, ()))
        if group and (weights.get("symmetric") is False or (scale and scale not in wanted)):
            known = None
        if known is None:
            raise ConfigError(
                f"{self._name}: quantization_config.config_groups.{where}.weights has type={kind},"
                f" num_bits={bits}, strategy={strategy}, group_size={size},"
                f" symmetric={weights.get('symmetric')}, scale_dtype={scale or None}; known are"
                f" {', '.join(_said(*one) for one in KNOWN)}, all symmetric, with the usual scales;"
                " write conf/model/NAME.yaml by hand, with stored= what comes nearest"
            )
        return known


class _AllBut:
    """FP8 of all layers but those that a file names, by whole parts of their names."""

    def __init__(self, part: Mapping[str, Any], name: str) -> None:
        told: object = next((part[key] for key in KEPT_BY if part.get(key)), [])
        if not isinstance(told, list):
            raise ConfigError(f"{name}: {KEPT_BY[0]}={str(told)[:60]} must be a list of names")
        kept = {HEAD} | {_without_beginning(str(one)) for one in told}
        self._wild = [one for one in kept if "*" in one]
        self._exact = kept.difference(self._wild)

    def precision_of(self, layer: str) -> str:
        # All experts of a layer are one module, which is named or not.
        before, experts, _ = layer.partition(f".{EXPERTS}.")
        parts = _parts(before + experts.removesuffix("."))
        kept = not parts.isdisjoint(self._exact) or any(
            filter_names(parts, one) for one in self._wild
        )
        return AS_STORED[1] if kept else "fp8"


@cache
def _parts(name: str) -> frozenset[str]:
    """The words of a name, and those that follow each other."""
    words = name.split(".")
    pairs = combinations(range(len(words) + 1), 2)
    return frozenset(".".join(words[first:last]) for first, last in pairs)


def _without_beginning(name: str) -> str:
    return next((name.removeprefix(one) for one in BEFORE if name.startswith(one)), name)


def _said(kind: str, bits: int, group: int) -> str:
    return f"{kind} of {bits} bits " + (f"in groups of {group}" if group else "by channel")


class _Names:
    """Layers that a list names."""

    def __init__(self, words: Iterable[object], name: str) -> None:
        told = [str(word) for word in words]
        self._exact = {word for word in told if not word.startswith(PATTERN)}
        self.are_all = LINEAR in self._exact
        try:
            self._patterns = [
                re.compile(word.removeprefix(PATTERN)) for word in told if word.startswith(PATTERN)
            ]
        except re.error as error:
            raise ConfigError(f"{name}: quantization_config has no pattern: {error}") from error

    def have(self, layer: str) -> bool:
        names = [before + layer for before in BEFORE]
        return any(one in self._exact for one in names) or any(
            pattern.match(one) for pattern in self._patterns for one in names
        )


def _site_layers(model: Model) -> list[int]:
    """The numbers of the layers with experts."""
    every = 1 + model.dense_layers_per_site
    return [model.leading_dense_layers + every * (site + 1) - 1 for site in range(model.sites)]


def _experts(model: Model, kind: str) -> Iterator[str]:
    """The name of every projection of every expert."""
    place = EXPERTS_IN.get(kind, "mlp")
    parts = ("w1", "w2", "w3") if kind in BY_NUMBER else PROJECTIONS
    for layer in _site_layers(model):
        for expert in range(model.experts):
            for part in parts:
                yield f"layers.{layer}.{place}.{EXPERTS}.{expert}.{part}"


def _others(model: Model, kind: str) -> Iterator[tuple[str, int]]:
    """The name and the parameters of every other matrix, but for embedding and routers: these are
    never quantised.
    """
    attention, sites = _attention(model), set(_site_layers(model))
    for layer in range(max(sites) + 1):
        for name, params in attention.items():
            yield f"layers.{layer}.self_attn.{name}", params
        place, width = (
            (SHARED_IN.get(kind, "mlp.shared_experts"), model.shared_intermediate)
            if layer in sites
            else (EXPERTS_IN.get(kind, "mlp"), model.dense_intermediate)
        )
        for name in PROJECTIONS:
            yield f"layers.{layer}.{place}.{name}", model.hidden * width
    if not model.tied_embeddings:
        yield HEAD, model.head_params


def _attention(model: Model) -> dict[str, int]:
    hidden, heads, latent = model.hidden, model.heads, model.latent
    if latent is None:
        of_keys = hidden * model.kv_heads * model.head_dim
        whole = hidden * heads * model.head_dim
        return {"q_proj": whole, "k_proj": of_keys, "v_proj": of_keys, "o_proj": whole}
    queries, rank = heads * (latent.nope_dim + latent.rope_dim), latent.query_rank
    of_queries = {"q_a_proj": hidden * rank, "q_b_proj": rank * queries}
    return (of_queries if rank else {"q_proj": hidden * queries}) | {
        "kv_a_proj_with_mqa": hidden * (latent.kv_rank + latent.rope_dim),
        "kv_b_proj": latent.kv_rank * heads * (latent.nope_dim + latent.value_dim),
        "o_proj": heads * latent.value_dim * hidden,
    }
