"""Computes a model's sizes from its transformers ``config.json``, without weights or torch.

Every key is either read, or known to change no size, or refused: an unknown key may hide a layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from sim.machine.config_keys import MORE, NO_SIZE, READ, SIDES, TOP_K_OF, WINDOW_OF
from sim.machine.config_parts import Widths, parts, parts_once
from sim.machine.config_values import Config, ConfigError, number, optional
from sim.machine.model import LatentAttention, Model
from sim.machine.precision import AS_STORED, PRECISIONS

QUANTIZED = "quantization_config"


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a ``config.json``; its ``text_config``, where it has one.

    Raise ConfigError for a file that cannot be read or is no configuration.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; give from= a transformers config.json"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is no JSON ({error}); give from= a transformers config.json"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} holds a {type(found).__name__}, not the keys and values of a config.json"
        )
    text = found.get("text_config")
    config = found if not isinstance(text, dict) else {QUANTIZED: found.get(QUANTIZED), **text}
    return {str(key): value for key, value in config.items()}


def model_from_config(config: Config, name: str, source: str) -> Model:
    """The sizes of the model that ``config`` describes.

    Raise ConfigError where it lacks a size, or has unknown keys or unsupported layers.
    """
    _check_known(config, name)
    hidden, width = number(config, "hidden", name), number(config, "width", name)
    expert_width = optional(config, "moe_intermediate_size") or width
    heads = number(config, "heads", name)
    latent = _latent(config)
    head_dim = (
        latent.nope_dim + latent.rope_dim if latent else _head_dim(config, hidden, heads, name)
    )
    leading, per_site, sites, encoder = _layers(config, name)
    dense = width if leading or per_site else 0
    kv_heads = optional(config, "num_key_value_heads") or heads
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
            expert_matrices=_matrices(config),
            expert_biases=(
                2 * expert_width + hidden
                if is_gpt_oss
                else width + hidden
                if kind == "nllb-moe"
                else 0
            ),
            shared_intermediate=_shared(config, expert_width),
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
            other_params=parts_once(config, hidden, width, heads, sites * per_site),
            vocab=number(config, "vocab", name),
            tied_embeddings=bool(config.get("tie_word_embeddings", encoder > 0)),
            stored=_stored(config),
            windows=_windows(config, leading + sites * (1 + per_site), name),
            source=source,
        )
        return replace(model, dense_bits=_dense_bits(model))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _stored(config: Config) -> str:
    """The precision of the published experts. Other ways to quantise are not the publishers' own."""
    part = config.get(QUANTIZED)
    method = part.get("quant_method") if isinstance(part, Mapping) else None
    return str(method) if method in ("fp8", "mxfp4") else AS_STORED[1]


def _dense_bits(model: Model) -> float:
    """The mean bits of what is no expert: in FP8 all but embedding, LM head and routers; where only
    experts have fewer (MXFP4), 16.
    """
    if model.stored != "fp8":
        return model.dense_bits
    heads = (1 if model.tied_embeddings else 2) * model.head_params
    share = (heads + model.sites * model.experts * model.hidden) / model.dense_params
    return round(PRECISIONS["fp8"].gate * (1 - share) + model.dense_bits * share, 2)


def _check_known(config: Config, name: str) -> None:
    read = {key for keys in READ.values() for key in keys} | set(MORE)
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
    types = set(config.get("layer_types") or ())
    if types - WINDOW_OF.keys():
        raise ConfigError(
            f"{name}: layer_types has {', '.join(sorted(types - WINDOW_OF.keys()))}; only layers of"
            " full or sliding attention have the sizes that are computed here"
        )


def _head_dim(config: Config, hidden: int, heads: int, name: str) -> int:
    given = optional(config, "head_dim") or optional(config, "d_kv")
    if not given and hidden % heads:
        raise ConfigError(
            f"{name}: hidden {hidden} is no multiple of {heads} heads, and head_dim is not given"
        )
    return given or hidden // heads


def _matrices(config: Config) -> int:
    """Two where the experts of an encoder-decoder have no gate, else three."""
    if not config.get("is_encoder_decoder"):
        return 3
    return (
        3 if "gated" in str(config.get("feed_forward_proj", config.get("dense_act_fn", ""))) else 2
    )


def _shared(config: Config, expert_width: int) -> int:
    count = optional(config, "n_shared_experts") or optional(config, "moe_num_shared_experts")
    return optional(config, "shared_expert_intermediate_size") or count * expert_width


def _latent(config: Config) -> LatentAttention | None:
    if not optional(config, "kv_lora_rank"):
        return None
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return LatentAttention(*(optional(config, key) for key in names))


def _windows(config: Config, layers: int, name: str) -> tuple[int, ...]:
    """``Model.windows``, as the shortest pattern that repeats.

    A window that no text of the model is longer than is none.
    """
    longest = optional(config, "max_position_embeddings")
    found = [
        window if not longest or window < longest else 0
        for window in (_window(config, of, name) for of in _layer_types(config, layers, name))
    ]
    if not any(found):
        return ()
    repeats = (n for n in range(1, layers) if found[n:] == found[:-n])
    return tuple(found[: next(repeats, layers)])


def _window(config: Config, layer_type: str, name: str) -> int:
    key = WINDOW_OF[layer_type]
    if key is None:
        return 0
    if not (window := optional(config, key)):
        raise ConfigError(f"{name}: its layers have {layer_type}, and {key} is not given")
    return window


def _layer_types(config: Config, layers: int, name: str) -> Sequence[str]:
    """What each layer attends to; where no key says it, what transformers takes it to be."""
    if given := config.get("layer_types"):
        if len(given) != layers:
            raise ConfigError(f"{name}: layer_types has {len(given)} entries for {layers} layers")
        return [str(one) for one in given]
    kind, sliding = str(config.get("model_type")), "sliding_attention"
    if kind == "gpt_oss":
        return [("full_attention", sliding)[n % 2 == 0] for n in range(layers)]
    says = config.get("use_sliding_window", not kind.startswith("qwen"))
    if not says or not optional(config, "sliding_window"):
        return ["full_attention"] * layers
    if (first := config.get("max_window_layers")) is None:
        return [sliding] * layers
    if kind == "dots1":
        return ["full_attention" if n < first else sliding for n in range(layers)]
    raise ConfigError(
        f"{name}: use_sliding_window with max_window_layers={first} means other layers in one model"
        " than in another; add layer_types, a list that says what each layer attends to"
    )


def _layers(config: Config, name: str) -> tuple[int, int, int, int]:
    """How layers with and without experts alternate.

    Returns four numbers: leading layers without experts, layers without experts before every site,
    sites, and how many of the sites are an encoder's.
    """
    layers = number(config, "sites", name)
    if config.get("is_encoder_decoder"):
        return _encoder_decoder(config, layers, name)
    leading = optional(config, "first_k_dense_replace") or optional(config, "moe_layer_start_index")
    alone = sorted(config.get("mlp_only_layers") or ())
    if isinstance(frequency := config.get("moe_layer_freq"), list):
        alone = [layer for layer, has_experts in enumerate(frequency) if not has_experts]
    last = config.get("moe_layer_end_index")
    if last not in (None, -1, layers - 1):
        raise ConfigError(
            f"{name}: moe_layer_end_index={last} leaves layers without experts after the last with"
            " them"
        )
    if alone:
        if alone != list(range(len(alone))) or leading not in (0, len(alone)):
            raise ConfigError(
                f"{name}: layers {alone[:8]} have no experts; only the first ones may lack them"
            )
        leading = len(alone)
    step = max(
        [optional(config, key) for key in ("decoder_sparse_step", "moe_layer_interval")] + [1]
    )
    if not isinstance(frequency, list):
        step = max(step, optional(config, "moe_layer_freq"))
    if step > 1 and (leading or layers % step):
        raise ConfigError(
            f"{name}: one in {step} of {layers} layers has experts, and the first {leading} have"
            " none: the sizes of such a model are not computed here"
        )
    return leading, step - 1, (layers - leading) // step, 0


def _encoder_decoder(config: Config, layers: int, name: str) -> tuple[int, int, int, int]:
    decoder_layers = optional(config, "num_decoder_layers") or optional(config, "decoder_layers")
    sides = {
        "layers": (layers, decoder_layers),
        "width": tuple(optional(config, f"{side}_ffn_dim") for side in SIDES),
        "heads": tuple(optional(config, f"{side}_attention_heads") for side in SIDES),
        "layers with experts": (
            _sparse(config, SIDES[0], layers, name),
            _sparse(config, SIDES[1], decoder_layers, name),
        ),
    }
    for what, (encoder, decoder) in sides.items():
        if encoder != decoder:
            raise ConfigError(
                f"{name}: {encoder} {what} in the encoder, {decoder} in the decoder; they must be"
                " equal"
            )
    sparse = sides["layers with experts"][0]
    return 0, layers // sparse - 1, 2 * sparse, sparse


def _sparse(config: Config, side: str, layers: int, name: str) -> int:
    """How many layers of one side have experts: the last of every group of so many layers."""
    count, step = (
        optional(config, f"num_sparse_{side}_layers"),
        optional(config, f"{side}_sparse_step"),
    )
    if not count and step:
        count = layers // step
    if not count or layers % count or (step and step != layers // count):
        raise ConfigError(
            f"{name}: {count} of {layers} {side} layers have experts, one in {step}: these do not"
            " go together"
        )
    return count


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
        inner = cast(dict[str, int], vars(value))
        return [
            f"{name}:",
            "  _target_: sim.machine.LatentAttention",
            *(f"  {key}: {n}" for key, n in inner.items()),
        ]
    return [f"{name}: {json.dumps(value)}"]
