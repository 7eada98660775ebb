"""DeepSeekMoE on transformers' classes, against the architecture in formulas from its paper."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from capture.__main__ import main
from capture.models.deepseek_moe import native_config
from capture.models.discover import CaptureError
from capture.recording.load import load_model
from capture.recording.settings import Settings
from helpers.checkpoints import save_tokenizer, write_prompts
from sim.traces.trace import read_trace

LAYERS, EXPERTS, TOP_K, HEADS, HIDDEN = 3, 8, 3, 4, 32
# The keys in config.json of deepseek-ai/deepseek-moe-16b-base, with small numbers.
PLAIN: dict[str, Any] = {
    "architectures": ["DeepseekForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "model_type": "deepseek",
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "scoring_func": "softmax",
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 96,
}


def weights() -> dict[str, torch.Tensor]:
    """A checkpoint under the hub's names."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (96, HIDDEN),
        "lm_head": (96, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
        widths = {f"{at}.mlp": 48}
        if layer:
            widths = {f"{at}.mlp.experts.{expert}": 16 for expert in range(EXPERTS)}
            widths[f"{at}.mlp.shared_experts"] = 32
            shapes[f"{at}.mlp.gate"] = (EXPERTS, HIDDEN)
        for name, width in widths.items():
            shapes |= {f"{name}.gate_proj": (width, HIDDEN), f"{name}.up_proj": (width, HIDDEN)}
            shapes[f"{name}.down_proj"] = (HIDDEN, width)
    generator = torch.Generator().manual_seed(8)
    found = {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.2
        for name, shape in shapes.items()
    }
    norms = [
        f"model.layers.{layer}.{name}"
        for layer in range(LAYERS)
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    for name in [*norms, "model.norm"]:
        found[f"{name}.weight"] = torch.rand(HIDDEN, generator=generator) + 0.5
    return found


class Written:
    """The forward pass in plain formulas.

    It has attention, softmax top-k without normalising, and shared experts.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.chosen: list[torch.Tensor] = []

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.tensors[f"{name}.weight"]
        )

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        inner = functional.silu(self.linear(f"{name}.gate_proj", x)) * self.linear(
            f"{name}.up_proj", x
        )
        return self.linear(f"{name}.down_proj", inner)

    def attention(self, name: str, x: torch.Tensor) -> torch.Tensor:
        length, size = len(x), HIDDEN // HEADS
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        cos, sin = (torch.cat([part, part], -1)[None] for part in (angles.cos(), angles.sin()))

        def heads(kind: str) -> torch.Tensor:
            return self.linear(f"{name}.{kind}_proj", x).view(length, HEADS, size).transpose(0, 1)

        def rotated(values: torch.Tensor) -> torch.Tensor:
            first, second = values.chunk(2, -1)
            return values * cos + torch.cat([-second, first], -1) * sin

        scores = rotated(heads("q")) @ rotated(heads("k")).transpose(1, 2) / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        return self.linear(
            f"{name}.o_proj",
            (scores.softmax(-1) @ heads("v")).transpose(0, 1).reshape(length, HIDDEN),
        )

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tensors["model.embed_tokens.weight"][tokens]
        for layer in range(LAYERS):
            at = f"model.layers.{layer}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x))
            y = self.norm(f"{at}.post_attention_layernorm", x)
            x = x + (self.moe(f"{at}.mlp", y) if layer else self.mlp(f"{at}.mlp", y))
        return self.linear("lm_head", self.norm("model.norm", x))

    def moe(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scores = self.linear(f"{name}.gate", x).softmax(-1)
        best = scores.topk(TOP_K)
        self.chosen.append(best.indices)
        routed = torch.stack(
            [
                sum(
                    weight * self.mlp(f"{name}.experts.{expert}", row)
                    for weight, expert in zip(
                        best.values[index], best.indices[index].tolist(), strict=True
                    )
                )
                for index, row in enumerate(x)
            ]
        )
        return routed + self.mlp(f"{name}.shared_experts", x)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deepseek")
    (directory / "config.json").write_text(json.dumps(PLAIN))
    save_file(weights(), directory / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(directory)
    write_prompts(directory / "prompts.jsonl")
    return directory


def test_the_hubs_checkpoint_computes_what_the_paper_says(checkpoint: Path) -> None:
    model = load_model(Settings(model=str(checkpoint), prompts=checkpoint, output_dir=checkpoint))
    tokens = torch.tensor([5, 17, 80, 3, 44, 9, 61])
    with torch.no_grad():
        ours = model(tokens[None]).logits[0]
    torch.testing.assert_close(ours, Written(weights()).logits(tokens), rtol=0, atol=2e-5)


def test_its_routing_is_recorded(checkpoint: Path, tmp_path: Path) -> None:
    arguments = [
        f"model={checkpoint}",
        f"prompts={checkpoint / 'prompts.jsonl'}",
        f"output_dir={tmp_path / 'out'}",
    ]
    assert (
        main(
            [
                *arguments,
                "sequences=2",
                "prompt_tokens=6-6",
                "decode_tokens=4",
                "hidden_sequences=0",
            ]
        )
        == 0
    )
    trace = read_trace(tmp_path / "out", "all")
    assert (trace.header.model.sites, trace.header.model.experts, trace.header.model.top_k) == (
        2,
        EXPERTS,
        TOP_K,
    )
    assert [site.layer for site in trace.header.sites] == [1, 2]
    assert all(
        site.rule is not None and site.rule.weight == "gather" for site in trace.header.sites
    )
    written = Written(weights())
    written.logits(torch.from_numpy(trace.token[trace.sequence == 0].astype(np.int64)))
    for site in range(2):
        np.testing.assert_array_equal(
            np.sort(trace.ids[trace.sequence == 0, site], -1),
            np.sort(written.chosen[site].numpy(), -1),
        )


@pytest.mark.parametrize(
    ("key", "value"), [("norm_topk_prob", True), ("scoring_func", "sigmoid"), ("moe_layer_freq", 2)]
)
def test_settings_that_the_classes_do_not_have_are_refused(key: str, value: object) -> None:
    with pytest.raises(CaptureError, match=re.escape(f"config.json: {key} is {value!r}")):
        native_config({**PLAIN, key: value})
