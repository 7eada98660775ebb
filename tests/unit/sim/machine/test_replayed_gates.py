"""Whose gates a model takes: its own, or those of another one that are declared."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.round_machine import small
from sim.machine.replayed_gates import check_gates, replaying
from sim.traces.header import ModelShape
from sim.values.places import ROOT


def shape(**changes: Any) -> ModelShape:
    values: dict[str, Any] = {
        "name": "small",
        "architecture": "none",
        "sites": 3,
        "experts": 4,
        "top_k": 2,
        "hidden": 8,
        "expert_intermediate": 16,
    }
    return ModelShape(**(values | changes))


def test_a_trace_of_the_models_own_gates_is_taken() -> None:
    check_gates(small(), shape(name="another name"), "t")
    assert small().transplant is None


@pytest.mark.parametrize("changes", [{"sites": 4}, {"experts": 8}, {"top_k": 1}])
def test_a_trace_of_another_shape_is_refused_with_both_shapes(changes: dict[str, int]) -> None:
    theirs = {"sites": 3, "experts": 4, "top_k": 2} | changes
    named = f"{theirs['sites']} x {theirs['experts']} top-{theirs['top_k']}"
    with pytest.raises(
        ValueError, match=rf"trace t .*{named}.*model small .*3 x 4 top-2; to run this trace choose"
    ):
        check_gates(small(), shape(**changes), "t")


@pytest.mark.parametrize(
    ("sites", "experts", "top_k", "words"),
    [
        (27, 64, 6, "choose model=deepseek_moe_16b;"),
        (8, 64, 6, "choose model=deepseek_moe_16b model.sites=8 (8 of its 27 layers"),
        (8, 61, 6, "choose model=tiny_qwen2moe model.sites=8 model.experts=61 model.top_k=6"),
    ],
)
def test_a_trace_of_another_shape_is_refused_with_a_model_that_it_can_run_on(
    sites: int, experts: int, top_k: int, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check_gates(small(), shape(sites=sites, experts=experts, top_k=top_k), "t")


# Contracts: C113
def test_a_transplant_must_be_declared_and_says_what_it_is() -> None:
    with pytest.raises(ValueError, match=r"model\.gates_of=tiny model\.sizes_of=small"):
        check_gates(small(), shape(name="tiny", hidden=4), "t")
    declared = small(gates_of="tiny", sizes_of="small")
    check_gates(declared, shape(name="tiny", hidden=4), "t")
    with pytest.raises(
        ValueError, match="takes its gates from tiny, but trace t was captured from other"
    ):
        check_gates(declared, shape(name="other"), "t")


def test_a_trace_with_layers_that_draft_or_experts_that_compute_nothing_must_be_of_such_a_model() -> (
    None
):
    drafting = small().with_drafts(1)
    assert (drafting.sites, drafting.own_sites) == (4, 3)
    check_gates(drafting, shape(sites=4), "t", draft_sites=1)
    with pytest.raises(ValueError, match=r"^trace t has 4 x 4 top-2 .*, model small 3 x 4 top-2;"):
        check_gates(drafting, shape(sites=4), "t")
    check_gates(small(null_experts=1), shape(), "t", null_experts=1)
    with pytest.raises(
        ValueError,
        match=r"^of the 4 experts of trace t 1 compute nothing \(no weights\), of those of model"
        r" small 0; set \+\+model.null_experts=1$",
    ):
        check_gates(small(), shape(), "t", null_experts=1)
    for other in ({"hidden": 9}, {"expert_intermediate": 17}):
        sizes = {"hidden": 8, "expert_intermediate": 16} | other
        with pytest.raises(
            ValueError,
            match=rf"^trace t comes from small, whose experts are {sizes['hidden']} x"
            rf" {sizes['expert_intermediate']}; those of model small are 8 x 16; to replay",
        ):
            check_gates(small(), shape(**other), "t")


def test_the_tutorials_own_model_runs_its_own_gates() -> None:
    """It was called ``own``, and every run over its capture was labelled as a transplant."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    captured = re.search(r"^moelab capture model=(\S+)", page, re.M)
    named = re.search(
        r"^moelab models from=\S+ name=(\S+) output=mine/model/(\S+)\.yaml$", page, re.M
    )
    assert captured is not None
    assert named is not None
    assert f"trace.path=my_trace model={named[2]} 'hydra.searchpath=[mine]'" in page
    assert replaying(small(name=named[1]), captured[1]).transplant is None
    assert replaying(small(name="own"), captured[1]).transplant is not None
