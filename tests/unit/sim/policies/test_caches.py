"""Victim orders of LRU, FIFO, LFU and the weighted score, worked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.asking import FOUR_SITES, ask, begin, gate, order
from sim.policies.adaptive import ARC
from sim.policies.belady import Belady, CostAwareBelady, Foreseeing
from sim.policies.frequency import LFU
from sim.policies.frequency_classes import ClassLRU, DecayedLFU
from sim.policies.popular import Popular
from sim.policies.profile import Profile
from sim.policies.recency import FIFO, LRU, LeastStale, Transient
from sim.policies.scores import (
    ActivationRatio,
    FrequencyOverDistance,
    Random,
    VisitCount,
)
from sim.policies.weighted_score import WeightedScore
from sim.values.types import Cause, Geometry

# LRU and FIFO


def test_lru_starts_in_the_order_of_the_initial_keys() -> None:
    assert order(begin(LRU(initial="empty"), 2, 0, 1)) == [2, 0, 1]


# Contracts: C46
def test_a_request_makes_recent_in_need_order() -> None:
    policy = begin(LRU(initial="empty"), 0, 1, 2, 3)
    ask(policy, 2, 0)
    assert order(policy) == [1, 3, 2, 0]


def test_what_is_blocked_is_left_out() -> None:
    assert order(begin(LRU(initial="empty"), 0, 1, 2), 1) == [0, 2]


# Contracts: C46
def test_a_miss_is_recent_from_its_request_and_its_arrival_changes_nothing() -> None:
    """4 is asked for before 0; a prefetch of 5 arrives before 4 does."""
    policy = begin(LRU(initial="empty"), 0, 1)
    ask(policy, 4, 0, missed=[4])
    policy.on_insert(5, Cause.PREFETCH)
    policy.on_insert(4, Cause.DEMAND)
    assert order(policy) == [1, 4, 0, 5]


# Contracts: C46
def test_a_prefetch_that_was_asked_for_on_its_way_keeps_the_recency_of_the_request() -> None:
    policy = begin(LRU(initial="empty"), 0)
    ask(policy, 3, missed=[3])
    ask(policy, 0)
    policy.on_insert(3, Cause.PREFETCH)
    assert order(policy) == [3, 0]


def test_an_evicted_key_comes_back_as_recent() -> None:
    policy = begin(LRU(initial="empty"), 0, 1)
    policy.on_evict(0)
    assert order(policy) == [1]
    policy.on_insert(0, Cause.PREFETCH)
    assert order(policy) == [1, 0]


def rows(*experts: tuple[int, ...]) -> Any:
    """A gate of several rows, each with its experts by rank (-1: none).

    Needs are ordered by the number of rows, then by id.
    """
    count = Counter(expert for row in experts for expert in row if expert >= 0)
    needs = sorted(count, key=lambda expert: (-count[expert], expert))
    return SimpleNamespace(
        site=0,
        token=3,
        tick=0,
        step=0,
        needs=needs,
        keys=needs,
        tokens=[count[e] for e in needs],
        experts=np.array(experts),
    )


# Contracts: C46
@pytest.mark.parametrize(
    ("recency", "expected"),
    [("needs", [4, 0, 1, 2, 3]), ("rows", [4, 1, 0, 3, 2])],
)
def test_recency_by_rows_goes_by_the_last_row_that_chose_an_expert_and_its_rank_there(
    recency: str, expected: list[int]
) -> None:
    """Need order is 0 (two rows), 1, 2, 3.

    By rows: 1 is in the first row only; 0 is last in the second, after which come 3 and 2.
    """
    policy = begin(LRU(initial="empty", recency=recency), 0, 1, 2, 3, 4)
    ask(policy, 0, 1, 2, 3, at=rows((0, 1), (0, -1), (3, 2)))
    assert order(policy) == expected


def test_recency_by_rows_leaves_what_the_gate_does_not_name_where_it_is() -> None:
    """A wave tells of some needs of its gate only.

    2, which the last row chose, is not among them.
    """
    policy = begin(LRU(initial="empty", recency="rows"), 0, 1, 2)
    ask(policy, 0, 1, at=rows((1, 0), (0, 2), (1, 2)))
    assert order(policy) == [2, 0, 1]


def test_an_unknown_recency_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown LRU recency 'tokens'; known: needs, rows"):
        LRU(recency="tokens")


def test_fifo_goes_by_inserts_and_hears_no_requests() -> None:
    policy = begin(FIFO(initial="empty"), 0, 1, 2)
    ask(policy, 0, 4, missed=[4])
    policy.on_insert(5, Cause.PREFETCH)
    policy.on_insert(4, Cause.DEMAND)
    policy.on_evict(1)
    assert order(policy) == [0, 2, 5, 4]


def test_every_pool_has_its_own_order() -> None:
    geometry = Geometry(2, 2, 1, ("fp16",), (16.0,), (1,), 4)
    policy = begin(LRU("site", initial="empty"), 3, 0, 4, 1, geometry=geometry)
    assert [order(policy, pool=pool, geometry=geometry) for pool in (0, 1)] == [[0, 1], [3, 4]]


def test_the_transient_buffer_has_room_for_one_token_and_starts_empty() -> None:
    geometry = Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100)
    plan = Transient().pools(geometry)
    assert (plan.capacity_bytes, plan.initial, set(plan.pool_of)) == ((16,), (), {0})
    assert Transient().pools(Geometry(3, 4, 2, ("fp16",), (16.0,), (8,), 10)).capacity_bytes == (
        10,
    )


# LFU


def used(counts: str) -> LFU:
    """An LFU for which 0 was asked twice, then 1 once, 2 never."""
    policy = begin(LFU(counts, initial="empty"), 0, 1, 2)
    for key in (0, 0, 1):
        ask(policy, key)
    return policy  # type: ignore[no-any-return]


@pytest.mark.parametrize("counts", ["resident", "sequence", "model"])
def test_lfu_lets_the_smallest_count_go_first(counts: str) -> None:
    assert order(used(counts)) == [2, 1, 0]


def test_equal_counts_go_least_recent_first() -> None:
    policy = begin(LFU(initial="empty"), 0, 1, 2)
    ask(policy, 2, 0)
    assert order(policy) == [1, 2, 0]


@pytest.mark.parametrize(
    ("counts", "back"), [("resident", [2, 0, 1]), ("sequence", [2, 1, 0]), ("model", [2, 1, 0])]
)
def test_only_resident_counts_are_forgotten_on_eviction(counts: str, back: list[int]) -> None:
    """0 is evicted and comes back.

    With no count it is behind 2 (and later than it); otherwise it has its two.
    """
    policy = used(counts)
    policy.on_evict(0)
    assert order(policy) == [2, 1]
    policy.on_insert(0, Cause.PREFETCH)
    assert order(policy) == back


# Contracts: C47
@pytest.mark.parametrize(
    ("counts", "after"), [("resident", [2, 1, 0]), ("sequence", [2, 0, 1]), ("model", [2, 1, 0])]
)
def test_only_sequence_counts_are_forgotten_when_a_sequence_begins(
    counts: str, after: list[int]
) -> None:
    """All are at 0 again, least recent first: 2 (inserted), then 0 and 1 (asked for in order)."""
    policy = used(counts)
    policy.on_sequence(1, False)
    assert order(policy) == [2, 1, 0]
    policy.on_sequence(1, True)
    assert order(policy) == after


def test_a_need_of_many_rows_counts_once() -> None:
    policy = begin(LFU(initial="empty"), 0, 1)
    ask(policy, 0, at=gate(e0=9))
    ask(policy, 1)
    ask(policy, 1)
    assert order(policy) == [0, 1]


def test_a_missed_key_is_counted_at_its_request_and_not_again_when_it_comes() -> None:
    """3 is asked for twice, once before it was there; 0 is asked for once, but later."""
    policy = begin(LFU(initial="empty"), 0)
    ask(policy, 3, missed=[3])
    policy.on_insert(3, Cause.DEMAND)
    ask(policy, 0)
    assert order(policy) == [3, 0]
    ask(policy, 3)
    assert order(policy) == [0, 3]


def test_an_unknown_scope_of_counts_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown LFU counts 'layer'; known: resident, sequence, model"
    ):
        LFU("layer")


# Weighted score, HOBBIT eq. 3


def weighted(*keys: int, **weights: float) -> Any:
    every = dict.fromkeys(WeightedScore.TERMS, 0.0) | weights
    return begin(WeightedScore(every, "global", (), "empty"), *keys, geometry=FOUR_SITES)


def worst_first(policy: Any, *blocked: int) -> list[int]:
    return order(policy, *blocked, geometry=FOUR_SITES)


@pytest.mark.parametrize(
    ("site", "expected"),
    [(0, [9, 6, 3, 0]), (1, [0, 9, 6, 3]), (3, [6, 3, 0, 9])],
)
def test_the_site_that_comes_last_goes_first_and_the_current_one_last(
    site: int, expected: list[int]
) -> None:
    """The term is 1 - ((l_t - l_i + 4) mod 4) / 4.

    At site 3 the sites 2, 1, 0 and 3 have 1/4, 1/2, 3/4 (0 comes next, past the end) and 1.
    """
    policy = weighted(0, 3, 6, 9, fld=1.0)
    ask(policy, 3 * site + 1, missed=[3 * site + 1], at=gate(site, e1=1), wanted=[0])
    assert worst_first(policy) == expected


def test_before_the_first_gate_the_current_site_is_0() -> None:
    assert worst_first(weighted(0, 3, 6, 9, fld=1.0)) == [9, 6, 3, 0]


# Contracts: C48
def test_all_four_terms_by_hand() -> None:
    """T = 10 at site 3, weights 0.3, 0.2, 0.4, 0.1.

    - Key 3 (site 1, high) was last used at 8, by three token uses, two of them wanting high: (0.3 *
      8 + 0.2 * 3 + 0.4 * 2) / 10 + 0.1 * (1 - 2/4) = 0.43.
    - Key 21 (site 3, low) was last used at 10, by one token: (0.3 * 10 + 0.2) / 10 + 0.1 = 0.42.
    - Key 22 likewise, by two tokens: 0.44.
    """
    policy = weighted(3, 21, 22, lru=0.3, lfu=0.2, lhu=0.4, fld=0.1)
    ask(policy, 3, at=gate(1, 5, e0=2), wanted=[0])
    ask(policy, 3, at=gate(1, 8, e0=1), wanted=[1])
    ask(policy, 21, 22, at=gate(3, 10, e0=1, e1=2), wanted=[1, 1])
    assert worst_first(policy) == [21, 3, 22]


@pytest.mark.parametrize(
    ("term", "expected"),
    [("lru", [4, 3]), ("lfu", [4, 3]), ("lhu", [3, 4])],
)
def test_each_term_alone(term: str, expected: list[int]) -> None:
    """Expert 0 (key 3) is used last, by five tokens, wanting low.

    Expert 1 (key 4) is used first, by two tokens, wanting high.
    """
    policy = weighted(3, 4, **{term: 1.0})
    ask(policy, 4, at=gate(1, 5, e1=2), wanted=[0])
    ask(policy, 3, at=gate(1, 8, e0=5), wanted=[1])
    assert worst_first(policy) == expected


def test_equal_scores_go_smallest_key_first() -> None:
    assert worst_first(weighted(10, 3, 22, 0, lru=1.0)) == [0, 3, 10, 22]


def test_a_use_counts_for_an_expert_whatever_its_precision() -> None:
    """Expert 0 of site 1 is used at high precision (key 3); its low variant (15) gains as much."""
    policy = weighted(15, 16, 3, lfu=1.0)
    ask(policy, 3, at=gate(1, 2, e0=1), wanted=[0])
    assert worst_first(policy) == [16, 3, 15]


# Contracts: C48
def test_what_was_learnt_is_forgotten_when_a_sequence_begins_but_not_when_one_ends() -> None:
    policy = weighted(3, 4, lru=1.0, lfu=1.0, lhu=1.0)
    ask(policy, 3, at=gate(1, 5, e0=1), wanted=[0])
    policy.on_sequence(0, False)
    assert worst_first(policy) == [4, 3]
    policy.on_sequence(1, True)
    assert worst_first(policy) == [3, 4]


def test_the_current_site_outlives_a_sequence() -> None:
    """T and l_i are those of the last gate of the run."""
    policy = weighted(0, 9, fld=1.0)
    ask(policy, 10, missed=[10], at=gate(3, 5, e1=1), wanted=[0])
    policy.on_sequence(1, True)
    assert worst_first(policy) == [0, 9]


def test_what_is_evicted_or_blocked_is_not_offered() -> None:
    policy = weighted(0, 3, 6, fld=1.0)
    policy.on_evict(6)
    assert worst_first(policy) == [3, 0]
    assert worst_first(policy, 3) == [0]


@pytest.mark.parametrize(
    "weights",
    [
        {"lru": 1.0},
        {"lru": 1, "lfu": 1, "lhu": 1, "fld": -1},
        {"lru": "x", "lfu": 1, "lhu": 1, "fld": 1},
        {},
    ],
)
def test_weights_that_are_missing_or_negative_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(
        ValueError, match=r"cache\.weights need lru, lfu, lhu, fld, each a number >= 0"
    ):
        WeightedScore(weights)


# What is asked for and never comes in


EVERY = {
    "LRU": lambda: LRU(initial="empty"),
    "LRU by rows": lambda: LRU(initial="empty", recency="rows"),
    "FIFO": lambda: FIFO(initial="empty"),
    "Transient": Transient,
    "LFU": lambda: LFU(initial="empty"),
    "LFU by sequence": lambda: LFU("sequence", initial="empty"),
    "LFU by model": lambda: LFU("model", initial="empty"),
    "weighted": lambda: WeightedScore(
        dict.fromkeys(WeightedScore.TERMS, 1.0), "global", (), "empty"
    ),
    "Belady": lambda: Belady(initial="empty"),
    "Belady with costs": lambda: CostAwareBelady(initial="empty"),
    "LFU that decays": lambda: DecayedLFU(initial="empty"),
    "least stale": lambda: LeastStale(initial="empty"),
    "ARC": lambda: ARC(initial="empty"),
    "frequency over distance": lambda: FrequencyOverDistance(initial="empty"),
    "activation ratio": lambda: ActivationRatio(initial="empty"),
    "visit count": lambda: VisitCount(initial="empty"),
    "random": lambda: Random(initial="empty"),
}
REFUSING = {
    "Belady with bypass": lambda: Belady(initial="empty", bypass=True),
    "popular": lambda: Popular([[0, 0]]),
}


@pytest.mark.parametrize("make", (EVERY | REFUSING).values(), ids=EVERY | REFUSING)
def test_what_was_computed_elsewhere_is_forgotten_when_its_gate_is_over(
    make: Callable[[], Any],
) -> None:
    """3 is absent and computed on the CPU, twice; 0 is resident, and stays."""
    policy = make()
    if isinstance(policy, Foreseeing):
        policy.foresee([[0, 3], [3]])
    if policy.needs_profile:
        policy.profile(Profile(np.ones((1, 6), np.int64), np.zeros((1, 1, 2), np.int64)))
    begin(policy, 0)
    for tick, keys in enumerate([(0, 3), (3,)]):
        ask(policy, *keys, missed=[3], at=SimpleNamespace(**vars(rows(keys)) | {"tick": tick}))
        policy.on_evict(3)
        assert order(policy) == [0]
    policy.on_insert(3, Cause.PREFETCH)
    assert sorted(order(policy)) == [0, 3]


def test_a_use_elsewhere_is_a_use() -> None:
    """3 is computed on the CPU twice, then prefetched.

    It counts two where counts outlive an eviction, else none.
    """
    found = {}
    for counts in ("resident", "sequence", "model"):
        policy = begin(LFU(counts, initial="empty"), 0)
        ask(policy, 0)
        for _ in range(2):
            ask(policy, 3, missed=[3])
            policy.on_evict(3)
        policy.on_insert(3, Cause.PREFETCH)
        found[counts] = order(policy)
    assert found == {"resident": [3, 0], "sequence": [0, 3], "model": [0, 3]}


BY_RECENCY = {name: EVERY[name] for name in ("LRU", "LFU", "LFU by model", "LFU that decays")} | {
    "LRU of classes": lambda: ClassLRU(initial="empty")
}


# Contracts: C46
@pytest.mark.parametrize("make", BY_RECENCY.values(), ids=BY_RECENCY)
def test_a_prefetch_that_comes_after_the_request_for_it_has_the_recency_of_that_request(
    make: Callable[[], Any],
) -> None:
    """3 was asked for before 0, and came in later: from staging, or because its copy was late."""
    policy = begin(make(), 0, 1)
    ask(policy, 3, 0)
    policy.on_insert(3, Cause.PREFETCH)
    assert order(policy) == [1, 3, 0]


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_every_policy_but_those_that_bypass_or_keep_a_list_admits_all(
    make: Callable[[], Any],
) -> None:
    assert make().admits_all
    assert all(make().admit(3, victims) for victims in ((), (1,), (0, 2)))
