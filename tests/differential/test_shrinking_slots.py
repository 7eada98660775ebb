"""Slots that shrink, followed on paper: the page's example, and pools of several precisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from differential import production_rows, reference
from differential.by_hand import foresee, gate, machine, outcomes, sequence, token
from differential.rows import Timeline
from differential.scenario import Link, Loader, Placement, PoolSpec, Scenario
from differential.test_engine_against_reference import first_difference
from sim.core.slots import Slots
from sim.policies.recency import LRU
from sim.values.types import Geometry, PoolPlan

ASKED = (0, 1, 2, 0, 1, 2, 0, 1)
LOADS_NS, EACH_NS = 10, 2
"""A load takes 10 ns; a step's dense work and its expert take 1 ns each."""


def run(scenario: Scenario) -> Timeline:
    """The run, of which reference and production agree."""
    timeline = reference.run(scenario)
    assert first_difference(production_rows.run(scenario), timeline) is None
    return timeline


def conversation(spare: tuple[int, ...], *asked: int) -> Scenario:
    """Slots of 4 bytes, of which the plan has two; one site, LRU, empty at the start."""
    steps = sequence(*(gate(expert) for expert in asked))
    scenario = machine(*steps, capacity=8, variant_bytes=(4,))
    return replace(scenario, spare_bytes=spare)


# Contracts: C174
def test_the_example_of_the_page() -> None:
    """T = 8, kv = 1 byte: 7 bytes are left in the first step, and none in the eighth."""
    growing, once = (
        run(conversation(tuple(range(7, -1, -1)), *ASKED)),
        run(conversation((), *ASKED)),
    )
    assert outcomes(growing) == ["miss"] * 3 + ["hit"] + ["miss"] * 4
    assert outcomes(once) == ["miss"] * 8
    assert growing.makespan_ns == 7 * LOADS_NS + 8 * EACH_NS
    assert once.makespan_ns == 8 * LOADS_NS + 8 * EACH_NS
    assert growing.trimmed == ((3 * (LOADS_NS + EACH_NS) + EACH_NS + 1, 1),)


# Contracts: C174
def test_slots_come_back_empty_at_the_first_step_after_a_sequence() -> None:
    """Three slots, two, two, then three again: what was trimmed has to be loaded anew."""
    timeline = run(conversation((4, 0, 0, 4, 4), 0, 1, 2, 1, 2))
    assert outcomes(timeline) == ["miss", "miss", "miss", "hit", "hit"]
    assert [row.victims for row in timeline.transfers] == [(), (), (0,)]
    again = run(conversation((4, 4, 4, 0, 4), 0, 1, 2, 2, 0))
    assert [key for _, key in again.trimmed] == [0]
    assert outcomes(again) == ["miss"] * 3 + ["hit", "miss"]
    assert again.transfers[-1].victims == ()


# Contracts: C174
@pytest.mark.parametrize(
    ("spare", "rooms"),
    [(0, [20, 7, 0]), (1, [20, 7, 0]), (4, [22, 8, 0]), (27, [40, 14, 0]), (28, [40, 14, 0])],
)
def test_each_pool_has_its_share_of_what_is_left_rounded_down(spare: int, rooms: list[int]) -> None:
    """Pools of 20, 7 and 0 bytes: of 28 bytes 20.7 and 7.3 go to the first two."""
    geometry = Geometry(1, 3, 1, ("fp16",), (16.0,), (5,), 27)
    plan = PoolPlan((20, 7, 0), [0, 1, 2, 0], ())
    cache = LRU()
    cache.pools = lambda geometry: cache.adopt(geometry, plan)  # type: ignore[method-assign]
    slots = Slots(geometry, cache, at_once=1, stages=True)
    slots.lend(spare)
    assert slots.room_bytes == slots.rooms(spare) == slots.free_bytes == rooms
    slots.lend(0)
    assert slots.room_bytes == slots.free_bytes == [20, 7, 0]


# Contracts: C174
def test_pools_of_two_precisions_shrink_in_proportion() -> None:
    """Pools of 8 and 4 bytes have 12 more, then none: 16 and 8, so 4 slots each, then 2."""
    steps = sequence(*(gate(expert) for expert in (0, 1, 2, 3, 3)))
    scenario = machine(
        *steps, variant_bytes=(4, 2), service_ns=(10, 5), base_ns=(1, 1), per_token_ns=(0, 0)
    )
    pools = (PoolSpec(8, (0,)), PoolSpec(4, (1,), None, tuple((1, 0, e) for e in (4, 5))))
    scenario = replace(scenario, pools=pools, spare_bytes=(12, 12, 12, 12, 0))
    timeline = run(scenario)
    assert outcomes(timeline) == ["miss"] * 4 + ["hit"]
    assert [key for _, key in timeline.trimmed] == [0, 1]


# Contracts: C174
def test_what_is_in_flight_keeps_its_slot_and_the_next_gate_trims_what_has_landed() -> None:
    """Three prefetches are in flight when three of four slots go. They land before the next gate,
    which lets the two oldest go, so that expert 1 is not there. The CPU computes every need.
    """
    first = token(gate(7), gate(7), ahead={0: (foresee(1, 2, 3),)}, ends=False)
    second = token(gate(7), gate(1), begins=False, token=2, dense_ns=(1, 50))
    scenario = machine(
        first,
        second,
        capacity=1,
        links=(Link(0, 15, engines=3),),
        loader=Loader(lookahead=1),
        placement=Placement(cpu=frozenset((s, e) for s in range(2) for e in range(8)), cpu_ns=1),
        spare_bytes=(3, 0),
    )
    timeline = run(scenario)
    second_gates = [row.gate_ns for row in timeline.gates[2:]]
    assert second_gates[0] < 45 < second_gates[1]
    assert timeline.trimmed == ((second_gates[1], 9 + 1), (second_gates[1], 9 + 2))
    assert outcomes(timeline) == ["cpu"] * 4
