"""The reference against examples worked by hand: the compute stream and what it waits for.

They cover host time, the CPU, predictions that take time, dense blocks, and the orders of needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import foresee, gate, machine, outcomes, served, service, stalls, token
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import SKIP, Cache, Host, Link, Loader, Need, Placement, Scenario

# ---- the host

HOST = Host(sync_ns=1, issue_ns=2, wake_ns=3, post_ns=4)


# Contracts: C66
def test_host_time_stands_between_the_dense_work_the_gate_the_needs_and_the_sites_end() -> None:
    """A hit: dense 0..1, the gate at 2, issued by 4, computed by 5, the site's end at 9: 7 of
    host time.
    """
    timeline = run(machine(token(gate(0)), initial=((0, 0, 0),), host=HOST))
    assert [(row.gate_ns, row.end_ns) for row in timeline.gates] == [(2, 9)]
    assert stalls(timeline) == {"host": 7}


# Contracts: C67
def test_a_stream_that_stood_idle_is_woken() -> None:
    """A miss loads 2..12. Idle from 4 (issue) to 12, woken by 15, computed by 16, the end at 20."""
    timeline = run(machine(token(gate(0)), host=HOST))
    assert timeline.makespan_ns == 20
    assert stalls(timeline) == {"host": 10, "demand": 8}
    assert [(row.start_ns, row.end_ns, row.cause) for row in timeline.idle] == [
        (1, 2, "host"),
        (2, 4, "host"),
        (4, 12, "transfer"),
        (12, 15, "host"),
        (16, 20, "host"),
    ]


# Contracts: C67
@pytest.mark.parametrize(("issue_ns", "makespan_ns"), [(9, 15), (10, 12), (11, 13)])
def test_what_arrives_when_the_stream_is_about_to_wait_wakes_nobody(
    issue_ns: int, makespan_ns: int
) -> None:
    """The load is there at 11. Issued by 10 the stream stands idle for 1, and is woken by 14; by
    11 it does not.
    """
    timeline = run(machine(token(gate(0)), host=Host(issue_ns=issue_ns, wake_ns=3)))
    assert timeline.makespan_ns == makespan_ns


# Contracts: C67
@pytest.mark.parametrize(
    ("wakes", "wake_ns"),
    [
        (((4, 1), (12, 7)), 4),  # of a wait of 8, half way between 4 and 12
        (((5, 1), (12, 7)), 3),  # 1 + 6 * 3/7 = 3.57, rounded down
        (((9, 5), (12, 7)), 5),
        (((2, 5), (8, 2)), 2),
        (((2, 5), (6, 2)), 2),
    ],
)
def test_waking_may_take_longer_after_a_longer_wait(
    wakes: tuple[tuple[int, int], ...], wake_ns: int
) -> None:
    """As above the stream stands idle for 8, from 4 to 12; the run then ends 5 after it woke."""
    scenario = machine(token(gate(0)), host=replace(HOST, wakes=wakes))
    assert run(scenario).makespan_ns == 12 + wake_ns + 5


# ---- orders


# Contracts: C68
@pytest.mark.parametrize(
    ("wait", "idle", "makespan_ns"),
    [
        ("as_ready", [(2, 11), (12, 21)], 22),
        ("in_order", [(1, 11), (13, 21)], 22),
        ("wait_all", [(1, 21)], 24),
    ],
)
def test_the_order_of_the_needs(wait: Any, idle: list[tuple[int, int]], makespan_ns: int) -> None:
    """Needs 0 (loads 1..11), 1 (there) and 2 (loads 11..21), one each.

    as_ready: 1 at 1..2, 0 at 11..12, 2 at 21..22. in_order: 0 at 11..12, 1 at 12..13, 2 at 21..22.
    wait_all: 21..24.
    """
    timeline = run(machine(token(gate(0, 1, 2)), initial=((0, 0, 1),), loader=Loader(wait=wait)))
    assert timeline.makespan_ns == makespan_ns
    assert [(row.start_ns, row.end_ns) for row in timeline.idle] == idle


def test_lru_can_go_by_the_rows_of_a_gate() -> None:
    """Rows 0: experts 0, 1; 1: experts 2, 0. In need order: 0 (two rows), 1, 2. By rows: 1, then 2,
    then 0.

    Three slots; the next token needs 3: the least recent goes.
    """

    def victims(recency: Any) -> tuple[int, ...]:
        prompt = token(
            (Need(0, 2), Need(1), Need(2)), rows=2, token=2, ends=False, ranks=(((0, 1), (2, 0)),)
        )
        after = token(gate(3), begins=False, token=3, ranks=(((3,),),))
        return (
            run(machine(prompt, after, capacity=3, cache=Cache("lru", recency=recency)))
            .transfers[-1]
            .victims
        )

    assert victims("needs") == (0,)
    assert victims("rows") == (1,)


# ---- the CPU


def on_cpu(*needs: int, capacity: int = 99, **rest: Any) -> Timeline:
    """Expert 0 is there; 1, 2 and 3 go to the CPU, 5 a need; 7 is left out."""
    placement = Placement(
        cpu=frozenset({(0, 1), (0, 2), (0, 3)}), skip=frozenset({(0, 7)}), cpu_ns=5
    )
    return run(
        machine(
            token(gate(*needs)),
            capacity=capacity,
            initial=((0, 0, 0),),
            placement=placement,
            **rest,
        )
    )


# Contracts: C69
def test_the_cpu_computes_its_needs_one_after_another_and_the_site_waits_for_them() -> None:
    """1 at 1..6, 2 at 6..11; 0 is computed meanwhile, 1..2. Idle 2..11. Nothing is loaded."""
    timeline = on_cpu(1, 0, 2)
    assert [(row.outcome, row.ready_ns) for row in timeline.lookups] == [
        ("cpu", 6),
        ("hit", 1),
        ("cpu", 11),
    ]
    assert timeline.transfers == ()
    assert stalls(timeline) == {"cpu_join": 9}
    assert [call for call in timeline.calls if call[1] == "cpu_done"] == [
        (6, "cpu_done", 1),
        (11, "cpu_done", 2),
    ]


def test_more_rows_than_the_rule_lets_to_the_cpu_are_loaded() -> None:
    placement = Placement(cpu=frozenset({(0, 1)}), cpu_rows=1, cpu_ns=5)
    needs = (Need(1, 2),)
    assert outcomes(run(machine(token(needs, rows=2, token=2), placement=placement))) == ["miss"]


# Contracts: C69
def test_a_cpu_result_lets_the_next_wave_in_and_ends_the_idle_interval() -> None:
    """One slot, that of 0: 1 comes in alone, at 1, and is back at 6. Then 0 comes in: a hit. Woken
    by 8, computed by 9.

    need_done follows cpu_done at once.
    """
    timeline = on_cpu(1, 0, capacity=1, host=Host(wake_ns=2))
    assert [(row.outcome, row.lookup_ns) for row in timeline.lookups] == [("cpu", 1), ("hit", 6)]
    assert timeline.makespan_ns == 9
    assert stalls(timeline) == {"cpu_join": 5, "host": 2}
    assert [call[1] for call in timeline.calls if call[0] == 6] == ["cpu_done", "need_done"]


# Contracts: C25
def test_a_need_that_the_placement_leaves_out_has_its_key_and_ends_at_once() -> None:
    """One slot, that of 0: 7 comes in first, is left out, and lets 0 in at the same instant."""
    timeline = on_cpu(7, 0, capacity=1)
    assert [
        (row.outcome, row.key, row.wanted, row.lookup_ns, row.ready_ns) for row in timeline.lookups
    ] == [
        ("skip", 7, 0, 1, 1),
        ("hit", 0, 0, 1, 1),
    ]
    assert SKIP not in [row.key for row in timeline.lookups]
    assert timeline.makespan_ns == 2


# Contracts: C17
def test_what_the_cpu_computed_is_as_good_as_evicted_at_the_next_gate() -> None:
    """LFU with counts that go with the resident: 1's two CPU uses do not count when it is loaded at
    last.

    Uses: 1 (CPU), 1 (CPU), 0, 0; then 1 has two rows and is loaded: one use. 2, with two rows,
    evicts it, not 0.
    """
    placement = Placement(cpu=frozenset({(0, 1)}), cpu_rows=1, cpu_ns=5)
    needs = [gate(1), gate(1), gate(0), gate(0), (Need(1, 2),), (Need(2, 2),)]
    last = len(needs) - 1
    steps = [
        token(n, begins=i == 0, ends=i == last, rows=2, token=2 * i + 2)
        for i, n in enumerate(needs)
    ]
    scenario = machine(*steps, capacity=2, initial=((0, 0, 0),), placement=placement)
    assert run(replace(scenario, cache=Cache("lfu_resident"))).transfers[-1].victims == (1,)
    assert run(replace(scenario, cache=Cache("lfu_model"))).transfers[-1].victims == (0,)


# ---- predictions that take time


# Contracts: C32
@pytest.mark.parametrize(
    ("prediction_ns", "start_ns", "outcome"),
    [(0, 1, "late"), (1, 2, "late"), (2, 3, "late"), (3, 3, "miss")],
)
def test_a_prediction_that_takes_time_is_made_when_it_is_ready(
    prediction_ns: int, start_ns: int, outcome: str
) -> None:
    """Site 0's gate at 1 foresees (1, 5); site 1's gate is at 3: a prediction ready then comes
    first, a later one is left out."""
    step = token(gate(0), gate(5), ahead={0: (foresee(5),)})
    scenario = machine(
        step, initial=((0, 0, 0),), loader=Loader(lookahead=1), prediction_ns=prediction_ns
    )
    timeline = run(scenario)
    assert service(timeline, "start_ns") == [(start_ns,)]
    assert outcomes(timeline) == ["hit", outcome]


# Contracts: C32
def test_a_late_prediction_leaves_out_only_the_sites_that_have_had_a_gate() -> None:
    """Ready at 4, after site 1's gate at 3: of (1, 5) and (2, 6) only the latter is queued,
    4..14; site 2 is at 5.
    """
    step = token(gate(0), gate(0), gate(6), ahead={0: (foresee(5), foresee(6))})
    initial = ((0, 0, 0), (0, 1, 0))
    timeline = run(machine(step, initial=initial, loader=Loader(lookahead=2), prediction_ns=3))
    assert service(timeline, "key", "start_ns") == [(2 * 9 + 6, 4)]
    assert outcomes(timeline) == ["hit", "hit", "late"]


# ---- dense blocks


def dense(slots: int, *needs: tuple[Need, ...]) -> Scenario:
    """Blocks of one byte, 10 each; experts 0 are there."""
    initial = tuple((0, site, 0) for site in range(len(needs)))
    return machine(
        token(*needs),
        initial=initial,
        links=(Link(0, 10),),
        dense_bytes=(1,) * len(needs),
        loader=Loader(dense_slots=slots),
    )


# Contracts: C22
def test_a_dense_block_is_fetched_when_the_one_before_gives_up_its_slot() -> None:
    """Two sites, one slot. Site 0's gate at 1 queues site 1's block: 1..11. Idle 2..11 for it. Site
    1's gate, at 12, queues site 0's block for a step that does not come; it is cut at 13."""
    timeline = run(dense(1, gate(0), gate(0)))
    assert [(row.number, row.start_ns, row.end_ns) for row in timeline.services] == [
        (0, 1, 11),
        (1, 12, -1),
    ]
    assert [(row.kind, row.key) for row in timeline.transfers] == [("dense", 9 + 8), ("dense", 8)]
    assert timeline.makespan_ns == 13
    assert stalls(timeline) == {"dense": 9}


# Contracts: C22
def test_with_more_slots_a_block_comes_further_ahead() -> None:
    """Three sites, two slots: at 1 site 0's slot goes to site 2's block, 1..11; sites 0 and 1 do
    not wait.

    Site 1 is over at 4, so site 2 waits 4..11; meanwhile, at 3, site 0's block was queued: 11..21.
    """
    timeline = run(dense(2, gate(0), gate(0), gate(0)))
    assert served(timeline)[0] == (0, 0, 1, 11)
    assert stalls(timeline) == {"dense": 7}


def test_a_dense_block_stands_behind_the_demands_of_its_gate() -> None:
    """Site 0 misses 5 at 1: 1..11. Site 1's block follows, 11..21. 5 is computed 11..12; idle
    12..21 for the block.
    """
    timeline = run(dense(1, gate(5), gate(0)))
    assert [row.kind for row in timeline.transfers[:2]] == ["demand", "dense"]
    assert stalls(timeline) == {"demand": 10, "dense": 9}


# ---- several sequences in a gate


def test_a_step_of_several_sequences_begins_and_ends_those_that_it_is_the_first_and_last_of() -> (
    None
):
    """Steps of sequences 0 and 1, 1 and 2, and 2: each step takes 2."""

    def of(*sequences: int) -> Any:
        return token(
            (Need(0, len(sequences)),),
            rows=len(sequences),
            sequence=sequences[0],
            sequences=sequences,
        )

    timeline = run(machine(of(0, 1), of(1, 2), of(2), initial=((0, 0, 0),)))
    assert [(call, number) for _, call, number in timeline.calls if call != "gate"] == [
        ("begin_sequence", 0),
        ("begin_sequence", 1),
        ("end_sequence", 0),
        ("begin_sequence", 2),
        ("end_sequence", 1),
        ("end_sequence", 2),
    ]
    assert timeline.sequence_ends == ((0, 2), (1, 4), (2, 6))
    assert [(row.start_ns, row.end_ns, row.sequences) for row in timeline.steps] == [
        (0, 2, (0, 1)),
        (2, 4, (1, 2)),
        (4, 6, (2,)),
    ]


# Contracts: C6
def test_a_step_visits_only_its_sites_and_gates_are_numbered_through() -> None:
    """An encoder step at site 0, then two decoder steps at site 1."""
    prompt = token(gate(0), (), visits=(0,), ends=False)
    decode = token((), gate(0), visits=(1,), begins=False, ends=False, token=2)
    last = replace(decode, ends=True, token=3)
    timeline = run(machine(prompt, decode, last, initial=((0, 0, 0), (0, 1, 0))))
    assert [(row.tick, row.step, row.site, row.gate_ns) for row in timeline.gates] == [
        (0, 0, 0, 1),
        (1, 1, 1, 3),
        (2, 2, 1, 5),
    ]
