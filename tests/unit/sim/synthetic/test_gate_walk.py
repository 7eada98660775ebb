"""The walk of gate inputs: its covariances by formula, and the statistic that each knob moves."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from capture.synthetic.targets import STATISTICS, synthetic_gates
from sim.synthetic.gate_walk import (
    BLIND_CHANNELS,
    Walk,
    carries,
    gate_inputs,
    logits_of,
    make_routers,
    memory_shares,
    output_norms,
)
from sim.traces.routing import RoutingRule

RULE = RoutingRule(score="softmax", weight="norm")
PLAIN = Walk(channels=8, lexical=0.0, topic=0.0)
LAYERS, EXPERTS = 6, 16


def many_inputs(walk: Walk, sequences: int = 40, tokens: int = 60) -> np.ndarray:
    """The walking channels of many sequences, [sequence, L, T, channel]."""
    routers = make_routers(walk, LAYERS, EXPERTS, 0)
    drawn = [gate_inputs(walk, routers, tokens, 0, number)[0] for number in range(sequences)]
    return np.stack(drawn)[..., 1:-BLIND_CHANNELS]


def covariance(left: np.ndarray, right: np.ndarray) -> float:
    return float((left * right).mean())


@pytest.mark.parametrize("drift", [0.0, 0.6])
def test_the_walk_keeps_unit_variance_and_neighbours_correlate_by_carry(drift):
    walk = replace(
        PLAIN, drift=drift, carry_first=0.7, carry_deep=0.95, topic=0.0, slow=0.0, fast_decay=0.0
    )
    walked = many_inputs(walk)
    for layer, carry in enumerate(carries(walk, LAYERS)):
        assert covariance(walked[:, layer], walked[:, layer]) == pytest.approx(1, abs=0.03)
        if layer:
            assert covariance(walked[:, layer], walked[:, layer - 1]) == pytest.approx(
                carry, abs=0.03
            )


def test_without_drift_correlation_is_the_product_of_carries_and_drift_lowers_it():
    walk = replace(PLAIN, carry_first=0.9, carry_deep=0.9, slow=0.0)
    plain, drifting = many_inputs(walk), many_inputs(replace(walk, drift=0.7))
    assert covariance(plain[:, 1], plain[:, 3]) == pytest.approx(0.81, abs=0.02)
    # By hand: what is written correlates by .7. So x3 = .660 x2 + .498 w3, and cov(x1, w3) = .7^2
    # sqrt(1 - .9^2).
    assert covariance(drifting[:, 1], drifting[:, 3]) == pytest.approx(0.700, abs=0.02)


def test_memory_over_tokens_is_topic_and_two_decays():
    walk = replace(PLAIN, topic=0.3, slow=0.4, slow_decay=0.9, fast_decay=0.2)
    memory = many_inputs(walk, sequences=300)[..., : walk.channels]
    for lag in (1, 4, 20):
        expected = 0.3 + 0.7 * (0.4 * 0.9**lag + 0.6 * 0.2**lag)
        assert covariance(memory[:, :, lag:], memory[:, :, :-lag]) == pytest.approx(
            expected, abs=0.03
        )


def test_fresh_channels_forget_at_once_but_for_equal_tokens():
    walk = replace(PLAIN, lexical=0.7, vocabulary=5, zipf=0.0)
    routers = make_routers(walk, LAYERS, EXPERTS, 0)
    first, ids = gate_inputs(walk, routers, 400, 0, 0)
    other, others = gate_inputs(walk, routers, 400, 0, 1)
    fresh = slice(1 + walk.channels, 1 + 2 * walk.channels)
    same = ids == others
    product = (first[0, :, fresh] * other[0, :, fresh]).mean(-1)
    assert product[same].mean() == pytest.approx(
        0.7 * (routers.lexicon[ids[same]] ** 2).mean(), abs=0.15
    )
    lagged = (first[0, 1:, fresh] * first[0, :-1, fresh]).mean(-1)
    assert abs(lagged[ids[1:] != ids[:-1]].mean()) < 0.25
    assert product[same].mean() > product[~same].mean() + 0.3


def test_logits_have_the_spread_and_popularity_is_an_advantage_in_its_units():
    walk = replace(PLAIN, spread=2.0, popularity=0.5)
    routers = make_routers(walk, LAYERS, EXPERTS, 0)
    inputs = np.stack([gate_inputs(walk, routers, 50, 0, number)[0] for number in range(200)])
    logits = inputs @ routers.weight.swapaxes(1, 2)
    assert logits.std(axis=(0, 2)).mean() == pytest.approx(2.0, rel=0.05)
    assert logits.mean((0, 2)).std() == pytest.approx(0.5 * 2.0, rel=0.15)


def test_one_channel_of_every_input_is_the_same_constant():
    """Popularity is a weight of that channel."""
    for walk in (PLAIN, replace(PLAIN, constant=0.7)):
        inputs, _ = gate_inputs(walk, make_routers(walk, LAYERS, EXPERTS, 0), 5, 0, 0)
        expected = math.sqrt(walk.constant * 2 * walk.channels)
        assert np.allclose(inputs[..., 0], expected, rtol=1e-6)


def test_lookahead_is_the_later_router_on_this_input():
    routers = make_routers(PLAIN, LAYERS, EXPERTS, 0)
    inputs, _ = gate_inputs(PLAIN, routers, 7, 0, 0)
    ahead = logits_of(inputs, routers, 2)
    assert ahead.shape == (LAYERS - 2, 7, EXPERTS)
    expected = [float(inputs[1, 3] @ routers.weight[3, expert]) for expert in range(EXPERTS)]
    assert ahead[1, 3] == pytest.approx(expected, abs=1e-4)


def test_logits_are_the_exact_sums_rounded_once():
    """So that they are the same on every processor, whatever order its BLAS sums in."""
    routers = make_routers(PLAIN, LAYERS, EXPERTS, 0)
    inputs, _ = gate_inputs(PLAIN, routers, 7, 0, 0)
    for layer, token, expert in np.ndindex(LAYERS, 7, EXPERTS):
        # A product of two float32 is exact in a float, and fsum rounds their sum once.
        products = inputs[layer, token].astype(float) * routers.weight[layer, expert].astype(float)
        exact = np.float32(math.fsum(products))
        assert logits_of(inputs, routers)[layer, token, expert] == exact


def test_a_sequence_does_not_depend_on_others_and_seeds_differ():
    routers = make_routers(PLAIN, LAYERS, EXPERTS, 5)
    again = make_routers(PLAIN, LAYERS, EXPERTS, 5)
    assert np.array_equal(routers.weight, again.weight)
    third = gate_inputs(PLAIN, routers, 9, 5, 3)
    assert all(
        np.array_equal(one, other)
        for one, other in zip(third, gate_inputs(PLAIN, again, 9, 5, 3), strict=True)
    )
    assert not np.array_equal(third[0], gate_inputs(PLAIN, routers, 9, 5, 4)[0])
    assert not np.array_equal(routers.weight, make_routers(PLAIN, LAYERS, EXPERTS, 6).weight)


def test_memory_shares_have_three_levels():
    walk = replace(
        PLAIN,
        memory_first=0.1,
        memory_middle=0.7,
        memory_last=0.3,
        memory_from=0.25,
        memory_to=0.75,
    )
    assert memory_shares(walk, 9) == pytest.approx([0.1, 0.4, 0.7, 0.7, 0.7, 0.7, 0.7, 0.5, 0.3])
    flat = replace(walk, memory_from=0.0, memory_to=1.0)
    assert memory_shares(flat, 5) == pytest.approx([0.1, 0.7, 0.7, 0.7, 0.3])
    assert memory_shares(walk, 1) == pytest.approx([0.1])


# A knob, three positions of it, the statistic that it moves, and whether the statistic rises.
MOVES = [
    ("spread", (0.7, 1.5, 3.0), "first_weight", True),
    ("spread", (0.7, 1.5, 3.0), "score_high", False),
    ("popularity", (0.0, 0.4, 1.0), "gini", True),
    ("carry_deep", (0.85, 0.95, 0.99), "recall_1", True),
    ("carry_deep", (0.85, 0.95, 0.99), "equal_1", True),
    ("carry_first", (0.3, 0.7, 0.95), "used_1_first", True),
    ("carry_depth", (0.5, 2.0, 8.0), "recall_1", False),
    ("drift", (0.0, 0.5, 0.9), "recall_3", False),
    ("memory_first", (0.0, 0.5, 1.0), "overlap_first", True),
    ("memory_middle", (0.0, 0.5, 1.0), "any_middle", True),
    ("memory_last", (0.0, 0.5, 1.0), "repeat_last", True),
    ("memory_from", (0.0, 0.35, 0.7), "overlap", False),
    ("memory_to", (0.2, 0.6, 1.0), "overlap", True),
    ("topic", (0.0, 0.3, 0.7), "kept_64", True),
    ("slow", (0.0, 0.4, 1.0), "kept_8", True),
    ("slow_decay", (0.6, 0.9, 0.99), "kept_8", True),
    ("fast_decay", (0.0, 0.4, 0.8), "overlap", True),
    ("lexical", (0.0, 0.5, 1.0), "same_token", True),
    ("affinity", (0.0, 0.7, 0.99), "paths_2", True),
    ("constant", (0.05, 0.5, 3.0), "cosine", True),
    ("blind", (0.0, 0.2, 0.5), "cosine", False),
    ("norm_spread", (0.0, 0.3, 1.0), "weight_output", False),
]


@pytest.mark.parametrize(
    ("knob", "positions", "statistic", "rises"), MOVES, ids=[f"{m[0]}-{m[2]}" for m in MOVES]
)
def test_each_knob_moves_its_statistic_one_way(knob, positions, statistic, rises):
    walk = Walk(
        channels=8, memory_to=0.7, topic=0.2, carry_first=0.8, carry_deep=0.95, vocabulary=200
    )
    found = []
    for position in positions:
        top_k = 2
        gates = synthetic_gates(replace(walk, **{knob: position}), RULE, 8, 8, top_k, 6, 100, 1)
        found.append(STATISTICS[statistic](gates))
    steps = np.diff(found) if rises else -np.diff(found)
    assert (steps > 0.002).all(), found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": 1.2}, "topic=1.2 must be at most 1"),
        ({"drift": 1.0}, "drift=1.0 must be below 1"),
        ({"channels": 0}, "channels=0"),
        ({"spread": 0.0}, "spread=0.0 must be above 0"),
        ({"constant": 0.0}, "constant=0.0 must be above 0"),
        ({"carry_depth": 0.0}, "carry_depth=0.0 must be above 0"),
        ({"vocabulary": 1.5}, "vocabulary=1.5"),
        ({"popularity": float("nan")}, "popularity=nan"),
        ({"memory_from": 0.9, "memory_to": 0.2}, "memory_from=0.9 must not exceed memory_to=0.2"),
    ],
)
def test_a_knob_out_of_its_range_is_refused_with_its_value(given, told):
    with pytest.raises(ValueError, match=r".") as refused:
        Walk(**given)
    assert told in str(refused.value)


def test_popularity_is_the_same_skew_in_every_layer():
    walk = replace(PLAIN, popularity=0.8)
    advantage = make_routers(walk, LAYERS, EXPERTS, 0).weight[:, :, 0] * math.sqrt(
        walk.constant * 2 * walk.channels
    )
    assert np.sort(advantage, axis=1) == pytest.approx(
        np.tile(np.sort(advantage[0]), (LAYERS, 1)), abs=1e-6
    )
    assert advantage[0].std() == pytest.approx(0.8 * walk.spread, rel=1e-4)
    assert not np.array_equal(advantage[0], advantage[1])


def test_a_knob_may_be_at_the_end_of_its_range_and_what_is_no_share_above_1():
    walk = Walk(
        channels=1, vocabulary=1, topic=1.0, slow=0.0, memory_from=0.5, memory_to=0.5, zipf=1.5
    )
    inputs, ids = gate_inputs(walk, make_routers(walk, 1, 1, 0), 2, 0, 0)
    assert inputs.shape == (1, 2, 1 + 2 + BLIND_CHANNELS)
    assert ids.tolist() == [0, 0]


def test_a_fit_starts_from_these_knobs():
    assert asdict(Walk()) == {
        "channels": 16,
        "spread": 1.5,
        "popularity": 0.1,
        "carry_first": 0.9,
        "carry_deep": 0.98,
        "carry_depth": 2.0,
        "drift": 0.0,
        "memory_first": 0.1,
        "memory_middle": 0.6,
        "memory_last": 0.3,
        "memory_from": 0.1,
        "memory_to": 0.8,
        "topic": 0.15,
        "slow": 0.3,
        "slow_decay": 0.95,
        "fast_decay": 0.5,
        "lexical": 0.6,
        "vocabulary": 3000,
        "zipf": 1.05,
        "affinity": 0.75,
        "constant": 0.3,
        "blind": 0.0,
        "norm_spread": 0.05,
    }


def test_a_seed_gives_these_very_numbers():
    """Traces of a seed are named in papers and keys, so it must give tomorrow what it gives today."""
    walk = Walk(
        channels=2,
        spread=2.0,
        popularity=0.5,
        carry_first=0.6,
        carry_deep=0.9,
        carry_depth=1.5,
        drift=0.4,
        memory_first=0.2,
        memory_middle=0.7,
        memory_last=0.4,
        memory_from=0.25,
        memory_to=0.5,
        topic=0.3,
        slow=0.4,
        slow_decay=0.9,
        fast_decay=0.3,
        lexical=0.36,
        vocabulary=6,
        zipf=1.2,
        affinity=0.8,
        constant=0.5,
        blind=0.4,
        norm_spread=0.3,
    )
    # From 0.9 - 0.3 to nearly 0.9: 0.9 - 0.3 e^(-2 / 3), and 0.9 - 0.3 e^(-4 / 3).
    assert carries(walk, 4) == pytest.approx([0, 0.6, 0.745975, 0.820921], abs=1e-6)
    assert memory_shares(walk, 4) == pytest.approx([0.2, 0.7, 0.6, 0.4])
    routers = make_routers(walk, 4, 3, 7, 1)
    near = {"abs": 2e-5}
    expected = [
        [0.86603, 0.80875, 0.38201, -0.75302, -1.62264, 0.0],
        [-0.86603, -0.61887, -1.10318, 1.54459, 0.1193, 0.0],
    ]
    assert routers.weight[[0, 3], 1, :6] == pytest.approx(np.array(expected), **near)
    assert np.sign(routers.weight[..., 0]).tolist() == [[-1, 1, 0]] * 2 + [[0, -1, 1]] * 2
    assert routers.lexicon[5] == pytest.approx([0.52939, 0.01549], **near)
    inputs, ids = gate_inputs(walk, routers, 5, 7, 2, 1)
    expected = [
        [1.41421, 0.62393, 0.16746, 1.04885, 0.08684, 0.30359],
        [1.41421, 1.37444, -1.41493, -0.1329, -1.20844, 0.17855],
        [1.41421, 0.82413, -1.27771, 0.246, -1.36043, 0.01918],
    ]
    assert inputs[[0, 1, 3], 4, :6] == pytest.approx(np.array(expected), **near)
    assert ids.tolist() == [1, 0, 2, 4, 4]
    assert output_norms(walk, 7, 2, (3,)) == pytest.approx([0.83911, 0.74734, 1.06189], **near)
