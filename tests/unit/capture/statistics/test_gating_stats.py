"""Each statistic against numbers worked out by hand or by brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from capture.statistics.gating_report import report
from capture.statistics.gating_stats import (
    Gating,
    any_reused,
    chance_any_reused,
    excess_kurtosis,
    first_choice_repeated,
    layer_cosine,
    lookahead_logits,
    lru_hit_rate,
    near_zero_share,
    path_cover,
    popularity,
    popularity_skew,
    recall_at,
    relative_weight_output_correlation,
    score_split,
    sequence_preference_bits,
    top1_equality,
    top1_in_next,
    top1_prediction_accuracy,
    unused_share,
    weight_output_correlation,
    whole_path_cover,
)


def routes(*tokens: list[list[int]]) -> np.ndarray:
    """One sequence of tokens, each a list over layers of experts: [1, T, L, K]."""
    return np.array([tokens])


def random_gating(seed: int = 0, sequences: int = 3, tokens: int = 40, layers: int = 5) -> Gating:
    generator = np.random.default_rng(seed)
    shape = (sequences, tokens, layers)
    gate_inputs = generator.normal(size=(*shape, 6))
    routers = generator.normal(size=(layers, 8, 6))
    logits = np.einsum("stlh,leh->stle", gate_inputs, routers)
    experts = np.argsort(-logits, -1)[..., :2]
    chosen = np.exp(np.take_along_axis(logits, experts, -1))
    return Gating(
        gate_inputs=gate_inputs,
        layer_inputs=generator.normal(size=(*shape, 6)),
        logits=logits,
        experts=experts,
        weights=chosen / chosen.sum(-1, keepdims=True),
        output_norms=generator.uniform(1, 2, size=(*shape, 2)),
        routers=routers,
        norm_gains=generator.uniform(1, 2, size=(layers, 6)),
        up_projections=generator.normal(size=1000),
    )


def test_cosine_pairs_each_layer_with_the_one_at_the_distance() -> None:
    inputs = np.array([[[[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]]])
    assert layer_cosine(inputs, 1) == pytest.approx([np.sqrt(0.5), np.sqrt(0.5)])
    assert layer_cosine(inputs, 2) == pytest.approx([0.0], abs=1e-12)


def test_lookahead_applies_the_later_gate_to_the_earlier_input() -> None:
    gating = random_gating()
    for distance, renormed in product((1, 2), (False, True)):
        logits = lookahead_logits(gating, distance, renormed)
        assert logits.shape == (3, 40, 5 - distance, 8)
        source = gating.gate_inputs[1, 7, 2]
        if renormed:
            source = source / gating.norm_gains[2] * gating.norm_gains[2 + distance]
        assert logits[1, 7, 2] == pytest.approx(gating.routers[2 + distance] @ source)


def test_prediction_scores_of_three_tokens_worked_by_hand() -> None:
    # Two layers, one predicted (layer 1); 4 experts, top-2. Predicted orders: 0 1 2 3, 3 0 1 2, 2 3
    # 0 1.
    logits = np.array([[[[9.0, 8.0, 7.0, 6.0]], [[8.0, 7.0, 6.0, 9.0]], [[7.0, 6.0, 9.0, 8.0]]]])
    experts = routes([[0, 0], [0, 1]], [[0, 0], [1, 3]], [[0, 0], [1, 0]])
    # Best predicted 0, 3, 2: used, used, not used. First used 0, 1, 1.
    assert top1_prediction_accuracy(logits, experts) == pytest.approx([2 / 3])
    assert top1_equality(logits, experts) == pytest.approx([1 / 3])
    # Of {0,1}, {1,3}, {1,0} the best two hold 2, 1, 0; the best three 2, 2, 1.
    assert recall_at(logits, experts, 2) == pytest.approx([3 / 6])
    assert recall_at(logits, experts, 3) == pytest.approx([5 / 6])
    assert recall_at(logits, experts, 4) == pytest.approx([1.0])


def test_perfect_prediction_scores_one_everywhere() -> None:
    gating = random_gating()
    for score in (top1_prediction_accuracy, top1_equality):
        assert score(gating.logits[:, :, 1:], gating.experts) == pytest.approx([1.0] * 4)
    assert recall_at(gating.logits[:, :, 1:], gating.experts, 2) == pytest.approx([1.0] * 4)


def test_reuse_of_four_tokens_worked_by_hand() -> None:
    # One layer: {0,1} -> {2,0} -> {2,3} -> {4,5}.
    experts = routes([[0, 1]], [[2, 0]], [[2, 3]], [[4, 5]])
    assert top1_in_next(experts) == pytest.approx([2 / 3])
    assert any_reused(experts) == pytest.approx([2 / 3])
    assert first_choice_repeated(experts) == pytest.approx([1 / 3])


def test_second_experts_count_as_reused_but_not_as_first_choices() -> None:
    experts = routes([[0, 1]], [[2, 1]])
    assert top1_in_next(experts) == pytest.approx([0.0])
    assert any_reused(experts) == pytest.approx([1.0])


def test_reuse_does_not_cross_the_end_of_a_sequence() -> None:
    experts = np.array([[[[0, 1]], [[2, 3]]], [[[2, 3]], [[4, 5]]]])
    assert any_reused(experts) == pytest.approx([0.0])


def test_hobbits_theoretical_values_are_those_of_uniform_choice() -> None:
    assert chance_any_reused(8, 2) == pytest.approx(0.4643, abs=5e-5)
    assert chance_any_reused(8, 1) == pytest.approx(1 / 8)
    generator = np.random.default_rng(0)
    experts = generator.random((1, 40_000, 1, 8)).argsort(-1)[..., :2]
    assert any_reused(experts)[0] == pytest.approx(0.464, abs=0.01)
    assert top1_in_next(experts)[0] == pytest.approx(0.25, abs=0.01)
    assert first_choice_repeated(experts)[0] == pytest.approx(0.125, abs=0.01)


def test_popularity_counts_uses_of_every_layer_apart() -> None:
    experts = routes([[0, 1], [2, 3]], [[0, 2], [2, 3]])
    assert popularity(experts, 4) == pytest.approx(
        np.array([[0.5, 0.25, 0.25, 0], [0, 0, 0.5, 0.5]])
    )
    assert popularity_skew(experts, 4) == pytest.approx([2.0, 2.0])
    assert unused_share(experts, 4) == pytest.approx([0.25, 0.5])


def test_sequences_of_one_expert_each_differ_from_all_by_one_bit() -> None:
    experts = np.array([[[[0]], [[0]]], [[[1]], [[1]]]])
    assert sequence_preference_bits(experts, 2) == pytest.approx(1.0)
    assert sequence_preference_bits(experts[:1].repeat(2, 0), 2) == pytest.approx(0.0)


def test_score_split_gives_hobbits_groups_for_worked_weights() -> None:
    # Scores of the second experts: 0.5 and 0.6 (high), 0.75 and 0.9 (low), 0.95 (skip); first
    # experts all 0.
    first = np.array([0.5, 0.6, 0.75, 0.9, 0.95])
    weights = np.stack([first, 1 - first], -1)[None, :, None]
    assert score_split(weights) == pytest.approx((0.7, 0.2, 0.1))


def test_score_split_does_not_depend_on_the_scale_of_the_weights() -> None:
    weights = random_gating().weights
    assert score_split(weights * 0.3) == pytest.approx(score_split(weights))


def test_output_norms_that_do_not_vary_give_correlation_one() -> None:
    weights = random_gating().weights
    assert weight_output_correlation(weights, np.full_like(weights, 3.0)) == pytest.approx(
        [1.0] * 5
    )
    assert relative_weight_output_correlation(weights, np.full_like(weights, 3.0)) == pytest.approx(
        1.0
    )


def test_norms_that_vary_by_token_lower_the_raw_correlation_only() -> None:
    weights = random_gating().weights
    norms = (
        np.ones_like(weights)
        * np.random.default_rng(1).uniform(0.1, 10, size=weights.shape[:2])[..., None, None]
    )
    assert weight_output_correlation(weights, norms).max() < 0.7
    assert relative_weight_output_correlation(weights, norms) == pytest.approx(1.0)


def test_path_cover_equals_counting_paths() -> None:
    experts = random_gating(tokens=200).experts % 3
    for length in (2, 3):
        covers = []
        for start in range(5 - length + 1):
            paths = Counter(
                tuple(row) for row in experts[:, :, start : start + length, 0].reshape(-1, length)
            )
            frequent = paths.most_common(max(1, int(0.2 * 3**length)))
            covers.append(sum(count for _, count in frequent) / 600)
        assert path_cover(experts, 3, length) == pytest.approx(np.mean(covers))


def test_whole_path_cover_is_over_the_paths_that_occur() -> None:
    # Five paths, of 6, 1, 1, 1, 1 tokens: one path is 20 % of them.
    first = [0] * 6 + [1, 2, 3, 4]
    experts = routes(*[[[expert], [expert]] for expert in first])
    assert whole_path_cover(experts) == pytest.approx(0.6)


def brute_force_lru(uses: list[int], capacity: int) -> float:
    """The hit rate of LRU by stack distances.

    A use hits if fewer than ``capacity`` other experts were used since the last use of the same
    one.
    """
    hits = 0
    for position, expert in enumerate(uses):
        earlier = [index for index in range(position) if uses[index] == expert]
        hits += bool(earlier) and len(set(uses[earlier[-1] + 1 : position])) < capacity
    return hits / len(uses)


@pytest.mark.parametrize("capacity", [1, 2, 4, 8])
def test_lru_hit_rate_equals_stack_distances(capacity: int) -> None:
    experts = random_gating(seed=3).experts
    expected = [
        brute_force_lru(experts[:, :, layer].ravel().tolist(), capacity) for layer in range(5)
    ]
    assert lru_hit_rate(experts, capacity) == pytest.approx(expected)


def test_lru_stops_at_the_token_limit() -> None:
    experts = routes([[0]], [[0]], [[1]], [[2]])
    assert lru_hit_rate(experts, 1, max_tokens=2) == pytest.approx([0.5])
    assert lru_hit_rate(experts, 1) == pytest.approx([0.25])


def test_gaussian_values_have_the_quoted_share_and_no_kurtosis() -> None:
    values = np.random.default_rng(0).normal(scale=3.0, size=400_000)
    assert near_zero_share(values) == pytest.approx(0.383, abs=0.003)
    assert excess_kurtosis(values) == pytest.approx(0.0, abs=0.05)
    assert excess_kurtosis(np.array([-1.0, 1.0])) == pytest.approx(-2.0)


def test_no_row_comes_twice() -> None:
    names = [row.name for row in report(random_gating())]
    assert len(set(names)) == len(names)


def test_the_three_score_groups_of_the_report_sum_to_one() -> None:
    values = {row.name: row.value for row in report(random_gating())}
    groups = [
        values[name] for name in ("score <= T1 = 0.6", "T1 < score <= T2 = 0.9", "score > T2")
    ]
    assert sum(groups) == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_a_report_on_top_1_gates_leaves_out_what_needs_a_second_choice() -> None:
    gating = random_gating()
    only = replace(
        gating,
        experts=gating.experts[..., :1],
        weights=gating.weights[..., :1],
        output_norms=gating.output_norms[..., :1],
    )
    names = [row.name for row in report(only)]
    left_out = [row.name for row in report(gating) if row.name not in names]
    assert left_out == [
        "score <= T1 = 0.6",
        "T1 < score <= T2 = 0.9",
        "score > T2",
        "corr(share of weight, of output norm)",
    ]


def test_models_too_shallow_for_the_report_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot report on 3 layers"):
        report(random_gating(layers=3))


def test_uniform_experts_score_at_the_chance_column() -> None:
    generator = np.random.default_rng(5)
    gating = random_gating(sequences=4, tokens=3000, layers=4)
    # Experts that no gate has chosen: neither predictable nor local nor popular.
    gating = replace(gating, experts=generator.random((4, 3000, 4, 8)).argsort(-1)[..., :2])
    rows = {row.name: row for row in report(gating)}
    compared = [
        row
        for name, row in rows.items()
        if row.chance is not None and "x W_up" not in name and "paths" not in name
    ]
    assert len(compared) >= 18
    for row in compared:
        assert row.value == pytest.approx(
            row.chance, abs=0.05 if "popularity" in row.name else 0.02
        ), row.name
