"""Which layers of a transformers ``config.json`` have experts, and how far back each attends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
from sim.machine.config_values import Config, ConfigError, agreed, listing, number, optional

MOST_LAYERS = 10_000


def layers_of(config: Config, name: str) -> tuple[int, int, int, int]:
    """How layers with and without experts alternate.

    Returns four numbers: leading layers without experts, layers without experts before every site,
    sites, and how many of the sites are an encoder's.
    """
    layers = number(config, "sites", name)
    if layers > MOST_LAYERS:
        raise ConfigError(f"{name}: {layers} layers, and at most {MOST_LAYERS:,} are read")
    if config.get("is_encoder_decoder"):
        return _encoder_decoder(config, layers, name)
    last = config.get("moe_layer_end_index")
    if last not in (None, -1, layers - 1):
        raise ConfigError(
            f"{name}: moe_layer_end_index={last} leaves layers without experts after the last with"
            " them"
        )
    alone = _alone(config, layers, name)
    sites = [layer for layer in range(layers) if layer not in alone]
    steps = {later - layer for layer, later in pairwise(sites)} or {1}
    step = steps.pop()
    leading = sites[0] - (step - 1) if sites else -1
    if steps or leading < 0 or sites[-1] != layers - 1:
        raise ConfigError(
            f"{name}: layers {sorted(alone)[:8]} of {layers} have no experts; only the first ones"
            " may lack them, and all but the last of every group"
        )
    return leading, step - 1, len(sites), 0


def _alone(config: Config, layers: int, name: str) -> set[int]:
    """The layers without experts."""
    found = _listed(config, layers, name)
    by_layer = bool(found)
    if first := agreed(config, LEADING, name):
        found["first_k_dense_replace"] = set(range(first))
    if only := listing(config, "mlp_only_layers"):
        found["mlp_only_layers"] = set(only)
    if len(set(map(frozenset, found.values()))) > 1:
        raise ConfigError(
            f"{name}: {' and '.join(found)} name one thing (layers without experts) and differ"
        )
    alone = next(iter(found.values()), set())
    if by_layer:
        return alone
    steps = [
        (optional(config, key) or 1, place)
        for key, place in STEPS.items()
        if not isinstance(config.get(key), list)
    ]
    return alone | {n for step, place in steps for n in range(layers) if (n + place) % step}


def _listed(config: Config, layers: int, name: str) -> dict[str, set[int]]:
    """The layers without experts, by each key that says it of all layers."""
    found: dict[str, set[int]] = {}
    if sites := listing(config, "moe_layers"):
        found["moe_layers"] = set(range(layers)) - set(sites)
    for key in BY_LAYER:
        if not (given := config.get(key)) or not isinstance(given, list):
            continue
        _check_length(key, given, layers, name)
        if others := {str(one) for one in given} - HAS_EXPERTS.keys():
            raise ConfigError(f"{name}: {key} has {', '.join(sorted(others))}; nobody knows these")
        found[key] = {layer for layer, one in enumerate(given) if not HAS_EXPERTS[str(one)]}
    return found


def _check_length(key: str, given: Sequence[object], layers: int, name: str) -> None:
    if len(given) != layers:
        raise ConfigError(f"{name}: {key} has {len(given)} entries for {layers} layers")


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
    if given := listing(config, "layer_types"):
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
    rope = listing(config, "no_rope_layers") or [(n + 1) % every for n in range(layers)]
    _check_length("no_rope_layers", rope, layers, name)
    return ["chunked_attention" if one else "full_attention" for one in rope]
