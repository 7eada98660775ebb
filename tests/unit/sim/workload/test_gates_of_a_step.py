"""What a gate computes for a whole step at once is what it would compute gate by gate."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.bundled import BUNDLED
from sim.policies.base import FloatArray
from sim.policies.lookahead import ConfidentLookahead
from sim.policies.precisions import ScoreThreshold
from sim.traces.trace import read_trace
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


def test_grades_of_a_run_are_the_grades_of_its_scores(workload: Workload) -> None:
    """The thresholds are as near to two of its scores as numbers get, one below and one above."""
    some = sorted(set(workload.scores[40:].ravel().tolist()))
    low, high = some[len(some) // 2], some[-2]
    selector = ScoreThreshold("fp16", "int4", np.nextafter(low, 0.0), np.nextafter(high, 1.0))
    gate, seen = workload.gate(), set()
    for step in workload.steps[:200]:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            for choice in (gate, *gate.forecasts(2)):
                grades = list(choice.grades(selector._grade))
                assert grades == [
                    0 if s <= selector.low_above else 1 if s <= selector.skip_above else 2
                    for s in choice.scores
                ]
                seen |= {(step.rows == 1, grade) for grade in grades}
                seen |= {s for s in choice.scores if s in (low, high)}
    assert {low, high, (True, 0), (True, 1), (True, 2), (False, 0), (False, 1)} <= seen
