"""What a gate computes for a whole step at once is what it would compute gate by gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.bundled import BUNDLED
from helpers.composed import DEPTH, SITES, make_trace
from sim.policies.base import ASK, FloatArray, IntArray
from sim.policies.lookahead import ConfidentLookahead
from sim.policies.precisions import ScoreThreshold
from sim.traces.routing import RoutingRule
from sim.traces.trace import read_trace
from sim.workload import choices
from sim.workload.choices import Choices
from sim.workload.gates import StepGate
from sim.workload.steps import Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    trace = read_trace(BUNDLED, columns="all")
    return Workload(trace, split="eval", max_sequences=1, lookahead=2)


def test_a_rule_asked_once_a_step_names_what_it_names_gate_by_gate(workload: Workload) -> None:
    gate, asked = workload.gate(), list[int]()

    def rule(scores: FloatArray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(scores))
        return ConfidentLookahead()._above(scores, top_k)

    seen = 0
    for step in workload.steps[:20]:
        gate.open(step)
        asked.clear()
        for site in step.sites:
            gate.visit(site)
            found, scores = gate.ranked(rule, 1), gate.lookahead(1)
            if scores is None:
                assert found is None
                continue
            experts, weights = ConfidentLookahead()._above(scores, 2)
            assert found is not None
            assert found.site == site + 1
            assert (found.experts.tolist(), found.weights.tolist()) == (
                experts.tolist(),
                weights.tolist(),
            )
            assert found.keys == [found.site * gate.units + e for e in experts[0] if e >= 0]
            seen += 1
        assert len(asked) <= 1
    assert seen > 100


def test_scores_of_a_row_are_those_of_its_union(workload: Workload) -> None:
    gate, seen = workload.gate(), 0
    for step in workload.steps[:20]:
        gate.open(step)
        rows = workload.places(step)
        here = workload.choices.union(rows).scores
        ahead = [workload.choices.forecast_union(rows, j).scores for j in (1, 2)]
        for site in step.sites:
            gate.visit(site)
            assert gate.scores == here[site]
            for j, forecast in enumerate(gate.forecasts(2)):
                assert forecast.scores == ahead[j][site]
                seen += step.rows == 1
    assert seen > 100


def test_the_variants_of_a_run_are_what_a_rule_says_of_its_scores(workload: Workload) -> None:
    """The thresholds are as near to two of its scores as numbers get, one below and one above."""
    some = sorted(set(workload.scores[40:].ravel().tolist()))
    low, high = some[len(some) // 2], some[-2]
    selector = ScoreThreshold("fp16", "int4", np.nextafter(low, 0.0), np.nextafter(high, 1.0))
    gate, seen = workload.gate(), set()
    plane = workload.choices.sites * workload.choices.units
    for step in workload.steps[:200]:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            for choice in (gate, *gate.forecasts(2)):
                said = [
                    0 if s <= selector.low_above else 1 if s <= selector.skip_above else ASK
                    for s in choice.scores
                ]
                variants = [
                    ASK if p == ASK else key + p * plane
                    for key, p in zip(choice.keys, said, strict=True)
                ]
                if choice is gate:
                    assert gate.graded(selector.rule) == (said, variants)
                else:
                    assert choice.variants(selector.rule) == variants
                seen |= {(step.rows == 1, p) for p in said}
                seen |= {s for s in choice.scores if s in (low, high)}
    assert {low, high, (True, 0), (True, 1), (True, ASK), (False, 0), (False, 1)} <= seen


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_sites_that_are_routed_together_choose_what_each_chooses_by_its_own_rule(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rules take turns. Some rows have no scores at some sites."""
    trace = make_trace({0: (2, 4), 1: (1, 3)})
    rules = RoutingRule(), RoutingRule(score="sigmoid", weight="norm")
    sites = [replace(site, rule=rules[n % 2]) for n, site in enumerate(trace.header.sites)]
    scores = np.random.default_rng(1).normal(size=trace.lookahead["raw"].shape)
    scores[1, 0, 0] = scores[4, 1, 0] = np.nan
    trace = replace(
        trace,
        header=replace(trace.header, sites=tuple(sites)),
        lookahead={"raw": scores.astype(np.float32)},
    )
    rows = np.arange(len(trace.ids))[::-1].copy()
    monkeypatch.setattr(choices, "ROWS_AT_ONCE", together * len(rows))
    found, weights = Choices(trace, rows, DEPTH, "raw").forecasts
    seen = 0
    for place, row in enumerate(rows.tolist()):
        for site in range(SITES):
            for j in range(1, DEPTH + 1):
                here = trace.lookahead["raw"][row, site, j - 1]
                told = found[place, site, j - 1].tolist(), weights[place, site, j - 1].tolist()
                if site + j >= SITES or np.isnan(here).any():
                    assert told == ([-1] * len(told[0]), [0] * len(told[0]))
                    continue
                experts, likely = rules[(site + j) % 2].route(here[None], len(told[0]))
                assert told == (experts[0].tolist(), likely[0].tolist())
                seen += 1
    assert seen > 10


@pytest.mark.parametrize("prompt", [0, 2], ids=["steps of one row", "a step of two rows"])
def test_what_a_gate_has_made_for_a_step_or_a_run_is_made_once(
    prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row that chose and forecasts everywhere no union is made at all."""
    trace = make_trace({0: (prompt, 4)})
    scores = np.arange(trace.lookahead["raw"].size, dtype=np.float32)
    trace = replace(
        trace,
        ids=np.tile(np.array([0, 2], np.int16), (len(trace.ids), SITES, 1)),
        weights=np.tile(np.array([0.75, 0.25], np.float32), (len(trace.ids), SITES, 1)),
        lookahead={"raw": scores.reshape(trace.lookahead["raw"].shape)},
    )
    workload = Workload(trace, split="all", batching="sequential", lookahead=DEPTH)
    asked = list[str]()
    for name in ("union", "forecast_union"):
        whole = getattr(Choices, name)

        def counted(self: Choices, *of: Any, name: str = name, whole: Any = whole) -> Any:
            asked.append(name)
            return whole(self, *of)

        monkeypatch.setattr(Choices, name, counted)

    def rule(values: FloatArray) -> IntArray:
        asked.append("rule")
        return (values > 0.5).astype(np.int8)

    def names(values: FloatArray, top_k: int) -> tuple[IntArray, FloatArray]:
        asked.append("names")
        return np.zeros((len(values), 1), np.int16), np.ones((len(values), 1), np.float32)

    gate = workload.gate()
    for step in workload.steps[:1] if prompt else workload.steps:
        gate.open(step)
        for _ in range(2):
            gate.visit(0)
            assert (gate.needs, gate.tokens) == ([0, 2], [max(prompt, 1)] * 2)
            assert list(gate.scores) == [0.0, 0.75]
            assert gate.graded(rule)[0] == [0, 1]
            found = gate.ranked(names, 1)
            assert found is not None
            for j, choice in enumerate(gate.forecasts(DEPTH), start=1):
                best = choice.needs.index(4)
                assert (choice.site, choice.tokens[best]) == (j, max(prompt, 1))
                assert (choice.scores[best], choice.variants(rule)[best]) == (0, choice.keys[best])
    counts = {name: asked.count(name) for name in ("union", "rule", "names")}
    if prompt:
        # A rule is asked of the choices, and of the forecasts one and two sites ahead.
        assert counts == {"union": 1, "rule": 3, "names": 1}
        assert asked.count("forecast_union") == 2
    else:
        assert counts == {"union": 0, "rule": 2, "names": 4}


@pytest.mark.parametrize(
    "ask",
    [
        lambda gate: gate.routed(1),
        lambda gate: gate.forecasts(1),
        lambda gate: gate.lookahead(1),
        lambda gate: gate.ranked(lambda scores, top_k: (scores, scores), 1),
    ],
)
def test_lookahead_that_no_policy_declared_is_refused_with_the_declaration(
    ask: Callable[[StepGate], Any],
) -> None:
    workload = Workload(read_trace(BUNDLED), split="eval", max_sequences=1)
    gate = workload.gate()
    gate.open(workload.steps[0])
    gate.visit(0)
    with pytest.raises(RuntimeError, match=r"declare requires = Requires\(lookahead_sites=\.\.\."):
        ask(gate)
