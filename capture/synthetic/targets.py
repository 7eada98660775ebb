"""The statistics that the synthesiser can be calibrated to, by name.

They are computed from synthetic and from captured gates alike. Axes are as in
`capture.statistics.gating_stats`: S sequence, T token, L layer, E expert, K chosen expert by
falling weight. Names with ``_first``, ``_middle`` or ``_last`` are of one layer (the middle is
around layer 15 of 32); the others are means over layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from capture.statistics.gating_stats import (
    Booleans,
    Floats,
    Integers,
    any_reused,
    first_choice_repeated,
    layer_cosine,
    membership,
    path_cover,
    popularity,
    score_split,
    top1_equality,
    top1_prediction_accuracy,
    weight_output_correlation,
)
from sim.synthetic.gate_walk import Walk, gate_inputs, logits_of, make_routers, output_norms
from sim.traces.routing import RoutingRule


@dataclass(frozen=True, eq=False)
class Gates:
    """Gates of one stack.

    - ``experts``, ``weights`` [S, T, L, K].
    - ``ahead(j)``: logits [S, T, L - j, E] of the routers j layers later, on these inputs.
    - ``inputs`` [S, T, L, H].
    - ``output_norms`` [S, T, L, K].
    - ``tokens`` [S, T]: token ids.

    All but the experts and weights may be None, where they are not known. Raise ValueError unless
    the shapes of experts and weights agree.
    """

    num_experts: int
    experts: Integers
    weights: Floats
    ahead: Callable[[int], Floats] | None = None
    inputs: Floats | None = None
    output_norms: Floats | None = None
    tokens: Integers | None = None

    @cached_property
    def members(self) -> Booleans:
        """Which experts each token uses, [S, T, L, E]."""
        return membership(self.experts, self.num_experts)

    def __post_init__(self) -> None:
        if self.experts.ndim != 4 or self.experts.shape != self.weights.shape:
            raise ValueError(
                f"experts {list(self.experts.shape)} and weights {list(self.weights.shape)} must"
                " both be [S, T, L, K]"
            )


def synthetic_gates(
    walk: Walk,
    rule: RoutingRule,
    layers: int,
    experts: int,
    top_k: int,
    sequences: int,
    tokens: int,
    seed: int,
) -> Gates:
    """Synthetic gates of a stack of ``layers``, drawn with the knobs of ``walk``."""
    routers = make_routers(walk, layers, experts, seed)
    parts = [gate_inputs(walk, routers, tokens, seed, number) for number in range(sequences)]
    inputs = np.stack([part for part, _ in parts])
    flat = np.ascontiguousarray(inputs.swapaxes(0, 1)).reshape(layers, sequences * tokens, -1)

    def by_token(values: Any) -> Any:
        return values.reshape(len(values), sequences, tokens, -1).transpose(1, 2, 0, 3)

    # Layer by layer, since a rule computes in float64: for all layers at once that would be the
    # largest array.
    chosen = [rule.route(logits, top_k) for logits in logits_of(flat, routers)]
    ids, weights = (np.stack(part) for part in zip(*chosen, strict=True))
    norms = output_norms(walk, seed, 0, (sequences, tokens, layers, top_k))
    return Gates(
        experts,
        by_token(ids.astype(np.int64)),
        by_token(weights),
        # Computed when asked for: most knobs move no statistic of lookahead.
        cache(lambda distance: by_token(logits_of(flat, routers, distance))),
        inputs.transpose(0, 2, 1, 3),
        norms,
        np.stack([ids for _, ids in parts]),
    )


# Locality


def overlap(members: Booleans, lag: int) -> Floats:
    """Share of a token's experts that the token ``lag`` before used, by layer."""
    both = (members[:, lag:] & members[:, :-lag]).sum(-1)
    return np.asarray(both.mean((0, 1)) / members[0, 0, 0].sum())


def chance_overlap(members: Booleans) -> Floats:
    """`overlap` of tokens of different sequences, by layer: the value from popularity alone.

    It is ``((sum of shares)^2 - sum of squares) / (S (S - 1) K)``, summed over experts. The shares
    are each sequence's shares of tokens that use the expert. Raise ValueError below 2 sequences.
    """
    shares = members.mean(1)
    pairs = len(shares) * (len(shares) - 1)
    if not pairs:
        raise ValueError("overlap between sequences needs 2 of them or more; give more sequences")
    between = (shares.sum(0) ** 2 - (shares**2).sum(0)) / pairs
    return np.asarray(between.sum(-1) / members[0, 0, 0].sum())


def kept_reuse(members: Booleans, lag: int) -> float:
    """The share of neighbouring tokens' overlap above chance that is left after ``lag`` tokens."""
    chance = chance_overlap(members).mean()
    return float((overlap(members, lag).mean() - chance) / (overlap(members, 1).mean() - chance))


def used_within(members: Booleans, tokens: int) -> float:
    """Share of uses whose expert was used by one of the ``tokens`` tokens before.

    The first ``tokens`` tokens of a sequence are left out.
    """
    recent = np.zeros_like(members[:, tokens:])
    for lag in range(1, tokens + 1):
        recent |= members[:, tokens - lag : members.shape[1] - lag]
    now = members[:, tokens:]
    return float((recent & now).sum() / now.sum())


def union_share(members: Booleans, tokens: int) -> float:
    """Distinct experts of so many tokens in a row over their choices, mean over layers."""
    rows = members.shape[1] - tokens + 1
    together = np.zeros_like(members[:, :rows])
    for lag in range(tokens):
        together |= members[:, lag : lag + rows]
    return float(together.sum(-1).mean() / (tokens * members[0, 0, 0].sum()))


def lru_hits(members: Booleans, slots: int) -> float:
    """Share of uses that one LRU a layer of ``slots`` experts hits, in the second half of each sequence.

    Until then it fills. An expert is there if fewer than ``slots`` others were used after it.
    """
    sequences, tokens, layers, experts = members.shape
    last = np.full((sequences, layers, experts), -1)
    hits = uses = 0
    for token in range(tokens):
        now = members[:, token]
        if token >= tokens // 2:
            least = np.sort(last, axis=-1)[..., experts - slots, None]
            hits += int((now & (last >= np.maximum(least, 0))).sum())
            uses += int(now.sum())
        last[now] = token
    return hits / uses


def gini(members: Booleans) -> float:
    """Gini coefficient of the experts' uses, mean over layers: 0 is even, 1 is concentrated."""
    uses = np.sort(members.mean((0, 1)), axis=-1)
    experts = uses.shape[-1]
    rank = np.arange(1, experts + 1)
    return float(np.mean((2 * rank - experts - 1) @ uses.T / (experts * uses.sum(-1))))


def most_popular_share(gates: Gates, share: float) -> float:
    """Share of the uses that the most popular ``share`` of experts has, mean over layers."""
    falling = -np.sort(-popularity(gates.experts, gates.num_experts), axis=-1)
    return float(falling[:, : round(share * gates.num_experts)].sum(-1).mean())


def profiled_share(members: Booleans, share: float) -> float:
    """Share of a sequence's uses that the most popular ``share`` of experts by all others has, mean
    over layers and sequences.
    """
    uses = members.sum(1)
    others = uses.sum(0) - uses
    count = round(share * members.shape[-1])
    order = np.argsort(-others, axis=-1, kind="stable")[..., :count]
    covered = np.take_along_axis(uses, order, -1).sum(-1)
    return float((covered / uses.sum(-1)).mean())


def first_weight_share(weights: Floats) -> float:
    """The first expert's share of a token's gate weight, mean over tokens and layers."""
    return float((weights[..., 0] / weights.sum(-1)).mean())


def same_token_repeats(gates: Gates) -> float:
    """How often equal token ids choose the same first expert in layer 0.

    Counted over the pairs of equal ids at the same position of neighbouring sequences.
    """
    assert gates.tokens is not None
    first, ids = gates.experts[:, :, 0, 0], gates.tokens
    equal = ids[:-1] == ids[1:]
    return float((first[:-1] == first[1:])[equal].mean())


# By name


def _middle(values: Floats) -> float:
    # Table 5 of the Mixtral paper has layers 0, 15 and 31 of 32. The mean with the neighbours
    # makes the middle less a matter of luck.
    middle = (len(values) - 1) // 2
    return float(values[max(0, middle - 1) : middle + 2].mean())


def _far(score: Callable[[Floats, Integers], Floats], gates: Gates) -> float:
    return float(
        np.mean([score(_ahead(gates, distance), gates.experts).mean() for distance in (2, 3)])
    )


def _ahead(gates: Gates, distance: int) -> Floats:
    assert gates.ahead is not None
    return gates.ahead(distance)


def quarter(gates: Gates) -> int:
    """A quarter of the experts, but never fewer than are used."""
    return max(int(gates.experts.shape[-1]), round(gates.num_experts / 4))


def forecast_recall(gates: Gates, distance: int, count: int | None = None) -> float:
    """Share of the experts used that are among the ``count`` best forecast.

    ``count`` defaults to as many as a token uses. Where no scores are equal this is
    `capture.statistics.gating_stats.recall_at`, without sorting all scores.
    """
    scores = _ahead(gates, distance)
    count = count or gates.experts.shape[-1]
    if count >= scores.shape[-1]:
        return 1.0
    least = np.partition(scores, -count, axis=-1)[..., -count, None]
    return float((np.take_along_axis(scores, gates.experts[:, :, distance:], -1) >= least).mean())


def _deep(values: Floats) -> float:
    return float(values[len(values) // 2 :].mean())


def _known(values: Floats | None) -> Floats:
    assert values is not None
    return values


STATISTICS: Mapping[str, Callable[[Gates], float]] = {
    "used_1": lambda g: float(top1_prediction_accuracy(_ahead(g, 1), g.experts).mean()),
    "used_1_deep": lambda g: _deep(top1_prediction_accuracy(_ahead(g, 1), g.experts)),
    "used_1_first": lambda g: float(top1_prediction_accuracy(_ahead(g, 1), g.experts)[0]),
    "used_far": lambda g: _far(top1_prediction_accuracy, g),
    "equal_1": lambda g: float(top1_equality(_ahead(g, 1), g.experts).mean()),
    "equal_far": lambda g: _far(top1_equality, g),
    "recall_1": lambda g: forecast_recall(g, 1),
    "recall_2": lambda g: forecast_recall(g, 2),
    "recall_3": lambda g: forecast_recall(g, 3),
    "recall_quarter": lambda g: forecast_recall(g, 1, quarter(g)),
    "cosine": lambda g: float(layer_cosine(_known(g.inputs)).mean()),
    "any_first": lambda g: float(any_reused(g.experts)[0]),
    "any_middle": lambda g: _middle(any_reused(g.experts)),
    "any_last": lambda g: float(any_reused(g.experts)[-1]),
    "repeat_first": lambda g: float(first_choice_repeated(g.experts)[0]),
    "repeat_middle": lambda g: _middle(first_choice_repeated(g.experts)),
    "repeat_last": lambda g: float(first_choice_repeated(g.experts)[-1]),
    "repeat": lambda g: float(first_choice_repeated(g.experts).mean()),
    "overlap_first": lambda g: float(overlap(g.members, 1)[0]),
    "overlap": lambda g: float(overlap(g.members, 1).mean()),
    "overlap_last": lambda g: float(overlap(g.members, 1)[-1]),
    "overlap_8": lambda g: float(overlap(g.members, 8).mean()),
    "kept_8": lambda g: kept_reuse(g.members, 8),
    "kept_32": lambda g: kept_reuse(g.members, 32),
    "kept_64": lambda g: kept_reuse(g.members, 64),
    "within_8": lambda g: used_within(g.members, 8),
    "gini": lambda g: gini(g.members),
    "top_fifth": lambda g: most_popular_share(g, 0.2),
    "profiled_half": lambda g: profiled_share(g.members, 0.5),
    "union_5": lambda g: union_share(g.members, 5),
    "lru_half": lambda g: lru_hits(g.members, g.num_experts // 2),
    "score_high": lambda g: score_split(g.weights)[0],
    "score_low": lambda g: score_split(g.weights)[1],
    "first_weight": lambda g: first_weight_share(g.weights),
    "weight_output": lambda g: float(
        weight_output_correlation(g.weights, _known(g.output_norms)).mean()
    ),
    "paths_2": lambda g: path_cover(g.experts, g.num_experts, 2),
    "same_token": same_token_repeats,
}
"""Each statistic's function, by name.

- ``used_1``: share of tokens whose best expert forecast 1 layer ahead is among those used.
- ``equal_1``: share of tokens for which it is the first choice.
- ``.._far``: mean over 2 and 3 layers ahead; ``.._deep``: over the deeper half of the layers.
- ``recall_j``: recall at k, j layers ahead; ``recall_quarter``: of the best quarter of the experts,
  1 layer ahead.
"""
