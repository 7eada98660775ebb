"""Lookahead cut to the best, or to those above a percentile: by hand and by plain sorting."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.bundled import Configure
from sim.policies.base import RowRule
from sim.policies.lookahead import (
    BestOf,
    ConfidentLookahead,
    GateLookahead,
    percentile_of,
    transfers_within,
)
from sim.policies.row_forecast import RowForecast
from sim.setup.build import build
from sim.traces.trace import Trace


def gate_of(scores: Any, selected: list[list[int]], site: int = 3) -> Any:
    """A gate whose next site has these raw scores [R, E].

    That site's own rule selects ``selected`` of each row.
    """
    rows = np.array(scores, np.float32)
    chosen = np.array(selected)
    routed = RowForecast(
        site + 1, rows.shape[1] + 1, chosen, np.ones(chosen.shape) / chosen.shape[1]
    )

    def ranked(rule: RowRule, j: int) -> RowForecast:
        return RowForecast(site + j, rows.shape[1] + 1, *rule(rows, chosen.shape[1]))

    return SimpleNamespace(
        site=site,
        routed=lambda j: routed,
        lookahead=lambda j: rows,
        ranked=ranked,
        forecasts=lambda n: [routed],
    )


@pytest.mark.parametrize(
    ("phases", "named"), [([1, 1], True), ([0, 0], False), ([0, 1], False), ([2, 2], False)]
)
def test_without_prompts_nothing_is_forecast_in_a_step_that_holds_their_rows(
    phases: list[int], named: bool
) -> None:
    gate = gate_of([[1, 2, 3], [3, 2, 1]], [[2], [0]])
    gate.row_phase = np.array(phases, np.uint8)
    assert list(GateLookahead(1, prompts=False).predict(gate)) == gate.forecasts(1) * named
    assert list(GateLookahead(1).predict(gate)) == gate.forecasts(1)


@pytest.mark.parametrize(
    ("num_experts", "named"), [(60, 15), (64, 16), (101, 25), (8, 2), (4, 1), (5, 1), (1, 0)]
)
def test_a_quarter_of_the_experts_lies_above_the_75th_percentile(
    num_experts: int, named: int
) -> None:
    """The percentile of E different values is interpolated at place 0.75 (E - 1), from 0 on.

    - 60 values: 44.25, so 45 .. 59 are above it (15: Qwen1.5-MoE).
    - 64 values: 47.25, so 48 .. 63 (16: DeepSeekMoE). 101 values: exactly 75, so 76 .. 100.
    - 8 values: 5.25, so 6 and 7. 4 values: 2.25, so 3.
    - 5 values: exactly 3, and value 3 is not above itself, so 4.
    - One expert is not above itself.
    """
    scores = np.random.default_rng(1).permutation(num_experts)
    found = [
        expert
        for choice in ConfidentLookahead().predict(gate_of([scores], [[0]]))
        for expert in choice.needs
    ]
    best = sorted(range(num_experts), key=lambda expert: -scores[expert])[:named]
    assert found == best


@pytest.mark.parametrize("num_experts", [1, 2, 5, 8, 60, 128])
def test_the_percentile_is_numpys_to_the_last_bit(num_experts: int) -> None:
    rng = np.random.default_rng(num_experts)
    weights = rng.random((50, num_experts))
    weights[::3] = weights[::3].round(1)
    ranked = -np.sort(-weights, axis=1)
    for percentile in (0, 12.5, 50, 75, 80, 99.9, *rng.uniform(0, 100, 20)):
        expected = np.percentile(weights, percentile, axis=1, keepdims=True)
        assert np.array_equal(percentile_of(ranked, float(percentile)), expected), percentile


def test_equal_weights_are_none_above_another() -> None:
    """If all are equal, none is above the percentile, and nothing is forecast."""
    assert list(ConfidentLookahead().predict(gate_of([[2.0] * 8], [[0, 1]]))) == []


def test_a_tie_at_the_percentile_is_not_above_it_and_ties_above_go_by_id() -> None:
    """Sorted 0 0 0 0 1 1 5 5: place 5.25 lies between 1 and 5, so both 5s are above.

    Sorted 0 0 0 5 5 5 5 5: the percentile is 5 itself, so none is above.
    """
    assert next(
        iter(ConfidentLookahead().predict(gate_of([[5, 0, 1, 5, 0, 1, 0, 0]], [[0]])))
    ).needs == [0, 3]
    assert list(ConfidentLookahead().predict(gate_of([[5, 0, 5, 5, 0, 5, 0, 5]], [[0]]))) == []


def test_weights_are_the_softmax_and_scores_shares_of_what_is_named() -> None:
    """Scores 0, ln 2, ln 3, 0 give weights 1/7, 2/7, 3/7, 1/7.

    Percentile 50 is 1.5 / 7, so experts 2 and 1 are above.
    """
    (forecast,) = ConfidentLookahead(50).predict(gate_of([[0, math.log(2), math.log(3), 0]], [[2]]))
    assert forecast.needs == [2, 1]
    assert forecast.weights[0, :2].tolist() == pytest.approx([3 / 7, 2 / 7], rel=1e-6)
    assert forecast.scores == pytest.approx([0, 3 / 5], rel=1e-6)
    assert forecast.keys == [4 * 5 + 2, 4 * 5 + 1]
    assert next(
        iter(ConfidentLookahead(50, experts=1).predict(gate_of([[0, 1, 2, 0]], [[2]])))
    ).needs == [2]
    assert next(
        iter(ConfidentLookahead(0, experts="top_k").predict(gate_of([[0, 1, 2, 3]], [[2, 1]])))
    ).needs == [3, 2]


def test_of_several_rows_it_is_their_popularity() -> None:
    """Rows select {0, 1}, {1, 2}, {1, 0}: 1 three times, 0 twice, 2 once."""
    gate = gate_of(np.zeros((3, 4)), [[0, 1], [1, 2], [1, 0]])
    (forecast,) = ConfidentLookahead().predict(gate)
    assert (forecast.needs, forecast.tokens) == ([1, 0, 2], [3, 2, 1])


@pytest.mark.parametrize("seed", range(8))
def test_the_percentile_equals_plain_sorting(seed: int) -> None:
    """Oracle: linear interpolation between neighbours, in plain Python, on the raw scores.

    Where no two values are equal, a rising function of the scores changes nothing.
    """
    rng = np.random.default_rng(seed)
    num_experts, percentile = int(rng.integers(2, 70)), float(rng.uniform(0, 99))
    scores = rng.standard_normal(num_experts).astype(np.float32)
    weights = [math.exp(float(score)) for score in scores]
    weights = [weight / sum(weights) for weight in weights]
    ordered = sorted(weights)
    place = percentile / 100 * (num_experts - 1)
    low = int(place)
    cut = ordered[low] + (place - low) * (ordered[min(low + 1, num_experts - 1)] - ordered[low])
    above = sorted((e for e, w in enumerate(weights) if w > cut), key=lambda e: (-weights[e], e))
    found = [
        choice.needs for choice in ConfidentLookahead(percentile).predict(gate_of([scores], [[0]]))
    ]
    assert found == ([above] if above else [])


def test_a_site_without_lookahead_has_no_forecast() -> None:
    nothing = SimpleNamespace(site=3, routed=lambda j: None, lookahead=lambda j: None)
    assert list(ConfidentLookahead().predict(nothing)) == []  # type: ignore[arg-type]


def test_a_prompt_of_one_token_without_scores_is_forecast_as_its_rule_selects() -> None:
    gate = gate_of([[0.0, 3.0, 2.0]], [[1, 2]])
    gate.ranked = lambda rule, j: None
    assert list(ConfidentLookahead().predict(gate)) == [gate.routed(1)]


def test_the_best_of_a_forecast_are_its_first_needs() -> None:
    """Of three rows the two most popular experts stay, with their tokens and scores.

    The third expert is removed from its rows.
    """
    whole = RowForecast(
        2, 5, np.array([[0, 1], [1, 2], [1, 0]]), np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    )
    assert whole.needs == [1, 0, 2]
    best = BestOf(whole, 2)
    assert (list(best.needs), best.keys, list(best.tokens)) == ([1, 0], [11, 10], [3, 2])
    assert list(best.scores) == list(whole.scores)[:2] == [0.0, 0.0]
    assert best.experts.tolist() == [[0, 1], [1, -1], [1, 0]]
    assert best.weights.tolist() == [[3.0, 1.0], [1.0, 0.0], [2.0, 2.0]]
    assert list(BestOf(whole, 9).needs) == [1, 0, 2]


def test_speculative_loading_may_name_one_or_two_of_what_is_forecast() -> None:
    gate = gate_of([[0, 0, 0, 0]], [[3, 1, 0]])
    for experts, needs in ((None, [3, 1, 0]), (1, [3]), (2, [3, 1])):
        (forecast,) = GateLookahead(1, experts).predict(gate)
        # With equal weights the row's order is kept, as a rule gives it.
        assert list(forecast.needs) == needs


@pytest.mark.parametrize(
    ("block_ms", "expert_ms", "top_k", "expected"),
    [
        (13, 6, 1, 2),  # Fate's example: a block of 13 ms, 6 ms an expert; 13 / 6 = 2.17
        (12, 6, 1, 2),  # exactly two
        (11, 6, 1, 1),
        (5, 6, 4, 4),  # no time for any: one token's needs all the same
        (0, 6, 2, 2),
    ],
)
def test_the_offline_budget_is_what_fits_beside_a_block(
    block_ms: int, expert_ms: int, top_k: int, expected: int
) -> None:
    assert transfers_within(block_ms * 10**6, expert_ms * 10**6, top_k) == expected


# Contracts: C30
def test_the_budget_of_a_run_is_that_of_its_mean_layer(
    configure: Configure, bundled_trace: Trace
) -> None:
    """A link of 4,000 GB/s moves an expert in less time than a layer takes.

    The budget is then the quotient of the run's own times. At the machine's own speed none fits,
    and one token's two needs are allowed all the same.
    """
    words = (
        "system=fate",
        "precision=fp16",
        "loader.prefetch_budget=within_layer",
        "trace.max_sequences=1",
    )
    fast = build(configure(*words, "hardware.links.pcie.peak_gb_per_s=4000"), "x", bundled_trace)
    durations, steps = fast.durations, [step for step in fast.workload.steps if step.decode]
    dense = [ns for step in steps for ns in durations.dense_ns(step)]
    layer_ns = sum(dense) / len(dense) + 2 * durations.expert_ns(0, 0, 1)
    expert_ns = durations.hop_ns(0, fast.controller.geometry.variant_bytes[0])
    assert fast.controller.loader.prefetch_budget == int(layer_ns / expert_ns) > 2
    slow = build(configure(*words), "x", bundled_trace)
    assert slow.controller.loader.prefetch_budget == 2
    with pytest.raises(ValueError, match=r"within_layer is a mean of steps.*arrivals_per_s=null"):
        build(
            configure(*words, "workload=continuous_4", "workload.arrivals_per_s=1"),
            "x",
            bundled_trace,
        )


def test_impossible_choices_are_refused_by_name() -> None:
    for percentile in (100, -1, "75", True):
        with pytest.raises(ValueError, match=r"predictor\.percentile="):
            ConfidentLookahead(percentile)  # type: ignore[arg-type]
    for experts in (0, "few", 1.5):
        with pytest.raises(ValueError, match=r"predictor\.experts="):
            ConfidentLookahead(75, experts)  # type: ignore[arg-type]
    for number in (0, True, "2"):
        with pytest.raises(ValueError, match=r"predictor\.experts="):
            GateLookahead(1, number)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"predictor\.sites="):
            GateLookahead(number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"predictor\.prompts=1 must be true or false"):
        GateLookahead(1, prompts=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expert_ns >= 1"):
        transfers_within(5, 0, 1)
