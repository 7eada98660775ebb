"""The reference against examples worked by hand: routes, engines, cut-through and chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import foresee, gate, machine, outcomes, served, stalls, token
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import Link, Loader, Need, Scenario, Thresholds

# ---- routes


# Contracts: C52
def test_a_transfer_takes_one_hop_after_another_and_the_outer_link_goes_on_with_the_next() -> None:
    """Link 1 takes 20, link 0 takes 10. Needs 0 and 1 at 1: link 1 1..21 and 21..41, link 0 21..31
    and 41..51.

    0 is computed 31..32, 1 51..52. Idle 1..31: 10 on the last hop, 20 on link 1. Idle 32..51: 10 on
    the last hop, and 9 on link 1.
    """
    timeline = run(machine(token(gate(0, 1)), links=(Link(0, 10), Link(0, 20))))
    assert served(timeline) == [(0, 1, 1, 21), (1, 1, 21, 41), (0, 0, 21, 31), (1, 0, 41, 51)]
    assert [row.hops for row in timeline.transfers] == [((1, 1), (0, 21)), ((1, 1), (0, 41))]
    assert timeline.makespan_ns == 52
    assert stalls(timeline) == {"demand": 20, "storage": 29}


def test_three_hops_of_ten_are_a_pipeline() -> None:
    """Link 2 1..11 and 11..21, link 1 11..21 and 21..31, link 0 21..31 and 31..41.

    0 is computed 31..32: idle 1..31, of which 20 on outer links. 1 is computed 41..42: idle 32..41,
    on link 0.
    """
    timeline = run(machine(token(gate(0, 1)), links=(Link(0, 10),) * 3))
    assert [row[1:] for row in served(timeline) if row[0] == 1] == [
        (2, 11, 21),
        (1, 21, 31),
        (0, 31, 41),
    ]
    assert timeline.makespan_ns == 42
    assert stalls(timeline) == {"demand": 19, "storage": 20}


# Contracts: C56
def test_a_prefetch_between_two_hops_is_dropped_when_its_site_does_not_need_it() -> None:
    """Two prefetches for site 1 at 1. Link 1 takes 10, link 0 takes 30: 5 has link 0 11..41, 6
    waits for it from 21.

    Expert 0 takes 20: site 1's gate, at 22, needs 7, so 6, between two hops, is dropped. 7 has link
    1 22..32 and link 0 41..71, and is computed 71..91. Idle 22..71: 30 on the last hop, 9 behind
    the prefetch, 10 on link 1.
    """
    step = token(gate(0), gate(7), ahead={0: (foresee(5, 6),)})
    links = (Link(0, 30), Link(0, 10))
    timeline = run(
        machine(step, links=links, initial=((0, 0, 0),), base_ns=(20,), loader=Loader(lookahead=1))
    )
    assert served(timeline) == [
        (0, 1, 1, 11),
        (1, 1, 11, 21),
        (0, 0, 11, 41),
        (2, 1, 22, 32),
        (2, 0, 41, 71),
    ]
    assert (timeline.prefetch["dropped"], timeline.prefetch["cancelled"]) == (1, 0)
    assert stalls(timeline) == {"demand": 30, "behind_prefetch": 9, "storage": 10}


def test_a_started_prefetch_that_a_need_waits_for_between_two_hops_is_urgent() -> None:
    """Three prefetches, 5, 6 and 7; site 1's gate, at 32, needs 7 only. Link 1 10 each, link 0 30
    each, expert 30.

    5 has link 0 11..41. 7 overtakes 6, 41..71, and its service counts as a demand's: idle from 32
    on, behind 5 for 9 and served for 30.
    """
    step = token(gate(0), gate(7), ahead={0: (foresee(5, 6, 7),)})
    loader = Loader(lookahead=1, cancel_stale=False)
    links = (Link(0, 30), Link(0, 10))
    timeline = run(machine(step, links=links, initial=((0, 0, 0),), base_ns=(30,), loader=loader))
    inner = [row for row in timeline.services if row.link == 0]
    assert outcomes(timeline) == ["hit", "late"]
    assert [row.number for row in inner] == [0, 2, 1]
    assert [row.urgent for row in inner if row.number == 2] == [True]
    assert timeline.makespan_ns == 71 + 30
    assert stalls(timeline) == {"demand": 30, "behind_prefetch": 9}
    assert timeline.prefetch["late"] == 1


# ---- engines


# Contracts: C58
def test_two_engines_share_the_link() -> None:
    """Needs 0 and 1 at 1, 10 each: at half the pace both end at 21. 2 then has the link for
    itself: 21..31.
    """
    timeline = run(machine(token(gate(0, 1, 2)), links=(Link(0, 10, engines=2),)))
    assert served(timeline, "number", "engine", "start_ns", "end_ns") == [
        (0, 0, 1, 21),
        (1, 1, 1, 21),
        (2, 0, 21, 31),
    ]


# Contracts: C58
def test_the_latency_of_a_service_draws_no_bandwidth() -> None:
    """One variant of three bytes and one of one, 10 a byte, after a latency of 4.

    From 5 on each has a half: the small one is through at 25; 20 of the large one are left, which
    it does alone: 45.
    """
    needs = (Need(0), Need(1, 1, 1.0))
    two: dict[str, Any] = {
        "variant_bytes": (3, 1),
        "service_ns": (1, 1),
        "base_ns": (1, 1),
        "per_token_ns": (0, 0),
    }
    timeline = run(
        machine(token(needs), links=(Link(4, 10, engines=2),), selector=Thresholds(0.5, 2.0), **two)
    )
    assert served(timeline, "number", "engine", "start_ns", "end_ns") == [
        (0, 0, 1, 45),
        (1, 1, 1, 25),
    ]


# Contracts: C58
def test_a_service_ends_at_the_first_whole_ns_at_which_nothing_is_left_and_the_rest_is_kept_exactly() -> (
    None
):
    """Three engines, latency 1, 10 a transfer. Gates at 1, 4 and 8 prefetch one each, active from
    2, 5 and 9.

    A does 3 alone, then a half of 4: 5 are left, of which it does a third a ns: through after 15,
    at 24. B has 8 left at 9, and 3 at 24; C has 5. Halves: B takes 6, until 30; C then has 2 left,
    alone: 32. With the third gate at 7 (active from 8) A has 5 1/2 left, through 16 1/2 later: it
    ends at 25, and draws its third until then. B has 8 1/2 - 17/3 = 17/6 left, C 13/3: B ends 17/3
    later, at 31; C has 4/3 left then and ends at 33.
    """

    def ends(third: int) -> list[int]:
        needs = (gate(0),) * 4
        ahead = {site: (foresee(5),) for site in range(3)}
        step = token(*needs, ahead=ahead, tail_ns=40, dense_ns=(1, 1, third, 1))
        initial = tuple((0, site, 0) for site in range(4))
        link = Link(1, 10, engines=3)
        timeline = run(
            machine(step, initial=initial, links=(link,), base_ns=(2,), loader=Loader(lookahead=1))
        )
        return [row.end_ns for row in timeline.services]

    assert ends(third=2) == [24, 30, 32]
    assert ends(third=1) == [25, 31, 33]


# ---- cut-through


# Contracts: C59
@pytest.mark.parametrize(
    ("outer", "inner", "head_bytes", "handed_ns", "ready_ns"),
    [
        pytest.param(
            20, 10, 1, 51, 91, id="a slow outer link: 10 before it ends, the inner one has 10 left"
        ),
        pytest.param(10, 20, 1, 11, 91, id="a fast outer link: after its head"),
        pytest.param(10, 20, 3, 31, 111, id="a head of three bytes"),
        pytest.param(10, 20, 4, 41, 121, id="a head that is all of it"),
        pytest.param(20, 10, 0, 81, 121, id="store-and-forward"),
    ],
)
def test_a_head_hands_a_transfer_on_before_its_hop_ends(
    outer: int, inner: int, head_bytes: int, handed_ns: int, ready_ns: int
) -> None:
    """Four bytes, from 1 on. Slow outer link: 80 and 40; max(20, 80 + 10 - 40) = 50 after 1.
    Fast: max(10, -20).
    """
    links = (Link(0, inner), Link(0, outer, head_bytes=head_bytes))
    timeline = run(machine(token(gate(0)), links=links, variant_bytes=(4,)))
    assert timeline.transfers[0].hops == ((1, 1), (0, handed_ns))
    assert timeline.lookups[0].ready_ns == ready_ns
    assert stalls(timeline) == {"demand": ready_ns - handed_ns, "storage": handed_ns - 1}
    heads = [ns for ns, call, _ in timeline.calls if call == "head_done"]
    assert heads == ([handed_ns] if 0 < head_bytes < 4 else [])


# Contracts: C60
def test_what_is_handed_on_early_and_finds_no_slot_joins_the_queue_again_when_the_outer_hop_ends() -> (
    None
):
    """One slot, of four bytes, held by (0, 0), which is pinned until site 1's gate at 62 (expert
    60, dense 1).

    The prefetch of (1, 5) has link 1 1..81 and is handed on at 51: no slot. Site 1 needs it at 62:
    late, urgent. At 81 it joins link 0's demands, evicts (0, 0) and is there at 121. Idle 62..121:
    40 as a demand, 19 on link 1.
    """
    step = token(gate(0), gate(5), ahead={0: (foresee(5),)})
    links = (Link(0, 10), Link(0, 20, head_bytes=1))
    scenario = machine(
        step, links=links, capacity=4, variant_bytes=(4,), base_ns=(60,), initial=((0, 0, 0),)
    )
    timeline = run(replace(scenario, loader=Loader(lookahead=1)))
    assert [name for _, name, _ in timeline.calls].count("head_done") == 1
    assert served(timeline, "link", "urgent", "start_ns", "end_ns") == [
        (1, False, 1, 81),
        (0, True, 81, 121),
    ]
    assert timeline.transfers[0].hops == ((1, 1), (0, 81))
    assert timeline.transfers[0].victims == (0,)
    assert stalls(timeline) == {"demand": 40, "storage": 19}


def test_only_the_hop_that_handed_it_on_brings_back_what_found_no_slot() -> None:
    """Three links, of which the outer two cut through: link 2 1..81, link 1 from 51 (its head) to
    91.

    At 61, handed on again, it finds no slot. The end of link 2's hop, at 81, changes nothing; that
    of link 1's does: link 0 91..131.
    """
    step = token(gate(0), gate(5), ahead={0: (foresee(5),)})
    links = (Link(0, 10), Link(0, 10, head_bytes=1), Link(0, 20, head_bytes=1))
    scenario = machine(
        step, links=links, capacity=4, variant_bytes=(4,), base_ns=(60,), initial=((0, 0, 0),)
    )
    timeline = run(replace(scenario, loader=Loader(lookahead=1)))
    assert timeline.transfers[0].hops == ((2, 1), (1, 51), (0, 91))
    assert served(timeline, "link", "start_ns", "end_ns") == [(2, 1, 81), (1, 51, 91), (0, 91, 131)]


# ---- chunks


def chunked(*experts: int, dense_ns: int = 1, **switches: Any) -> Scenario:
    """Four bytes in chunks of one: 2 + 10 a byte. Site 0 hits at 1 and foresees (1, 5), which is
    served from 1 on.

    Its chunks end at 13, 23, 33 and 43. Site 1's gate comes after `dense_ns`, at 3 or later.
    """
    step = token(
        gate(0), gate(*experts), ahead={0: (foresee(5),)}, dense_ns=(1, dense_ns), tail_ns=50
    )
    loader = Loader(lookahead=1, chunk_bytes=1, **switches)
    return machine(
        step, links=(Link(2, 10),), variant_bytes=(4,), initial=((0, 0, 0),), loader=loader
    )


def cuts(timeline: Timeline) -> list[int]:
    return [ns for ns, call, _ in timeline.calls if call == "chunk_done"]


# Contracts: C63
def test_a_prefetch_gives_way_at_the_end_of_its_chunk_and_resumes_with_what_is_left() -> None:
    """Site 1 needs 6 at 3. The prefetch is cut at 13, 6 has the link 13..55, the other three bytes
    55..87 (2 + 30).

    Idle 3..55: 42 for the demand itself, 10 behind the prefetch.
    """
    timeline = run(chunked(6))
    assert cuts(timeline) == [13]
    assert served(timeline, "number", "start_ns", "end_ns", "bytes") == [
        (0, 1, 13, 1),
        (1, 13, 55, 4),
        (0, 55, 87, 3),
    ]
    assert stalls(timeline) == {"demand": 42, "behind_prefetch": 10}
    assert timeline.prefetch["unused_at_end"] == 1


# Contracts: C62
def test_a_chunk_that_ends_at_the_instant_of_a_demand_has_ended_before_it() -> None:
    """Site 1's gate is at 13 (2 + 11): the cut comes with the next chunk's end, at 23."""
    timeline = run(chunked(6, dense_ns=11))
    assert cuts(timeline) == [23]
    assert served(timeline, "start_ns", "end_ns", "bytes") == [(1, 23, 2), (23, 65, 4), (65, 87, 2)]


def test_a_prefetch_that_a_need_waits_for_does_not_give_way() -> None:
    # Contracts: C55, C61
    """Site 1 needs 6 and 5 at 3: 5 is served to its end at 43, then 6, 43..85."""
    timeline = run(chunked(6, 5))
    assert cuts(timeline) == []
    assert served(timeline, "number", "start_ns", "end_ns") == [(0, 1, 43), (1, 43, 85)]


# Contracts: C61
def test_a_demand_that_finds_no_slot_does_not_make_a_prefetch_give_way() -> None:
    """One slot for two sites, which the prefetch has claimed at 1, when (0, 0) was not there: 5
    ends at 43.

    Site 0's only need is left out. Then 6 evicts it: 43..85.
    """
    scenario = replace(chunked(6), selector=Thresholds(0.5, 0.5))
    pool = replace(scenario.pools[0], capacity_bytes=4, initial=())
    step = scenario.steps[0]
    step = replace(step, needs=((Need(0, 1, 1.0),), step.needs[1]))
    timeline = run(replace(scenario, pools=(pool,), steps=(step,)))
    assert cuts(timeline) == []
    assert served(timeline, "number", "start_ns", "end_ns") == [(0, 1, 43), (1, 43, 85)]
    assert timeline.prefetch["evicted_unused"] == 1


def test_a_cut_on_the_inner_link_is_not_forgotten_when_the_outer_hop_ends() -> None:
    """Four bytes, dense blocks of one. Link 1 takes 20 a byte, 1..81, and hands on after max(20, 80
    + 12 - 42): at 51.

    Link 0 takes 2 + 10 a byte; the prefetch's chunks end at 63, 73 and so on. The gates at 55 and
    57 queue a dense block each: it is cut at 63, they have the link 63..75 and 75..87; at 81 its
    hop on link 1 ends. Three bytes are left: 87..119.
    """
    step = token(
        gate(0), gate(0), gate(0), ahead={0: ((), foresee(5))}, dense_ns=(1, 53, 1), tail_ns=100
    )
    links = (Link(2, 10), Link(0, 20, head_bytes=1))
    initial = tuple((0, site, 0) for site in range(3))
    loader = Loader(lookahead=2, chunk_bytes=1, dense_slots=2, cancel_stale=False)
    scenario = machine(step, links=links, variant_bytes=(4,), initial=initial, loader=loader)
    timeline = run(replace(scenario, dense_bytes=(1, 1, 1)))
    inner = [row for row in timeline.services if row.number == 1 and row.link == 0]
    assert [(row.start_ns, row.end_ns, row.bytes) for row in inner] == [(51, 63, 1), (87, 119, 3)]


# Contracts: C56
def test_a_cut_prefetch_that_waits_is_dropped_when_a_newer_forecast_replaces_it() -> None:
    """Predictions take 17. That of site 0, at 18, has (2, 5) served from then on, chunks ending at
    30, 40, 50.

    Site 1's gate, at 42, needs 6, which has the link from 50 to 92. Its prediction, at 59, names
    (2, 7) instead: (2, 5) waits, cut, and is dropped. (2, 7) loads 92..134; site 2's gate, at 94,
    waits for it.
    """
    step = token(
        gate(0),
        gate(6),
        gate(7),
        ahead={0: ((), foresee(5)), 1: (foresee(7),)},
        dense_ns=(1, 40, 1),
    )
    loader = Loader(lookahead=2, chunk_bytes=1, queue="replace")
    scenario = machine(
        step, links=(Link(2, 10),), variant_bytes=(4,), initial=((0, 0, 0),), loader=loader
    )
    timeline = run(replace(scenario, prediction_ns=17))
    assert served(timeline, "number", "start_ns", "end_ns", "bytes") == [
        (0, 18, 50, 3),
        (1, 50, 92, 4),
        (2, 92, 134, 4),
    ]
    assert (timeline.prefetch["dropped"], timeline.prefetch["late"]) == (1, 1)
