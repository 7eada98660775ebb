"""The reference against examples worked by hand: HOBBIT's figure 9, waves, waiting prefetches."""

from __future__ import annotations

from typing import Any

import pytest

from differential.by_hand import WAITS, figure_9, foresee, gate, machine, service, stalls, token
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import Cache, Forecast, Loader, Need, Prediction, Thresholds

# ---- HOBBIT, Fig. 9


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
def test_hobbit_figure_9(
    wait: str, forecast: Prediction, second_score: float, makespan_ns: int
) -> None:
    """Two layers: attention 3, load 14 (low 3.5), expert 2 ms.

    (a) 2 * (3 + 14 + 2) = 38.
    (b) Layer 1's load ends at 17; its expert runs to 19 and attention 2 to 22, while layer 2's
        expert loads from 17 to 31: 31 + 2 = 33.
    (c) The wrong one loads 17..31, the right one 31..45: 47.
    (d) The low one loads 17..20.5 and is there at 22: 24.
    (e) The wrong low one loads 17..20.5, the right one from 22 to 25.5: 27.5.
    """
    assert run(figure_9(wait, forecast, second_score)).makespan_ns == makespan_ns


def test_the_stall_of_a_wrong_prefetch_is_split_where_the_link_turns_to_the_demand() -> None:
    """Case (c): idle 3..17 (demand 14) and 22..45: served 31..45 (demand 14), before that behind
    the prefetch (9).
    """
    timeline = run(figure_9("as_ready", (Forecast(1),), 0.0))
    assert stalls(timeline) == {"demand": 28_000_000, "behind_prefetch": 9_000_000}
    assert timeline.busy_ns == 10_000_000


# ---- waves


def wave(wait: str) -> Timeline:
    return run(
        machine(
            token(gate(0, 1, 2), rows=3, token=3),
            capacity=2,
            base_ns=(4,),
            loader=Loader(wait=wait),  # type: ignore[arg-type]
        )
    )


# Contracts: C24
def test_a_wave_as_ready_loads_the_next_need_behind_what_is_still_loading() -> None:
    """Two slots, needs 0 1 2. The gate at 1 admits 0 and 1: loads 1..11 and 11..21.

    0 is computed 11..15, then 2 comes in and waits for the link to 21; it takes 0's slot (21..31).
    1 is computed 21..25 and 2 31..35. Idle: 1..11, 15..21, 25..31, all while the awaited demand
    itself was served: 22 = 35 - (1 + 3 * 4).
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
    assert service(timeline, "key", "queued_ns", "start_ns", "end_ns", "victims")[2] == (
        2,
        25,
        25,
        35,
        (0,),
    )
    assert timeline.makespan_ns == 39
    assert stalls(timeline) == {"demand": 16, "behind_demand": 10}


def test_a_skipped_need_behind_one_that_does_not_fit_is_looked_up_with_its_wave() -> None:
    """One slot; needs 0, 1 and 2, whose score means skip. 0 loads 1..11, is computed by 12: then
    1 and 2 come in.
    """
    needs = (Need(0), Need(1), Need(2, score=1.0))
    timeline = run(
        machine(token(needs, rows=2, token=2), capacity=1, selector=Thresholds(0.5, 0.5))
    )
    assert [(row.outcome, row.key, row.lookup_ns, row.ready_ns) for row in timeline.lookups] == [
        ("miss", 0, 1, 11),
        ("miss", 1, 12, 22),
        ("skip", -1, 12, 12),
    ]


# Contracts: C68
def test_with_wait_all_what_was_admitted_first_is_computed_first() -> None:
    """Seven bytes; needs 0 (3 bytes), 1, 2 (1 each), 3, 4 (3 each), 5 (1), of which 0, 1, 2 and 5
    are there.

    The gate at 1 admits 0 1 2 (5 bytes). 0 ends at 2: 3 comes in and loads 2..12 in its place. 1
    ends at 3: 4 comes in and waits for the link. 2 ends at 4: 5 comes in and is still there. 3 is
    computed 12..13; 4 loads 12..22 and is computed 22..23. 5 is computed after it, though it is
    complete at 4.
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


# ---- prefetches that wait


def queued_prefetch(last: tuple[Need, ...], **switches: Any) -> Timeline:
    """Three sites; 0 and 1 hit. The gate of site 0 at 1 foresees (1, 0), which loads 1..11, and (2,
    0), which waits.

    Site 1 needs another expert, which is there: its gate is at 3, that of site 2 at 5.
    """
    step = token(gate(0), gate(1), last, ahead={0: (foresee(0), foresee(0))})
    return run(
        machine(step, initial=((0, 0, 0), (0, 1, 1)), loader=Loader(lookahead=2, **switches))
    )


# Contracts: C25
def test_a_promoted_prefetch_becomes_a_new_demand_from_then_on() -> None:
    """At 5 (2, 0) is promoted; it loads 11..21; computed to 22. Idle 5..21: 10 served, 6 behind
    a prefetch.
    """
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


@pytest.mark.parametrize(("demand_first", "order"), [(True, [5, 0]), (False, [0, 5])])
def test_the_place_of_a_promoted_prefetch_depends_on_demand_first(
    demand_first: bool, order: list[int]
) -> None:
    """Site 2 needs 5 (a miss) and then 0 (queued since 1).

    Demands first: 0 joins them behind 5. One queue: 0 stands before 5.
    """
    timeline = queued_prefetch(gate(5, 0), demand_first=demand_first)
    assert [row.key - 2 * 9 for row in timeline.transfers[1:]] == order
    assert service(timeline, "start_ns", "end_ns")[1:] == [(11, 21), (21, 31)]


# Contracts: C20
def test_a_gate_cancels_the_queued_prefetches_for_its_own_site_only() -> None:
    """At 3 nothing of site 1 is queued; at 5 site 2 needs 5, so (2, 0) is cancelled and 5 loads
    11..21.
    """
    timeline = queued_prefetch(gate(5))
    assert timeline.prefetch["cancelled"] == 1
    assert service(timeline, "key", "queued_ns", "start_ns", "end_ns")[1:] == [
        (2 * 9 + 5, 5, 11, 21)
    ]


def test_without_cancel_stale_a_prefetch_outlives_its_site() -> None:
    """5 loads 11..21 and is computed by 22. (2, 0) starts at 21 and is cut at the end, at 22."""
    timeline = queued_prefetch(gate(5), cancel_stale=False)
    assert timeline.prefetch["cancelled"] == 0
    assert service(timeline, "key", "start_ns", "end_ns")[1:] == [
        (2 * 9 + 5, 11, 21),
        (2 * 9, 21, 22),
    ]
    assert timeline.prefetch["unused_at_end"] == 2


# Contracts: C20
def test_until_next_gate_cancels_the_queued_prefetches_of_every_site() -> None:
    """The gate at 3 cancels (2, 0), so at 5 it is missed. That it comes at the same time shows
    in the outcome only.
    """
    timeline = queued_prefetch(gate(0), prefetch_budget="until_next_gate")
    assert timeline.prefetch["cancelled"] == 1
    assert timeline.lookups[-1].outcome == "miss"
    assert service(timeline, "kind", "queued_ns", "start_ns")[1] == ("demand", 5, 11)


# Contracts: C31
def test_replace_cancels_what_an_earlier_gate_had_queued() -> None:
    """At 1 site 0 queues (2, 0) behind (1, 0). At 3 site 1 foresees (2, 3): (2, 0) goes, (2, 3)
    loads 11..21.
    """
    ahead = {0: (foresee(0), foresee(0)), 1: (foresee(3),)}
    step = token(gate(0), gate(1), gate(3), ahead=ahead)
    loaders = {"append": Loader(lookahead=2), "replace": Loader(lookahead=2, queue="replace")}
    initial = ((0, 0, 0), (0, 1, 1))
    timelines = {
        name: run(machine(step, initial=initial, loader=loader)) for name, loader in loaders.items()
    }
    assert timelines["replace"].prefetch["cancelled"] == 1
    assert [row.outcome for row in timelines["replace"].lookups] == ["hit", "hit", "promoted"]
    assert [row.makespan_ns for row in timelines.values()] == [22, 22]
    assert timelines["append"].prefetch["cancelled"] == 1  # at site 2's gate: (2, 0) is stale
    assert timelines["append"].prefetch["queued"] == 3


# Contracts: C30
@pytest.mark.parametrize(
    ("budget", "queued"), [(1, 1), (2, 2), (3, 3), ("all", 4), ("until_next_gate", 4)]
)
def test_a_budget_counts_the_prefetches_queued_in_one_gate(budget: int | str, queued: int) -> None:
    """Site 0 foresees experts 0, 1 of site 1 and 0, 1 of site 2; no later gate foresees
    anything.
    """
    step = token(gate(0), gate(5), gate(5), ahead={0: (foresee(0, 1), foresee(0, 1))})
    loader = Loader(lookahead=2, prefetch_budget=budget)  # type: ignore[arg-type]
    assert run(machine(step, loader=loader)).prefetch["queued"] == queued


# Contracts: C31
@pytest.mark.parametrize(
    ("there", "queued"), [((), 1), (((0, 1, 0),), 1), (((0, 1, 0), (0, 1, 1)), 2)]
)
def test_first_missing_asks_no_further_than_the_first_site_that_lacks_something(
    there: Any, queued: int
) -> None:
    """Site 0 foresees 0 and 1 of site 1 (as many as are absent are queued), and 0 and 1 of site
    2 if both are there.
    """
    step = token(gate(0), gate(5), gate(5), ahead={0: (foresee(0, 1), foresee(0, 1))})
    timeline = run(machine(step, initial=there, loader=Loader(lookahead=2, depth="first_missing")))
    assert timeline.prefetch["queued"] == (2 if not there else queued)


# Contracts: C54
@pytest.mark.parametrize(("in_flight", "start_ns", "cancelled"), [(1, 11, 1), (2, 21, 0)])
def test_what_is_issued_is_neither_overtaken_nor_cancelled(
    in_flight: Any, start_ns: int, cancelled: int
) -> None:
    """Site 0 foresees 0 and 1 at 1: (1, 0) loads 1..11. With two in flight (1, 1) is issued at 1,
    too; 11..21.

    Site 1 needs 2 at 3. One in flight: (1, 1) is cancelled and 2 loads 11..21. Two: 2 is issued at
    11 and loads 21..31.
    """
    step = token(gate(0), gate(2), ahead={0: (foresee(0, 1),)})
    timeline = run(
        machine(step, initial=((0, 0, 0),), loader=Loader(lookahead=1, in_flight=in_flight))
    )
    assert service(timeline, "kind", "queued_ns", "start_ns")[-1] == ("demand", 3, start_ns)
    assert timeline.prefetch["cancelled"] == cancelled
    assert timeline.makespan_ns == start_ns + 11
    assert stalls(timeline) == {"demand": 10, "behind_prefetch": start_ns - 3}
