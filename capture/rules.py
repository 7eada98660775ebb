"""Fits the routing rule of a site to what was recorded there, and counts how much of it the rule reproduces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.discover import MoELayer
from sim.routing import GROUPS, SCORES, WEIGHTS, RoutingRule

NUM_GROUP_NAMES = ("n_group", "num_group", "num_expert_group")
TOPK_GROUP_NAMES = ("topk_group", "num_limited_groups")

Floats = NDArray[np.float32]
Ids = NDArray[Any]


def fit_rule(layer: MoELayer, logits: Floats, ids: Ids, weights: Floats) -> tuple[RoutingRule, float, float]:
    """The rule that reproduces the most selections, ``(rule, share matched, largest weight error)``.

    ``logits [T, E]``, ``ids [T, K]`` (-1: none) and ``weights [T, K]`` are the recorded rows. Selections are compared
    as sets, weights over the matching rows. Among rules that do equally well (weights to 1e-6) the first in the order
    of `sim.routing.SCORES` and `WEIGHTS` is taken, without a bias or groups before with.
    """
    fitted = [fit_scale(rule, logits, ids, weights) for rule in _candidates(layer)]
    scored = [(*_compare(rule, logits, ids, weights), rule) for rule in fitted]
    # min keeps the first of equals, and the candidates come simplest first.
    share, error, rule = min(scored, key=lambda item: (-item[0], round(item[1], 6)))
    return rule, share, error


def _candidates(layer: MoELayer) -> Iterator[RoutingRule]:
    num_group = _setting(layer, NUM_GROUP_NAMES)
    topk_group = _setting(layer, TOPK_GROUP_NAMES)
    groups: list[tuple[str | None, int, int]] = [(None, 1, 1)]
    if num_group > 1 and layer.num_experts % num_group == 0:
        groups += [(group, num_group, topk_group) for group in GROUPS if group]
    for bias, (group, count, kept), score in itertools.product(_biases(layer), groups, SCORES):
        for weight in WEIGHTS:
            yield RoutingRule(score, bias, group, count, kept, weight)


def _setting(layer: MoELayer, names: tuple[str, ...]) -> int:
    for holder in (layer.router, layer.block, getattr(layer.stack, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 1


def _biases(layer: MoELayer) -> list[tuple[float, ...] | None]:
    """None, and every vector with a value for each expert that the router or the block holds."""
    named = [
        *layer.router.named_parameters(),
        *layer.router.named_buffers(),
        *layer.block.named_parameters(recurse=False),
        *layer.block.named_buffers(recurse=False),
    ]
    vectors = [values for _, values in named if values.squeeze().dim() == 1 and values.numel() == layer.num_experts]
    return [None, *(tuple(values.detach().flatten().float().tolist()) for values in vectors)]


def _compare(rule: RoutingRule, logits: Floats, ids: Ids, weights: Floats) -> tuple[float, float]:
    """Share of rows whose set is the rule's, and the largest weight error there."""
    picked, ours = rule.route(logits, ids.shape[1])
    mine, theirs = np.argsort(picked, axis=-1), np.argsort(ids, axis=-1)
    same = (np.take_along_axis(picked, mine, -1) == np.take_along_axis(ids, theirs, -1)).all(-1)
    gaps = np.take_along_axis(ours, mine, -1) - np.take_along_axis(weights, theirs, -1)
    return float(same.mean()), float(np.abs(gaps[same]).max(initial=0.0))


def fit_scale(rule: RoutingRule, logits: Floats, ids: Ids, weights: Floats) -> RoutingRule:
    """``rule`` with the scale that fits the weights best; exactly 1 where that is within rounding."""
    _, ours = replace(rule, scale=1.0).route(logits, ids.shape[1])
    theirs = -np.sort(-weights, axis=-1)
    size = float((ours.astype(np.float64) ** 2).sum())
    scale = float((ours.astype(np.float64) * theirs).sum()) / size if size else 1.0
    return replace(rule, scale=1.0 if abs(scale - 1) < 1e-5 else round(scale, 6))
