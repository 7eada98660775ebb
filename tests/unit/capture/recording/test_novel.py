"""An MoE block that no code names: other names, another rule, and a router not called router."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from capture.models.discover import CaptureError, discover
from capture.recording.hooks import RouterHooks
from capture.recording.lookahead import router_scorer
from capture.recording.prompts import Passage, Prompt
from capture.recording.rules import fit_site
from capture.recording.run import run_batch, run_passages
from helpers.tiny_models import build

EXPERTS, TOP_K, WIDTH = 10, 3, 12


class Bank(nn.Module):
    """Experts of two layers without a gate, kept as one tensor a layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rise = nn.Parameter(torch.randn(EXPERTS, WIDTH, hidden) * 0.2)
        self.fall = nn.Parameter(torch.randn(EXPERTS, hidden, WIDTH) * 0.2)

    def forward(
        self, flat: torch.Tensor, expert_ids: torch.Tensor, expert_scores: torch.Tensor
    ) -> torch.Tensor:
        inner = torch.einsum("th,tkih->tki", flat, self.rise[expert_ids]).relu()
        return torch.einsum("tki,tkhi,tk->th", inner, self.fall[expert_ids], expert_scores)


class Chooser(nn.Module):
    """A router with an unusual rule and an unusual order of its outputs.

    It scores by the square root of softplus, with a bias that only chooses, and multiplies shares
    by 1.7.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(hidden, EXPERTS, bias=False)
        self.nudge = nn.Buffer(torch.linspace(-0.4, 0.4, EXPERTS))
        nn.init.normal_(self.matrix.weight, 0, 0.5)

    def forward(self, seen: torch.Tensor) -> dict[str, torch.Tensor]:
        score = functional.softplus(self.matrix(seen)).sqrt()
        ids = (score + self.nudge).topk(TOP_K, sorted=False).indices
        share = score.gather(-1, ids)
        return {"who": ids, "how_much": 1.7 * share / share.sum(-1, keepdim=True)}


class Committee(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.members = Bank(hidden)
        self.chair = Chooser(hidden)
        self.hum = nn.Linear(hidden, 1)
        self.top_k = TOP_K

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, 1)
        vote = self.chair(flat)
        return (
            self.members(flat, vote["who"], vote["how_much"]) * self.hum(flat).sigmoid()
        ).view_as(hidden)


@pytest.fixture(scope="module")
def model() -> Any:
    model = build("mixtral")
    torch.manual_seed(4)
    for layer in model.model.layers[1:]:
        layer.mlp = Committee(model.config.hidden_size)
    # The first layer is dense.
    model.model.layers[0].mlp = nn.Linear(model.config.hidden_size, model.config.hidden_size)
    return model.eval()


def passages(count: int) -> list[Passage]:
    tokens = torch.randint(3, 96, (count, 16), generator=torch.Generator().manual_seed(6)).tolist()
    prompt = Prompt("prose", "a", "fit", "", "CC0-1.0")
    return [
        Passage(prompt, tuple(row[: 6 + index]), tuple(row[6 + index :]))
        for index, row in enumerate(tokens)
    ]


def test_it_is_found_by_what_its_experts_take(model: Any) -> None:
    layers = discover(model)
    assert [(layer.site, layer.layer, layer.name) for layer in layers] == [
        (site, site + 1, f"model.layers.{site + 1}.mlp") for site in range(3)
    ]
    assert all(
        isinstance(layer.router, Chooser) and isinstance(layer.experts, Bank) for layer in layers
    )
    assert {(layer.num_experts, layer.num_classes, layer.top_k) for layer in layers} == {
        (EXPERTS, EXPERTS, TOP_K)
    }


def test_recording_changes_nothing(model: Any) -> None:
    prompt = torch.tensor([[5, 6, 7, 8]])

    def run() -> Any:
        return model.generate(
            prompt,
            max_new_tokens=6,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=None,
        )

    plain = run()
    with RouterHooks(discover(model)):
        hooked = run()
    assert torch.equal(plain.sequences, hooked.sequences)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.logits, hooked.logits, strict=True)
    )


def test_every_selection_follows_from_the_recorded_logits(model: Any) -> None:
    layers = discover(model)
    rows = run_passages(model, layers, passages(6), decode_tokens=8)
    assert rows.logits is not None
    assert rows.gate_in is not None
    for layer in layers:
        site = layer.site
        fit = fit_site(
            layer, rows.logits[:, site], rows.ids[:, site], rows.weights[:, site], rows.token
        )
        assert fit.match == 1.0
        assert fit.weight_error < 1e-6
        assert fit.rule is not None
        assert (fit.rule.score, fit.rule.weight) == ("sqrtsoftplus", "norm")
        assert fit.rule.scale == pytest.approx(1.7, abs=1e-5)
        np.testing.assert_allclose(fit.rule.bias, np.linspace(-0.4, 0.4, EXPERTS), atol=1e-6)
        # Without its bias the rule fails, so the bias was needed and found.
        scorer = router_scorer(layer, rows.gate_in[:, site], torch.from_numpy(rows.logits[:, site]))
        torch.testing.assert_close(
            scorer(rows.gate_in[:, site]), torch.from_numpy(rows.logits[:, site])
        )


def test_a_left_padded_batch_records_what_single_runs_do(model: Any) -> None:
    layers = discover(model)
    alone = run_passages(model, layers, passages(3), decode_tokens=5)
    together = run_batch(model, layers, passages(3), 5)
    for number in range(3):
        one = alone.sequence == number
        other = together.valid & (together.sequence == number)
        for name in ("position", "token", "phase"):
            np.testing.assert_array_equal(getattr(alone, name)[one], getattr(together, name)[other])
        np.testing.assert_array_equal(np.sort(alone.ids[one], -1), np.sort(together.ids[other], -1))


# Contracts: C89
def test_a_rule_that_none_fits_is_said(model: Any) -> None:
    layer = discover(model)[0]
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(60, EXPERTS)).astype(np.float32)
    ids = np.argsort(generator.random((60, EXPERTS)), -1)[:, :TOP_K].astype(np.int16)
    weights = np.full((60, TOP_K), 0.3, np.float32)
    fit = fit_site(layer, logits, ids, weights, np.zeros(60, np.int64))
    assert fit.rule is None
    assert 0 <= fit.match < 0.5


def test_two_candidates_for_the_router_are_refused(model: Any) -> None:
    block = model.model.layers[2].mlp
    block.second = Chooser(model.config.hidden_size)
    try:
        with pytest.raises(CaptureError, match="2 have a weight with 10 rows"):
            discover(model)
    finally:
        del block.second


class Silent(nn.Module):
    """Experts that compute nothing, so that a run needs no values."""

    num_experts = EXPERTS

    def forward(
        self, flat: torch.Tensor, expert_ids: torch.Tensor, expert_scores: torch.Tensor
    ) -> torch.Tensor:
        return flat


def test_no_hook_waits_for_the_device() -> None:
    """On the meta device there are no values.

    Whoever asks for one, or for a copy on the CPU, fails.
    """
    tower = Tower()
    tower.committee.members = Silent()  # type: ignore[assignment]
    tower.to("meta")
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    with torch.no_grad(), RouterHooks(discover(tower), eos_token_ids=[2]) as hooks:
        tower(tokens, attention_mask=torch.ones_like(tokens))
        tower(tokens[:, :1])
        with pytest.raises((NotImplementedError, RuntimeError)):
            hooks.take()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.committee = Committee(8)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.committee(self.words(input_ids))


@pytest.mark.thorough
def test_hooks_added_after_compiling_are_an_error() -> None:
    tower, tokens = Tower(), torch.tensor([[4, 5, 6]])
    with torch.no_grad(), RouterHooks(discover(tower)) as hooks:
        tower(tokens)
    assert len(hooks.take().ids) == 3
    compiled = torch.compile(tower, backend="eager")
    with torch.no_grad():
        compiled(tokens)
        with (
            pytest.raises(CaptureError, match=r"no step was recorded|were not recorded"),
            RouterHooks(discover(tower)),
        ):
            compiled(tokens)
    torch.compiler.reset()
