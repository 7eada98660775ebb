"""The check's caches and count predictors, against exhaustive search and plain counting."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest

from capture.synthetic.comparisons import (
    belady_hit_rate,
    lfu_hit_rate,
    next_uses,
    popularity_recall,
    previous_token_recall,
    transition_recall,
)
from capture.synthetic.targets import Gates


def random_gates(seed: int, sequences: int = 3, tokens: int = 20, layers: int = 3) -> Gates:
    rng = np.random.default_rng(seed)
    scores = rng.random((sequences, tokens, layers, 6)) + np.linspace(0, 0.4, 6)
    experts = np.argsort(-scores, -1)[..., :2]
    return Gates(6, experts, np.take_along_axis(scores, experts, -1))


def most_hits(asked: tuple[int, ...], capacity: int) -> int:
    """The most hits of any cache, by trying every choice of what to hold after each request."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(asked):
            return 0
        able = held | {asked[at]}
        size = min(capacity, len(able))
        after = max(best(at + 1, frozenset(kept)) for kept in combinations(sorted(able), size))
        return after + (asked[at] in held)

    return best(0, frozenset())


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_belady_has_as_many_hits_as_any_cache_can_have(seed, capacity):
    asked = np.random.default_rng(seed).integers(0, 5, (1, 14, 1, 1))
    expected = most_hits(tuple(asked.ravel().tolist()), capacity)
    assert belady_hit_rate(asked, capacity)[0] * 14 == pytest.approx(expected)


def test_next_uses_by_hand():
    assert next_uses(np.array([3, 1, 3, 3, 1])).tolist() == [2, 4, 3, 5, 5]


def test_lfu_by_hand():
    # Two slots. The second 0 is a hit. 2 takes the place of 1, and its next use is a hit. 1 then
    # takes the place of 0: both have 2 uses, and 0 is the lower id. 0 takes the place of 1, for the
    # same reason, and the last 1 is a miss.
    asked = np.array([0, 0, 1, 2, 2, 1, 0, 1]).reshape(1, 8, 1, 1)
    assert lfu_hit_rate(asked, 2)[0] == pytest.approx(2 / 8)


def test_popularity_and_previous_token_by_counting():
    fit, asked = random_gates(1), random_gates(2)
    for layer in range(3):
        counts = np.bincount(fit.experts[:, :, layer].ravel(), minlength=6)
        top = set(np.argsort(-counts, kind="stable")[:2].tolist())
        sets = [[set(token[layer].tolist()) for token in sequence] for sequence in asked.experts]
        found = [len(top & used) / 2 for sequence in sets for used in sequence]
        assert popularity_recall(fit, asked)[layer] == pytest.approx(np.mean(found))
        found = [len(a & b) / 2 for sequence in sets for a, b in pairwise(sequence)]
        assert previous_token_recall(asked)[layer] == pytest.approx(np.mean(found))


def test_transitions_find_a_fixed_map_and_equal_counting():
    rng = np.random.default_rng(3)
    first = np.argsort(rng.random((4, 30, 6)), -1)[..., :1]
    moved = (first + 2) % 6
    mapped = Gates(6, np.stack([first, moved], axis=2), np.ones((4, 30, 2, 1)))
    assert transition_recall(mapped, mapped) == pytest.approx([1.0])

    fit, asked = random_gates(4), random_gates(5)
    pairs = np.full((6, 6), 0.5)
    uses = np.ones(6)
    for token in fit.experts.reshape(-1, 3, 2):
        uses[token[0]] += 1
        for before in token[0]:
            pairs[before, token[1]] += 1
    hits = []
    for token in asked.experts.reshape(-1, 3, 2):
        score = sum(np.log(pairs[before] / uses[before]) for before in token[0])
        guessed = sorted(range(6), key=lambda expert: -score[expert])[:2]
        hits.append(len(set(guessed) & set(token[1].tolist())) / 2)
    assert transition_recall(fit, asked)[0] == pytest.approx(np.mean(hits))
