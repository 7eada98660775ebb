"""The reference against examples worked by hand: memory.

They cover the RAM tier, write-back, staging, refusals, partial moves, claims and retention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import (
    foresee,
    gate,
    machine,
    outcomes,
    sequence,
    served,
    service,
    stalls,
    token,
)
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import (
    Cache,
    Forecast,
    Link,
    Loader,
    Need,
    PoolSpec,
    RamTier,
    Scenario,
    Thresholds,
)

# ---- RAM


def with_ram(capacity: int, *orders: int, cache: Cache = Cache()) -> Timeline:  # noqa: B008
    """One device slot; link 1 takes 20 and ends in RAM, link 0 takes 10. One expert a token."""
    steps = sequence(*(gate(expert) for expert in orders))
    ram = RamTier(1, (PoolSpec(capacity, (0,)),), cache)
    return run(machine(*steps, capacity=1, links=(Link(0, 10), Link(0, 20)), ram=ram))


# Contracts: C37
def test_what_the_device_evicts_is_still_in_ram_and_takes_the_inner_link_only() -> None:
    """0: 1..21..31, computed by 32. 1: 33..53..63, computed by 64. 0 again, at 65, from RAM:
    65..75.
    """
    timeline = with_ram(2, 0, 1, 0)
    assert timeline.ram_lookups == ((0, False), (1, False), (0, True))
    assert timeline.ram_evictions == ()
    assert served(timeline) == [
        (0, 1, 1, 21),
        (0, 0, 21, 31),
        (1, 1, 33, 53),
        (1, 0, 53, 63),
        (2, 0, 65, 75),
    ]
    assert stalls(timeline) == {"demand": 30, "storage": 40}


# Contracts: C37
def test_a_full_ram_evicts_in_the_order_of_its_own_policy() -> None:
    """RAM asked for 0 1 0 2 1 (the device misses all) has two slots: LRU lets 1 go for 2, FIFO
    lets 0 go.
    """
    assert with_ram(2, 0, 1, 0, 2, 1).ram_evictions == (1, 0)
    assert with_ram(2, 0, 1, 0, 2, 1, cache=Cache("fifo")).ram_evictions == (0,)
    assert with_ram(1, 0, 1, 0).ram_evictions == (0, 1)


# Contracts: C37
def test_what_is_on_its_way_is_pinned_in_ram_and_the_next_waits_for_its_slot() -> None:
    """One slot in RAM, needs 0 and 1 at 1. 0: link 1 1..21, link 0 21..31. Only then may 1 take its
    place: 31..51..61.

    0 is computed 31..32. Idle 32..61: 10 on the last hop, 19 on link 1.
    """
    ram = RamTier(1, (PoolSpec(1, (0,)),))
    timeline = run(machine(token(gate(0, 1)), links=(Link(0, 10), Link(0, 20)), ram=ram))
    assert served(timeline) == [(0, 1, 1, 21), (0, 0, 21, 31), (1, 1, 31, 51), (1, 0, 51, 61)]
    assert timeline.ram_evictions == (0,)
    assert stalls(timeline) == {"demand": 20, "storage": 39}


# Contracts: C53
def test_hops_up_to_ram_move_the_whole_variant_and_the_inner_ones_what_the_access_needs() -> None:
    """Four bytes; the need asks for one. Link 1 moves four (1..41), link 0 one (41..51). The next
    token asks for two, which come from RAM: 53..73."""
    steps = sequence((Need(0, moved_bytes=1),), (Need(0, moved_bytes=2),))
    ram = RamTier(1, (PoolSpec(4, (0,)),))
    loader = Loader(staging_slots=1)
    timeline = run(
        machine(*steps, links=(Link(0, 10),) * 2, ram=ram, variant_bytes=(4,), loader=loader)
    )
    assert served(timeline, "link", "start_ns", "end_ns", "bytes") == [
        (1, 1, 41, 4),
        (0, 41, 51, 1),
        (0, 53, 73, 2),
    ]


def test_a_prefetch_without_room_in_ram_is_dropped() -> None:
    """RAM holds one. Site 0 foresees (1, 5) and (1, 6) at 1. 5 has link 1 1..21 and is pinned in
    RAM until 31: when 6 could be issued, at 21, it finds no slot there."""
    step = token(gate(0), gate(5), ahead={0: (foresee(5, 6),)}, dense_ns=(1, 50))
    ram = RamTier(1, (PoolSpec(1, (0,)),))
    scenario = machine(step, links=(Link(0, 10), Link(0, 20)), ram=ram, initial=((0, 0, 0),))
    timeline = run(replace(scenario, loader=Loader(lookahead=1)))
    assert timeline.prefetch["dropped_no_slot"] == 1
    assert outcomes(timeline) == ["hit", "hit"]


def what_a_dropped_prefetch_gives_back() -> Scenario:
    """RAM holds one, site 1's pool one: (1, 6), which is there. Link 1 takes 20, link 0 10. One
    need at a time.

    Site 0's gate at 1 foresees (1, 6) and (1, 5): 5 has link 1 1..21. 0 is computed 1..6, and 7
    comes in, queued on link 1. When 5's hop ends, 7 finds RAM taken by it; but on link 0 5 finds no
    slot, for 6 is masked, and is dropped.
    """
    step = token(gate(0, 7), (Need(6, 2),), ahead={0: (foresee(6, 5),)}, rows=2, token=2)
    ram = RamTier(1, (PoolSpec(1, (0,)),))
    loader = Loader(lookahead=1, replay_unit="access")
    scenario = machine(step, links=(Link(0, 10), Link(0, 20)), ram=ram, base_ns=(5,), loader=loader)
    pools = (PoolSpec(9, (0,), 0, ((0, 0, 0),)), PoolSpec(1, (0,), 1, ((0, 1, 6),)))
    return replace(scenario, pools=pools)


# Contracts: C13
def test_a_link_that_waited_for_what_a_dropped_prefetch_gives_back_goes_on_at_once() -> None:
    """Nothing else would ever call: 7 takes link 1 21..41 and link 0 41..51."""
    timeline = run(what_a_dropped_prefetch_gives_back())
    assert timeline.prefetch["dropped"] == 1
    assert served(timeline) == [(0, 1, 1, 21), (1, 1, 21, 41), (1, 0, 41, 51)]


# ---- write-back


# Contracts: C36
def test_a_victim_goes_back_before_its_slot_is_filled() -> None:
    """2 + 10 a byte, a slot for one: 1 takes 12 for the victim 0 and 12 for itself, 1..25."""
    timeline = run(
        machine(
            token(gate(1)),
            capacity=1,
            initial=((0, 0, 0),),
            links=(Link(2, 10),),
            loader=Loader(write_back=True),
        )
    )
    assert service(timeline, "start_ns", "end_ns", "victims", "bytes") == [(1, 25, (0,), 1)]


# Contracts: C55
def test_the_write_back_of_a_late_prefetch_is_a_demand_all_the_same() -> None:
    """Two slots, both of site 1's; site 0 leaves its need out and foresees (1, 5): 12 back, 12 in,
    1..25.

    Site 1 needs it at 2. Idle 2..25: 11 of the write-back (until 13), 12 of the prefetch.
    """
    step = token((Need(0, 1, 1.0),), gate(5), ahead={0: (foresee(5),)})
    loader = Loader(lookahead=1, write_back=True)
    initial = ((0, 1, 0), (0, 1, 1))
    scenario = machine(step, capacity=2, initial=initial, links=(Link(2, 10),), loader=loader)
    timeline = run(replace(scenario, selector=Thresholds(0.5, 0.5)))
    assert stalls(timeline) == {"demand": 11, "late_prefetch": 12}


# ---- staging


def staged(
    slots: int = 1, capacity: int = 99, refuse: frozenset[int] = frozenset(), *then: Any
) -> Timeline:
    """Expert time 12. Site 0 hits at 1 and foresees (1, 5) and (1, 6), which load one after
    another, 10 each.

    Site 1's gate, at 14, needs 5.
    """
    step = token(gate(0), gate(5), ahead={0: (foresee(5, 6),)}, ends=not then)
    loader = Loader(lookahead=1, destination="staging", staging_slots=slots)
    scenario = machine(
        step,
        *then,
        capacity=capacity,
        initial=((0, 0, 0),),
        links=(Link(0, 10),),
        base_ns=(12,),
        loader=loader,
    )
    return run(replace(scenario, refused=refuse))


# Contracts: C41
def test_a_staged_prefetch_that_is_needed_enters_the_pool_without_moving_a_byte() -> None:
    """One slot: 5 is staged 1..11; 6 finds none at 11 and is dropped. At 14 5 hits and enters
    the pool.
    """
    timeline = staged()
    assert outcomes(timeline) == ["hit", "hit"]
    assert timeline.exchanged == ((14, 9 + 5, ()),)
    assert (timeline.prefetch["used"], timeline.prefetch["dropped_no_slot"]) == (1, 1)


# Contracts: C41
def test_an_exchange_evicts_what_a_demand_would_evict() -> None:
    """A pool of one slot, that of (0, 0), unpinned since site 1's gate began."""
    assert staged(capacity=1).exchanged == ((14, 9 + 5, (0,)),)


# Contracts: C41
def test_a_late_prefetch_is_exchanged_at_its_arrival_and_an_unneeded_staged_one_is_dropped_at_its_site() -> (
    None
):
    """Two slots. Site 1, at 14, needs 6, on its way (11..21): late, and exchanged at 21. 5 is
    dropped at 14.
    """
    step = token(gate(0), gate(6), ahead={0: (foresee(5, 6),)})
    loader = Loader(lookahead=1, destination="staging", staging_slots=2)
    timeline = run(
        machine(step, initial=((0, 0, 0),), links=(Link(0, 10),), base_ns=(12,), loader=loader)
    )
    assert outcomes(timeline) == ["hit", "late"]
    assert timeline.exchanged == ((21, 9 + 6, ()),)
    assert (timeline.prefetch["dropped"], timeline.prefetch["late"]) == (1, 1)


# Contracts: C17
def test_what_the_policy_refuses_serves_its_gate_from_staging_and_is_dropped_at_the_next() -> None:
    """5 hits at 14 but is not admitted. The next token's site 1, at 42, misses it, for there is
    no forecast.
    """
    again = token(gate(0), gate(5), begins=False, token=2)
    timeline = staged(1, 99, frozenset({5}), again)
    assert outcomes(timeline) == ["hit", "hit", "hit", "miss"]
    assert timeline.exchanged == ()


# Contracts: C39
def test_a_refused_demand_goes_through_staging_every_time() -> None:
    """Expert 0 is refused, 1 is not: 0 1 0 1 loads 0 twice and 1 once."""
    steps = sequence(gate(0), gate(1), gate(0), gate(1))
    scenario = machine(*steps, links=(Link(0, 10),), loader=Loader(staging_slots=1))
    timeline = run(replace(scenario, refused=frozenset({0})))
    assert [row.key for row in timeline.transfers] == [0, 1, 0]


# Contracts: C42
def test_a_policy_that_refuses_is_asked_when_the_need_is_over() -> None:
    """One slot, of 0, and two of staging. The gate at 1 needs 0, which is pinned, and 1, which
    loads 1..11.

    The next gate begins at 13: 0 may go now, and 1 is let in, unless it displaces none.
    """
    steps = sequence(gate(0, 1), gate(1), gate(1))
    scenario = machine(
        *steps,
        capacity=1,
        initial=((0, 0, 0),),
        links=(Link(0, 10),),
        loader=Loader(staging_slots=2),
    )
    timeline = run(replace(scenario, refused=frozenset({5})))
    assert outcomes(timeline) == ["hit", "miss", "hit", "hit"]
    assert timeline.exchanged == ((13, 1, (0,)),)
    timeline = run(replace(scenario, displace_none=frozenset({1})))
    assert outcomes(timeline) == ["hit", "miss", "miss", "miss"]
    assert timeline.exchanged == ()


# Contracts: C19
def test_admission_waits_for_staging_slots() -> None:
    """Both needs are refused, one slot: 0 loads 1..11, is computed by 12 and dropped; 1 comes in
    at 12: 12..22.
    """
    scenario = machine(token(gate(0, 1)), links=(Link(0, 10),), loader=Loader(staging_slots=1))
    timeline = run(replace(scenario, refused=frozenset({0, 1})))
    assert [row.lookup_ns for row in timeline.lookups] == [1, 12]
    assert served(timeline) == [(0, 0, 1, 11), (1, 0, 12, 22)]


# Contracts: C40
def test_a_demand_that_finds_no_staging_slot_displaces_the_first_that_came() -> None:
    """Two slots, filled with (2, 5) by 11 and (2, 6) by 21. Site 1's gate, at 32, needs 7, which is
    refused: 5 goes.

    7 loads 32..42 and is computed by 72; site 2's gate, at 73, finds 6. That is over when site 0's
    gate begins, 31 later: only then does 6 go into the pool.
    """
    step = token(gate(0), gate(7), gate(6), ahead={0: ((), foresee(5, 6))}, ends=False)
    again = token(gate(0), gate(7), gate(6), begins=False, token=2)
    loader = Loader(lookahead=2, destination="staging", staging_slots=2)
    initial = ((0, 0, 0),)
    scenario = machine(
        step, again, initial=initial, links=(Link(0, 10),), base_ns=(30,), loader=loader
    )
    timeline = run(replace(scenario, refused=frozenset({7})))
    assert outcomes(timeline) == ["hit", "miss", "hit", "hit", "miss", "hit"]
    assert timeline.prefetch["dropped"] == 1
    assert [row[:2] for row in timeline.exchanged] == [(104, 2 * 9 + 6)]


# Contracts: C40
def test_a_staged_prefetch_that_no_forecast_names_any_more_is_dropped_at_its_arrival() -> None:
    """(2, 5) is on its way 1..11; site 1's gate at 3 foresees (2, 6) instead: at 11 5 is neither
    masked nor needed.
    """
    step = token(gate(0), gate(0), gate(6), ahead={0: ((), foresee(5)), 1: (foresee(6),)})
    loader = Loader(lookahead=2, destination="staging", staging_slots=1)
    timeline = run(
        machine(step, initial=((0, 0, 0), (0, 1, 0)), links=(Link(0, 10),), loader=loader)
    )
    assert timeline.prefetch["dropped"] == 1
    assert served(timeline) == [(0, 0, 1, 11), (1, 0, 11, 21)]


# ---- partial moves


def partial(need_bytes: int | None, prefetch_bytes: int, base_ns: int = 1) -> Timeline:
    """Four bytes, 10 a byte. Site 0 hits at 1 and prefetches some bytes of (1, 5), which site 1
    needs some of.
    """
    ahead = {0: ((Forecast(5, 0.0, prefetch_bytes),),)}
    step = token(gate(0), (Need(5, 1, 0.0, need_bytes),), ahead=ahead)
    loader = Loader(lookahead=1, staging_slots=1)
    return run(
        machine(
            step,
            initial=((0, 0, 0),),
            links=(Link(0, 10),),
            variant_bytes=(4,),
            base_ns=(base_ns,),
            loader=loader,
        )
    )


# Contracts: C43
def test_a_partial_move_is_never_a_later_hit() -> None:
    """One byte of four, twice: 1..11 and 13..23."""
    steps = sequence((Need(0, moved_bytes=1),), (Need(0, moved_bytes=1),))
    loader = Loader(staging_slots=1)
    timeline = run(machine(*steps, links=(Link(0, 10),), variant_bytes=(4,), loader=loader))
    assert outcomes(timeline) == ["miss", "miss"]
    assert served(timeline) == [(0, 0, 1, 11), (1, 0, 13, 23)]


# Contracts: C44
@pytest.mark.parametrize(
    ("need_bytes", "outcome", "moved"),
    [(1, "hit", [2]), (2, "hit", [2]), (3, "miss", [2, 1]), (None, "miss", [2, 2])],
)
def test_a_staged_partial_prefetch_spares_a_need_what_it_brought(
    need_bytes: int | None, outcome: str, moved: list[int]
) -> None:
    """Two bytes are staged 1..21; the gate comes at 32 (expert 30)."""
    timeline = partial(need_bytes, 2, base_ns=30)
    assert outcomes(timeline) == ["hit", outcome]
    assert [row.moved_bytes for row in timeline.transfers] == moved
    assert timeline.lookups[-1].ready_ns == 32 + 10 * sum(moved[1:])
    assert timeline.prefetch["used"] == 1


# Contracts: C44
def test_the_rest_of_a_partial_prefetch_in_flight_follows_it() -> None:
    """Two bytes 1..21; site 1, at 3, needs three: late. The rest, one byte, is queued at 21 and
    there at 31.

    Idle 3..31: the rest's own service is a demand's, 10; the prefetch's, which was not urgent when
    it began, late: 18.
    """
    timeline = partial(3, 2)
    assert outcomes(timeline) == ["hit", "late"]
    assert served(timeline) == [(0, 0, 1, 21), (1, 0, 21, 31)]
    assert [row.kind for row in timeline.transfers] == ["prefetch", "demand"]
    assert timeline.lookups[-1].ready_ns == 31
    assert stalls(timeline) == {"demand": 10, "late_prefetch": 18}


# Contracts: C44
def test_a_queued_partial_prefetch_takes_the_bytes_of_its_need() -> None:
    """(1, 6) is served 1..21; (1, 5) waits when site 1 asks for the whole of it at 3: 40 ns,
    21..61, into the pool.
    """
    ahead = {0: ((Forecast(6, 0.0, 2), Forecast(5, 0.0, 1)),)}
    step = token(gate(0), gate(5), ahead=ahead)
    loader = Loader(lookahead=1, staging_slots=2)
    timeline = run(
        machine(step, initial=((0, 0, 0),), links=(Link(0, 10),), variant_bytes=(4,), loader=loader)
    )
    assert outcomes(timeline) == ["hit", "promoted"]
    assert served(timeline, "start_ns", "end_ns", "bytes") == [(1, 21, 2), (21, 61, 4)]


def overtaken(second: tuple[tuple[Need, ...], tuple[Need, ...]], base_ns: int = 1) -> Timeline:
    """Two tokens over two sites, four bytes an expert, 10 a byte. Site 0 hits at 1 and prefetches
    two bytes of (1, 5), 1..21. Site 1, at 3, asks for expert 0, which is there.
    """
    ahead = {0: ((Forecast(5, 0.0, 2),),)}
    first = token(gate(0), gate(0), ahead=ahead)
    return run(
        machine(
            first,
            replace(token(*second), token=1),
            initial=((0, 0, 0), (0, 1, 0)),
            links=(Link(0, 10),),
            variant_bytes=(4,),
            base_ns=(base_ns,),
            loader=Loader(lookahead=1, staging_slots=1),
        )
    )


# Contracts: C43
def test_a_partial_prefetch_that_its_gate_did_not_ask_for_is_dropped_on_arrival() -> None:
    """The second token's site 1, after 21, asks for two bytes: it gets its own."""
    timeline = overtaken((gate(0), (Need(5, 1, 0.0, 2),)), base_ns=30)
    assert outcomes(timeline) == ["hit", "hit", "hit", "miss"]
    assert [(row.kind, row.moved_bytes) for row in timeline.transfers] == [
        ("prefetch", 2),
        ("demand", 2),
    ]
    assert timeline.prefetch["dropped"] == 1


# Contracts: C44
@pytest.mark.parametrize(("need_bytes", "rest"), [(1, 1), (2, 2), (None, 2)])
def test_a_need_that_finds_another_gates_partial_prefetch_in_flight_moves_what_it_would_alone(
    need_bytes: int | None, rest: int
) -> None:
    """At 7 the second token's site 1 finds the two bytes on their way: they are another token's.
    Its own bytes follow them at 21, at most the two that are left of four.
    """
    timeline = overtaken((gate(0), (Need(5, 1, 0.0, need_bytes),)))
    assert outcomes(timeline) == ["hit", "hit", "hit", "late"]
    assert [(row.kind, row.moved_bytes) for row in timeline.transfers] == [
        ("prefetch", 2),
        ("demand", rest),
    ]
    assert timeline.lookups[-1].ready_ns == 21 + 10 * rest


# ---- claims and retention


# Contracts: C16
def test_after_batch_nothing_is_evicted_for_a_demand_and_the_pool_is_trimmed_at_the_next_gate_but_one() -> (
    None
):
    """One slot, needs 0 and 1 in one gate: both load, 1..11 and 11..21, and stay: no waves.

    The gate of the next token, at 23, finds both pinned and leaves them; 2 loads without evicting,
    by 33. The gate after, at 35, trims 0 and 1, but not 2, which is pinned. The end of the
    sequence, at 46, trims 2, and not 3.
    """
    steps = sequence(gate(0, 1), gate(2), gate(3))
    timeline = run(
        machine(*steps, capacity=1, links=(Link(0, 10),), loader=Loader(retention="after_batch"))
    )
    assert [row.lookup_ns for row in timeline.lookups] == [1, 1, 23, 35]
    assert all(row.victims == () for row in timeline.transfers)
    assert timeline.trimmed == ((35, 0), (35, 1), (46, 2))


# Contracts: C4
def test_a_variants_bytes_may_differ_from_site_to_site() -> None:
    """10 a byte: one byte at site 0, three at site 1; a pool of three bytes holds one of them at
    a time.
    """
    step = token(gate(0), gate(0))
    scenario = machine(
        step, capacity=3, links=(Link(0, 10),), variant_bytes=(3,), site_bytes=((1, 3),)
    )
    timeline = run(scenario)
    assert service(timeline, "start_ns", "end_ns", "victims") == [(1, 11, ()), (13, 43, (0,))]


def one_by_one(scenario: Scenario) -> Scenario:
    return replace(scenario, loader=replace(scenario.loader, replay_unit="access"))


# Contracts: C19
def test_per_access_a_need_comes_in_when_the_one_before_is_computed() -> None:
    """Needs 0 and 1, room for both. As a union: 1..11, 11..21. One at a time: 1..11, computed by
    12, then 12..22.
    """
    scenario = machine(token(gate(0, 1)), links=(Link(0, 10),))
    assert served(run(scenario)) == [(0, 0, 1, 11), (1, 0, 11, 21)]
    assert served(run(one_by_one(scenario))) == [(0, 0, 1, 11), (1, 0, 12, 22)]
