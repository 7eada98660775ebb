"""Slots by site: filled from the shallow end, or by dynamic programming."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from sim.policies.profile import Profile
from sim.policies.quotas import ExpectedLoads, MeasuredLoads, ShallowFirst, fewest_loads
from sim.policies.recency import LRU
from sim.values.types import CapacityError, Geometry


def geometry(slots: int, sites: int = 4, experts: int = 8, top_k: int = 2) -> Geometry:
    return Geometry(sites, experts, top_k, ("fp16",), (16.0,), (10,), 10 * slots)


# Contracts: C50
@pytest.mark.parametrize(
    ("slots", "quotas"),
    [
        (32, [8, 8, 8, 8]),
        (27, [8, 8, 6, 5]),  # 11 for two deep sites, the odd one to the shallower
        (20, [8, 8, 2, 2]),
        (13, [8, 5, 0, 0]),  # too little for the shallow ones: in their order
        (40, [8, 8, 8, 8]),
    ],
)
def test_shallow_sites_are_filled_before_deep_ones_share(slots: int, quotas: list[int]) -> None:
    assert list(ShallowFirst(2).divide(geometry(slots), slots, None)) == quotas


def test_all_sites_may_be_shallow_or_none() -> None:
    assert list(ShallowFirst(4).divide(geometry(20), 20, None)) == [8, 8, 4, 0]
    assert list(ShallowFirst(0).divide(geometry(18), 18, None)) == [5, 5, 4, 4]


def published_loads(size: int, accuracy: float, single: float) -> float:
    """AdapMoE's count of on-demand loads, for 8 experts.

    A token uses 2 of them, or 1 in a share ``single`` of cases. One expert is absent with
    probability 1 - s/8 and then not prefetched with 1 - b. Of two, both are absent with
    (8-s)(7-s)/56: two loads, or one if a prefetch was right. One of them is absent with 2 s
    (8-s)/56: a load unless it was prefetched.
    """
    both, one = (8 - size) * (7 - size) / 56, 2 * (8 - size) * size / 56
    of_two = 2 * both * (1 - accuracy) + both * accuracy + one * (1 - accuracy)
    return single * (1 - size / 8) * (1 - accuracy) + (1 - single) * of_two


def test_expected_loads_are_adapmoes_for_eight_experts_and_two() -> None:
    """By brute force over every division: by AdapMoE's own formula none has fewer loads."""
    # In the second pair well-forecast sites need two experts, and badly forecast ones often one.
    pairs = (([0.0, 0.57, 0.9], [0.0, 0.3, 0.9]), ([0.9, 0.57, 0.0], [0.0, 0.3, 0.9]))
    for (accuracy, single), slots in product(pairs, (6, 9, 14, 20, 24)):
        quotas = ExpectedLoads(accuracy, single).divide(geometry(slots, sites=3), slots, None)
        assert sum(quotas) == slots

        def loads(
            sizes: Any, accuracy: list[float] = accuracy, single: list[float] = single
        ) -> float:
            return sum(map(published_loads, sizes, accuracy, single))

        best = min(loads(sizes) for sizes in product(range(2, 9), repeat=3) if sum(sizes) == slots)
        assert loads(quotas) == pytest.approx(best, abs=1e-12)


def test_expected_loads_of_other_shapes_are_hypergeometric() -> None:
    """E = 6, K = 3: one site against a site that never needs a load.

    Oracle: all 20 triples, drawn one by one.
    """
    for held in range(3, 7):
        absent = [sum(expert >= held for expert in triple) for triple in combinations(range(6), 3)]
        expected = np.mean([max(n - 0.5 * (n > 0), 0) for n in absent])
        other = ExpectedLoads([0.5, 0.5]).divide(
            geometry(held + 3, sites=2, experts=6, top_k=3), held + 3, None
        )
        assert sum(other) == held + 3
        own = 3 * (1 - held / 6) - 0.5 * (
            1 - np.mean([max(t) < held for t in combinations(range(6), 3)])
        )
        assert own == pytest.approx(expected)


def test_a_number_stands_for_every_site_but_the_first() -> None:
    """Nothing prefetches for the first site, so its slots are worth more."""
    quotas = ExpectedLoads(0.9).divide(geometry(16), 16, None)
    assert quotas[0] > max(quotas[1:])
    assert list(ExpectedLoads([0.0, 0.9, 0.9, 0.9]).divide(geometry(16), 16, None)) == list(quotas)


def test_the_dynamic_programme_finds_the_best_of_all_divisions() -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        costs = rng.integers(0, 9, (3, 5)).tolist()
        for slots in (3, 5, 8, 12, 20):
            quotas = fewest_loads(costs, slots, 1)
            given = min(slots, 12)
            best = min(
                sum(c[q] for c, q in zip(costs, sizes, strict=True))
                for sizes in product(range(1, 5), repeat=3)
                if sum(sizes) == given
            )
            assert sum(quotas) == given
            assert min(quotas) >= 1
            assert sum(c[q] for c, q in zip(costs, quotas, strict=True)) == best


def misses_of_lru(tokens: list[list[int]], slots: int) -> int:
    held: list[int] = []
    misses = 0
    for token in tokens:
        misses += sum(expert not in held for expert in token)
        for expert in token:
            if expert in held:
                held.remove(expert)
            held.append(expert)
        held = held[-slots:] if slots else []
    return misses


def test_measured_misses_are_those_of_an_lru_of_every_size() -> None:
    rng = np.random.default_rng(3)
    decoded = rng.permuted(np.tile(np.arange(6), (80, 2, 1)), axis=2)[:, :, :2]
    decoded[5, 0, 1] = -1
    profile = Profile(np.zeros((2, 6), int), decoded)
    for site in range(2):
        tokens = [[e for e in token if e >= 0] for token in decoded[:, site].tolist()]
        assert profile.lru_misses(site) == [misses_of_lru(tokens, slots) for slots in range(7)]


def test_a_site_that_needs_little_gives_slots_to_one_that_needs_more() -> None:
    """Site 0 asks for 0 and 1 only; site 1 cycles through all six."""
    tokens = [[[0, 1], [2 * n % 6, (2 * n + 1) % 6]] for n in range(30)]
    profile = Profile(np.zeros((2, 6), int), np.array(tokens))
    assert list(MeasuredLoads().divide(geometry(8, sites=2, experts=6), 8, profile)) == [2, 6]


def test_quotas_below_one_tokens_needs_are_refused_with_the_way_out() -> None:
    with pytest.raises(
        CapacityError,
        match=r"at least 2 slots, one token's needs: 8 in all, but the budget holds 7; "
        r"raise budget.resident_share",
    ):
        ExpectedLoads(0.5).divide(geometry(7), 7, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShallowFirst(-1), "shallow_sites=-1 must be a whole number, 0 or more"),
        (lambda: ShallowFirst(1.5), "shallow_sites=1.5 must be a whole number"),  # type: ignore[arg-type]
        (
            lambda: ShallowFirst(5).divide(geometry(9), 9, None),
            "shallow_sites=5 exceeds the model's 4 sites",
        ),
        (lambda: ExpectedLoads(1.5), "prefetch_accuracy=1.5 must be a number from 0 to 1"),
        (
            lambda: ExpectedLoads([0.5, -1.0]),
            r"prefetch_accuracy=\[0.5, -1.0\] must be a number from 0 to 1",
        ),
        (lambda: ExpectedLoads("x"), "prefetch_accuracy='x' must be a number from 0 to 1"),  # type: ignore[arg-type]
        (
            lambda: ExpectedLoads([0.5, 0.5]).divide(geometry(9), 9, None),
            "lists 2 values, the model has 4 sites",
        ),
        (
            lambda: LRU("global", quotas=[1]),
            "cache.quotas go with scope=site or layout, got scope=global",
        ),
        (
            lambda: LRU("site", quotas=[1, -1]),
            r"cache.quotas=\[1, -1\] must be whole numbers of slots, 0 or more",
        ),
        (lambda: LRU("site", quotas=[8, 8]).pools(geometry(20)), "name 2 sites, the model has 4"),
        (
            lambda: LRU("site", quotas=[8, 8, 4, 1]).pools(geometry(20)),
            (
                r"cache.quotas=\[8, 8, 4, 1\] take 21 slots, but the cache has 20; lower them, or"
                r" raise budget"
            ),
        ),
    ],
)
def test_quotas_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Contracts: C50
def test_given_quotas_are_pools_of_so_many_slots_and_filled_each_by_itself() -> None:
    plan = LRU("site", quotas=[3, 1, 0, 2]).pools(geometry(20))
    assert plan.capacity_bytes == (30, 10, 0, 20)
    assert plan.initial == (0, 1, 2, 9, 27, 28)


def test_popular_initial_contents_are_the_most_used_that_fit() -> None:
    """Sites have 2 experts and 3 units: keys 0 1, 3 4. Uses are 1 7, 5 5.

    So expert 1 of site 0 comes first, then site 1's in order.
    """
    cache = LRU(initial="popular")
    assert cache.needs_profile
    cache.profile(Profile(np.array([[1, 7], [5, 5]]), np.zeros((1, 2, 1), int)))
    assert cache.pools(geometry(3, sites=2, experts=2)).initial == (1, 3, 4)
