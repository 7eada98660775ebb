"""The predictor of the experts that have weighed most lately, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.gates_told import told
from sim.policies.fitted import Shape
from sim.policies.importance import RecentImportance


def gate(site: int, experts: Any, weights: Any) -> Any:
    return SimpleNamespace(site=site, experts=np.array(experts), weights=np.array(weights))


def ready(**choices: Any) -> RecentImportance:
    predictor = RecentImportance(**choices)
    predictor.know(Shape(2, 4, 2), {})
    return predictor


def test_importance_is_gate_weight_that_halves_with_each_gate_of_the_site() -> None:
    """Expert 1: 0.75, then 0.375 + 0.25 = 0.625; expert 3: 0.25 / 2 = 0.125; expert 0: 0.75."""
    predictor = ready(decay=0.5, experts="all")
    first, second = gate(1, [[1, 3]], [[0.75, 0.25]]), gate(1, [[0, 1]], [[0.75, 0.25]])
    assert told(predictor.predict(first)) == [(1, [1, 3])], (
        "this gate's own weights count, and its own site is named"
    )
    predictor.observe(first)
    predictor.observe(gate(0, [[2, 3]], [[0.5, 0.5]]))
    (forecast,) = predictor.predict(second)
    assert (forecast.site, list(forecast.needs)) == (1, [0, 1, 3]), (
        "another site's gates are no matter"
    )
    assert forecast.weights[0, :3].tolist() == [0.75, 0.625, 0.125]
    predictor.forget()
    assert told(predictor.predict(second)) == [(1, [0, 1])]


def test_every_rows_weights_add_up_and_dropped_choices_give_none() -> None:
    (forecast,) = ready().predict(gate(0, [[2, 3], [3, -1]], [[0.5, 0.5], [0.25, 0.0]]))
    assert list(forecast.needs) == [3, 2], "as many as the router selects"
    assert forecast.weights[0].tolist() == [0.75, 0.5]


def test_with_a_decay_of_0_the_gates_own_choices_are_forecast_alone() -> None:
    predictor = ready(decay=0.0)
    predictor.observe(gate(0, [[2, 3]], [[0.9, 0.1]]))
    assert told(predictor.predict(gate(0, [[0, 1]], [[0.4, 0.6]]))) == [(0, [1, 0])]


def test_prompts_are_left_out_where_that_is_asked_for() -> None:
    predictor = ready(decay=0.0, prompts=False)
    prompt = gate(0, [[0, 1]], [[0.4, 0.6]])
    prompt.row_phase = np.array([0])
    assert told(predictor.predict(prompt)) == []
    prompt.row_phase = np.array([1])
    assert told(predictor.predict(prompt)) == [(0, [1, 0])]
    with pytest.raises(ValueError, match=r"predictor\.prompts="):
        RecentImportance(prompts=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [True, 1.01, -0.5, "x"])
def test_a_decay_outside_0_to_1_is_refused_by_the_predictor(decay: Any) -> None:
    with pytest.raises(ValueError, match=r"predictor\.decay="):
        RecentImportance(decay=decay)
