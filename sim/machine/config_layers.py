"""Which layers of a transformers ``config.json`` have experts."""

from __future__ import annotations

from itertools import pairwise

from sim.machine.config_keys import (
    BY_LAYER,
    HAS_EXPERTS,
    LEADING,
    SIDES,
    STEPS,
)
from sim.machine.config_values import (
    Config,
    ConfigError,
    agreed,
    check_length,
    listing,
    number,
    optional,
)

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
        check_length(key, given, layers, name)
        if others := {str(one) for one in given} - HAS_EXPERTS.keys():
            raise ConfigError(f"{name}: {key} has {', '.join(sorted(others))}; nobody knows these")
        found[key] = {layer for layer, one in enumerate(given) if not HAS_EXPERTS[str(one)]}
    return found


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
