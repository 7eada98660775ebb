"""Fits a routing rule to the recorded rows of a site, and counts how many it reproduces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capture.models.discover import MoELayer, tensors_named
from sim.traces.routing import GROUPS, SCORES, WEIGHTS, RoutingRule

NUM_GROUP_NAMES = ("n_group", "num_group", "num_expert_group")
TOPK_GROUP_NAMES = ("topk_group", "num_limited_groups")
# A rule that matches a smaller share would mislead those who turn forecast logits into experts.
LEAST_MATCH = 0.9
# Rules that match this much less than the best on the first rows are not tried on the others.
SCREEN_ROWS, SCREEN_MARGIN = 512, 0.05

Floats = NDArray[np.float32]
Ids = NDArray[Any]


@dataclass(frozen=True)
class Fit:
    """How well a rule reproduces a site's selections.

    - ``rule``: None where no rule is good enough, or where the token's id chooses.
    - ``match``: share of rows that the best rule selects like the model.
    - ``weight_error``: largest difference of a weight in these rows.
    - ``by_token``: the token's id alone chooses the experts (a hash layer's table).
    """

    rule: RoutingRule | None
    match: float
    weight_error: float
    by_token: bool = False


def fit_site(layer: MoELayer, logits: Floats, ids: Ids, weights: Floats, tokens: Ids) -> Fit:
    """The fit to a site's recorded rows.

    Shapes: ``logits`` [T, E], ``ids`` [T, K], ``weights`` [T, K], ``tokens`` [T] (token ids).
    """
    table = token_table(layer)
    if table is not None and (tokens >= 0).all():
        same = np.sort(table[tokens], axis=-1) == np.sort(ids, axis=-1)
        if bool(same.all()):
            return Fit(None, 1.0, 0.0, by_token=True)
    rule, match, error = fit_rule(layer, logits, ids, weights)
    return Fit(rule if match >= LEAST_MATCH else None, match, error)


def token_table(layer: MoELayer) -> Ids | None:
    """The table [vocabulary, K] by which a router chooses by token id; None if it has none."""
    for _, values in tensors_named(layer.router):
        if (
            values.dim() == 2
            and values.shape[1] == layer.top_k
            and not torch.is_floating_point(values)
        ):
            return values.detach().cpu().numpy()
    return None


def fit_rule(
    layer: MoELayer, logits: Floats, ids: Ids, weights: Floats
) -> tuple[RoutingRule, float, float]:
    """The rule that reproduces the most selections: ``(rule, share matched, weight error)``.

    ``logits`` [T, E], ``ids`` [T, K] (-1: none) and ``weights`` [T, K] are the recorded rows.
    Selections are compared as sets; a choice that was dropped because its expert was full matches
    any expert. Weights are compared over the matching rows without drops.

    Of rules that match the same share, the one with the smallest weight error (rounded to 1e-6) is
    taken, then the first of the candidates: without bias before with bias, then without groups
    before with groups, then in the order of `sim.traces.routing.SCORES` and `WEIGHTS`.
    """
    first = slice(None, SCREEN_ROWS)
    screened = _tried(_candidates(layer), logits[first], ids[first], weights[first])
    best = max((share for share, _, _ in screened), default=0.0)
    left = [rule for share, _, rule in screened if share >= best - SCREEN_MARGIN]
    tried = screened if len(ids) <= SCREEN_ROWS else _tried(iter(left), logits, ids, weights)
    # min takes the first of equals, and the simplest candidates come first.
    share, error, rule = min(tried, key=lambda item: (-item[0], round(item[1], 6)))
    return rule, share, error


def _tried(
    rules: Iterator[RoutingRule], logits: Floats, ids: Ids, weights: Floats
) -> list[tuple[float, float, RoutingRule]]:
    fitted = [fit_scale(rule, logits, ids, weights) for rule in rules]
    return [(*compare(rule, logits, ids, weights), rule) for rule in fitted]


def _candidates(layer: MoELayer) -> Iterator[RoutingRule]:
    num_group = _setting(layer, NUM_GROUP_NAMES)
    topk_group = _setting(layer, TOPK_GROUP_NAMES)
    groups: list[tuple[str | None, int, int]] = [(None, 1, 1)]
    if num_group > 1 and layer.num_classes % num_group == 0 and topk_group < num_group:
        groups += [(group, num_group, topk_group) for group in GROUPS if group]
    null = layer.num_classes - layer.num_experts
    for bias, (group, count, kept), score in itertools.product(_biases(layer), groups, SCORES):
        for weight in WEIGHTS:
            if weight != "sparsemixer":
                yield RoutingRule(score, bias, group, count, kept, weight, null_experts=null)
    jitter = getattr(layer.router, "router_jitter_noise", 0.0)
    if isinstance(jitter, float) and jitter > 0:
        yield RoutingRule("identity", weight="sparsemixer", band=2 * jitter, null_experts=null)


def _setting(layer: MoELayer, names: tuple[str, ...]) -> int:
    for holder in (layer.router, layer.block, getattr(layer.stack, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 1


def _biases(layer: MoELayer) -> list[tuple[float, ...] | None]:
    """The biases to try: None, and every vector of the block with a value for each class."""
    own = [*layer.block.named_parameters(recurse=False), *layer.block.named_buffers(recurse=False)]
    # A correction bias can be in a small module beside the router.
    beside = [
        named
        for child in layer.block.children()
        if child is not layer.experts and child is not layer.router
        for named in tensors_named(child)
    ]
    named = [*tensors_named(layer.router), *own, *beside]
    vectors = [
        values.detach()
        for _, values in named
        if values.squeeze().dim() == 1
        and values.numel() == layer.num_classes
        and values.is_floating_point()
    ]
    return [None, *(tuple(values.flatten().float().tolist()) for values in vectors)]


def compare(rule: RoutingRule, logits: Floats, ids: Ids, weights: Floats) -> tuple[float, float]:
    """The share of rows that the rule selects like the model, and the largest weight error there.

    Rows with dropped choices count for the share, but not for the weight error.
    """
    picked, ours = rule.route(logits, ids.shape[1])
    places = (ids[..., :, None] == picked[..., None, :]) & (ids >= 0)[..., None]
    same = (places.any(-1) | (ids < 0)).all(-1)
    if rule.null_experts:
        same &= (ids < 0).sum(-1) == (picked < 0).sum(-1)
    whole = same & ((ids >= 0).all(-1) | bool(rule.null_experts))
    gaps = (places * ours[..., None, :]).sum(-1) - np.where(ids >= 0, weights, 0)
    return float(same.mean()) if len(same) else 1.0, float(np.abs(gaps[whole]).max(initial=0.0))


def fit_scale(rule: RoutingRule, logits: Floats, ids: Ids, weights: Floats) -> RoutingRule:
    """``rule`` with the scale that fits the weights best, in the sense of least squares.

    It is exactly 1 where the best is within 1e-5 of 1, else rounded to 6 digits.
    """
    whole = slice(None) if rule.null_experts else (ids >= 0).all(-1)
    _, ours = replace(rule, scale=1.0).route(logits[whole], ids.shape[1])
    theirs = -np.sort(-weights[whole], axis=-1)
    size = float((ours.astype(np.float64) ** 2).sum())
    scale = float((ours.astype(np.float64) * theirs).sum()) / size if size else 1.0
    return replace(rule, scale=1.0 if abs(scale - 1) < 1e-5 else round(scale, 6))
