"""The reference against examples worked by hand: victims, serving keys, order at one instant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import foresee, gate, machine, service, stalls, token
from differential.reference import run
from differential.scenario import (
    Cache,
    CacheName,
    Fixed,
    Forecast,
    Loader,
    Need,
    PoolSpec,
    Thresholds,
)

# ---- slots


# Contracts: C35
def test_a_demand_takes_masked_keys_when_nothing_else_may_go() -> None:
    """Both residents are foreseen for site 1, so only the second round gives a victim: the least
    recent, (1, 0).
    """
    step = token(gate(0), gate(1), ahead={0: (foresee(0, 1),)})
    timeline = run(
        machine(step, capacity=2, initial=((0, 1, 0), (0, 1, 1)), loader=Loader(lookahead=1))
    )
    assert service(timeline, "key", "victims") == [(0, (9,))]
    assert [row.outcome for row in timeline.lookups] == ["miss", "hit"]
    assert timeline.prefetch["queued"] == 0  # both were there when they were foreseen


# Contracts: C35
@pytest.mark.parametrize(("slots", "ends"), [(1, 40), (2, 39)])
def test_a_demand_that_spares_what_is_forecast_is_served_from_staging_and_gone_at_the_next_gate(
    slots: int, ends: int
) -> None:
    """Both residents are foreseen for site 1 when site 0 needs (0, 0) and (0, 1). With two slots of
    staging these load 1..11 and 11..21, with one the second waits until the first has been
    computed, and loads 12..22. Site 1 hits.

    The second token's first need is absent again; nothing is forecast, so it evicts the less recent
    (1, 0).
    """
    steps = (
        token(gate(0, 1), gate(0, 1), ahead={0: (foresee(0, 1),)}, ends=False),
        token(gate(0), gate(1), begins=False, token=2),
    )
    loader = Loader(lookahead=1, demand_evicts="unmasked", staging_slots=slots)
    timeline = run(machine(*steps, capacity=2, initial=((0, 1, 0), (0, 1, 1)), loader=loader))
    assert service(timeline, "key", "start_ns", "victims") == [
        (0, 1, ()),
        (1, 11 if slots > 1 else 12, ()),
        (0, ends - 13, (9,)),
    ]
    assert [row.outcome for row in timeline.lookups] == [
        "miss",
        "miss",
        "hit",
        "hit",
        "miss",
        "hit",
    ]
    assert timeline.makespan_ns == ends


# Contracts: C35
def test_a_demand_takes_an_unmasked_key_before_an_older_masked_one() -> None:
    """(1, 0) is the least recent, but masked; (0, 1) goes."""
    step = token(gate(2), gate(0), ahead={0: (foresee(0),)})
    timeline = run(
        machine(step, capacity=2, initial=((0, 1, 0), (0, 0, 1)), loader=Loader(lookahead=1))
    )
    assert service(timeline, "key", "victims") == [(2, (1,))]


# Contracts: C34
def test_a_prefetch_that_finds_only_pinned_and_masked_keys_is_dropped() -> None:
    """Two slots: (0, 0) is pinned, (1, 0) is masked by the same forecast that asks for (1, 1)."""
    step = token(gate(0), gate(0), ahead={0: (foresee(0, 1),)})
    timeline = run(
        machine(step, capacity=2, initial=((0, 0, 0), (0, 1, 0)), loader=Loader(lookahead=1))
    )
    assert timeline.prefetch["dropped_no_slot"] == 1
    assert timeline.transfers == ()
    assert timeline.makespan_ns == 4


def test_a_promoted_prefetch_that_keeps_its_place_claims_like_a_demand() -> None:
    """Sites 0 and 1 skip, so their gates are at 1 and 2, that of site 2 at 3.

    Two slots of precision 0 hold (3, 0) and (3, 1). At 1 site 0 foresees (1, 0), low, which loads
    1..11 into the other pool, and (2, 0), which waits. At 3 site 2 needs (2, 0), which becomes a
    demand where it stands, and foresees both residents. So at 11 only masked keys may go: a
    prefetch would be dropped, the demand takes the less recent. It loads 11..21 and is computed by
    22; site 3 hits at 23.
    """
    left_out = (Need(7, 1, 2.0),)
    ahead = {0: ((Forecast(0, 0.9),), (Forecast(0, 0.0),)), 2: (foresee(0, 1),)}
    scenario = machine(
        token(left_out, left_out, gate(0), gate(1), ahead=ahead),
        variant_bytes=(1, 1),
        service_ns=(10, 10),
        base_ns=(1, 1),
        per_token_ns=(0, 0),
        selector=Thresholds(0.5, 1.0),
        loader=Loader(lookahead=2, demand_first=False),
    )
    scenario = replace(
        scenario, pools=(PoolSpec(2, (0,), None, ((0, 3, 0), (0, 3, 1))), PoolSpec(1, (1,)))
    )
    timeline = run(scenario)
    assert [row.outcome for row in timeline.lookups] == ["skip", "skip", "promoted", "hit"]
    assert service(timeline, "kind", "start_ns", "victims") == [
        ("prefetch", 1, ()),
        ("demand", 11, (3 * 9,)),
    ]
    assert timeline.makespan_ns == 24
    assert stalls(timeline) == {"demand": 10, "behind_prefetch": 8}


# Contracts: C33
@pytest.mark.parametrize(("capacity", "evicted"), [(3, [2, 0, 1]), (4, [2, 0]), (5, [2]), (6, [])])
def test_one_claim_evicts_as_many_victims_as_its_bytes_need(
    capacity: int, evicted: list[int]
) -> None:
    """Three low variants of one byte, which came in the order 2, 0, 1; then a high one of three
    bytes.
    """
    initial = ((1, 0, 2), (1, 0, 0), (1, 0, 1))
    two: dict[str, Any] = {
        "variant_bytes": (3, 1),
        "service_ns": (10, 3),
        "base_ns": (1, 1),
        "per_token_ns": (0, 0),
    }
    timeline = run(machine(token(gate(5)), capacity=capacity, initial=initial, **two))
    assert service(timeline, "key", "victims") == [(5, tuple(9 + expert for expert in evicted))]


def victims(cache: Cache, *sequences: list[int]) -> list[tuple[int, ...]]:
    """What each transfer evicts, at a single site with two slots that is asked for one expert a
    token.
    """
    steps = [
        token(gate(expert), sequence=s, begins=i == 0, ends=i == len(order) - 1, token=i + 1)
        for s, order in enumerate(sequences)
        for i, expert in enumerate(order)
    ]
    return [row.victims for row in run(machine(*steps, capacity=2, cache=cache)).transfers]


def loads(cache: CacheName, order: list[int]) -> int:
    return len(victims(Cache(cache), order))


# Contracts: C47
def test_the_victim_orders_differ_as_on_paper() -> None:
    """Two slots.

    0 1 2 0: Belady lets 1 go for 2 (3 loads), LRU lets 0 go (4).
    0 1 0 2 0: LRU keeps 0 (3), FIFO lets it go (4).
    0 0 1 2 1: LFU lets 1 go for 2 and loads it again (4), LRU lets 0 go (3).
    """
    assert (loads("belady", [0, 1, 2, 0]), loads("lru", [0, 1, 2, 0])) == (3, 4)
    assert (loads("lru", [0, 1, 0, 2, 0]), loads("fifo", [0, 1, 0, 2, 0])) == (3, 4)
    assert (loads("lfu_model", [0, 0, 1, 2, 1]), loads("lru", [0, 0, 1, 2, 1])) == (4, 3)


def test_a_count_that_is_forgotten_on_eviction_changes_later_victims() -> None:
    """Two slots, 0 1 1 0 0 2 1 2. 2 evicts 1 (two uses against three). 1 comes back and evicts 2
    (one against three).

    2 comes back: 0 has three uses, 1 has three (0 is less recent and goes), or one if its two were
    forgotten (1 goes).
    """
    order = [0, 1, 1, 0, 0, 2, 1, 2]
    assert victims(Cache("lfu_model"), order) == [(), (), (1,), (2,), (0,)]
    assert victims(Cache("lfu_resident"), order) == [(), (), (1,), (2,), (1,)]


def test_a_count_of_the_sequence_forgets_what_the_last_one_used() -> None:
    """0 0 0, then 1 2: with counts 3 and 1 the 1 goes for 2; with 0 and 1 the 0."""
    assert victims(Cache("lfu_model"), [0, 0, 0], [1, 2]) == [(), (), (1,)]
    assert victims(Cache("lfu_sequence"), [0, 0, 0], [1, 2]) == [(), (), (0,)]


@pytest.mark.parametrize(
    ("cache", "victim"),
    [
        pytest.param(Cache("lru"), 1, id="1 was asked for before 0"),
        pytest.param(Cache("lfu_model"), 1, id="one request each, and 1 was before 0"),
        pytest.param(Cache("weighted", w_lfu=1.0), 0, id="1 has three token uses, 0 has one"),
        pytest.param(Cache("weighted", w_lhu=1.0), 0, id="all of them wanted precision 0"),
        pytest.param(
            Cache("weighted", w_lru=1.0), 0, id="both were last used at token 4: the smaller key"
        ),
    ],
)
def test_the_weighted_score_counts_tokens_where_lfu_counts_requests(
    cache: Cache, victim: int
) -> None:
    """A step of four rows needs 1 (three tokens) and 0 (one token); two slots; the next token
    needs 2.
    """
    prompt = token((Need(1, 3), Need(0, 1)), rows=4, token=4, ends=False)
    timeline = run(machine(prompt, token(gate(2), begins=False, token=5), capacity=2, cache=cache))
    assert timeline.transfers[-1].victims == (victim,)


def test_the_weighted_score_lets_the_site_go_that_is_farthest_ahead() -> None:
    """Three sites, the gate at site 0: 1 - 1/3 for site 1, 1 - 2/3 for site 2, which goes,
    though it came later.
    """
    step = token(gate(0), gate(0), gate(0))
    timeline = run(
        machine(
            step, capacity=2, initial=((0, 1, 0), (0, 2, 0)), cache=Cache("weighted", w_fld=1.0)
        )
    )
    assert timeline.transfers[0].victims == (2 * 9,)


# ---- who serves, and who is first at one instant


# Contracts: C18
@pytest.mark.parametrize(
    ("initial", "precision", "low_for_high", "outcome", "key"),
    [
        (((0, 0, 3),), 0, False, "hit", 3),
        (((0, 0, 3),), 1, False, "high_for_low", 3),
        (((0, 0, 3), (1, 0, 3)), 1, False, "hit", 12),
        (((1, 0, 3),), 0, True, "low_for_high", 12),
        (((1, 0, 3),), 0, False, "miss", 3),
        ((), 1, True, "miss", 12),
    ],
)
def test_a_need_is_served_by_its_own_variant_then_a_higher_then_a_lower(
    initial: Any, precision: int, low_for_high: bool, outcome: str, key: int
) -> None:
    two: dict[str, Any] = {
        "variant_bytes": (3, 1),
        "service_ns": (10, 3),
        "base_ns": (1, 1),
        "per_token_ns": (0, 0),
    }
    loader = Loader(low_for_high=low_for_high)
    timeline = run(
        machine(token(gate(3)), initial=initial, selector=Fixed(precision), loader=loader, **two)
    )
    assert [(row.outcome, row.key, row.wanted) for row in timeline.lookups] == [
        (outcome, key, precision)
    ]


# Contracts: C14
@pytest.mark.parametrize(
    ("service_ns", "outcome", "makespan_ns"), [(1, "hit", 4), (2, "hit", 4), (3, "late", 5)]
)
def test_a_transfer_that_ends_at_the_instant_of_a_gate_ends_before_it(
    service_ns: int, outcome: str, makespan_ns: int
) -> None:
    """The prefetch for site 1 starts at 1; the gate of site 1 is at 3."""
    step = token(gate(0), gate(0), ahead={0: (foresee(0),)})
    initial = ((0, 0, 0),)
    timeline = run(
        machine(step, initial=initial, service_ns=(service_ns,), loader=Loader(lookahead=1))
    )
    assert timeline.lookups[-1].outcome == outcome
    assert timeline.makespan_ns == makespan_ns


def test_a_prefetch_that_came_for_nothing_is_evicted_in_its_turn_and_a_pinned_arrival_is_not() -> (
    None
):
    """Two slots. Site 0 hits and foresees (1, 0), which loads 1..11 into the free slot; site 1
    needs 1 and 2 at 3.

    At 11 (1, 0) is there, unasked and unmasked, but newer than (0, 0): (1, 1) evicts that. (1, 1)
    is there at 21, but pinned: (1, 2) evicts (1, 0).
    """
    step = token(gate(0), gate(1, 2), ahead={0: (foresee(0),)})
    timeline = run(machine(step, capacity=2, initial=((0, 0, 0),), loader=Loader(lookahead=1)))
    assert service(timeline, "key", "start_ns", "victims") == [
        (9, 1, ()),
        (10, 11, (0,)),
        (11, 21, (9,)),
    ]
    assert timeline.prefetch["evicted_unused"] == 1


def test_sequences_follow_each_other_without_a_pause() -> None:
    first, second = token(gate(0), tail_ns=2), token(gate(0), sequence=1)
    timeline = run(machine(first, second))
    assert timeline.sequence_ends == ((0, 14), (1, 16))
    assert [call[1:] for call in timeline.calls] == [
        ("begin_sequence", 0),
        ("gate", 0),
        ("transfer_done", 0),
        ("end_sequence", 0),
        ("begin_sequence", 1),
        ("gate", 1),
        ("end_sequence", 1),
    ]
