"""Windows of a config.json, against what transformers makes of it: its configuration's own list of
layers where it has one, else which tokens a small model of random weights sees.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.machine.config_windows import ALL_ALIKE, LISTED, WINDOW_OF, windows_of

LAYERS, WINDOW, TOKENS = 9, 3, 16
KEYS: dict[str, list[dict[str, Any]]] = {
    "afmoe": [{}, {"global_attn_every_n_layers": 3}],
    "beam": [{}],
    "cohere2_moe": [
        {},
        {"first_k_dense_replace": 2, "sliding_window_pattern": 3},
        {"first_k_dense_replace": 4, "prefix_dense_sliding_window_pattern": 2},
    ],
    "dots1": [{}, {"max_window_layers": 4}, {"max_window_layers": 4, "sliding_window": None}],
    "exaone_moe": [{}, {"sliding_window_pattern": 3}],
    "flint": [{}],
    "gpt_oss": [{}],
    "granitemoe_swa": [{}],
    "kolibri1": [{}],
    "laguna": [{}],
    "llama4_text": [{}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1, 0, 0] * 3}],
    "mellum": [{}],
    "qwen2_moe": [
        {},
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 4},
        {"use_sliding_window": False, "max_window_layers": 4},
    ],
}
"""What a file says of windows beside their width, for every architecture that reads lists."""
SIZES: dict[str, int] = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Of a small model; each architecture has some of them."""
OWN_SIZES: dict[str, dict[str, int]] = {
    "axk1": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "glm4v_moe_text": {"head_dim": 128},
}
PLAIN = (
    *("aria_text", "axk1", "deepseek_v2", "deepseek_v3", "ernie4_5_moe", "flex_olmo", "glm4_moe"),
    *("glm4_moe_lite", "glm4v_moe_text", "granitemoe", "granitemoeshared", "hunyuan_v1_moe"),
    *("hy_v3", "minimax_m2", "mistral4", "olmoe", "qwen3_vl_moe_text", "solar_open"),
)
"""Architectures that read no key of windows."""
LATENT = {"head_dim": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
"""Sizes of those that compress keys and values."""


def made(kind: str, **changes: Any) -> Any:
    """The configuration of transformers; skip where its version has no such architecture."""
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if kind not in mapping:
        pytest.skip(f"this transformers does not have {kind}")
    return mapping[kind](**changes)


def test_every_architecture_that_reads_lists_is_asked() -> None:
    assert KEYS.keys() == LISTED.keys()


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(
    ("kind", "changes"), [(kind, changes) for kind, several in KEYS.items() for changes in several]
)
def test_layers_have_windows_where_the_configuration_of_transformers_lists_them(
    kind: str, changes: dict[str, Any], is_told: bool, tmp_path: Path
) -> None:
    """With the list that transformers writes, and without it."""
    config = made(kind, num_hidden_layers=LAYERS, **changes)
    config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    stored = {key: value for key, value in stored.items() if key != "max_position_embeddings"}
    if not is_told:
        # As a publisher writes it: what was said, and nothing that follows from it.
        stored = {"model_type": kind, "num_hidden_layers": LAYERS, **changes}
    wanted = [
        0 if WINDOW_OF[of] is None else getattr(config, str(WINDOW_OF[of]))
        for of in config.layer_types
    ]
    found = windows_of(stored, LAYERS, kind) or (0,)
    assert [found[n % len(found)] for n in range(LAYERS)] == wanted


@pytest.mark.alike
@pytest.mark.parametrize("use", [None, False, True])
@pytest.mark.parametrize("kind", [*PLAIN, *ALL_ALIKE])
def test_a_model_sees_no_further_than_its_windows(kind: str, use: bool | None) -> None:
    """The last of 16 tokens depends on the first one, unless both layers see 3 tokens only."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    keys = {"sliding_window": WINDOW} | ({} if use is None else {"use_sliding_window": use})
    has = made(kind)
    sizes = {key: size for key, size in SIZES.items() if hasattr(has, key)}
    if "kv_lora_rank" in sizes:
        sizes |= LATENT
    config = made(kind, **sizes | OWN_SIZES.get(kind, {}), **keys)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    tokens = torch.arange(3, 3 + TOKENS)[None]
    other = tokens.clone()
    other[0, 0] = 40
    with torch.no_grad():
        one, two = (model(input_ids=ids, use_cache=False)[0][0, -1] for ids in (tokens, other))
    sees = bool((one - two).abs().max() > 1e-5)
    windows = windows_of({"model_type": kind, **keys}, 2, kind)
    assert windows == (() if sees else (WINDOW,))
