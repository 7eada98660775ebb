"""Routing rules against brute force by their definition, one row and one expert at a time."""

import itertools
import json
import math
import re

import numpy as np
import pytest

from sim.traces.routing import GROUPS, SCORES, WEIGHTS, RoutingRule, shares_above, sums

NUM_EXPERTS, TOP_K = 8, 3
BIAS = tuple(0.2 * math.sin(expert) for expert in range(NUM_EXPERTS))


def _score(rule: RoutingRule, row: list[float], expert: int) -> float:
    value = row[expert]
    if rule.score == "softmax":
        return math.exp(value) / sum(math.exp(other) for other in row)
    if rule.score == "sigmoid":
        return 1 / (1 + math.exp(-value))
    return math.sqrt(math.log1p(math.exp(value))) if rule.score == "sqrtsoftplus" else value


def _route_row(rule: RoutingRule, row: list[float], top_k: int) -> list[tuple[int, float]]:
    experts = range(len(row))
    scores = [_score(rule, row, expert) for expert in experts]
    choice = [
        score + (rule.bias[expert] if rule.bias else 0.0) for expert, score in enumerate(scores)
    ]
    allowed = set(experts)
    if rule.group:
        size = len(row) // rule.n_group
        members = [
            list(experts)[group * size : (group + 1) * size] for group in range(rule.n_group)
        ]
        best = 1 if rule.group == "max" else 2
        value = [
            sum(sorted((choice[expert] for expert in group), reverse=True)[:best])
            for group in members
        ]
        kept = sorted(range(rule.n_group), key=lambda group: (-value[group], group))[
            : rule.topk_group
        ]
        allowed = {expert for group in kept for expert in members[group]}
    chosen = sorted(allowed, key=lambda expert: (-choice[expert], expert))[:top_k]
    if rule.weight == "gather":
        weights = [scores[expert] for expert in chosen]
    elif rule.weight == "norm":
        weights = [scores[expert] / sum(scores[other] for other in chosen) for expert in chosen]
    elif rule.weight == "softmax_topk":
        weights = [
            math.exp(row[expert]) / sum(math.exp(row[other]) for other in chosen)
            for expert in chosen
        ]
    elif rule.weight == "sparsemixer":
        weights = []
        for rank, expert in enumerate(chosen):
            left = [other for other in experts if other not in chosen[:rank]]
            largest = max(row[other] for other in left)
            near = [
                other
                for other in left
                if largest - row[other] <= rule.band * max(abs(row[other]), largest)
            ]
            total = sum(math.exp(row[other]) for other in near)
            weights.append(math.exp(row[expert]) / total if expert in near else 0.0)
    else:
        weights = [1 / (1 + math.exp(-row[expert])) for expert in chosen]
    pairs = [(expert, weight * rule.scale) for expert, weight in zip(chosen, weights, strict=True)]
    return sorted(pairs, key=lambda pair: (-np.float32(pair[1]), pair[0]))


@pytest.mark.parametrize(
    ("score", "group", "weight"), list(itertools.product(SCORES, GROUPS, WEIGHTS))
)
@pytest.mark.parametrize("bias", [None, BIAS])
def test_route_equals_brute_force(
    score: str, group: str | None, weight: str, bias: tuple[float, ...] | None
) -> None:
    # Models use identity scores as probabilities; negative ones would have no meaning as weights.
    logits = np.random.default_rng(7).normal(size=(4, 5, NUM_EXPERTS)).astype(np.float32)
    logits = np.abs(logits) if score == "identity" else logits
    num_groups, kept_groups = (4, 2) if group else (1, 1)
    rule = RoutingRule(score, bias, group, num_groups, kept_groups, weight, scale=2.5, band=0.5)
    ids, weights = rule.route(logits, TOP_K)
    assert ids.shape == weights.shape == (4, 5, TOP_K)
    assert (ids.dtype, weights.dtype) == (np.int16, np.float32)
    for place in np.ndindex(4, 5):
        expected = _route_row(rule, logits[place].astype(float).tolist(), TOP_K)
        assert ids[place].tolist() == [expert for expert, _ in expected]
        np.testing.assert_allclose(weights[place], [weight for _, weight in expected], rtol=2e-6)


# Contracts: C89
def test_choosing_a_null_expert_gives_none() -> None:
    rule = RoutingRule(weight="norm", null_experts=2)
    ids, weights = rule.route(
        np.array([[0.0, 1.0, 5.0, -1.0], [2.0, 1.0, 0.0, 0.0], [0.0, 1.0, 5.0, 4.0]]), 2
    )
    assert ids.tolist() == [[1, -1], [0, 1], [-1, -1]]
    # The other expert keeps the weight that it had beside the null expert.
    assert weights[0].tolist() == pytest.approx([1 / (1 + math.exp(4)), 0.0])


def test_rare_fields_are_written_only_where_they_are_needed() -> None:
    assert not {"band", "null_experts"} & set(RoutingRule().to_json())
    for rule in (RoutingRule(weight="sparsemixer", band=0.02), RoutingRule(null_experts=3)):
        assert RoutingRule.from_json(json.loads(json.dumps(rule.to_json()))) == rule


def test_equal_scores_go_to_the_lower_id_and_equal_weights_are_ordered_by_id() -> None:
    ids, weights = RoutingRule(weight="norm").route(
        np.array([[0.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]), 2
    )
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    # The bias selects expert 3 first; the weights are equal, so the order is by id.
    assert RoutingRule("sigmoid", bias=(0.0, 0.0, 0.0, 1.0)).route(np.zeros((1, 4)), 3)[
        0
    ].tolist() == [[0, 1, 3]]


def test_bias_chooses_but_does_not_weigh() -> None:
    rule = RoutingRule("sigmoid", bias=(0.0, 0.0, 10.0))
    ids, weights = rule.route(np.array([[2.0, 1.0, -2.0]]), 2)
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(
        weights, [[1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))]], rtol=1e-6
    )


def test_extreme_logits_stay_finite() -> None:
    logits = np.array([[-3e4, 3e4, 0.0, -3e4], [-3e4, -3e4, -3e4, -3e4]])
    for score, weight in itertools.product(SCORES[:3], WEIGHTS):
        assert np.isfinite(RoutingRule(score, weight=weight).route(logits, 2)[1]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": "relu"}, "score is 'relu'"),
        ({"score": ["softmax"]}, "score is"),
        ({"group": "sum"}, "group is 'sum'"),
        ({"scale": 10**400}, "scale is"),
        ({"bias": [1, "x"]}, "bias is"),
        ({"bias": "abc"}, "bias is"),
    ],
)
def test_from_json_refuses_by_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoutingRule.from_json({**RoutingRule().to_json(), **changes})


@pytest.mark.parametrize(
    "value", [None, [], {"score": "softmax"}, {**RoutingRule().to_json(), "extra": 1}]
)
def test_from_json_refuses_other_shapes(value: object) -> None:
    with pytest.raises(ValueError, match="routing rule"):
        RoutingRule.from_json(value)


def test_json_round_trip() -> None:
    rule = RoutingRule("sigmoid", BIAS, "top2sum", 4, 2, "norm", 2.5)
    assert RoutingRule.from_json(json.loads(json.dumps(rule.to_json()))) == rule


def test_route_refuses_logits_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match=r"^logits must be finite: leave out the rows that were"):
        RoutingRule().route(np.array([[1.0, math.nan]]), 1)


GROUPED = RoutingRule(group="max", n_group=4, topk_group=2)
CHOSEN = "the experts that may be chosen"


@pytest.mark.parametrize(
    ("rule", "experts", "taken", "refused", "told"),
    [
        (RoutingRule(), 2, (1, 2), (0, 3), f"top_k is '{{}}', must lie in 1..2, {CHOSEN}"),
        (GROUPED, 8, (1, 4), (0, 5), f"top_k is '{{}}', must lie in 1..4, {CHOSEN}"),
        (GROUPED, 6, (), (1,), "n_group is '4', must divide 6 experts"),
        (RoutingRule(bias=(0.0, 1.0)), 2, (2,), (), ""),
        (RoutingRule(bias=(0.0, 1.0)), 3, (), (1,), "bias is '2 values', must have 3"),
        (RoutingRule(null_experts=3), 4, (4,), (), ""),
        (
            RoutingRule(null_experts=4),
            4,
            (),
            (1,),
            "null_experts is '4', must be below 4, the number of experts",
        ),
    ],
    ids=str,
)
def test_a_rule_that_cannot_choose_so_many_of_so_many_is_refused(
    rule: RoutingRule, experts: int, taken: tuple[int, ...], refused: tuple[int, ...], told: str
) -> None:
    for top_k in taken:
        rule.check_experts(experts, top_k)
    for top_k in refused:
        with pytest.raises(ValueError, match=f"^routing rule: {re.escape(told.format(top_k))}$"):
            rule.check_experts(experts, top_k)


COUNT, FINITE = "must be an int of 1 or more", "must be a finite number"


@pytest.mark.parametrize(
    ("field", "taken", "refused", "told"),
    [
        ("n_group", (1, 32768), (0, 32769, True, 2.0), COUNT),
        ("topk_group", (1, 32768), (0, 32769, True, 2.0), COUNT),
        ("scale", (-1.5, 0, 2.9e38), (3e38, -3e38, math.nan, True, "1"), FINITE),
        ("band", (0, 2.9e38), (-1e-9, 3e38, math.nan, True), f"{FINITE} of 0 or more"),
        ("null_experts", (0, 32767), (-1, 32768, True, 1.0), "must be an int of 0 or more"),
    ],
)
def test_a_field_takes_the_ends_of_its_range_and_nothing_beyond(
    field: str, taken: tuple[float, ...], refused: tuple[object, ...], told: str
) -> None:
    others = {"n_group": 32768} if field == "topk_group" else {}
    for value in taken:
        assert getattr(RoutingRule(**{**others, field: value}), field) == value  # type: ignore[arg-type]
    for wrong in refused:
        with pytest.raises(
            ValueError, match=f"^routing rule: {field} is {re.escape(repr(str(wrong)))}, {told}$"
        ):
            RoutingRule(**{**others, field: wrong})  # type: ignore[arg-type]


def test_no_more_groups_are_kept_than_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"^routing rule: topk_group is '3', must be <= n_group=2$"
    ):
        RoutingRule(n_group=2, topk_group=3)


def test_scores_and_logits_of_zero_are_no_division() -> None:
    """All scores are 0: no shares. All logits are 0: a half of two, and of three a third."""
    zeros = np.zeros((1, 3))
    assert RoutingRule("identity", weight="norm").route(zeros, 2)[1].tolist() == [[0.0, 0.0]]
    ids, weights = RoutingRule(weight="sparsemixer").route(zeros, 2)
    assert (ids.tolist(), weights.tolist()) == ([[1, 0]], [[0.5, pytest.approx(1 / 3)]])


def test_what_ranks_above_a_choice_is_a_share_of_its_row() -> None:
    shares = shares_above(np.array([[4, 2, 2], [0, 0, 0]], np.float32))
    assert shares.tolist() == [[0, 0.5, 0.75], [0, 0, 0]]


def test_preferences_are_scores_and_bias_of_every_group() -> None:
    logits = np.zeros((1, 4))
    assert RoutingRule("sigmoid").preferences(logits).tolist() == [[0.5] * 4]
    rule = RoutingRule("sigmoid", (0.0, 1.0, 2.0, -1.0), "max", 2, 1)
    assert rule.preferences(logits).tolist() == [[0.5, 1.5, 2.5, -0.5]]


def test_a_group_of_one_has_no_second_best() -> None:
    rule = RoutingRule("identity", None, "top2sum", 3, 2)
    assert rule.route(np.array([[1.0, 3.0, 2.0]]), 2)[0].tolist() == [[1, 2]]


@pytest.mark.parametrize("width", range(1, 20))
def test_sums_of_short_rows_are_those_of_numpy_to_the_last_bit(width: int) -> None:
    values = np.random.default_rng(width).lognormal(sigma=5, size=(3, 50, width))
    assert np.array_equal(sums(values), values.sum(-1))
