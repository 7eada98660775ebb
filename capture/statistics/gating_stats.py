"""Gating statistics of a model: what its routers see and choose, in the numbers that papers report.

There is one function for each statistic, with numpy only. Axes of the arrays, always in this order:

    S sequence   T token   L layer   E expert   K chosen expert, by falling weight   H hidden

Statistics "by layer" return one value for each layer, or for each source layer l of a pair (l, l +
distance).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from sim.values.units import part_of

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Gating:
    """What was captured of a model's gates.

    - ``gate_inputs`` [S, T, L, H]: after the norm.
    - ``layer_inputs`` [S, T, L, H]: the residual stream before each layer.
    - ``logits`` [S, T, L, E].
    - ``experts``, ``weights`` [S, T, L, K]: as the model used them.
    - ``output_norms`` [S, T, L, K]: of the experts' outputs before weighting.
    - ``routers`` [L, E, H]: weights of the routers.
    - ``norm_gains`` [L, H]: of the norms before the gates.
    - ``up_projections``: a sample of x W_up, as a vector.
    """

    gate_inputs: Floats
    layer_inputs: Floats
    logits: Floats
    experts: Integers
    weights: Floats
    output_norms: Floats
    routers: Floats
    norm_gains: Floats
    up_projections: Floats

    @property
    def top_k(self) -> int:
        return int(self.experts.shape[-1])

    @property
    def num_experts(self) -> int:
        return int(self.logits.shape[-1])


# Similarity of the gates' inputs


def layer_cosine(inputs: Floats, distance: int = 1) -> Floats:
    """Mean cosine of the inputs [S, T, L, H] of layers l and l + ``distance``, [L - distance]."""
    here, there = inputs[:, :, :-distance], inputs[:, :, distance:]
    product = (here * there).sum(-1)
    return np.asarray(
        (product / (np.linalg.norm(here, axis=-1) * np.linalg.norm(there, axis=-1))).mean((0, 1))
    )


# Prediction of later layers, without training


def lookahead_logits(gating: Gating, distance: int, renormed: bool = False) -> Floats:
    """Logits [S, T, L - distance, E] of the gate of layer l + ``distance`` on layer l's gate input.

    ``renormed`` first replaces layer l's norm gain by that of layer l + ``distance``.
    """
    source = gating.gate_inputs[:, :, :-distance]
    if renormed:
        source = source * (gating.norm_gains[distance:] / gating.norm_gains[:-distance])
    return np.asarray(np.einsum("stlh,leh->stle", source, gating.routers[distance:]))


def top1_prediction_accuracy(predicted_logits: Floats, experts: Integers) -> Floats:
    """Share of tokens whose best predicted expert is among the experts used, by layer.

    ``predicted_logits`` [S, T, M, E] are those of the last M layers of ``experts`` [S, T, L, K].
    HOBBIT's "top-1 expert prediction accuracy" may instead mean ``top1_equality``.
    """
    used = experts[:, :, -predicted_logits.shape[2] :]
    return np.asarray((used == predicted_logits.argmax(-1)[..., None]).any(-1).mean((0, 1)))


def top1_equality(predicted_logits: Floats, experts: Integers) -> Floats:
    """Share of tokens whose best predicted expert is the one with the largest weight, by layer."""
    first = experts[:, :, -predicted_logits.shape[2] :, 0]
    return np.asarray((first == predicted_logits.argmax(-1)).mean((0, 1)))


def recall_at(predicted_logits: Floats, experts: Integers, num_predicted: int) -> Floats:
    """Share of the experts used that are among the ``num_predicted`` best predicted, by layer.

    With a quarter of the experts as ``num_predicted`` this is Fate's prefetch above the 75th
    percentile.
    """
    used = membership(experts[:, :, -predicted_logits.shape[2] :], predicted_logits.shape[-1])
    predicted = membership(best(predicted_logits, num_predicted), predicted_logits.shape[-1])
    return np.asarray((used & predicted).sum(-1).mean((0, 1)) / experts.shape[-1])


# Locality in time


def top1_in_next(experts: Integers) -> Floats:
    """Share of tokens whose first expert is among the experts of the next token, by layer.
    Chance: K / E.
    """
    return np.asarray((experts[:, 1:] == experts[:, :-1, :, :1]).any(-1).mean((0, 1)))


def any_reused(experts: Integers) -> Floats:
    """Share of tokens that use an expert of the token before, by layer.

    Chance: ``chance_any_reused``.
    """
    common = experts[:, 1:, :, :, None] == experts[:, :-1, :, None, :]
    return np.asarray(common.any((-1, -2)).mean((0, 1)))


def first_choice_repeated(experts: Integers) -> Floats:
    """Share of tokens with the same first expert as the token before, by layer. Chance: 1 / E."""
    return np.asarray((experts[:, 1:, :, 0] == experts[:, :-1, :, 0]).mean((0, 1)))


def chance_any_reused(num_experts: int, top_k: int) -> float:
    """``any_reused`` for uniformly drawn experts: 0.4643 for 2 of 8, which is HOBBIT's 0.46."""
    return 1 - comb(num_experts - top_k, top_k) / comb(num_experts, top_k)


# Popularity


def popularity(experts: Integers, num_experts: int) -> Floats:
    """Each expert's share of its layer's uses, [L, E]; rows sum to 1."""
    return np.asarray(membership(experts, num_experts).mean((0, 1)) / experts.shape[-1])


def popularity_skew(experts: Integers, num_experts: int) -> Floats:
    """Uses of the most popular expert, divided by the mean of all, by layer.

    1 is even, E / K is the largest possible value.
    """
    return np.asarray(popularity(experts, num_experts).max(-1) * num_experts)


def unused_share(experts: Integers, num_experts: int) -> Floats:
    """Share of the experts that no token uses, by layer: dead or too rare for the sample."""
    return np.asarray((popularity(experts, num_experts) == 0).mean(-1))


def sequence_preference_bits(experts: Integers, num_experts: int) -> float:
    """Mean Kullback-Leibler divergence of a sequence's popularity from that of all, in bits."""
    of_all = popularity(experts, num_experts)
    of_sequence = membership(experts, num_experts).mean(1) / experts.shape[-1]
    ratio = np.divide(of_sequence, of_all, out=np.ones_like(of_sequence), where=of_sequence > 0)
    return float((of_sequence * np.log2(ratio)).sum(-1).mean())


# Gate weights


def score_split(
    weights: Floats, low_above: float = 0.6, skip_above: float = 0.9
) -> tuple[float, float, float]:
    """Shares of the chosen experts with score <= T1, in (T1, T2] and > T2.

    An expert's score is the share of gate weight held by the experts ranked above it; the first has
    0. Source: HOBBIT, arXiv:2411.01433, token-level loading; T1 = 0.6 and T2 = 0.9 are
    Mixtral-8x7B's.
    """
    shares = weights / weights.sum(-1, keepdims=True)
    score = np.cumsum(shares, -1) - shares
    # The first score is 0 exactly, whatever rounding made of it.
    score[..., 0] = 0.0
    low, skip = float((score > low_above).mean()), float((score > skip_above).mean())
    return 1 - low, low - skip, skip


def weight_output_correlation(weights: Floats, output_norms: Floats) -> Floats:
    """Pearson correlation of gate weights and norms of the weighted expert outputs, by layer."""
    weighted = weights * output_norms
    return np.array(
        [correlation(weights[:, :, at], weighted[:, :, at]) for at in range(weights.shape[2])]
    )


def relative_weight_output_correlation(weights: Floats, output_norms: Floats) -> float:
    """Pearson correlation over all layers, of shares instead of absolute values.

    They are the shares of a token's weight, and of its weighted output norms.
    """
    weighted = weights * output_norms
    return correlation(
        weights / weights.sum(-1, keepdims=True), weighted / weighted.sum(-1, keepdims=True)
    )


# Paths and caches


def path_cover(experts: Integers, num_experts: int, length: int, share: float = 0.2) -> float:
    """Share of tokens on the most frequent ``share`` of the E**length possible first-expert paths.

    A path is the first experts of ``length`` neighbouring layers. The result is the mean over the
    layers at which a path can start.
    """
    first = experts[..., 0].reshape(-1, experts.shape[2]).astype(np.int64)
    num_paths = num_experts**length
    num_counted = max(1, part_of(num_paths, share))
    covers = []
    for start in range(first.shape[1] - length + 1):
        code = np.zeros(len(first), np.int64)
        for layer in range(start, start + length):
            code = code * num_experts + first[:, layer]
        counts = np.sort(np.bincount(code, minlength=num_paths))[::-1]
        covers.append(counts[:num_counted].sum() / len(first))
    return float(np.mean(covers))


def whole_path_cover(experts: Integers, share: float = 0.2) -> float:
    """Share of tokens on the most frequent ``share`` of the first-expert paths that occur.

    Paths go through all layers (EdgeMoE). The value is at least ``share``, which it is if every
    token has a path of its own.
    """
    first = experts[..., 0].reshape(-1, experts.shape[2])
    counts = np.sort(np.unique(first, axis=0, return_counts=True)[1])[::-1]
    return float(counts[: max(1, part_of(len(counts), share))].sum() / counts.sum())


def lru_hit_rate(experts: Integers, capacity: int, max_tokens: int = 6000) -> Floats:
    """Hits over uses of an LRU cache of ``capacity`` experts for each layer, by layer.

    Sequences follow one another; a token's experts come by falling weight. The cache starts empty,
    and first uses are misses. At most ``max_tokens`` tokens are counted.
    """
    flat = experts.reshape(-1, *experts.shape[2:])[:max_tokens]
    rates = []
    for layer in range(flat.shape[1]):
        cached: OrderedDict[int, None] = OrderedDict()
        hits = 0
        for expert in flat[:, layer].ravel().tolist():
            if expert in cached:
                hits += 1
                cached.move_to_end(expert)
            else:
                if len(cached) >= capacity:
                    cached.popitem(last=False)
                cached[expert] = None
        rates.append(hits / flat[:, layer].size)
    return np.array(rates)


def chance_lru_hit_rate(num_experts: int, top_k: int, capacity: int) -> float:
    """``lru_hit_rate`` for uniformly drawn experts.

    It is below C / E, since a token's next expert is none that the token has just used.
    """
    return float(np.mean([(capacity - used) / (num_experts - used) for used in range(top_k)]))


# Activations inside an expert


def near_zero_share(values: Floats, deviations: float = 0.5) -> float:
    """Share of values with an absolute value below ``deviations`` standard deviations.

    For a Gaussian it is 0.383 at 0.5 deviations.
    """
    return float((np.abs(values) < deviations * values.std()).mean())


def excess_kurtosis(values: Floats) -> float:
    """Fourth standardised moment minus 3; 0 for a Gaussian."""
    centred = values.astype(np.float64) - values.mean()
    return float((centred**4).mean() / (centred**2).mean() ** 2 - 3)


# Helpers


def best(logits: Floats, count: int) -> Integers:
    """Indices of the ``count`` largest logits, largest first; equal logits by index."""
    return np.argsort(-logits, -1, kind="stable")[..., :count]


def membership(indices: Integers, num_experts: int) -> Booleans:
    """Boolean [..., E], true at the ``indices`` [..., K]."""
    member = np.zeros((*indices.shape[:-1], num_experts), bool)
    np.put_along_axis(member, indices, True, -1)
    return member


def correlation(left: Floats, right: Floats) -> float:
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])
