"""Every MoE architecture that transformers builds from a configuration: recorded, undisturbed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from capture.models.discover import MoELayer, discover
from capture.models.norms import attention_input
from capture.recording.hooks import RouterHooks
from capture.recording.rows import Rows
from capture.recording.rules import Fit, fit_site
from helpers.architectures import ARCHITECTURES, AVAILABLE, ENCODER_DECODER, VOCABULARY, tiny
from sim.traces.trace import DECODE, PREFILL

BATCH, LENGTH, NEW = 3, 11, 6
PADDING = (0, 3, 7)


@dataclass
class Recorded:
    name: str
    model: Any
    layers: list[MoELayer]
    plain: Any
    hooked: Any
    rows: Rows
    prompt: torch.Tensor
    mask: torch.Tensor

    def visited(self, layer: MoELayer) -> np.ndarray:
        """Which rows are real tokens that this layer's stack saw."""
        side = (self.rows.phase == PREFILL) == (layer.side == "encoder")
        return self.rows.valid & (side if self.model.config.is_encoder_decoder else True)

    def fits(self) -> list[Fit]:
        rows = self.rows
        assert rows.logits is not None
        found = []
        for layer in self.layers:
            own, site = self.visited(layer), layer.site
            found.append(
                fit_site(
                    layer,
                    rows.logits[own, site],
                    rows.ids[own, site],
                    rows.weights[own, site],
                    rows.token[own],
                )
            )
        return found


@pytest.fixture(scope="module", params=AVAILABLE)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    transformers.logging.set_verbosity_error()
    model = tiny(request.param)
    layers = discover(model)
    prompt = torch.randint(
        4, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3)
    )
    mask = torch.ones_like(prompt)
    for row, padding in enumerate(PADDING):
        # Encoders are padded on the right, decoders on the left.
        place = (
            slice(LENGTH - padding, LENGTH)
            if model.config.is_encoder_decoder
            else slice(0, padding)
        )
        prompt[row, place], mask[row, place] = model.config.pad_token_id or 0, 0

    def run() -> Any:
        with torch.no_grad():
            if not model.can_generate():
                return model(input_ids=prompt, attention_mask=mask)
            return model.generate(
                prompt,
                attention_mask=mask,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )

    plain = run()
    with RouterHooks(layers, keep=("logits", "gate_in", "expert_in")) as hooks:
        hooked = run()
    return Recorded(request.param, model, layers, plain, hooked, hooks.take(), prompt, mask)


def test_most_of_the_table_is_available() -> None:
    assert len(ARCHITECTURES) == 62
    assert len(AVAILABLE) >= 59


@pytest.mark.alike
def test_the_hooked_run_is_bitwise_the_unhooked_run(recorded: Recorded) -> None:
    one, other = recorded.plain, recorded.hooked
    if not recorded.model.can_generate():
        assert torch.equal(one[0], other[0])
        return
    assert torch.equal(one.sequences, other.sequences)
    assert all(
        torch.equal(left, right) for left, right in zip(one.logits, other.logits, strict=True)
    )


def test_every_real_token_is_recorded_once_at_its_position(recorded: Recorded) -> None:
    rows, lengths = recorded.rows, [LENGTH - padding for padding in PADDING]
    encoder = recorded.model.config.is_encoder_decoder
    steps = NEW - 1 if recorded.model.can_generate() else 0
    expected: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        tokens = recorded.prompt[row][recorded.mask[row].bool()].tolist()
        if encoder:
            # Decoding begins with the start token; the last token is never fed.
            tokens += recorded.hooked.sequences[row, :-1].tolist()
        elif steps:
            tokens = recorded.hooked.sequences[row, LENGTH - length : -1].tolist()
        expected[row] = tokens
    for row, tokens in expected.items():
        own = rows.valid & (rows.sequence == row)
        assert rows.position[own].tolist() == list(range(len(tokens)))
        assert rows.token[own].tolist() == tokens
        assert (rows.phase[own] == DECODE).sum() == (
            steps + encoder if recorded.model.can_generate() else 0
        )
    assert set(rows.position[~rows.valid].tolist()) == {-1}


def test_every_row_has_a_choice_at_each_site_that_it_visits_and_no_other(
    recorded: Recorded,
) -> None:
    rows = recorded.rows
    assert rows.logits is not None
    for layer in recorded.layers:
        own, site = recorded.visited(layer), layer.site
        assert np.isfinite(rows.logits[own, site]).all()
        assert rows.ids[own, site].max() < layer.num_experts
        assert (rows.ids[own, site] >= 0).any()
        # A site that always chose the same would prove nothing.
        assert len(np.unique(np.sort(rows.ids[own, site], -1), axis=0)) > 1
        if recorded.model.config.is_encoder_decoder:
            away = (rows.phase == PREFILL) != (layer.side == "encoder")
            assert (rows.ids[away, site] == -1).all()
            assert np.isnan(rows.logits[away, site]).all()


@pytest.mark.alike
def test_an_independent_rule_reproduces_every_selection_and_weight(recorded: Recorded) -> None:
    for layer, fit in zip(recorded.layers, recorded.fits(), strict=True):
        assert fit.match == 1.0, f"{layer.name}: {fit}"
        assert fit.weight_error < 1e-6
        assert fit.by_token == (
            recorded.name == "deepseek_v4" and "tid2eid" in dict(layer.router.named_buffers())
        )
        assert (fit.rule is None) == fit.by_token


@pytest.mark.alike
def test_the_rule_is_the_one_that_the_architecture_states(recorded: Recorded) -> None:
    """The rules are written by hand, from papers and configurations.

    They are of architectures for which one rule could be mistaken for another.
    """
    stated = {
        "mixtral": ("softmax", None, "norm"),
        "qwen2_moe": ("softmax", None, "gather"),
        "deepseek_v2": ("softmax", "max", "gather"),
        "deepseek_v3": ("sigmoid", "top2sum", "norm"),
        "phimoe": ("identity", None, "sparsemixer"),
        "llama4_text": ("softmax", None, "sigmoid_topk"),
        "deepseek_v4": ("sqrtsoftplus", None, "norm"),
        "switch_transformers": ("softmax", None, "gather"),
        "nllb-moe": ("softmax", None, "norm"),
        "gemma4_text": ("softmax", None, "norm"),
    }
    rule = recorded.fits()[-1].rule
    if recorded.name in stated:
        assert rule is not None
        assert (rule.score, rule.group, rule.weight) == stated[recorded.name]
    biased = {
        "deepseek_v3",
        "glm4_moe",
        "ernie4_5_moe",
        "lfm2_moe",
        "minimax_m2",
        "zaya",
        "longcat_flash",
        "hy_v3",
    }
    if recorded.name in biased:
        assert rule is not None
        assert rule.bias is not None
    null = {"longcat_flash": 4, "zaya": 1}.get(recorded.name, 0)
    assert (rule.null_experts if rule else 0) == null


def test_sites_are_numbered_in_the_order_in_which_they_run(recorded: Recorded) -> None:
    ran: list[int] = []
    handles = [
        layer.router.register_forward_hook(lambda *_args, site=layer.site: ran.append(site))
        for layer in recorded.layers
    ]
    with torch.no_grad():
        token = torch.tensor([[5]])
        extra = {"decoder_input_ids": token} if recorded.model.config.is_encoder_decoder else {}
        recorded.model(input_ids=token, **extra)
    for handle in handles:
        handle.remove()
    assert ran == [layer.site for layer in recorded.layers] == list(range(len(recorded.layers)))
    if recorded.name in ENCODER_DECODER:
        assert [layer.side for layer in recorded.layers] == ["encoder"] * 2 + ["decoder"] * 2
    assert {layer.kind for layer in recorded.layers} == (
        {"attn", "ffn"} if recorded.name == "jetmoe" else {"ffn"}
    )


def test_padding_reaches_real_tokens_of_deepseek_v4_alone_without_any_hook() -> None:
    """What docs/captures.md says of batches: its compressor has no mask."""
    text, padding = torch.arange(5, 17)[None], 4
    mask = torch.cat([torch.zeros(1, padding), torch.ones_like(text)], 1).long()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    for name in ("mixtral", "deepseek_v3", "deepseek_v4"):
        model, found = tiny(name), []
        for pad in (0, 77):
            ids = torch.cat([torch.full((1, padding), pad), text], 1)
            with torch.no_grad():
                output = model(input_ids=ids, attention_mask=mask, position_ids=places)
            found.append(output.logits[0, padding:])
        apart = (found[0] - found[1]).abs().amax(-1) > 1e-4
        assert apart.tolist() == [name == "deepseek_v4" and row >= 3 for row in range(12)]


@pytest.mark.parametrize("name", ["mixtral", "gemma4_text"])
def test_the_input_of_the_attention_is_what_the_first_norm_makes(name: str) -> None:
    model = tiny(name)
    layer = discover(model)[1]
    seen: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    mixer, read = attention_input(layer)
    handles = [
        mixer.register_forward_pre_hook(
            lambda _m, args, kwargs: seen.append(read(args, kwargs)), with_kwargs=True
        ),
        layer.owner.input_layernorm.register_forward_hook(
            lambda _m, _a, output: norms.append(output)
        ),
    ]
    with torch.no_grad():
        model(input_ids=torch.tensor([[5, 6]]))
    for handle in handles:
        handle.remove()
    assert mixer is layer.owner.self_attn
    assert torch.equal(seen[0], norms[0])
