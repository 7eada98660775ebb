"""Experts that compute nothing: no bytes, no place in a pool, never needed.

Model and trace must say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from sim.machine.model import Model
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace, read_trace, write_trace

Configure = Callable[..., DictConfig]
SITES, EXPERTS, NULL = 16, 8, 2
WORDS = (
    "system=lru",
    "predictor=none",
    "model=tiny_mixtral",
    "hardware=rtx4090_pcie4",
    "precision=fp16",
    "trace.split=all",
)


def with_null(seed: int = 0) -> Trace:
    """A trace whose routers have eight classes, of which the last two compute nothing."""
    base = synthesize(
        ModelShape("tiny_mixtral", "none", SITES, EXPERTS, 2, 128, 120),
        tokens=6,
        sequences=3,
        prompt_tokens=4,
        lookahead=0,
        seed=seed,
    )
    rule = base.header.sites[0].rule
    assert rule is not None
    rule = replace(rule, null_experts=NULL, weight="gather")
    logits = (
        np.random.default_rng(seed)
        .integers(-64, 64, (len(base.step), SITES, EXPERTS))
        .astype(np.float32)
        / 16
    )
    ids, weights = rule.route(logits, 2)
    sites = tuple(replace(site, rule=rule) for site in base.header.sites)
    header = replace(base.header, sites=sites, steps={})
    return replace(base, header=header, ids=ids, weights=weights, logits=logits)


# Contracts: C97
@pytest.mark.parametrize("words", ["", "system=hobbit precision=hobbit", "cache=lru_per_site"])
def test_a_share_is_of_the_bytes_of_experts_that_have_weights(
    words: str, configure: Configure
) -> None:
    trace = with_null()
    assert trace.header.null_experts == NULL
    assert (trace.ids == -1).any()
    run = build(
        configure(
            *WORDS, *words.split(), f"++model.null_experts={NULL}", "budget.resident_share=0.5"
        ),
        "x",
        trace,
    )
    geometry = run.controller.geometry
    own = geometry.variant_bytes[0]
    assert geometry.capacity_bytes == SITES * (EXPERTS - NULL) * own // 2
    held = run.controller.slots.initial
    assert held
    assert all(key % geometry.units < EXPERTS - NULL for key in held)
    summary = execute(run).summary
    assert summary["storage_bytes"] == SITES * (EXPERTS - NULL) * sum(geometry.variant_bytes)
    assert summary["lookups"]["miss"] > 0


def test_with_all_their_bytes_resident_nothing_is_missed(configure: Configure) -> None:
    run = build(
        configure(*WORDS, f"++model.null_experts={NULL}", "budget.resident_share=1.0"),
        "x",
        with_null(),
    )
    summary = execute(run).summary
    assert {name for name, count in summary["lookups"].items() if count} == {"hit"}


# Contracts: C97
@pytest.mark.parametrize(("stated", "told"), [(0, "2 compute nothing"), (3, "2 compute nothing")])
def test_model_and_trace_must_say_the_same(stated: int, told: str, configure: Configure) -> None:
    with pytest.raises(
        ValueError,
        match=rf"{told}.*of those of model tiny_mixtral {stated}; set \+\+model.null_experts=2",
    ):
        build(configure(*WORDS, f"++model.null_experts={stated}"), "x", with_null())


def test_sizes_count_experts_with_weights_and_all_rows_of_the_router() -> None:
    plain = Model(
        name="m",
        sites=2,
        experts=6,
        top_k=2,
        hidden=8,
        expert_intermediate=4,
        heads=2,
        kv_heads=2,
        head_dim=4,
        vocab=10,
        source="none",
    )
    null = replace(plain, null_experts=2)
    assert plain.total_params - null.total_params == 2 * 2 * 3 * 8 * 4
    assert plain.dense_params == null.dense_params
    assert (plain.stored_experts, null.stored_experts) == (6, 4)
    with pytest.raises(ValueError, match=r"model.null_experts=6 must be below model.experts=6"):
        replace(plain, null_experts=6)


def test_what_was_chosen_of_them_survives_a_trace(tmp_path: Path) -> None:
    trace = with_null()
    write_trace(tmp_path / "t", trace)
    back = read_trace(tmp_path / "t", "all")
    np.testing.assert_array_equal(back.ids, trace.ids)
    assert back.header.null_experts == NULL
