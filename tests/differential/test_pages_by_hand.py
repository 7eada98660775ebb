"""Memory over its capacity, followed on paper: the page's two examples, and what is paid when."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from differential import production_rows, reference
from differential.by_hand import gate, machine, outcomes, sequence, token
from differential.rows import Timeline
from differential.scenario import Host, Loader, Placement, PoolSpec, Scenario, Swap
from differential.test_engine_against_reference import first_difference
from sim.core.controller import Controller
from sim.engine.pages import PageLedger
from sim.machine.swap import Paging
from sim.values.types import Geometry, Step

IN_NS, OUT_NS = 5, 7


def run(scenario: Scenario) -> Timeline:
    """The run, of which reference and production agree."""
    timeline = reference.run(scenario)
    assert first_difference(production_rows.run(scenario), timeline) is None
    return timeline


def swapping(scenario: Scenario, room: int, **changes: object) -> Scenario:
    """Pages of one byte, and no dense weights unless they are given."""
    none = (0,) * scenario.sites
    swap = Swap(1, room, none, 0, IN_NS, OUT_NS)
    return replace(scenario, swap=replace(swap, **changes))  # type: ignore[arg-type]


def waited(timeline: Timeline) -> list[int]:
    """How long the host took after each gate: from the gate to the end of its site, less an expert's
    1 ns for each lookup. Nothing is loaded where it is read.
    """
    asked = [sum(row.tick == gate.tick for row in timeline.lookups) for gate in timeline.gates]
    return [
        row.end_ns - row.gate_ns - count for row, count in zip(timeline.gates, asked, strict=True)
    ]


def two_sites(retention: str) -> Scenario:
    prompt = token(gate(0, 1), gate(2), rows=2, ends=False)
    second = token(gate(0), gate(2), begins=False, ends=False, token=2)
    third = token(gate(1), gate(2), begins=False, token=3)
    scenario = machine(prompt, second, third, loader=Loader(retention=retention))  # type: ignore[arg-type]
    return replace(scenario, pools=tuple(PoolSpec(1, (0,), site) for site in range(2)))


# Contracts: C181
def test_a_pool_keeps_what_a_batch_asked_for_until_the_gate_after_its_next_visit() -> None:
    """The page's example. Sites alternate: A and B, C, A, C, B, C."""
    kept, trimmed = run(two_sites("until_next_visit")), run(two_sites("after_batch"))
    assert outcomes(kept) == ["miss", "miss", "miss", "hit", "hit", "miss", "hit"]
    assert outcomes(trimmed) == ["miss", "miss", "miss", "miss", "hit", "miss", "hit"]
    # B (key 1) goes at the gate of site 1 in the second step, its own pool's visit being over.
    assert kept.trimmed[0] == (kept.gates[3].gate_ns, 1)
    assert trimmed.trimmed[0] == (trimmed.gates[2].gate_ns, 0)


# Contracts: C181
def test_with_one_pool_for_all_sites_it_is_the_rule_of_after_batch() -> None:
    runs = [
        run(replace(two_sites(retention), pools=(PoolSpec(2, (0,)),)))
        for retention in ("after_batch", "until_next_visit")
    ]
    assert runs[0] == runs[1]
    assert runs[0].trimmed


# Contracts: C182
def test_a_page_that_must_go_and_one_that_comes_back_take_their_times() -> None:
    """The page's example: room for 3 pages, A and B of 2 pages each: 0, 7 and 12 ns."""
    steps = sequence(gate(0), gate(1), gate(0))
    at_start = ((0, 0, 0), (0, 0, 1))
    scenario = machine(*steps, capacity=4, variant_bytes=(2,), initial=at_start)
    timeline = run(swapping(scenario, 3))
    # At the start B pushed out one page of A, unpaid. A's gate brings it back and pushes out one of
    # B; B's does the same to A.
    assert waited(timeline) == [IN_NS + OUT_NS] * 3
    empty = run(swapping(replace(scenario, pools=(PoolSpec(4, (0,)),)), 3))
    assert waited(empty)[2] == IN_NS + OUT_NS
    assert {row.cause for row in empty.idle} == {"host", "transfer"}
    hosts = [row.end_ns - row.start_ns for row in empty.idle if row.cause == "host"]
    assert hosts == [OUT_NS, IN_NS + OUT_NS]


# Contracts: C182
def test_what_is_evicted_gives_its_pages_back_for_nothing() -> None:
    """One slot: B's load evicts A, so that A's pages are free at B's next gate and nothing is paid
    but B's first page out, which A's eviction comes too late for.
    """
    steps = sequence(gate(0), gate(1), gate(1), gate(0))
    timeline = run(swapping(machine(*steps, capacity=1), 1))
    hosts = [row.end_ns - row.start_ns for row in timeline.idle if row.cause == "host"]
    # B pushes A out (7). A is evicted when B's load is issued: at B's second gate it is free. A comes
    # anew, not back (no 5), and pushes B out (7).
    assert hosts == [OUT_NS, OUT_NS]


# Contracts: C182
def test_dense_weights_are_touched_at_their_gates_and_the_rest_once_a_step() -> None:
    """Room for 4: the rest of 2 pages, blocks of 1 and 2, experts of 1 that the CPU computes, which
    have no pages. Each step brings back and pushes out the same.
    """
    steps = (
        token(gate(0), gate(0), ends=False),
        token(gate(0), gate(0), begins=False, token=2),
    )
    cpu = Placement(cpu=frozenset(((0, 0), (1, 0))), cpu_ns=1)
    scenario = machine(*steps, placement=cpu, host=Host(issue_ns=3))
    timeline = run(swapping(scenario, 4, dense_bytes=(1, 2), rest_bytes=2))
    # Order of touch before the run: rest rest 0 1 1; one page of the rest is out.
    # Gate 0: the rest's page comes back, block 0's goes; block 0 comes, one of block 1 goes.
    # Gate 1: block 1's page comes back, one of the rest goes. And so on.
    hosts = [row.end_ns - row.start_ns for row in timeline.idle if row.cause == "host"]
    both = IN_NS + OUT_NS
    assert hosts == [3 + 2 * both, 3 + both, 3 + 2 * both, 3 + both]


# Contracts: C182
@pytest.mark.parametrize("room", [4, 99])
def test_where_all_weights_fit_nothing_changes(room: int) -> None:
    steps = sequence(gate(0), gate(1), gate(0))
    scenario = machine(*steps, capacity=2, variant_bytes=(2,))
    assert run(swapping(scenario, room)) == run(scenario)


# Contracts: C182
def test_pages_are_counted_from_the_first_gate_on() -> None:
    """Room for 3 pages, two experts of 2: each admission brings one page back and pushes one out."""
    geometry = Geometry(1, 2, 1, ("fp16",), (16.0,), (2,), 4)
    controller = SimpleNamespace(
        geometry=geometry,
        state=bytearray(len(geometry.precisions) * geometry.plane),
        slots=SimpleNamespace(slot_bytes=[2] * geometry.plane, initial=(0, 1)),
        spare_bytes=None,
    )
    ledger = PageLedger(Paging(1, 3, (0,), 0, IN_NS, OUT_NS), cast(Controller, controller))
    assert (ledger.came, ledger.went, ledger.bill_ns()) == (0, 0, 0)
    for key in (0, 1, 0):
        ledger.admit([key])
        assert ledger.bill_ns() == IN_NS + OUT_NS
    assert (ledger.came, ledger.went) == (3, 3)


# Contracts: C174, C182
def test_weights_have_what_keys_and_values_leave_until_these_grow() -> None:
    """Room for 3 pages and two experts of 2, as above; in the first step a page is lent.

    Then both are in memory. In the second step the one that was touched longer ago gives up a page.
    """
    geometry = Geometry(1, 2, 1, ("fp16",), (16.0,), (2,), 4)
    controller = SimpleNamespace(
        geometry=geometry,
        state=bytearray(len(geometry.precisions) * geometry.plane),
        slots=SimpleNamespace(slot_bytes=[2] * geometry.plane, initial=(0, 1)),
        spare_bytes=[1, 0].__getitem__,
    )
    ledger = PageLedger(Paging(1, 3, (0,), 0, IN_NS, OUT_NS), cast(Controller, controller))
    bills = []
    for index, key in enumerate((0, 0)):
        step = Step(index, index, index + 1, (0,), 1, True, (), (), (0,))
        ledger.visit(0, step)
        ledger.admit([key])
        bills.append(ledger.bill_ns())
    assert bills == [IN_NS, OUT_NS]
