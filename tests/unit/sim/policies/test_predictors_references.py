"""Reference predictors know only what they are told, and stated accuracies hold in the mean.

The table of tokens is tested here, too.
"""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import Any

import numpy as np
import pytest

from helpers.gates_told import gate_of, random_sample, told
from sim.policies.fitted import Sample, Shape
from sim.policies.predictors import NoPrediction
from sim.policies.references import Foreseen, FutureNeeds, StatedAccuracy
from sim.policies.token_routes import TokenRoutes

# Two steps of three sites, then one of two sites, as an encoder has; four experts.
FUTURE = FutureNeeds(
    5,
    [0, 0, 0, 1, 1, 1, 2, 2],
    [0, 1, 2, 0, 1, 2, 0, 1],
    [[0], [1, 2], [3], [0], [0], [2, 1, 3], [1], [2]],
    [[1.0], [0.75, 0.25], [1.0], [1.0], [1.0], [0.5, 0.25, 0.25], [1.0], [1.0]],
)


@pytest.mark.parametrize(
    ("tick", "sites", "named"),
    [
        (0, None, [(1, [1, 2]), (2, [3])]),
        (0, 1, [(1, [1, 2])]),
        (3, 2, [(1, [0]), (2, [2, 1, 3])]),
        (2, None, []),  # the next gate is another step's
        (6, 3, [(1, [2])]),
        (7, None, []),  # the run ends
    ],
)
def test_the_future_is_told_as_far_as_the_step_goes(
    tick: int, sites: int | None, named: list[tuple[int, list[int]]]
) -> None:
    predictor = Foreseen(sites)
    predictor.foresee_needs(FUTURE)
    found = list(predictor.predict(gate_of(FUTURE.site[tick], [[0]], tick=tick)))
    assert told(found) == named
    if tick == 3:
        # With weights 1/2, 1/4, 1/4 eq. 2 gives 0, 1/2, 3/4.
        assert found[1].scores == [0.0, 0.5, 0.75]
        assert found[1].keys == [12, 11, 13]


def long_future(gates: int, num_experts: int = 16, needs: int = 4) -> FutureNeeds:
    """Steps of two sites; the needs of the second are drawn at random."""
    rng = np.random.default_rng(3)
    drawn = [rng.permutation(num_experts)[:needs].tolist() for _ in range(2 * gates)]
    return FutureNeeds(
        num_experts + 1,
        [t // 2 for t in range(2 * gates)],
        [t % 2 for t in range(2 * gates)],
        drawn,
        [[1.0] * needs] * (2 * gates),
    )


@pytest.mark.parametrize(
    ("recall", "precision"), [(0.88, 0.88), (0.5, 0.9), (1.0, 0.4), (0.25, 0.5)]
)
def test_stated_accuracies_hold_in_the_mean(recall: float, precision: float) -> None:
    """Of 4 needs a gate, over 3000 gates, the named ones are binomial: within 4 sigma.

    The precision of all that is named is within 1 %. Enough others are left: at most 4 * 1.5 = 6 of
    12 are asked for.
    """
    gates = 3000
    future = long_future(gates)
    predictor = StatedAccuracy(recall, precision)
    predictor.foresee_needs(future)
    named = right = 0
    for tick in range(0, 2 * gates, 2):
        for choice in predictor.predict(gate_of(0, [[0]], tick=tick)):
            assert len(set(choice.needs)) == len(choice.needs)
            named += len(choice.needs)
            right += len(set(choice.needs) & set(future.needs[tick + 1]))
    assert abs(right / (4 * gates) - recall) <= 4 * sqrt(recall * (1 - recall) / (4 * gates))
    assert right / named == pytest.approx(precision, rel=0.02)


def test_a_perfect_statement_is_the_future_and_none_is_nothing() -> None:
    future = long_future(20)
    for recall in (1.0, 0.0):
        predictor = StatedAccuracy(recall, 1.0)
        predictor.foresee_needs(future)
        for tick in range(0, 40, 2):
            found = [
                set(choice.needs) for choice in predictor.predict(gate_of(0, [[0]], tick=tick))
            ]
            assert found == ([set(future.needs[tick + 1])] if recall else [])


def test_draws_depend_on_seed_gate_and_site_and_the_order_on_likelinesses() -> None:
    future = long_future(50)

    def all_named(seed: int) -> list[list[int]]:
        predictor = StatedAccuracy(0.7, 0.6, seed=seed)
        predictor.foresee_needs(future)
        found = []
        for tick in range(0, 100, 2):
            for choice in predictor.predict(gate_of(0, [[0]], tick=tick)):
                weights = choice.weights[0].tolist()
                assert weights == sorted(weights, reverse=True)
                assert 0 < min(weights) <= max(weights) <= 1
                found.append(list(choice.needs))
        return found

    assert all_named(0) == all_named(0) != all_named(1)
    first_is_right = [
        named[0] in needs for named, needs in zip(all_named(0), future.needs[1::2], strict=False)
    ]
    assert 0 < sum(first_is_right) < len(first_is_right), "the best is not always right"


def test_each_site_has_its_own_accuracy() -> None:
    predictor = StatedAccuracy([0.5, 1.0, 0.0], 1.0, sites=2)
    predictor.foresee_needs(FUTURE)
    assert [
        (site, set(needs)) for site, needs in told(predictor.predict(gate_of(0, [[0]], tick=3)))
    ] == [(1, {0})]
    with pytest.raises(
        ValueError, match=r"predictor\.recall has 2 values, but the model has 3 sites"
    ):
        StatedAccuracy([0.5, 1.0], 1.0).foresee_needs(FUTURE)


def test_what_is_not_told_or_cannot_be_is_refused() -> None:
    for reference in (Foreseen(), StatedAccuracy(1, 1)):
        with pytest.raises(RuntimeError, match="call foresee_needs"):
            list(reference.predict(gate_of(0, [[0]])))
    wrong = (
        ("sites", 0),
        ("recall", 1.1),
        ("precision", 0),
        ("recall", []),
        ("seed", -1),
        ("recall", "high"),
    )
    for name, value in wrong:
        with pytest.raises(ValueError, match=rf"predictor\.{name}="):
            StatedAccuracy(**{"recall": 1.0, "precision": 1.0, name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"predictor\.sites='2'"):
        Foreseen("2")  # type: ignore[arg-type]


def test_no_prediction_is_no_forecast_and_remembers_nothing() -> None:
    none = NoPrediction()
    assert list(none.predict(gate_of(0, [[0]]))) == []
    assert none.afresh() is none


# Tokens


@pytest.mark.parametrize("sites", [0, -1, 1.5, True, "2"])
def test_a_number_of_sites_that_is_none_is_refused(sites: Any) -> None:
    with pytest.raises(
        ValueError,
        match=f"^predictor.sites={sites!r} must be a whole number >= 1, or null for all later sites$",
    ):
        TokenRoutes(sites)
    assert [TokenRoutes(own).sites for own in (None, 1)] == [None, 1]


def tokens_known(ids: Any, tokens: list[int], num_experts: int, **choices: Any) -> TokenRoutes:
    rows = np.array(ids)
    sample = Sample(
        Shape(rows.shape[1], num_experts, rows.shape[2]),
        rows,
        np.zeros(len(rows), np.int64),
        np.array(tokens),
    )
    predictor = TokenRoutes(**choices)
    predictor.know(sample.shape, predictor.fit(sample))
    return predictor


def test_a_hash_layer_is_foretold_by_its_token() -> None:
    """Expert = token mod 3 at site 0, 2 - token mod 3 at sites 1 and 2."""
    tokens = [4, 5, 6, 4]
    predictor = tokens_known([[[t % 3], [2 - t % 3], [2 - t % 3]] for t in tokens], tokens, 3)
    for token in (4, 5, 6):
        expected = [2 - token % 3]
        assert told(predictor.predict(gate_of(0, [[0]], token=token))) == [
            (1, expected),
            (2, expected),
        ]
        assert told(predictor.predict(gate_of(2, [[0]], token=token))) == []


def test_an_unknown_token_is_served_by_the_site_s_own_shares() -> None:
    """At site 1 all rows have expert 2 twice, 0 and 1 once; two experts a row are asked for.

    -1 is no token.
    """
    predictor = tokens_known(
        [[[0], [2]], [[0], [2]], [[0], [1]], [[0], [0]]], [7, 8, 9, -1], 3, experts=2
    )
    for token in (10, -1):
        (forecast,) = predictor.predict(gate_of(0, [[0]], token=token))
        assert (forecast.needs, forecast.weights.tolist()) == ([2, 0], [[0.5, 0.25]])
    assert told(predictor.predict(gate_of(0, [[0]], token=9))) == [(1, [1])]


@pytest.mark.parametrize("seed", range(5))
def test_the_table_equals_plain_counting(seed: int) -> None:
    sample = random_sample(seed, encoder_sites=2 * (seed % 2))
    predictor = TokenRoutes(sites=2, experts="all")
    predictor.know(sample.shape, predictor.fit(sample))
    last = 1 if sample.shape.encoder_sites else 4
    for token in range(7):
        for site in range(last):
            found = list(predictor.predict(gate_of(site, [[0, 1]], token=token)))
            assert [choice.site for choice in found] == list(
                range(site + 1, min(site + 2, last) + 1)
            )
            for choice in found:
                rows = [
                    row[choice.site]
                    for row, t in zip(sample.ids.tolist(), sample.token, strict=True)
                    if max(row[choice.site]) >= 0 and t == token
                ]
                rows = rows or [
                    row[choice.site] for row in sample.ids.tolist() if max(row[choice.site]) >= 0
                ]
                counts = Counter(expert for row in rows for expert in row if expert >= 0)
                assert choice.needs == sorted(counts, key=lambda e: (-counts[e], e))
                expected = [counts[expert] / len(rows) for expert in choice.needs]
                assert choice.weights[0, : len(expected)].tolist() == pytest.approx(
                    expected, rel=1e-12
                )


def test_a_trace_without_tokens_cannot_fill_the_table() -> None:
    with pytest.raises(ValueError, match="does not tell which tokens"):
        tokens_known([[[0], [1]]], [-1], 2)
