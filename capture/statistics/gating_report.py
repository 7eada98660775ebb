"""The gating statistics of a model as one list, each with its chance and its published value."""

from __future__ import annotations

from dataclasses import dataclass

from capture.statistics.gating_stats import (
    Gating,
    any_reused,
    chance_any_reused,
    chance_lru_hit_rate,
    excess_kurtosis,
    first_choice_repeated,
    layer_cosine,
    lookahead_logits,
    lru_hit_rate,
    near_zero_share,
    path_cover,
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
from capture.statistics.published import PUBLISHED, Published


@dataclass(frozen=True)
class Statistic:
    """A row of the report; ``chance`` is the value for uniformly drawn experts or a Gaussian."""

    name: str
    value: float
    chance: float | None = None

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get(self.name)


# Predictions reach 3 layers ahead.
FEWEST_LAYERS = 4


def report(gating: Gating, cache_shares: tuple[float, ...] = (0.25, 0.5)) -> list[Statistic]:
    """All statistics as means over layers, in the order of the report.

    ``cache_shares``: the sizes of the LRU caches, as shares of a layer's experts. Raises ValueError
    below FEWEST_LAYERS layers.
    """
    num_layers = gating.logits.shape[2]
    if num_layers < FEWEST_LAYERS:
        raise ValueError(
            f"cannot report on {num_layers} layers: predictions reach 3 layers ahead; give at least"
            f" {FEWEST_LAYERS}"
        )
    return [
        *prediction_rows(gating),
        *locality_rows(gating),
        *weight_rows(gating),
        *path_and_cache_rows(gating, cache_shares),
    ]


def prediction_rows(gating: Gating) -> list[Statistic]:
    """Similarity of neighbouring layers, and prediction of later layers."""
    num_experts, top_k = gating.num_experts, gating.top_k
    ahead = {distance: lookahead_logits(gating, distance) for distance in (1, 2, 3)}
    renormed = lookahead_logits(gating, 1, renormed=True)
    # A quarter of the experts lies above the 75th percentile; never fewer than a token uses.
    quarter = max(top_k, round(num_experts / 4))
    rows = [
        Statistic("cos of gate inputs, l and l+1", layer_cosine(gating.gate_inputs).mean()),
        Statistic(
            "cos of layer inputs, l and l+1, l >= 1", layer_cosine(gating.layer_inputs)[1:].mean()
        ),
    ]
    for distance, logits in ahead.items():
        accuracy = top1_prediction_accuracy(logits, gating.experts).mean()
        rows.append(Statistic(f"p1(+{distance})", accuracy, top_k / num_experts))
    return [
        *rows,
        Statistic(
            "p1(+1), equality", top1_equality(ahead[1], gating.experts).mean(), 1 / num_experts
        ),
        Statistic(
            "recall@k(+1), raw",
            recall_at(ahead[1], gating.experts, top_k).mean(),
            top_k / num_experts,
        ),
        Statistic(
            "recall@k(+1), renormed",
            recall_at(renormed, gating.experts, top_k).mean(),
            top_k / num_experts,
        ),
        Statistic(
            "recall@E/4(+1)",
            recall_at(ahead[1], gating.experts, quarter).mean(),
            quarter / num_experts,
        ),
    ]


def locality_rows(gating: Gating) -> list[Statistic]:
    """Reuse from token to token, and popularity."""
    num_experts, top_k = gating.num_experts, gating.top_k
    reused, repeated = any_reused(gating.experts), first_choice_repeated(gating.experts)
    chance = chance_any_reused(num_experts, top_k)
    # Table 5 of the Mixtral paper has layers 0, 15 and 31 of 32.
    places = {"first layer": 0, "middle layer": (len(reused) - 1) // 2, "last layer": -1}
    return [
        Statistic(
            "top-1 among next token's", top1_in_next(gating.experts).mean(), top_k / num_experts
        ),
        Statistic("any expert reused", reused.mean(), chance),
        *(Statistic(f"any reused, {place}", reused[at], chance) for place, at in places.items()),
        *(
            Statistic(f"first choice repeated, {place}", repeated[at], 1 / num_experts)
            for place, at in places.items()
        ),
        Statistic("popularity, max/mean", popularity_skew(gating.experts, num_experts).mean(), 1.0),
        Statistic("experts never chosen", unused_share(gating.experts, num_experts).mean(), 0.0),
        Statistic(
            "sequence preference, bits", sequence_preference_bits(gating.experts, num_experts), 0.0
        ),
    ]


def weight_rows(gating: Gating) -> list[Statistic]:
    """Gate weights, outputs of experts, and activations."""
    norms = gating.output_norms
    rows = [
        Statistic(
            "corr(weight, weighted output norm)",
            weight_output_correlation(gating.weights, norms).mean(),
        )
    ]
    # With one choice a token its share of the weight is always 1.
    if gating.top_k > 1:
        high, low, skipped = score_split(gating.weights)
        of_shares = relative_weight_output_correlation(gating.weights, norms)
        rows = [
            Statistic("score <= T1 = 0.6", high),
            Statistic("T1 < score <= T2 = 0.9", low),
            Statistic("score > T2", skipped),
            *rows,
            Statistic("corr(share of weight, of output norm)", of_shares),
        ]
    return [
        *rows,
        Statistic("|x W_up| below 0.5 sd", near_zero_share(gating.up_projections), 0.383),
        Statistic("x W_up, excess kurtosis", excess_kurtosis(gating.up_projections), 0.0),
    ]


def path_and_cache_rows(gating: Gating, cache_shares: tuple[float, ...]) -> list[Statistic]:
    """Concentration of paths, and hit rates of LRU with some of each layer's experts."""
    num_experts = gating.num_experts
    rows = [
        Statistic(
            f"20 % of {length}-layer paths cover",
            path_cover(gating.experts, num_experts, length),
            0.2,
        )
        for length in (2, 3, 4)
    ]
    rows.append(Statistic("20 % of the whole paths cover", whole_path_cover(gating.experts), 0.2))
    for share in cache_shares:
        capacity = max(gating.top_k, round(num_experts * share))
        name = f"LRU hit rate, {share:.0%} of the experts"
        chance = chance_lru_hit_rate(num_experts, gating.top_k, capacity)
        rows.append(Statistic(name, lru_hit_rate(gating.experts, capacity).mean(), chance))
    return rows
