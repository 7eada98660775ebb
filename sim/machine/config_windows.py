"""How far back each layer of a transformers ``config.json`` attends, architecture by architecture.

A key for windows may stand in the file of a model that has none: what counts is which keys the code
of its architecture reads. All that is not named here reads none. Read in transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.machine.config_values import Config, ConfigError, check_length, flag, listing, optional

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOW_OF = {FULL: None, SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""Layer types whose attention has the same weights, and the key of how far back each sees."""
UNLESS_TOLD = {
    "afmoe": 1024,
    "beam": 512,
    "cohere2_moe": 4096,
    "dots1": 4096,
    "exaone_moe": 4096,
    "flint": 513,
    "gpt_oss": 128,
    "granitemoe_swa": 128,
    "kolibri1": 513,
    "laguna": 512,
    "llama4_text": 8192,
    "mellum": 1024,
    "qwen2_moe": 4096,
    "qwen3_moe": 4096,
}
"""The window of an architecture whose file has no key for it."""
Rule = Callable[[Config, int, int], bool]
"""Whether the layer of this number, of so many, has a window."""


def _every(config: Config, key: str, default: int, layer: int) -> bool:
    """All layers but the last of every group; no layer where the groups have no size."""
    every = optional(config, key) if key in config else default
    return every > 0 and (layer + 1) % every != 0


def _cohere(config: Config, layer: int, layers: int) -> bool:
    """Groups of their own in the leading layers without experts."""
    leading = optional(config, "first_k_dense_replace")
    if layer < leading:
        return _every(config, "prefix_dense_sliding_window_pattern", 1, layer)
    return _every(config, "sliding_window_pattern", 4, layer - leading)


def _dots(config: Config, layer: int, layers: int) -> bool:
    first = optional(config, "max_window_layers") if "max_window_layers" in config else 62
    return config.get("sliding_window", True) is not None and layer >= first


def _qwen2(config: Config, layer: int, layers: int) -> bool:
    """Every second one of the first layers, where that is asked for."""
    last = optional(config, "max_window_layers") if "max_window_layers" in config else 28
    return flag(config, "use_sliding_window") and layer % 2 == 0 and layer < last


def _llama(config: Config, layer: int, layers: int) -> bool:
    """What has positions (1 in ``no_rope_layers``) attends to its chunk only."""
    rope = listing(config, "no_rope_layers")
    if not rope:
        return _every(config, "no_rope_layer_interval", 4, layer)
    return bool(rope[layer])


LISTED: dict[str, Rule] = {
    "afmoe": lambda config, n, of: _every(config, "global_attn_every_n_layers", 4, n),
    "beam": lambda config, n, of: (n + 1) % 6 != 0 and n != of - 1,
    "cohere2_moe": _cohere,
    "dots1": _dots,
    "exaone_moe": lambda config, n, of: (
        config.get("sliding_window", True) is not None
        and _every(config, "sliding_window_pattern", 4, n)
    ),
    "flint": lambda config, n, of: n >= 2 and n % 4 != 1 and n != of - 1,
    "gpt_oss": lambda config, n, of: n % 2 == 0,
    "granitemoe_swa": lambda config, n, of: n % 4 != 0,
    "kolibri1": lambda config, n, of: (n + 1) % 5 != 0,
    "laguna": lambda config, n, of: False,
    "llama4_text": _llama,
    "mellum": lambda config, n, of: False,
    "qwen2_moe": _qwen2,
}
"""By ``model_type``: those that read ``layer_types``, and what they take where it is not given."""
ALL_ALIKE: dict[str, Callable[[Config], bool]] = {
    "mixtral": lambda config: bool(config.get("sliding_window")),
    "phimoe": lambda config: bool(config.get("sliding_window")),
    "qwen3_moe": lambda config: (
        flag(config, "use_sliding_window") and config.get("sliding_window", True) is not None
    ),
}
"""Those whose layers have all the same window, and whether they have one."""


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
    default = UNLESS_TOLD.get(str(config.get("model_type")), 0)
    if not (window := optional(config, key) if key in config else default):
        raise ConfigError(f"{name}: its layers have {layer_type}, and {key} is not given")
    return window


def _layer_types(config: Config, layers: int, name: str) -> Sequence[str]:
    """What each layer attends to, as transformers takes it to be."""
    kind = str(config.get("model_type"))
    for key in ("layer_types", "no_rope_layers"):
        if entries := listing(config, key):
            check_length(key, entries, layers, name)
    given = [str(one) for one in listing(config, "layer_types")]
    if kind not in LISTED:
        is_sliding = kind in ALL_ALIKE and ALL_ALIKE[kind](config)
        found = [SLIDING if is_sliding else FULL] * layers
        if given and given != found:
            raise ConfigError(
                f"{name}: layer_types names {', '.join(sorted(set(given)))}, but the code of"
                f" model_type={kind} reads no such list, and gives all its layers {found[0]}; take"
                " layer_types out of a copy of the file, or say a model_type there that reads it"
                f" ({', '.join(LISTED)})"
            )
        return found
    if kind == "qwen2_moe" and not config.get("use_sliding_window"):
        return [FULL] * layers  # whatever is listed: it sets the window to none
    rule, sort = LISTED[kind], CHUNKED if kind == "llama4_text" else SLIDING
    return given or [sort if rule(config, n, layers) else FULL for n in range(layers)]
