"""Every statistic of a calibration by counting in plain Python; gates against the walk's parts."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from capture.statistics.gating_stats import recall_at
from capture.synthetic.targets import (
    STATISTICS,
    Gates,
    chance_overlap,
    forecast_recall,
    gini,
    kept_reuse,
    lru_hits,
    overlap,
    profiled_share,
    quarter,
    synthetic_gates,
    union_share,
    used_within,
)
from sim.synthetic.gate_walk import Walk, gate_inputs, make_routers
from sim.traces.routing import RoutingRule

SEQUENCES, TOKENS, LAYERS, EXPERTS, TOP_K = 3, 70, 5, 8, 2
RULE = RoutingRule(score="softmax", weight="gather")
WALK = Walk(channels=6, topic=0.3, popularity=0.4, carry_first=0.8)


@pytest.fixture(scope="module")
def gates() -> Gates:
    return synthetic_gates(WALK, RULE, LAYERS, EXPERTS, TOP_K, SEQUENCES, TOKENS, 4)


def sets(gates: Gates, layer: int) -> list[list[set[int]]]:
    """The experts of each token, by sequence."""
    return [[set(token[layer].tolist()) for token in sequence] for sequence in gates.experts]


def test_gates_are_what_the_routers_make_of_the_walks_inputs(gates):
    routers = make_routers(WALK, LAYERS, EXPERTS, 4)
    inputs, ids = gate_inputs(WALK, routers, TOKENS, 4, 2)
    logits = {
        layer: [float(row @ inputs[layer, 11]) for row in routers.weight[layer]]
        for layer in range(LAYERS)
    }
    for layer, scores in logits.items():
        best = sorted(range(EXPERTS), key=lambda expert: -scores[expert])[:TOP_K]
        assert gates.experts[2, 11, layer].tolist() == best
        shares = np.exp(scores) / np.exp(scores).sum()
        assert gates.weights[2, 11, layer] == pytest.approx(shares[best], rel=1e-4)
    assert gates.tokens is not None
    assert gates.tokens[2].tolist() == ids.tolist()
    assert gates.ahead is not None
    expected = [float(row @ inputs[1, 11]) for row in routers.weight[3]]
    assert gates.ahead(2)[2, 11, 1] == pytest.approx(expected, abs=1e-4)
    assert gates.inputs is not None
    assert np.array_equal(gates.inputs[2].swapaxes(0, 1), inputs)


@pytest.mark.parametrize("lag", [1, 8])
def test_overlap_counts_common_experts(gates, lag):
    for layer in range(LAYERS):
        shares = [
            len(now & then) / TOP_K
            for tokens in sets(gates, layer)
            for now, then in zip(tokens[lag:], tokens, strict=False)
        ]
        assert overlap(gates.members, lag)[layer] == pytest.approx(fmean(shares))


def test_chance_overlap_pairs_every_token_with_those_of_other_sequences(gates):
    for layer in range(LAYERS):
        pairs = [
            len(one & other) / TOP_K
            for left, right in combinations(sets(gates, layer), 2)
            for one in left
            for other in right
        ]
        assert chance_overlap(gates.members)[layer] == pytest.approx(fmean(pairs))


def test_chance_needs_two_sequences(gates):
    with pytest.raises(ValueError, match="needs 2 of them or more"):
        chance_overlap(gates.members[:1])


def test_kept_reuse_is_a_ratio_of_excesses(gates):
    means = [fmean(overlap(gates.members, lag)) for lag in (1, 8)]
    chance = fmean(chance_overlap(gates.members))
    assert kept_reuse(gates.members, 8) == pytest.approx((means[1] - chance) / (means[0] - chance))


def test_used_within_looks_back_over_a_window(gates):
    found = [
        expert in set().union(*tokens[at - 4 : at])
        for layer in range(LAYERS)
        for tokens in sets(gates, layer)
        for at in range(4, TOKENS)
        for expert in tokens[at]
    ]
    assert used_within(gates.members, 4) == pytest.approx(fmean(found))


def test_a_union_is_of_tokens_in_a_row(gates):
    found = [
        len(set().union(*tokens[at : at + 3])) / (3 * TOP_K)
        for layer in range(LAYERS)
        for tokens in sets(gates, layer)
        for at in range(TOKENS - 2)
    ]
    assert union_share(gates.members, 3) == pytest.approx(fmean(found))


@pytest.mark.parametrize("slots", [2, 3, 5, 8])
def test_an_lru_has_what_fewer_experts_than_its_slots_were_used_after(gates, slots):
    found = []
    for layer in range(LAYERS):
        for tokens in sets(gates, layer):
            for at in range(TOKENS // 2, TOKENS):
                for expert in tokens[at]:
                    uses = [before for before in range(at) if expert in tokens[before]]
                    after = set().union(*tokens[uses[-1] + 1 : at]) if uses else set(range(8))
                    found.append(bool(uses) and len(after) < slots)
    assert lru_hits(gates.members, slots) == pytest.approx(fmean(found))
    assert lru_hits(gates.members, 8) > lru_hits(gates.members, 2) > 0


def test_a_profile_is_of_all_other_sequences(gates):
    found = []
    for layer in range(LAYERS):
        choices = [sequence[:, layer].ravel().tolist() for sequence in gates.experts]
        for number, own in enumerate(choices):
            others = [e for n, of in enumerate(choices) if n != number for e in of]
            known = sorted(range(EXPERTS), key=lambda e: (-others.count(e), e))[: EXPERTS // 2]
            found.append(sum(expert in known for expert in own) / len(own))
    assert profiled_share(gates.members, 0.5) == pytest.approx(fmean(found))


def test_gini_is_half_the_relative_mean_difference(gates):
    by_layer = []
    for layer in range(LAYERS):
        counts = np.bincount(gates.experts[:, :, layer].ravel(), minlength=EXPERTS).tolist()
        differences = [abs(one - other) for one in counts for other in counts]
        by_layer.append(fmean(differences) / (2 * fmean(counts)))
    assert gini(gates.members) == pytest.approx(fmean(by_layer))


def test_top_fifth_and_first_weight_by_hand():
    experts = np.array([[[[0, 1]], [[0, 2]], [[0, 3]], [[4, 0]]]])
    weights = np.array([[[[0.3, 0.1]], [[0.2, 0.2]], [[0.9, 0.1]], [[0.5, 0.0]]]])
    by_hand = Gates(5, experts, weights)
    assert STATISTICS["top_fifth"](by_hand) == 0.5
    assert STATISTICS["first_weight"](by_hand) == pytest.approx((0.75 + 0.5 + 0.9 + 1) / 4)
    with pytest.raises(ValueError, match=r"must both be \[S, T, L, K\]"):
        Gates(5, experts, weights[0])


@pytest.mark.parametrize("count", [TOP_K, 3, EXPERTS])
def test_forecast_recall_equals_the_one_that_sorts(gates, count):
    assert gates.ahead is not None
    expected = recall_at(gates.ahead(2), gates.experts, count).mean()
    assert forecast_recall(gates, 2, count) == pytest.approx(expected)


def test_far_is_the_mean_of_two_and_three_ahead_and_deep_the_deeper_half(gates):
    assert gates.ahead is not None
    by_distance = {}
    for distance in (1, 2, 3):
        best = gates.ahead(distance).argmax(-1)
        by_distance[distance] = [
            fmean(
                int(best[s, t, layer] in gates.experts[s, t, layer + distance])
                for s in range(SEQUENCES)
                for t in range(TOKENS)
            )
            for layer in range(LAYERS - distance)
        ]
    assert STATISTICS["used_1"](gates) == pytest.approx(fmean(by_distance[1]))
    assert STATISTICS["used_1_first"](gates) == pytest.approx(by_distance[1][0])
    assert STATISTICS["used_1_deep"](gates) == pytest.approx(fmean(by_distance[1][2:]))
    assert STATISTICS["used_far"](gates) == pytest.approx(
        fmean([fmean(by_distance[2]), fmean(by_distance[3])])
    )


def test_a_quarter_is_never_less_than_what_is_used():
    few = Gates(8, np.zeros((1, 1, 1, 4), int), np.zeros((1, 1, 1, 4)))
    assert quarter(few) == 4
    assert quarter(Gates(60, few.experts, few.weights)) == 15


def test_equal_tokens_are_compared_in_neighbouring_sequences(gates):
    assert gates.tokens is not None
    found = [
        gates.experts[s, t, 0, 0] == gates.experts[s + 1, t, 0, 0]
        for s in range(SEQUENCES - 1)
        for t in range(TOKENS)
        if gates.tokens[s, t] == gates.tokens[s + 1, t]
    ]
    assert STATISTICS["same_token"](gates) == pytest.approx(fmean(map(float, found)))
