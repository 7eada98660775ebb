"""The reference alone: against paper, against closed forms, and against what must hold of every run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from differential.by_hand import foresee, gate, machine, service, stalls, token
from differential.reference import run
from differential.rows import PREFETCH_OUTCOMES, Timeline
from differential.scenario import (
    CACHES,
    Cache,
    CacheName,
    Fixed,
    Forecast,
    Loader,
    Need,
    PoolSpec,
    Prediction,
    Scenario,
    Step,
    Thresholds,
    random_scenario,
)
from differential.timeline import check

SEEDS = range(100)
WAITS = ("wait_all", "as_ready")


# ---- by hand: HOBBIT, Fig. 9 -----------------------------------------------------------------------------------------


def figure_9(wait: str, forecast: Prediction, second_score: float) -> Scenario:
    return Scenario(
        sites=2,
        experts=2,
        variant_bytes=(4, 1),
        service_ns=(14_000_000, 3_500_000),
        base_ns=(2_000_000, 2_000_000),
        per_token_ns=(0, 0),
        pools=(PoolSpec(8, (0,)), PoolSpec(2, (1,))),
        steps=(
            Step(
                sequence=0,
                begins=True,
                ends=True,
                rows=1,
                token=1,
                dense_ns=(3_000_000, 3_000_000),
                tail_ns=0,
                needs=((Need(0),), (Need(0, score=second_score),)),
                forecasts=((forecast,), (None,)),
            ),
        ),
        selector=Thresholds(0.5, 1.0),
        loader=Loader(lookahead=1, wait=wait),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    ("forecast", "second_score", "makespan_ns"),
    [
        pytest.param(None, 0.0, 38_000_000, id="no prefetch"),
        pytest.param((Forecast(0),), 0.0, 33_000_000, id="right prefetch"),
        pytest.param((Forecast(1),), 0.0, 47_000_000, id="wrong prefetch"),
        pytest.param((Forecast(0, 0.6),), 0.6, 24_000_000, id="right low prefetch"),
        pytest.param((Forecast(1, 0.6),), 0.6, 27_500_000, id="wrong low prefetch"),
    ],
)
def test_hobbit_figure_9(wait: str, forecast: Prediction, second_score: float, makespan_ns: int) -> None:
    """Two layers: attention 3, load 14 (low 3.5), expert 2 ms.

    (a) 2 * (3 + 14 + 2) = 38.
    (b) Layer 1's load ends at 17; its expert runs to 19 and attention 2 to 22, while layer 2's expert loads from 17 to
    31: 31 + 2 = 33.
    (c) The wrong one loads 17..31, the right one 31..45: 47.
    (d) The low one loads 17..20.5 and is there at 22: 24.
    (e) The wrong low one loads 17..20.5, the right one from 22 to 25.5: 27.5.
    """
    assert run(figure_9(wait, forecast, second_score)).makespan_ns == makespan_ns


def test_the_stall_of_a_wrong_prefetch_is_split_where_the_link_turns_to_the_demand() -> None:
    """Case (c): idle 3..17 (demand 14) and 22..45: served 31..45 (demand 14), before that behind the prefetch (9)."""
    timeline = run(figure_9("as_ready", (Forecast(1),), 0.0))
    assert stalls(timeline) == {"demand": 28_000_000, "behind_prefetch": 9_000_000}
    assert timeline.busy_ns == 10_000_000


# ---- by hand: waves --------------------------------------------------------------------------------------------------


def wave(wait: str) -> Timeline:
    return run(
        machine(
            token(gate(0, 1, 2), rows=3, token=3),
            capacity=2,
            base_ns=(4,),
            loader=Loader(wait=wait),  # type: ignore[arg-type]
        )
    )


def test_a_wave_as_ready_loads_the_next_need_behind_what_is_still_loading() -> None:
    """Two slots, needs 0 1 2. The gate at 1 admits 0 and 1: loads 1..11 and 11..21.

    0 is computed 11..15, then 2 comes in and waits for the link to 21; it takes 0's slot (21..31). 1 is computed 21..25
    and 2 31..35.
    Idle: 1..11, 15..21, 25..31, all while the awaited demand itself was served: 22 = 35 - (1 + 3 * 4).
    """
    timeline = wave("as_ready")
    assert service(timeline, "key", "queued_ns", "start_ns", "end_ns", "victims") == [
        (0, 1, 1, 11, ()),
        (1, 1, 11, 21, ()),
        (2, 15, 21, 31, (0,)),
    ]
    assert [row.lookup_ns for row in timeline.lookups] == [1, 1, 15]
    assert timeline.makespan_ns == 35
    assert stalls(timeline) == {"demand": 22}
    assert [name for _, name, _ in timeline.calls].count("need_done") == 1


def test_a_wave_with_wait_all_loads_the_next_need_while_the_rest_of_the_batch_is_computed() -> None:
    """0 and 1 are both there at 21; 0 is computed 21..25.

    Then 2 loads 25..35 in 0's slot while 1 is computed 25..29; 2 is computed 35..39.
    Idle 1..21: the last arrival, 1, was served 11..21 and stood behind 0 before; and 29..35.
    """
    timeline = wave("wait_all")
    assert service(timeline, "key", "queued_ns", "start_ns", "end_ns", "victims")[2] == (2, 25, 25, 35, (0,))
    assert timeline.makespan_ns == 39
    assert stalls(timeline) == {"demand": 16, "behind_demand": 10}


def test_a_skipped_need_behind_one_that_does_not_fit_is_looked_up_with_its_wave() -> None:
    """One slot; needs 0, 1 and 2, whose score means skip. 0 loads 1..11, is computed by 12: then 1 and 2 come in."""
    needs = (Need(0), Need(1), Need(2, score=1.0))
    timeline = run(machine(token(needs, rows=2, token=2), capacity=1, selector=Thresholds(0.5, 0.5)))
    assert [(row.outcome, row.key, row.lookup_ns, row.ready_ns) for row in timeline.lookups] == [
        ("miss", 0, 1, 11),
        ("miss", 1, 12, 22),
        ("skip", -1, 12, 12),
    ]


def test_with_wait_all_what_was_admitted_first_is_computed_first() -> None:
    """Seven bytes; needs 0 (3 bytes), 1, 2 (1 each), 3, 4 (3 each), 5 (1), of which 0, 1, 2 and 5 are there.

    The gate at 1 admits 0 1 2 (5 bytes). 0 ends at 2: 3 comes in and loads 2..12 in its place. 1 ends at 3: 4 comes
    in and waits for the link. 2 ends at 4: 5 comes in and is still there. 3 is computed 12..13; 4 loads 12..22 and is
    computed 22..23. 5 is computed after it, though it is complete at 4.
    """
    scores = {0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0, 4: 0.0, 5: 1.0}
    step = token(tuple(Need(expert, 1, score) for expert, score in scores.items()), rows=2, token=2)
    scenario = machine(
        step,
        capacity=7,
        initial=((0, 0, 0), (1, 0, 1), (1, 0, 2), (1, 0, 5)),
        variant_bytes=(3, 1),
        service_ns=(10, 3),
        base_ns=(1, 1),
        per_token_ns=(0, 0),
        cache=Cache("fifo"),
        selector=Thresholds(0.5, 2.0),
        loader=Loader(wait="wait_all"),
    )
    timeline = run(scenario)
    assert [(row.lookup_ns, row.ready_ns, row.outcome) for row in timeline.lookups[3:]] == [
        (2, 12, "miss"),
        (3, 22, "miss"),
        (4, 4, "hit"),
    ]
    assert timeline.makespan_ns == 24


# ---- by hand: prefetches that wait -----------------------------------------------------------------------------------


def queued_prefetch(last: tuple[Need, ...], **switches: Any) -> Timeline:
    """Three sites; 0 and 1 hit. The gate of site 0 at 1 foresees (1, 0), which loads 1..11, and (2, 0), which waits.

    Site 1 needs another expert, which is there: its gate is at 3, that of site 2 at 5.
    """
    step = token(gate(0), gate(1), last, ahead={0: (foresee(0), foresee(0))})
    return run(machine(step, initial=((0, 0, 0), (0, 1, 1)), loader=Loader(lookahead=2, **switches)))


def test_a_promoted_prefetch_becomes_a_new_demand_from_then_on() -> None:
    """At 5 (2, 0) is promoted; it loads 11..21; computed to 22. Idle 5..21: 10 served, 6 behind a prefetch."""
    timeline = queued_prefetch(gate(0))
    assert service(timeline, "kind", "queued_ns", "start_ns", "end_ns") == [
        ("prefetch", 1, 1, 11),
        ("demand", 5, 11, 21),
    ]
    assert timeline.lookups[-1].outcome == "promoted"
    assert timeline.makespan_ns == 22
    assert stalls(timeline) == {"demand": 10, "behind_prefetch": 6}
    assert timeline.prefetch["promoted"] == 1
    assert timeline.prefetch["started"] == timeline.prefetch["unused_at_end"] == 1


def test_without_promote_the_need_waits_for_the_prefetch_in_its_place() -> None:
    """The same times, but the transfer stays a prefetch queued at 1, and the wait for it is a late prefetch's."""
    timeline = queued_prefetch(gate(0), promote=False)
    assert service(timeline, "kind", "queued_ns", "start_ns", "end_ns")[1] == ("prefetch", 1, 11, 21)
    assert timeline.lookups[-1].outcome == "late"
    assert stalls(timeline) == {"late_prefetch": 10, "behind_prefetch": 6}
    assert timeline.prefetch["late"] == 1


@pytest.mark.parametrize(
    ("switches", "order"),
    [
        ({"promote": True, "demand_first": True}, [5, 0]),
        ({"promote": True, "demand_first": False}, [0, 5]),
        ({"promote": False, "demand_first": True}, [5, 0]),
        ({"promote": False, "demand_first": False}, [0, 5]),
    ],
)
def test_the_place_of_a_needed_prefetch_depends_on_promote_and_demand_first(
    switches: dict[str, bool], order: list[int]
) -> None:
    """Site 2 needs 5 (a miss) and then 0 (queued since 1).

    Demands first: 0 joins them behind 5, or stays a prefetch behind all demands. One queue: 0 stands before 5.
    """
    timeline = queued_prefetch(gate(5, 0), **switches)
    assert [row.key - 2 * 9 for row in timeline.transfers[1:]] == order
    assert service(timeline, "start_ns", "end_ns")[1:] == [(11, 21), (21, 31)]


def test_a_gate_cancels_the_queued_prefetches_for_its_own_site_only() -> None:
    """At 3 nothing of site 1 is queued; at 5 site 2 needs 5, so (2, 0) is cancelled and 5 loads 11..21."""
    timeline = queued_prefetch(gate(5))
    assert timeline.prefetch["cancelled"] == 1
    assert service(timeline, "key", "queued_ns", "start_ns", "end_ns")[1:] == [(2 * 9 + 5, 5, 11, 21)]


def test_without_cancel_stale_a_prefetch_outlives_its_site() -> None:
    """5 loads 11..21 and is computed by 22. (2, 0) starts at 21 and is cut at the end, at 22."""
    timeline = queued_prefetch(gate(5), cancel_stale=False)
    assert timeline.prefetch["cancelled"] == 0
    assert service(timeline, "key", "start_ns", "end_ns")[1:] == [(2 * 9 + 5, 11, 21), (2 * 9, 21, 22)]
    assert timeline.prefetch["unused_at_end"] == 2


def test_until_next_gate_cancels_the_queued_prefetches_of_every_site() -> None:
    """The gate at 3 cancels (2, 0), so at 5 it is missed. That it comes at the same time shows in the outcome only."""
    timeline = queued_prefetch(gate(0), prefetch_budget="until_next_gate")
    assert timeline.prefetch["cancelled"] == 1
    assert timeline.lookups[-1].outcome == "miss"
    assert service(timeline, "kind", "queued_ns", "start_ns")[1] == ("demand", 5, 11)


def test_replace_cancels_what_an_earlier_gate_had_queued() -> None:
    """At 1 site 0 queues (2, 0) behind (1, 0). At 3 site 1 foresees (2, 3): (2, 0) goes, (2, 3) loads 11..21."""
    ahead = {0: (foresee(0), foresee(0)), 1: (foresee(3),)}
    step = token(gate(0), gate(1), gate(3), ahead=ahead)
    loaders = {"append": Loader(lookahead=2), "replace": Loader(lookahead=2, queue="replace")}
    initial = ((0, 0, 0), (0, 1, 1))
    timelines = {name: run(machine(step, initial=initial, loader=loader)) for name, loader in loaders.items()}
    assert timelines["replace"].prefetch["cancelled"] == 1
    assert [row.outcome for row in timelines["replace"].lookups] == ["hit", "hit", "promoted"]
    assert [row.makespan_ns for row in timelines.values()] == [22, 22]
    assert timelines["append"].prefetch["cancelled"] == 1  # at site 2's gate: (2, 0) is stale
    assert timelines["append"].prefetch["queued"] == 3


@pytest.mark.parametrize(("budget", "queued"), [(1, 1), (2, 2), (3, 3), ("all", 4), ("until_next_gate", 4)])
def test_a_budget_counts_the_prefetches_queued_in_one_gate(budget: int | str, queued: int) -> None:
    """Site 0 foresees experts 0, 1 of site 1 and 0, 1 of site 2; no later gate foresees anything."""
    step = token(gate(0), gate(5), gate(5), ahead={0: (foresee(0, 1), foresee(0, 1))})
    loader = Loader(lookahead=2, prefetch_budget=budget)  # type: ignore[arg-type]
    assert run(machine(step, loader=loader)).prefetch["queued"] == queued


@pytest.mark.parametrize(("there", "queued"), [((), 1), (((0, 1, 0),), 1), (((0, 1, 0), (0, 1, 1)), 2)])
def test_first_missing_asks_no_further_than_the_first_site_that_lacks_something(there: Any, queued: int) -> None:
    """Site 0 foresees 0 and 1 of site 1 (as many as are absent are queued), and 0 and 1 of site 2 if both are there."""
    step = token(gate(0), gate(5), gate(5), ahead={0: (foresee(0, 1), foresee(0, 1))})
    timeline = run(machine(step, initial=there, loader=Loader(lookahead=2, depth="first_missing")))
    assert timeline.prefetch["queued"] == (2 if not there else queued)


@pytest.mark.parametrize(("in_flight", "start_ns", "cancelled"), [(1, 11, 1), (2, 21, 0)])
def test_what_is_issued_is_neither_overtaken_nor_cancelled(in_flight: Any, start_ns: int, cancelled: int) -> None:
    """Site 0 foresees 0 and 1 at 1: (1, 0) loads 1..11. With two in flight (1, 1) is issued at 1, too; 11..21.

    Site 1 needs 2 at 3. One in flight: (1, 1) is cancelled and 2 loads 11..21. Two: 2 is issued at 11 and loads 21..31.
    """
    step = token(gate(0), gate(2), ahead={0: (foresee(0, 1),)})
    timeline = run(machine(step, initial=((0, 0, 0),), loader=Loader(lookahead=1, in_flight=in_flight)))
    assert service(timeline, "kind", "queued_ns", "start_ns")[-1] == ("demand", 3, start_ns)
    assert timeline.prefetch["cancelled"] == cancelled
    assert timeline.makespan_ns == start_ns + 11
    assert stalls(timeline) == {"demand": 10, "behind_prefetch": start_ns - 3}


# ---- by hand: slots --------------------------------------------------------------------------------------------------


def test_a_demand_takes_masked_keys_when_nothing_else_may_go() -> None:
    """Both residents are foreseen for site 1, so only the second round gives a victim: the least recent, (1, 0)."""
    step = token(gate(0), gate(1), ahead={0: (foresee(0, 1),)})
    timeline = run(machine(step, capacity=2, initial=((0, 1, 0), (0, 1, 1)), loader=Loader(lookahead=1)))
    assert service(timeline, "key", "victims") == [(0, (9,))]
    assert [row.outcome for row in timeline.lookups] == ["miss", "hit"]
    assert timeline.prefetch["queued"] == 0  # both were there when they were foreseen


def test_a_demand_takes_an_unmasked_key_before_an_older_masked_one() -> None:
    """(1, 0) is the least recent, but masked; (0, 1) goes."""
    step = token(gate(2), gate(0), ahead={0: (foresee(0),)})
    timeline = run(machine(step, capacity=2, initial=((0, 1, 0), (0, 0, 1)), loader=Loader(lookahead=1)))
    assert service(timeline, "key", "victims") == [(2, (1,))]


def test_a_prefetch_that_finds_only_pinned_and_masked_keys_is_dropped() -> None:
    """Two slots: (0, 0) is pinned, (1, 0) is masked by the same forecast that asks for (1, 1)."""
    step = token(gate(0), gate(0), ahead={0: (foresee(0, 1),)})
    timeline = run(machine(step, capacity=2, initial=((0, 0, 0), (0, 1, 0)), loader=Loader(lookahead=1)))
    assert timeline.prefetch["dropped_no_slot"] == 1
    assert timeline.transfers == ()
    assert timeline.makespan_ns == 4


def test_a_needed_prefetch_that_keeps_its_place_claims_like_a_demand() -> None:
    """Sites 0 and 1 skip, so their gates are at 1 and 2, that of site 2 at 3.

    Two slots of precision 0 hold (3, 0) and (3, 1). At 1 site 0 foresees (1, 0), low, which loads 1..11 into the other
    pool, and (2, 0), which waits. At 3 site 2 needs (2, 0), which is late, and foresees both residents. So at 11 only
    masked keys may go: a prefetch would be dropped, the needed one takes the less recent. It loads 11..21 and is
    computed by 22; site 3 hits at 23.
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
        loader=Loader(lookahead=2, promote=False),
    )
    scenario = replace(scenario, pools=(PoolSpec(2, (0,), None, ((0, 3, 0), (0, 3, 1))), PoolSpec(1, (1,))))
    timeline = run(scenario)
    assert [row.outcome for row in timeline.lookups] == ["skip", "skip", "late", "hit"]
    assert service(timeline, "kind", "start_ns", "victims") == [("prefetch", 1, ()), ("prefetch", 11, (3 * 9,))]
    assert timeline.makespan_ns == 24
    assert stalls(timeline) == {"late_prefetch": 10, "behind_prefetch": 8}


@pytest.mark.parametrize(("capacity", "evicted"), [(3, [2, 0, 1]), (4, [2, 0]), (5, [2]), (6, [])])
def test_one_claim_evicts_as_many_victims_as_its_bytes_need(capacity: int, evicted: list[int]) -> None:
    """Three low variants of one byte, which came in the order 2, 0, 1; then a high one of three bytes."""
    initial = ((1, 0, 2), (1, 0, 0), (1, 0, 1))
    two: dict[str, Any] = {"variant_bytes": (3, 1), "service_ns": (10, 3), "base_ns": (1, 1), "per_token_ns": (0, 0)}
    timeline = run(machine(token(gate(5)), capacity=capacity, initial=initial, **two))
    assert service(timeline, "key", "victims") == [(5, tuple(9 + expert for expert in evicted))]


def victims(cache: Cache, *sequences: list[int]) -> list[tuple[int, ...]]:
    """What each transfer evicts, at a single site with two slots that is asked for one expert a token."""
    steps = [
        token(gate(expert), sequence=s, begins=i == 0, ends=i == len(order) - 1, token=i + 1)
        for s, order in enumerate(sequences)
        for i, expert in enumerate(order)
    ]
    return [row.victims for row in run(machine(*steps, capacity=2, cache=cache)).transfers]


def loads(cache: CacheName, order: list[int]) -> int:
    return len(victims(Cache(cache), order))


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
    """Two slots, 0 1 1 0 0 2 1 2. 2 evicts 1 (two uses against three). 1 comes back and evicts 2 (one against three).

    2 comes back: 0 has three uses, 1 has three (0 is less recent and goes), or one if its two were forgotten (1 goes).
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
        pytest.param(Cache("weighted", w_lru=1.0), 0, id="both were last used at token 4: the smaller key"),
    ],
)
def test_the_weighted_score_counts_tokens_where_lfu_counts_requests(cache: Cache, victim: int) -> None:
    """A step of four rows needs 1 (three tokens) and 0 (one token); two slots; the next token needs 2."""
    prompt = token((Need(1, 3), Need(0, 1)), rows=4, token=4, ends=False)
    timeline = run(machine(prompt, token(gate(2), begins=False, token=5), capacity=2, cache=cache))
    assert timeline.transfers[-1].victims == (victim,)


def test_the_weighted_score_lets_the_site_go_that_is_farthest_ahead() -> None:
    """Three sites, the gate at site 0: 1 - 1/3 for site 1, 1 - 2/3 for site 2, which goes, though it came later."""
    step = token(gate(0), gate(0), gate(0))
    timeline = run(machine(step, capacity=2, initial=((0, 1, 0), (0, 2, 0)), cache=Cache("weighted", w_fld=1.0)))
    assert timeline.transfers[0].victims == (2 * 9,)


# ---- by hand: who serves, and who is first at one instant ------------------------------------------------------------


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
    two: dict[str, Any] = {"variant_bytes": (3, 1), "service_ns": (10, 3), "base_ns": (1, 1), "per_token_ns": (0, 0)}
    loader = Loader(low_for_high=low_for_high)
    timeline = run(machine(token(gate(3)), initial=initial, selector=Fixed(precision), loader=loader, **two))
    assert [(row.outcome, row.key, row.wanted) for row in timeline.lookups] == [(outcome, key, precision)]


@pytest.mark.parametrize(("service_ns", "outcome", "makespan_ns"), [(1, "hit", 4), (2, "hit", 4), (3, "late", 5)])
def test_a_transfer_that_ends_at_the_instant_of_a_gate_ends_before_it(
    service_ns: int, outcome: str, makespan_ns: int
) -> None:
    """The prefetch for site 1 starts at 1; the gate of site 1 is at 3."""
    step = token(gate(0), gate(0), ahead={0: (foresee(0),)})
    initial = ((0, 0, 0),)
    timeline = run(machine(step, initial=initial, service_ns=(service_ns,), loader=Loader(lookahead=1)))
    assert timeline.lookups[-1].outcome == outcome
    assert timeline.makespan_ns == makespan_ns


def test_a_prefetch_that_came_for_nothing_is_evicted_in_its_turn_and_a_pinned_arrival_is_not() -> None:
    """Two slots. Site 0 hits and foresees (1, 0), which loads 1..11 into the free slot; site 1 needs 1 and 2 at 3.

    At 11 (1, 0) is there, unasked and unmasked, but newer than (0, 0): (1, 1) evicts that. (1, 1) is there at 21, but
    pinned: (1, 2) evicts (1, 0).
    """
    step = token(gate(0), gate(1, 2), ahead={0: (foresee(0),)})
    timeline = run(machine(step, capacity=2, initial=((0, 0, 0),), loader=Loader(lookahead=1)))
    assert service(timeline, "key", "start_ns", "victims") == [(9, 1, ()), (10, 11, (0,)), (11, 21, (9,))]
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


# ---- closed forms ----------------------------------------------------------------------------------------------------


def on_demand(scenario: Scenario, **switches: Any) -> Scenario:
    """Without prefetches, and with one row a step, so that no wave overlaps transfers with computing."""
    steps = tuple(step for step in scenario.steps if step.rows == 1)
    first = [index == 0 for index in range(len(steps))]
    steps = tuple(replace(step, sequence=0, begins=b, ends=False) for step, b in zip(steps, first, strict=True))
    steps = (*steps[:-1], replace(steps[-1], ends=True)) if steps else ()
    return replace(scenario, steps=steps, loader=replace(scenario.loader, lookahead=0, **switches))


@pytest.mark.parametrize("ties", [True, False])
def test_on_demand_with_wait_all_nothing_overlaps(ties: bool) -> None:
    """makespan = loads * transfer + uses * compute + dense."""
    seen = 0
    for seed in SEEDS:
        scenario = on_demand(random_scenario(seed, ties), wait="wait_all")
        if not scenario.steps:
            continue
        timeline = run(scenario)
        moving = sum(scenario.hop_ns(0, row.moved_bytes) for row in timeline.transfers)
        computing = sum(
            scenario.expert_ns(scenario.unpack(row.key)[0], 1) for row in timeline.lookups if row.outcome != "skip"
        )
        dense = sum(sum(step.dense_ns) + step.tail_ns for step in scenario.steps)
        assert timeline.makespan_ns == moving + computing + dense
        assert timeline.busy_ns == computing + dense
        seen += 1
    assert seen > 70


def test_on_demand_as_ready_is_never_slower_than_wait_all() -> None:
    for seed in SEEDS:
        scenario = on_demand(random_scenario(seed, False), wait="as_ready")
        if scenario.steps:
            waiting = replace(scenario, loader=replace(scenario.loader, wait="wait_all"))
            assert run(scenario).makespan_ns <= run(waiting).makespan_ns


def test_with_room_for_everything_each_variant_is_loaded_once() -> None:
    for seed in SEEDS:
        scenario = random_scenario(seed, ties=bool(seed % 2))
        pools = tuple(replace(pool, capacity_bytes=10**6, initial=()) for pool in scenario.pools)
        scenario = replace(scenario, pools=pools, selector=Fixed(0), loader=replace(scenario.loader, lookahead=0))
        distinct = {
            (site, need.expert) for step in scenario.steps for site, needs in enumerate(step.needs) for need in needs
        }
        timeline = run(scenario)
        assert sorted(scenario.unpack(row.key)[1:] for row in timeline.transfers) == sorted(distinct)
        assert not any(row.victims for row in timeline.transfers)


def test_belady_loads_least_on_demand_with_equal_sizes_and_one_need_a_gate() -> None:
    for seed in SEEDS:
        scenario = on_demand(random_scenario(seed, ties=True))
        if not scenario.steps or len(scenario.steps[0].needs[0]) > 1 or len(scenario.pools) > 1:
            continue
        scenario = replace(scenario, selector=Fixed(0), pools=(replace(scenario.pools[0], initial=()),))
        count = {name: len(run(replace(scenario, cache=Cache(name, 0.5, 0.3, 0.1, 0.1))).transfers) for name in CACHES}  # type: ignore[arg-type]
        assert count["belady"] == min(count.values())


def test_a_link_that_costs_nothing_leaves_no_idle_time() -> None:
    for seed in SEEDS:
        scenario = random_scenario(seed, ties=bool(seed % 2))
        timeline = run(replace(scenario, service_ns=(0,) * scenario.precisions))
        assert timeline.makespan_ns == timeline.busy_ns


# ---- what must hold of every run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [True, False])
def test_random_runs_keep_the_invariants_and_can_be_repeated(ties: bool) -> None:
    for seed in SEEDS:
        scenario = random_scenario(seed, ties)
        assert scenario == random_scenario(seed, ties)
        timeline = run(scenario)
        assert timeline == run(scenario)
        moving = sum((timeline.makespan_ns if r.end_ns < 0 else r.end_ns) - r.start_ns for r in timeline.services)
        assert max(timeline.busy_ns, moving) <= timeline.makespan_ns <= timeline.busy_ns + moving


def test_a_machine_that_is_seven_times_slower_does_the_same_in_seven_times_the_time() -> None:
    def times(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(7 * value for value in values)

    for seed in SEEDS:
        scenario = random_scenario(seed, ties=True)
        slow = replace(
            scenario,
            service_ns=times(scenario.service_ns),
            base_ns=times(scenario.base_ns),
            per_token_ns=times(scenario.per_token_ns),
            steps=tuple(
                replace(step, dense_ns=times(step.dense_ns), tail_ns=7 * step.tail_ns) for step in scenario.steps
            ),
        )
        before, after = run(scenario), run(slow)
        assert after.makespan_ns == 7 * before.makespan_ns
        assert after.prefetch == before.prefetch
        assert after.stall == {name: 7 * ns for name, ns in before.stall.items()}
        assert [(7 * ns, call, number) for ns, call, number in before.calls] == list(after.calls)


def test_keys_are_packed_as_the_contract_says() -> None:
    scenario = random_scenario(3, ties=True)
    keys = list(product(range(scenario.precisions), range(scenario.sites), range(scenario.experts)))
    assert [scenario.unpack(scenario.pack(key)) for key in keys] == keys
    assert scenario.pack((1, 2, 3)) == (1 * scenario.sites + 2) * (scenario.experts + 1) + 3


def test_the_checker_sees_a_timeline_that_was_tampered_with() -> None:
    scenario = random_scenario(1, ties=False)
    timeline = run(scenario)
    assert timeline.transfers
    moved = replace(timeline.services[0], end_ns=timeline.services[0].end_ns + 1)
    for wrong in (
        replace(timeline, busy_ns=timeline.busy_ns + 1),
        replace(timeline, services=(moved, *timeline.services[1:])),
        replace(timeline, lookups=timeline.lookups[::-1]),
        replace(timeline, prefetch=timeline.prefetch | {"used": timeline.prefetch["used"] + 1}),
    ):
        with pytest.raises(AssertionError):
            check(scenario, wrong)


def test_random_scenarios_reach_every_switch_every_cache_and_every_outcome() -> None:
    seen: Counter[tuple[str, Any]] = Counter()
    for seed, ties in product(SEEDS, (True, False)):
        scenario = random_scenario(seed, ties)
        timeline = run(scenario)
        for name, value in vars(scenario.loader).items():
            seen[name, value] += 1
        seen["cache", scenario.cache.name] += 1
        seen["selector", type(scenario.selector)] += 1
        seen["pools", len(scenario.pools) > 1] += 1
        seen["sites", scenario.sites == 1] += 1
        seen["waves", "need_done" in {call for _, call, _ in timeline.calls}] += 1
        seen["several victims", any(len(row.victims) > 1 for row in timeline.transfers)] += 1
        seen["K", len(next((s.needs[0] for s in scenario.steps if s.rows == 1), ()))] += 1
        seen["sequences", len(timeline.sequence_ends)] += 1
        for row in timeline.lookups:
            seen["outcome", row.outcome] += 1
        for name, count in timeline.prefetch.items():
            seen["prefetch", name] += count
        for name, ns in timeline.stall.items():
            seen["stall", name] += ns
    wanted = {
        "lookahead": (0, 1, 2, 3),
        "depth": ("all", "first_missing"),
        "queue": ("append", "replace"),
        "promote": (True, False),
        "cancel_stale": (True, False),
        "demand_first": (True, False),
        "in_flight": (1, 2),
        "wait": WAITS,
        "prefetch_budget": ("all", "until_next_gate", 1, 2, 3),
        "low_for_high": (True, False),
        "cache": CACHES,
        "selector": (Fixed, Thresholds),
        "pools": (True, False),
        "sites": (True, False),
        "waves": (True, False),
        "several victims": (True, False),
        "K": (1, 2, 3, 4),
        "sequences": (1, 2, 3),
        "outcome": ("hit", "high_for_low", "low_for_high", "late", "promoted", "miss", "skip"),
        "prefetch": tuple(name for name in PREFETCH_OUTCOMES if name != "dropped"),
        "stall": ("demand", "late_prefetch", "behind_demand", "behind_prefetch"),
    }
    rare = {(name, value): seen[name, value] for name in wanted for value in wanted[name] if seen[name, value] < 5}
    assert not rare
