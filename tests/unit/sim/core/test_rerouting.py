"""Needs that are served by other experts, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.core.rerouting import JOINED, serve
from sim.policies.reroutes import ForecastRoutes
from sim.values.types import REROUTE, SKIP, Geometry, Outcome, rerouted

GEOMETRY = Geometry(2, 6, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 48)
UNITS, PLANE = 7, 14
HIT, HIGH_FOR_LOW, MISS = int(Outcome.HIT), int(Outcome.HIGH_FOR_LOW), int(Outcome.MISS)
OTHER = int(Outcome.REROUTE)


def gate(rows: list[list[int]], tick: int | None = 0) -> Any:
    """A gate at site 1.

    Need order: more rows first, then the smaller id; with one row as it is given.
    """
    flat = [expert for row in rows for expert in row]
    needs = flat if len(rows) == 1 else sorted(set(flat), key=lambda e: (-flat.count(e), e))
    told = {} if tick is None else {"tick": tick}
    return SimpleNamespace(
        site=1,
        needs=needs,
        tokens=[flat.count(e) for e in needs],
        scores=[0.1 * e for e in needs],
        token=9,
        experts=np.array(rows),
        weights=np.full(np.shape(rows), 0.5),
        **told,
    )


def to(expert: int, precision: int = 0) -> int:
    return rerouted(expert, precision, 2)


# What a selector's answers mean


# Contracts: C26
@pytest.mark.parametrize(("expert", "precision", "answer"), [(0, 0, 2), (0, 1, 3), (5, 1, 13)])
def test_an_answer_that_names_another_expert_follows_those_that_name_precisions(
    expert: int, precision: int, answer: int
) -> None:
    assert rerouted(expert, precision, 2) == answer
    assert divmod(answer, 2) == (expert + 1, precision)


# Contracts: C26
def test_a_need_sent_elsewhere_is_that_experts() -> None:
    serving = serve(gate([[3, 4]]), [to(5), 1], GEOMETRY)
    assert serving.experts == [5, 4]
    assert serving.told == serving.wanted == [0, 1]
    assert serving.keys == [UNITS + 5, PLANE + UNITS + 4]
    assert serving.tokens == [1, 1]
    assert serving.gate.needs == [5, 4]
    assert serving.gate.keys == [UNITS + 5, UNITS + 4]
    assert serving.gate.experts.tolist() == [[5, 4]]
    assert serving.gate.token == 9
    assert serving.gate.weights.tolist() == [[0.5, 0.5]]


# Contracts: C27
def test_two_needs_of_one_row_that_one_expert_serves_are_one_computation() -> None:
    serving = serve(gate([[3, 4]]), [to(5, 1), to(5)], GEOMETRY)
    assert serving.wanted == [0, JOINED], "the first brings it, at the higher of both precisions"
    assert serving.told == [0, 0]
    assert serving.keys == [UNITS + 5, UNITS + 5]
    assert serving.tokens == [1, 0], "a row is computed once, however often it names the expert"
    assert (serving.gate.needs, serving.gate.tokens) == ([5], [1])


# Contracts: C27
def test_what_another_need_asks_for_itself_is_brought_by_that_need() -> None:
    serving = serve(gate([[3, 4]]), [to(4), 1], GEOMETRY)
    assert serving.wanted == [JOINED, 0]
    assert serving.tokens == [0, 1]
    assert serving.gate.needs == [4]


def test_a_need_that_is_itself_sent_elsewhere_brings_nothing_for_others() -> None:
    serving = serve(gate([[3, 4]]), [to(4), to(5)], GEOMETRY)
    assert serving.experts == [4, 5]
    assert serving.wanted == [0, 0]
    assert serving.gate.experts.tolist() == [[4, 5]]


# Contracts: C27
def test_of_several_rows_an_expert_is_computed_for_all_that_it_serves_but_no_row_twice() -> None:
    # Expert 3 has 3 rows, 0 and 1 have 2 each, 2 has 1.
    asked = gate([[3, 0], [3, 0], [3, 1], [1, 2]])
    assert (asked.needs, asked.tokens) == ([3, 0, 1, 2], [3, 2, 2, 1])
    serving = serve(asked, [0, 0, to(2), 0], GEOMETRY)
    assert serving.tokens == [3, 2, 0, 3], "2 + 1 rows"
    serving = serve(asked, [0, to(3), to(3), 0], GEOMETRY)
    assert serving.tokens == [4, 0, 0, 1], "3 + 2 + 2, but there are 4 rows"
    assert (serving.gate.needs, serving.gate.tokens) == ([3, 2], [4, 1])
    assert serving.gate.experts.tolist() == [[3, 3], [3, 3], [3, 3], [3, 2]]
    assert serving.gate.scores == [0.0, 0.2], "the smallest of those served: expert 0's"


# Contracts: C27
def test_a_skipped_need_is_nobodys_carrier() -> None:
    serving = serve(gate([[3, 4]]), [to(4), SKIP], GEOMETRY)
    assert serving.wanted == [0, SKIP]
    assert serving.keys == [UNITS + 4, SKIP]
    assert serving.tokens == [1, 0]
    assert serving.gate.scores == [pytest.approx(0.3)]


def test_an_answer_that_names_the_needs_own_expert_is_no_reroute() -> None:
    serving = serve(gate([[3, 4]]), [to(3, 1), 0], GEOMETRY)
    keys, outcomes = serving.looked_up([PLANE + UNITS + 3, UNITS + 4], [HIT, HIT], 0)
    assert (keys, outcomes) == ([PLANE + UNITS + 3, UNITS + 4], [HIT, HIT])


def test_a_reroute_is_an_outcome_where_the_other_is_there_or_comes_with_another_need() -> None:
    serving = serve(gate([[3, 4, 0]]), [to(5), to(1), to(5)], GEOMETRY)
    keys, outcomes = serving.looked_up(
        [PLANE + UNITS + 5, UNITS + 1, -1], [HIGH_FOR_LOW, MISS, int(Outcome.SKIP)], 0
    )
    assert outcomes == [OTHER, MISS, OTHER]
    assert keys == [PLANE + UNITS + 5, UNITS + 1, UNITS + 5]
    assert serving.looked_up([-1], [int(Outcome.SKIP)], 2) == ([UNITS + 5], [OTHER]), (
        "the last one alone, in a wave"
    )


# Serving what was forecast


@pytest.mark.parametrize(
    ("needs", "foreseen", "serving"),
    [
        ([3, 4], [4, 3], [3, 4]),  # all forecast: nothing changes
        ([3, 4], [5, 3], [3, 5]),  # 3 stays, 4 is sent to the forecast that is left
        ([3, 4], [5, 1], [5, 1]),  # none was forecast: in need order, to the best forecasts first
        (
            [3, 4],
            [5, 1, 3],
            [5, 1],
        ),  # as many forecasts count as there are needs, and 3 is the third
        ([3, 4, 0], [1], [1, 1, 1]),  # fewer were forecast: they serve again
        ([3, 4, 0, 2], [1, 3], [3, 1, 1, 3]),  # 4 to 1; then from the best again: 0 to 1, 2 to 3
        ([3, 4], [], [3, 4]),  # nothing forecast: the router's choice
    ],
)
def test_what_was_forecast_serves(
    needs: list[int], foreseen: list[int], serving: list[int]
) -> None:
    asked = gate([needs])
    answers = ForecastRoutes("fp16").select(asked, SimpleNamespace(foreseen=foreseen))  # type: ignore[arg-type]
    one = Geometry(2, 6, 2, ("fp16",), (16.0,), (8,), 48)
    assert list(serve(asked, answers, one).experts) == serving


# Contracts: C26
def test_a_forecast_itself_is_never_sent_elsewhere() -> None:
    selector = ForecastRoutes("int4")
    assert list(selector.select(gate([[3, 4]], tick=None), SimpleNamespace(foreseen=[1, 2]))) == [
        0,
        0,
    ]  # type: ignore[arg-type]
    assert (selector.precisions, selector.permitted(0.5), selector.constant) == (
        ("int4",),
        (0, REROUTE),
        None,
    )
