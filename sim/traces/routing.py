"""Routing rules: which experts a router's logits select, and with which weights.

A `RoutingRule` states a model's top-k rule in numpy, so that the simulator can turn recorded or
forecast logits into selections without the model. A capture fits the rule and counts how many
recorded selections it reproduces; the trace header carries both.

The order is total. Among equal selection scores the lower expert id is selected first. The selected
experts are returned by descending float32 weight, equal weights by ascending id. Scores are
computed in float64, so that rounding seldom makes two different logits equal. Frameworks leave the
order of equal scores open, hence a rule can differ from a model only where scores (nearly) tie.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "identity")
GROUPS = (None, "max", "top2sum")
WEIGHTS = ("gather", "norm", "softmax_topk", "sigmoid_topk", "sparsemixer")
COUNTED = 8
"""Up to so many choices of a row are put in order by counting."""
ADDED_IN_TURN = 7
"""Up to so many numbers numpy adds one after another; of more it makes partial sums."""
_FIELDS = ("score", "bias", "group", "n_group", "topk_group", "weight", "scale")
_RARE = {"band": 0.0, "null_experts": 0}
"""Fields that few rules need, with their defaults; JSON has them only where they differ."""


@dataclass(frozen=True)
class RoutingRule:
    """Top-k selection and weighting of one router.

    1. ``score`` maps logits to scores over all experts.
    2. The largest ``score + bias`` are selected. ``bias`` has one value for each expert and is
       never part of a weight.
    3. With ``group`` set, the experts form ``n_group`` equal runs of ids. Experts are selected only
       from the ``topk_group`` best runs, ranked by their largest score (`max`) or by the sum of
       their two largest (`top2sum`).
    4. ``weight`` weights the selected experts, see below. Weights are then multiplied by ``scale``.
    5. The last ``null_experts`` compute nothing (identity or skip): selecting one gives expert -1
       with weight 0.

    | weight | the weight of a selected expert |
    |---|---|
    | gather | its score |
    | norm | its score over the sum of the selected scores |
    | softmax_topk, sigmoid_topk | the softmax or the sigmoid of the selected logits |
    | sparsemixer | as in PhiMoE: its share in a softmax, see below |

    The softmax of `sparsemixer` for the r-th selected expert is over the logits that are left after
    the first r - 1. It leaves out logits more than the relative ``band`` below the largest of them.

    Raise a :exc:`ValueError` that names the field when a value is unknown, not finite or
    inconsistent.

    Source: the routers of transformers 5, compared rule by rule.
    """

    score: str = "softmax"
    bias: tuple[float, ...] | None = None
    group: str | None = None
    n_group: int = 1
    topk_group: int = 1
    weight: str = "gather"
    scale: float = 1.0
    band: float = 0.0
    null_experts: int = 0

    def __post_init__(self) -> None:
        _require(self.score in SCORES, "score", self.score, f"must be one of {SCORES}")
        _require(self.group in GROUPS, "group", self.group, f"must be one of {GROUPS}")
        _require(self.weight in WEIGHTS, "weight", self.weight, f"must be one of {WEIGHTS}")
        for field in ("n_group", "topk_group"):
            value = getattr(self, field)
            _require(
                type(value) is int and 1 <= value <= 1 << 15,
                field,
                value,
                "must be an int of 1 or more",
            )
        _require(
            self.topk_group <= self.n_group,
            "topk_group",
            self.topk_group,
            f"must be <= n_group={self.n_group}",
        )
        _require(_is_finite(self.scale), "scale", self.scale, "must be a finite number")
        _require(
            _is_finite(self.band) and self.band >= 0,
            "band",
            self.band,
            "must be a finite number of 0 or more",
        )
        valid = type(self.null_experts) is int and 0 <= self.null_experts < 1 << 15
        _require(valid, "null_experts", self.null_experts, "must be an int of 0 or more")
        if self.bias is not None:
            valid = isinstance(self.bias, tuple) and all(_is_finite(value) for value in self.bias)
            _require(valid, "bias", self.bias, "must be a tuple of finite numbers, one per expert")

    def check_experts(self, num_experts: int, top_k: int) -> None:
        """Raise a :exc:`ValueError` if this rule cannot select ``top_k`` of ``num_experts``."""
        if self.bias is not None:
            _require(
                len(self.bias) == num_experts,
                "bias",
                f"{len(self.bias)} values",
                f"must have {num_experts}",
            )
        eligible = num_experts
        if self.group is not None:
            _require(
                num_experts % self.n_group == 0,
                "n_group",
                self.n_group,
                f"must divide {num_experts} experts",
            )
            eligible = num_experts // self.n_group * self.topk_group
        rule = f"must be below {num_experts}, the number of experts"
        _require(self.null_experts < num_experts, "null_experts", self.null_experts, rule)
        _require(
            1 <= top_k <= eligible,
            "top_k",
            top_k,
            f"must lie in 1..{eligible}, the experts that may be chosen",
        )

    def route(
        self, logits: NDArray[Any], top_k: int
    ) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """The selected experts and their weights for ``logits`` [..., E].

        Returns ids (int16 [..., K]) and weights (float32 [..., K]) by descending weight, then
        ascending id, null experts last. Raise a :exc:`ValueError` if a logit is not finite or the
        rule does not fit E.
        """
        values = np.asarray(logits, dtype=np.float64)
        self.check_experts(values.shape[-1], top_k)
        if not np.isfinite(values).all():
            raise ValueError(
                "logits must be finite: leave out the rows that were not recorded (NaN) before"
                " routing"
            )
        flat = values.reshape(-1, values.shape[-1])
        scores = _scores(flat, self.score)
        ids = _largest(self._eligible(scores), top_k)
        weights = self._weights(flat, scores, ids).astype(np.float32)
        if self.null_experts:
            null = ids >= values.shape[-1] - self.null_experts
            ids, weights = np.where(null, -1, ids), np.where(null, np.float32(0), weights)
        reorder(need_order(ids, weights), ids, weights)
        shape = (*values.shape[:-1], top_k)
        return ids.astype(np.int16).reshape(shape), weights.reshape(shape)

    def preferences(self, logits: NDArray[Any]) -> Floats:
        """The scores plus bias [..., E] by which experts are preferred, groups left out."""
        scores = _scores(np.asarray(logits, dtype=np.float64), self.score)
        return scores if self.bias is None else scores + np.asarray(self.bias, dtype=np.float64)

    def _eligible(self, scores: Floats) -> Floats:
        """Selection scores ``[R, E]``; -inf for experts of groups that were not chosen."""
        choice = scores if self.bias is None else scores + np.asarray(self.bias, dtype=np.float64)
        if self.group is None:
            return choice
        groups = choice.reshape(len(choice), self.n_group, -1)
        best = 1 if self.group == "max" else 2
        group_scores = np.sort(groups, axis=-1)[..., -best:].sum(-1)
        kept = np.zeros_like(group_scores, dtype=bool)
        np.put_along_axis(kept, _largest(group_scores, self.topk_group), True, axis=-1)
        return np.where(kept[..., None], groups, -np.inf).reshape(choice.shape)

    def _weights(self, logits: Floats, scores: Floats, ids: NDArray[np.int64]) -> Floats:
        if self.weight == "sparsemixer":
            return _sparsemixer(logits, ids, self.band) * self.scale
        chosen = np.take_along_axis(logits if self.weight.endswith("_topk") else scores, ids, -1)
        if self.weight == "norm":
            total = sums(chosen)[..., None]
            # A row of zeros has no shares: it gets weights of 0 instead of NaN.
            there = True if total.all() else total != 0
            chosen = np.divide(chosen, total, out=np.zeros_like(chosen), where=there)
        elif self.weight != "gather":
            chosen = _scores(chosen, self.weight.removesuffix("_topk"))
        return chosen * self.scale

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``; `from_json` gives an equal rule back."""
        plain: dict[str, Any] = {field: getattr(self, field) for field in _FIELDS}
        plain["bias"] = None if self.bias is None else list(self.bias)
        return plain | {
            name: getattr(self, name)
            for name, usual in _RARE.items()
            if getattr(self, name) != usual
        }

    @classmethod
    def from_json(cls, value: object) -> "RoutingRule":
        """The rule that `to_json` gave; raise a :exc:`ValueError` that names what is wrong."""
        if not isinstance(value, Mapping):
            raise ValueError(f"routing rule must be an object, not {type(value).__name__}")
        if not set(_FIELDS) <= set(value) <= {*_FIELDS, *_RARE}:
            rule = f"must have {sorted(_FIELDS)} and may have {sorted(_RARE)}"
            raise ValueError(f"routing rule has fields {sorted(map(str, value))}, {rule}")
        bias = value["bias"]
        return cls(**{**value, "bias": tuple(bias) if isinstance(bias, list) else bias})


def _require(holds: bool, field: str, value: object, rule: str) -> None:
    if not holds:
        raise ValueError(f"routing rule: {field} is {str(value)[:120]!r}, {rule}")


def _is_finite(value: object) -> bool:
    """Whether float32 can hold ``value``: JSON may bring NaN, huge ints, bools or text."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 3e38


def _scores(logits: Floats, score: str) -> Floats:
    if score == "softmax":
        # Over a short last axis ``argmax`` takes a fifth of the time of ``max``.
        shares = logits - np.take_along_axis(logits, logits.argmax(-1)[..., None], -1)
        np.exp(shares, out=shares)
        shares /= shares.sum(-1, keepdims=True)
        return np.asarray(shares)
    if score == "sigmoid":
        # exp of -|x| never overflows.
        small = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, small) / (1.0 + small)
    if score == "sqrtsoftplus":
        return np.sqrt(np.logaddexp(0.0, logits))
    return logits


def _sparsemixer(logits: Floats, ids: NDArray[np.int64], band: float) -> Floats:
    left = logits.copy()
    weights = np.empty(ids.shape)
    for rank in range(ids.shape[-1]):
        chosen = ids[:, rank, None]
        largest = left.max(-1, keepdims=True)
        scale = np.maximum(np.abs(logits), largest)
        # The scale is 0 only where all logits are 0, so none lies below the largest.
        below = np.divide(largest - logits, scale, out=np.zeros_like(logits), where=scale != 0)
        near = np.where(below > band, -np.inf, left)
        weights[:, rank] = np.take_along_axis(_scores(near, "softmax"), chosen, -1)[:, 0]
        np.put_along_axis(left, chosen, -np.inf, axis=-1)
    return weights


def _largest(values: Floats, count: int) -> NDArray[np.int64]:
    """Indices ``[R, count]`` of the largest values, best first, the lower index first among equals.

    Found by ``count`` passes of argmax, which returns the first of equal values. As ``count`` is
    small, this is faster than sorting all experts.
    """
    left = values.copy()
    flat, first = left.reshape(-1), np.arange(0, left.size, left.shape[-1])
    picked = np.empty((len(values), count), dtype=np.int64)
    for rank in range(count):
        if rank:
            # -inf marks both "taken" and "not eligible"; check_experts has made sure of enough others.
            flat[first + picked[:, rank - 1]] = -np.inf
        picked[:, rank] = left.argmax(-1)
    return picked


def need_order(
    ids: NDArray[np.integer], weights: NDArray[np.floating], as_it_stands: bool = False
) -> NDArray[np.intp]:
    """The indices that put each row's choices in need order, with dropped choices (-1) last.

    Need order is by descending weight, then ascending id. With ``as_it_stands`` the choices keep
    their order: for traces without weights whose choices already stand by rank.
    """
    if as_it_stands:
        return np.argsort(ids < 0, axis=-1, kind="stable")
    order = np.broadcast_to(np.arange(ids.shape[-1]), ids.shape).copy()
    # Most routers choose in this order: to see that is many times faster than to sort.
    ordered = (weights[..., :-1] > weights[..., 1:]) | (
        (weights[..., :-1] == weights[..., 1:]) & (ids[..., :-1] < ids[..., 1:])
    )
    others = ~all_of(ordered) | ~all_of(ids >= 0)
    ids, weights = ids[others], weights[others]
    if ids.shape[-1] <= COUNTED:
        order[others] = _by_counting(ids, weights)
    else:
        order[others] = np.lexsort((ids, -weights, ids < 0), axis=-1)
    return order


def _by_counting(ids: NDArray[np.integer], weights: NDArray[np.floating]) -> NDArray[np.intp]:
    """``need_order`` of the last axis, many times faster than sorting where that is short: a
    choice's place is how many others come before it.
    """
    dropped = np.moveaxis(ids < 0, -1, 0)
    by_rank = list(zip(np.moveaxis(weights, -1, 0), np.moveaxis(ids, -1, 0), strict=True))
    place = np.zeros(ids.shape, np.intp)
    for one, other in combinations(range(ids.shape[-1]), 2):
        (weight, expert), (its_weight, its_expert) = by_rank[one], by_rank[other]
        is_first = (weight > its_weight) | ((weight == its_weight) & (expert <= its_expert))
        is_first = np.where(dropped[one] == dropped[other], is_first, dropped[other])
        place[..., other] += is_first
        place[..., one] += ~is_first
    order = np.empty_like(place)
    np.put_along_axis(order, place, np.broadcast_to(np.arange(ids.shape[-1]), ids.shape), -1)
    return order


def all_of(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``all`` of the last axis, many times faster where that is short."""
    found = np.ones(held.shape[:-1], np.bool_)
    for rank in range(held.shape[-1]):
        found &= held[..., rank]
    return found


def sums(values: Floats) -> Floats:
    """``sum`` of the last axis, to the last bit; many times faster where that is short: numpy adds up
    to seven numbers one after another.
    """
    if not 1 <= values.shape[-1] <= ADDED_IN_TURN:
        return np.asarray(values.sum(-1))
    found = values[..., 0].copy()
    for rank in range(1, values.shape[-1]):
        found += values[..., rank]
    return found


def reorder(order: NDArray[np.integer], *arrays: NDArray[Any]) -> None:
    """Put the choices of each row [.., K] of the ``arrays`` into this order, in place."""
    # Most rows stand in order: to see that is many times faster than to move them.
    moved = ~all_of(order == np.arange(order.shape[-1]))
    places = order[moved].astype(np.intp)
    for values in arrays:
        values[moved] = np.take_along_axis(values[moved], places, -1)


def shares_above(weights: NDArray[np.floating]) -> Floats:
    """The share of a row's weight that ranks above each choice [.., K]: 0 for the first.

    ``weights`` [.., K] are those of the selected experts, in descending order. This is HOBBIT eq. 2
    over the selected experts.
    """
    wide = weights.astype(np.float64)
    total = sums(wide)
    above, so_far = np.empty_like(wide), np.zeros_like(total)
    for rank in range(wide.shape[-1]):  # many times faster than ``cumsum`` over a short last axis
        so_far += wide[..., rank]
        above[..., rank] = so_far - wide[..., rank]
    above /= np.where(total > 0, total, 1.0)[..., None]
    return above
