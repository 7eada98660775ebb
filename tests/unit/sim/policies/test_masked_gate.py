"""A gate masked to what is in memory: by hand, against the masked top-k, and in a run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.bundled import Configure
from sim.policies.reroutes import MaskedGate
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.routing import RoutingRule
from sim.traces.trace import Trace
from sim.values.types import REROUTE, SKIP, rerouted

SHORT = (
    "trace.max_sequences=1",
    "workload.prompt_tokens=8",
    "workload.decode_tokens=24",
    "hardware.memory_gib=96",
    "outputs=summary",
)


def gate(needs: list[int], rows: list[list[int]], preferences: Any) -> Any:
    return SimpleNamespace(
        site=1, tick=0, needs=needs, experts=np.array(rows), preferences=np.array(preferences)
    )


def held(*experts: int) -> Any:
    return SimpleNamespace(
        has=lambda precision, site, expert: precision == 0 and site == 1 and expert in experts
    )


def serves(*experts: int) -> list[int]:
    """Answers that name other experts; a negative number is the need's own expert, or a skip."""
    return [rerouted(expert, 0, 1) for expert in experts]


LIKED = [[0.3, 0.25, 0.2, 0.15, 0.1]]


@pytest.mark.parametrize(
    ("resident", "answers"),
    [
        ((0, 1, 4), [0, 0]),  # both there: nothing is masked
        ((0, 2, 3), [0, *serves(2)]),  # 1 is absent: the best of the others that are there
        ((1, 3, 4), [*serves(3), 0]),  # the first need is sent, the second stays
        ((2, 3, 4), serves(2, 3)),  # both are sent, the first to the best
        ((3,), [*serves(3), SKIP]),  # one expert serves a row once
        ((), [SKIP, SKIP]),  # nothing is there
    ],
)
def test_of_one_row_what_is_absent_goes_to_the_best_there(
    resident: tuple[int, ...], answers: list[int]
) -> None:
    assert MaskedGate("fp16").select(gate([0, 1], [[0, 1]], LIKED), held(*resident)) == answers


# Contracts: C28
def test_of_several_rows_a_need_goes_as_one_to_what_they_prefer_together_and_none_uses_yet() -> (
    None
):
    """Expert 0 of rows 0 and 1 is absent.

    Above each row's least score, 2 has 0.3 + 0 and 3 has 0.1 + 0.3; row 1 uses 4.
    """
    liked = [[0.5, 0.0, 0.3, 0.1, 0.1], [0.5, 0.0, 0.0, 0.3, 0.2], [0.0, 0.5, 0.5, 0.0, 0.0]]
    asked = gate([0, 1, 4, 2], [[0, 1], [0, 4], [2, 1]], liked)
    assert MaskedGate("fp16").select(asked, held(1, 2, 3, 4)) == [*serves(3), 0, 0, 0]


def test_negative_preferences_of_rows_that_use_an_expert_already_are_no_merit_of_it() -> None:
    """2 is open to row 0 alone, which likes it least.

    3 is open to both, and each likes it better than some other.
    """
    asked = gate([0, 2], [[0, 1], [0, 2]], [[-1.0, -2.0, -9.0, -3.0], [-1.0, -9.0, -2.0, -3.0]])
    assert MaskedGate("fp16").select(asked, held(2, 3)) == [*serves(3), 0]


@pytest.mark.parametrize("seed", range(20))
def test_one_rows_experts_are_the_top_k_of_the_masked_scores(seed: int) -> None:
    """Oracle: the router's rule on logits in which absent experts have the lowest value."""
    rng = np.random.default_rng(seed)
    rule = RoutingRule(bias=tuple(rng.normal(size=12)) if seed % 2 else None)
    logits = rng.normal(size=(1, 12))
    ids, _ = rule.route(logits, 4)
    there = frozenset(rng.permutation(12)[:7].tolist())
    masked = np.where(
        [expert in there for expert in range(12)], rule.preferences(logits)[0], -np.inf
    )
    best = set(np.argsort(-masked)[:4].tolist())
    needs = ids[0].tolist()
    answers = MaskedGate("fp16").select(
        gate(needs, [needs], rule.preferences(logits)), held(*there)
    )
    assert {
        expert if answer == 0 else answer - 1 for expert, answer in zip(needs, answers, strict=True)
    } == best


def test_a_forecast_is_not_masked_and_a_need_may_be_served_in_three_ways() -> None:
    selector = MaskedGate("int4")
    forecast = SimpleNamespace(site=1, needs=[3, 0], experts=np.array([[3, 0]]))
    assert selector.select(forecast, held()) == [0, 0]
    assert (selector.precisions, selector.permitted(0.5), selector.constant) == (
        ("int4",),
        (0, SKIP, REROUTE),
        None,
    )


def test_swapmoe_waits_for_no_expert_and_serves_the_best_of_those_there(
    configure: Configure,
) -> None:
    """SwapMoE has no blocking load; its cost is that other experts serve."""
    result, still = (
        execute(build(configure("system=swapmoe", *words, *SHORT), "swapmoe"))
        for words in ((), ("predictor=none",))
    )
    lookups = result.frames.lookups
    assert set(lookups["outcome"]) == {"hit", "reroute"}
    quality = result.summary["quality_proxy"]
    assert 0 < quality["reroute_share"] < still.summary["quality_proxy"]["reroute_share"], (
        "it follows the tokens"
    )
    assert result.summary["prefetch"]["used"] > 0
    assert result.summary["makespan_s"] == result.summary["compute_busy_s"]
    one = (
        lookups.filter(pl.col("phase") == "decode")
        .group_by("tick")
        .agg(pl.col("key").n_unique(), pl.len())
    )
    assert (one["key"] == one["len"]).all(), "of one row each need has an expert of its own"


def test_what_a_gate_prefers_of_a_trace_chooses_what_it_chose(
    bundled_trace: Trace, configure: Configure
) -> None:
    workload = build(configure("system=swapmoe", *SHORT), "swapmoe", bundled_trace).workload
    gate, step = workload.gate(), next(step for step in workload.steps if step.decode)
    gate.open(step)
    for site in range(workload.sites):
        gate.visit(site)
        assert gate.preferences is not None
        assert np.argsort(-gate.preferences[0], kind="stable")[:2].tolist() == list(gate.needs)


# Contracts: C28
def test_a_trace_without_what_routers_prefer_is_refused_by_name(
    bundled_trace: Trace, configure: Configure
) -> None:
    with pytest.raises(
        ValueError, match=r"trace tiny_mixtral has no logits, .*; capture it with logits, or choose"
    ):
        build(configure("system=swapmoe", *SHORT), "swapmoe", replace(bundled_trace, logits=None))
    sites = tuple(
        replace(site, rule=None) if site.site == 3 else site for site in bundled_trace.header.sites
    )
    unruled = replace(bundled_trace, header=replace(bundled_trace.header, sites=sites))
    with pytest.raises(
        ValueError, match=r"has no routing rule of sites \[3\], by which this gate chooses"
    ):
        build(configure("system=swapmoe", *SHORT), "swapmoe", unruled)
