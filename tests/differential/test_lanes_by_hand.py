"""Engines with a pace of their own, reads and kernels by projection, worked by hand.

Dense work takes 1 ns, so the first gate is at 1. Both simulators must give these times.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from differential import production_rows, reference
from differential.by_hand import foresee, gate, machine, sequence, served, stalls, token
from differential.features import random_feature
from differential.rows import Timeline
from differential.scenario import Host, Link, Loader, PoolSpec, Scenario
from differential.test_engine_against_reference import first_difference

FIRST_NS = 1
"""The first gate."""
HALF = 500_000


def run(scenario: Scenario) -> Timeline:
    timeline = production_rows.run(scenario)
    assert first_difference(timeline, reference.run(scenario)) is None
    return timeline


def at_once(experts: int, link: Link, size: int = 1, **rest: object) -> Scenario:
    """One gate of so many absent experts over the link, whose engines take them all."""
    return machine(token(gate(*range(experts))), links=(link,), variant_bytes=(size,), **rest)


# Contracts: C165
def test_an_engine_alone_reaches_its_own_pace_after_waking() -> None:
    link = Link(3, 10, engines=2, pace=HALF, wake_ns=2)
    assert served(run(at_once(1, link))) == [(0, 0, 1, 1 + 2 + 3 + 20)]


# Contracts: C165
def test_two_engines_reach_the_links_rate_and_the_third_service_needs_no_waking() -> None:
    link = Link(3, 10, engines=2, pace=HALF, wake_ns=2)
    first = 1 + 2 + 3 + 20
    assert [row[2:] for row in served(run(at_once(3, link)))] == [
        (1, first),
        (1, first),
        (first, first + 3 + 20),
    ]


# Contracts: C165
def test_the_cap_for_all_holds_below_the_sum_of_the_caps_a_lane() -> None:
    """Three engines of 0.4 of the rate each would reach 1.2 of it: each gets a third."""
    capped = Link(0, 10, engines=3, pace=400_000)
    assert [row[3] for row in served(run(at_once(2, capped)))] == [1 + 25, 1 + 25]
    assert [row[3] for row in served(run(at_once(3, capped)))] == [1 + 30] * 3


# Contracts: C165
def test_a_copy_holds_its_engine_and_leaves_the_link_to_the_others() -> None:
    """Two share until 21; one of two services then copies until 25, and so does the other. The
    third begins when the first engine is free.
    """
    link = Link(0, 10, engines=2, copy_ns=4)
    assert [row[2:] for row in served(run(at_once(3, link)))] == [(1, 25), (1, 25), (25, 39)]


# Contracts: C166
def test_a_gates_loads_are_read_as_all_gates_then_all_ups_then_all_downs() -> None:
    link = Link(0, 10, by_projection=True)
    step = token(gate(5, 2))
    scenario = machine(
        step,
        links=(link,),
        variant_bytes=(6,),
        projection_bytes=((1, 2, 9),),
        loader=Loader(in_flight=2),
    )
    timeline = run(scenario)
    read = [
        (timeline.transfers[row.number].key % 9, row.bytes, row.end_ns) for row in timeline.services
    ]
    # Expert 2 was asked for last, and is read first: experts go by key.
    assert read == [(2, 1, 11), (5, 1, 21), (2, 2, 41), (5, 2, 61), (2, 3, 91), (5, 3, 121)]


# Contracts: C167
def test_kernels_wait_for_projections_and_not_for_experts() -> None:
    """Expert 0 is there and takes 6 ns, 2 a projection; so does expert 1, whose three reads of 10
    ns take three engines 10 ns. Its first projection is computed at 11, all that is left follows.
    """
    link = Link(0, 10, engines=3, pace=1_000_000, by_projection=True)
    scenario = machine(
        token(gate(0, 1)),
        links=(replace(link, ns_per_byte=1),),
        variant_bytes=(3,),
        base_ns=(6,),
        projection_bytes=((1, 1, 1),),
        initial=((0, 0, 0),),
        loader=Loader(wait="by_projection"),
    )
    timeline = run(scenario)
    # The reads of 1 byte share the link: all end at 1 + 3. Expert 0's gate took 2 of these 3 ns.
    assert [row.end_ns for row in timeline.services] == [4, 4, 4]
    assert stalls(timeline) == {"demand": 1}
    assert timeline.makespan_ns == 1 + 2 + 1 + 2 + 4 + 4


# Contracts: C167
def test_what_has_come_of_a_late_prefetch_is_computed_at_its_gate() -> None:
    """Expert 5 of site 1 is prefetched from 1 on: its reads end at 4, 7 and 10. Its gate is at 5:
    the first projection takes 5 to 6, the others 1 ns each from 7 and from 10 on.
    """
    scenario = machine(
        token(gate(0), gate(5), ahead={0: (foresee(5),)}),
        links=(Link(0, 1, by_projection=True),),
        variant_bytes=(9,),
        base_ns=(3,),
        projection_bytes=((3, 3, 3),),
        initial=((0, 0, 0),),
        loader=Loader(wait="by_projection", lookahead=1),
    )
    timeline = run(scenario)
    assert [row.end_ns for row in timeline.services] == [4, 7, 10]
    assert stalls(timeline) == {"late_prefetch": 1, "demand": 2}
    assert timeline.makespan_ns == 11


# Contracts: C167
def test_a_variant_that_was_evicted_comes_anew_projection_by_projection() -> None:
    """One slot, and three tokens that ask for 0, 1 and 0: each waits 40 ns for the first projection
    and computes for 60. The dense work of each takes 1 ns.
    """
    scenario = machine(
        *sequence(gate(0), gate(1), gate(0)),
        links=(Link(0, 10, by_projection=True),),
        variant_bytes=(6,),
        base_ns=(60,),
        projection_bytes=((4, 1, 1),),
        capacity=6,
        loader=Loader(wait="by_projection"),
    )
    timeline = run(scenario)
    assert [row.end_ns - row.gate_ns for row in timeline.gates] == [40 + 60] * 3
    assert stalls(timeline) == {"demand": 3 * 40}


# Contracts: C167
@pytest.mark.parametrize(("seed", "ties"), list(product(range(12), (True, False))))
def test_a_gate_ends_where_the_closed_form_does(seed: int, ties: bool) -> None:
    """max(before, a(p, e)) + t(p, e), over the ends of reads of any machine with lanes."""
    scenario = random_feature("lanes", seed, ties)
    scenario = replace(
        scenario,
        loader=replace(scenario.loader, wait="by_projection", retention="after_batch", lookahead=0),
        host=Host(),
        pools=tuple(PoolSpec(9_999, pool.precisions, pool.site) for pool in scenario.pools),
        links=tuple(replace(link, by_projection=True) for link in scenario.links),
        steps=tuple(
            replace(step, forecasts=tuple(() for _ in step.forecasts)) for step in scenario.steps
        ),
    )
    timeline = run(scenario)
    came: dict[tuple[int, int], list[int]] = {}
    for row in timeline.services:
        came.setdefault((row.number, row.link), []).append(row.end_ns)
    number_of = {(row.key, max(came[n, 0])): n for n, row in enumerate(timeline.transfers)}
    rows_of = [sum(need.tokens for need in step.needs[0]) for step in scenario.steps]
    assert rows_of
    tokens = {
        (index, site, need.expert): need.tokens
        for index, step in enumerate(scenario.steps)
        for site in step.sites
        for need in step.needs[site]
    }
    for one in timeline.gates:
        pieces = []
        for look in (row for row in timeline.lookups if row.tick == one.tick and row.key >= 0):
            key = scenario.unpack(look.key)
            of_expert = tokens[one.step, one.site, key[2]]
            times = scenario.projection_ns(key, of_expert, scenario.steps[one.step].rows)
            number = number_of.get((look.key, look.ready_ns))
            waits = look.ready_ns > look.lookup_ns and number is not None
            ends = _by_projection(scenario, timeline, number) if waits else {}
            pieces += [
                (p, look.key, ends.get(p, look.ready_ns), time) for p, time in enumerate(times)
            ]
        free = one.gate_ns
        for _, _, there_ns, time in sorted(pieces):
            free = max(free, there_ns) + time
        assert free == one.end_ns


def _by_projection(scenario: Scenario, timeline: Timeline, number: int | None) -> dict[int, int]:
    """By projection of a transfer, when its read over link 0 ended."""
    assert number is not None
    key = scenario.unpack(timeline.transfers[number].key)
    sizes = scenario.projections(key[0], scenario.size(key))
    rows = [row for row in timeline.services if (row.number, row.link) == (number, 0)]
    # Of one transfer reads begin in the order of its projections.
    read = [p for p, size in enumerate(sizes) if size]
    return {p: row.end_ns for p, row in zip(read, rows, strict=True)}


# Contracts: C168
def test_loads_take_host_time_beside_their_reads() -> None:
    """Two loads of 10 ns each; the stream keeps books for 2 x 4 ns after the gate meanwhile."""
    scenario = machine(token(gate(0, 1, 2)), initial=((0, 0, 2),), host=Host(load_ns=4))
    timeline = run(scenario)
    assert [row.end_ns for row in timeline.services] == [11, 21]
    # Expert 2 is there: computed from 9 to 10, then the others as they come.
    assert timeline.makespan_ns == 22
    assert stalls(timeline) == {"host": 8, "demand": 10}


# Contracts: C168
def test_book_keeping_by_the_byte_is_of_what_the_gate_loads() -> None:
    """Two loads of 1 byte each, 3 ns a byte and 4 ns a load: 2 x 7 ns after the gate."""
    host = Host(load_ns=4, load_byte_ns=3)
    timeline = run(machine(token(gate(0, 1, 2)), initial=((0, 0, 2),), host=host))
    assert [row.end_ns for row in timeline.services] == [11, 21]
    # Expert 2 is computed from 15 to 16, expert 0 after it, and expert 1 as it comes.
    assert timeline.makespan_ns == 22
    assert stalls(timeline) == {"host": 14, "demand": 4}


# Contracts: C165
@pytest.mark.parametrize("ties", [True, False])
def test_engines_with_all_figures_off_are_engines_that_share(
    ties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(20):
        scenario = random_feature("engines", seed, ties)
        plain = production_rows.run(scenario)
        with monkeypatch.context() as patched:
            patched.setattr(Scenario, "is_laned", lambda scenario, link: True)
            assert production_rows.run(scenario) == plain, seed
