"""Caches and predictors, whose results a synthetic trace is not fitted to.

They run on captured and on synthetic gates alike. Arrays ``experts`` are [S, T, L, K] by falling
weight; results are by layer. A cache holds ``capacity`` experts of each layer and starts empty. It
sees the tokens of all sequences one after another, and each token's experts by falling weight.
"""

from __future__ import annotations

import heapq

import numpy as np

from capture.statistics.gating_stats import Floats, Integers, membership
from capture.synthetic.targets import Gates


def lfu_hit_rate(experts: Integers, capacity: int) -> Floats:
    """Hits over uses of LFU without ageing, by layer.

    Counts are of all uses so far; among equal counts the lowest id is evicted.
    """
    flat = experts.reshape(-1, *experts.shape[2:])
    rates = []
    for layer in range(flat.shape[1]):
        uses: dict[int, int] = {}
        held: set[int] = set()
        hits = 0
        for expert in flat[:, layer].ravel().tolist():
            uses[expert] = uses.get(expert, 0) + 1
            if expert in held:
                hits += 1
                continue
            if len(held) >= capacity:
                held.remove(min(held, key=lambda one: (uses[one], one)))
            held.add(expert)
        rates.append(hits / flat[:, layer].size)
    return np.array(rates)


def belady_hit_rate(experts: Integers, capacity: int) -> Floats:
    """Hits over uses of Belady's cache with bypass, by layer.

    The expert that is used again latest is evicted, even if it came just now. Source: Belady, IBM
    Systems Journal 5(2), 1966; optimal for variants of one size.
    """
    flat = experts.reshape(-1, *experts.shape[2:])
    rates = []
    for layer in range(flat.shape[1]):
        asked = flat[:, layer].ravel()
        following = next_uses(asked)
        held: set[int] = set()
        # A heap with the latest next use first. Stale entries of an expert lie in the past, so
        # they come after the entries of all experts that are held.
        latest: list[tuple[int, int]] = []
        hits = 0
        for expert, again in zip(asked.tolist(), following.tolist(), strict=True):
            hits += expert in held
            held.add(expert)
            heapq.heappush(latest, (-again, expert))
            if len(held) > capacity:
                held.remove(heapq.heappop(latest)[1])
        rates.append(hits / len(asked))
    return np.array(rates)


def next_uses(asked: Integers) -> Integers:
    """The position of the next request for the same expert, for each request of a stream [N].

    N where there is none.
    """
    order = np.argsort(asked, kind="stable")
    following = np.full(len(asked), len(asked))
    same = asked[order][1:] == asked[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    return following


# Predictors from counts: fitted on some gates, evaluated on others


def popularity_recall(fit: Gates, asked: Gates) -> Floats:
    """Recall at k of a fixed forecast: the experts that are used most in ``fit``."""
    counts = fit.members.sum((0, 1))
    top = np.argsort(-counts, -1, kind="stable")[:, : asked.experts.shape[-1]]
    return _recall(asked, np.broadcast_to(top, asked.experts.shape))


def previous_token_recall(asked: Gates) -> Floats:
    """Recall at k of the previous token's experts; a sequence's first token is left out."""
    used = asked.members
    return np.asarray((used[:, 1:] & used[:, :-1]).sum(-1).mean((0, 1)) / asked.experts.shape[-1])


def transition_recall(fit: Gates, asked: Gates) -> Floats:
    """Recall at k of a forecast from the layer before, from the second layer on.

    In ``fit`` it counts how often an expert is used after each expert of the layer before. An
    expert's score is the sum, over this token's experts in the layer before, of the log of these
    (smoothed) shares.
    """
    top_k = asked.experts.shape[-1]
    found = []
    for layer in range(1, asked.experts.shape[2]):
        before, now = (
            fit.members[:, :, at].reshape(-1, fit.num_experts).astype(np.float64)
            for at in (layer - 1, layer)
        )
        together = before.T @ now + 0.5
        score = np.log(together / (before.sum(0)[:, None] + 1))
        forecast = asked.members[:, :, layer - 1].astype(np.float64) @ score
        chosen = np.argsort(-forecast, -1, kind="stable")[..., :top_k]
        guessed = membership(chosen, asked.num_experts)
        found.append((guessed & asked.members[:, :, layer]).sum(-1).mean() / top_k)
    return np.array(found)


def _recall(asked: Gates, chosen: Integers) -> Floats:
    guessed = membership(chosen, asked.num_experts)
    return np.asarray((guessed & asked.members).sum(-1).mean((0, 1)) / asked.experts.shape[-1])
