"""Which layers of a transformers ``config.json`` have experts, and how far back each attends."""

from __future__ import annotations

from collections.abc import Sequence

from sim.machine.config_keys import (
    BY_LAYER,
    EVERY,
    HAS_EXPERTS,
    LEADING,
    LISTED,
    SIDES,
    STEPS,
    WINDOW_OF,
)
from sim.machine.config_values import Config, ConfigError, number, optional


def layers_of(config: Config, name: str) -> tuple[int, int, int, int]:
    """How layers with and without experts alternate.

    Returns four numbers: leading layers without experts, layers without experts before every site,
    sites, and how many of the sites are an encoder's.
    """
    layers = number(config, "sites", name)
    if config.get("is_encoder_decoder"):
        return _encoder_decoder(config, layers, name)
    leading = max(optional(config, key) for key in LEADING)
    last = config.get("moe_layer_end_index")
    if last not in (None, -1, layers - 1):
        raise ConfigError(
            f"{name}: moe_layer_end_index={last} leaves layers without experts after the last with"
            " them"
        )
    alone = _listed(config, layers, name)
    step = max([optional(config, key) for key in STEPS if not _is_list(config, key)] + [1])
    if alone is not None:
        step = _step(alone, layers)
        if step == 1 and (alone != list(range(len(alone))) or leading not in (0, len(alone))):
            raise ConfigError(
                f"{name}: layers {alone[:8]} have no experts; only the first ones may lack them"
            )
        leading = len(alone) if step == 1 else leading
    if step > 1 and (leading or layers % step):
        raise ConfigError(
            f"{name}: one in {step} of {layers} layers has experts, and the first {leading} have"
            " none: the sizes of such a model are not computed here"
        )
    return leading, step - 1, (layers - leading) // step, 0


def _is_list(config: Config, key: str) -> bool:
    return isinstance(config.get(key), list)


def _listed(config: Config, layers: int, name: str) -> list[int] | None:
    """The layers without experts, where a key lists them; None where none does."""
    found: dict[str, list[int]] = {}
    if alone := config.get("mlp_only_layers"):
        found["mlp_only_layers"] = sorted(alone)
    if sites := config.get("moe_layers"):
        found["moe_layers"] = sorted(set(range(layers)) - set(sites))
    for key in BY_LAYER:
        if not (given := config.get(key)) or not isinstance(given, list):
            continue
        _check_length(key, given, layers, name)
        if others := {str(one) for one in given} - HAS_EXPERTS.keys():
            raise ConfigError(f"{name}: {key} has {', '.join(sorted(others))}; nobody knows these")
        found[key] = [layer for layer, one in enumerate(given) if not HAS_EXPERTS[str(one)]]
    if len(set(map(tuple, found.values()))) > 1:
        raise ConfigError(
            f"{name}: {' and '.join(found)} name one thing (layers without experts) and differ"
        )
    return next(iter(found.values()), None)


def _check_length(key: str, given: Sequence[object], layers: int, name: str) -> None:
    if len(given) != layers:
        raise ConfigError(f"{name}: {key} has {len(given)} entries for {layers} layers")


def _step(alone: list[int], layers: int) -> int:
    """One in how many layers has experts, the last of each group; 1 where that is not so."""
    if alone == list(range(len(alone))):
        return 1
    fits = (n for n in range(2, layers) if alone == [k for k in range(layers) if (k + 1) % n])
    return next(fits, 1)


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


def windows_of(config: Config, layers: int, name: str) -> tuple[int, ...]:
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
        _check_length("layer_types", given, layers, name)
        return [str(one) for one in given]
    kind, sliding = str(config.get("model_type")), "sliding_attention"
    if kind == "llama4_text":
        return _by_positions(config, layers, name)
    if key := EVERY.get(kind):
        every = optional(config, key)
        return [sliding if (n + 1) % (every or 1) else "full_attention" for n in range(layers)]
    if kind == "gpt_oss":
        return [("full_attention", sliding)[n % 2 == 0] for n in range(layers)]
    says = config.get("use_sliding_window", not kind.startswith("qwen"))
    if not says or not optional(config, "sliding_window"):
        return ["full_attention"] * layers
    first = config.get("max_window_layers")
    if first is None and kind not in LISTED:
        return [sliding] * layers
    if kind == "dots1" and first is not None:
        return ["full_attention" if n < first else sliding for n in range(layers)]
    if kind in LISTED:
        raise ConfigError(
            f"{name}: sliding_window={config['sliding_window']} is that of some layers only; add"
            " layer_types, a list that says what each layer attends to"
        )
    raise ConfigError(
        f"{name}: use_sliding_window with max_window_layers={first} means other layers in one model"
        " than in another; add layer_types, a list that says what each layer attends to"
    )


def _by_positions(config: Config, layers: int, name: str) -> list[str]:
    """Llama 4's: what has positions (1 in ``no_rope_layers``) attends to its chunk only."""
    every = optional(config, "no_rope_layer_interval") or 4
    rope = config.get("no_rope_layers") or [(n + 1) % every for n in range(layers)]
    _check_length("no_rope_layers", rope, layers, name)
    return ["chunked_attention" if one else "full_attention" for one in rope]
