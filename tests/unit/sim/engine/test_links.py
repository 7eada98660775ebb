"""The links of the simulated machine, worked by hand.

They cover engines that share, cut-through, chunks, write-back and the run's end. Every machine here
has experts of one byte or of four, dense work of 1 ns a site and experts of 1 ns, unless a test
says otherwise. A service is (transfer, link, start, end).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import foresee, gate, machine, outcomes, sequence, served, stalls, token
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.production_rows import run
from differential.reference import run as reference
from differential.rows import Timeline
from differential.scenario import Link, Loader, Scenario, Step
from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.engine import Engine
from sim.engine.lanes import make_link
from sim.engine.links import ChunkedLink, SharedLink
from sim.engine.links import Link as PlainLink
from sim.engine.simulate import simulate

WIDE: dict[str, Any] = {"variant_bytes": (4,), "service_ns": (1,)}
"""Settings for variants of four bytes."""


def ahead(*sites: Sequence[int], foreseen: Sequence[int] = (5,)) -> Step:
    """A token whose first site foresees experts of the second site."""
    return token(*(gate(*experts) for experts in sites), ahead={0: (foresee(*foreseen),)})


def loaded(timeline: Timeline) -> list[tuple[Any, ...]]:
    """The services with their times and bytes, for links that cut."""
    return served(timeline, "number", "start_ns", "end_ns", "bytes")


# One engine


# Contracts: C57
@pytest.mark.parametrize("in_flight", [1, 2])
def test_one_engine_serves_one_after_another_in_the_order_of_issue(in_flight: int) -> None:
    timeline = run(machine(token(gate(3, 0, 2)), loader=Loader(in_flight=in_flight)))  # type: ignore[arg-type]
    assert served(timeline) == [(0, 0, 1, 11), (1, 0, 11, 21), (2, 0, 21, 31)]
    assert [transfer.key for transfer in timeline.transfers] == [3, 0, 2]


def test_what_is_issued_holds_its_slot_and_cannot_be_overtaken() -> None:
    """With two in flight both prefetches are issued at 1.

    So the demand at 3 waits for them until 21.
    """
    step = ahead([0], [7], foreseen=(5, 6))
    times: dict[int, Any] = {
        1: [(0, 1, 11), (1, 11, 21)],
        2: [(0, 1, 11), (1, 11, 21), (2, 21, 31)],
    }
    for in_flight in (1, 2):
        loader = replace(Loader(lookahead=1), in_flight=in_flight)
        timeline = run(machine(step, initial=((0, 0, 0),), loader=loader))
        assert [row[:3] for row in served(timeline, "number", "start_ns", "end_ns")] == times[
            in_flight
        ]
        assert [t.key % 9 for t in timeline.transfers] == [5, 7] if in_flight == 1 else [5, 6, 7]


def test_what_the_end_of_the_run_cuts_has_no_end() -> None:
    """The prefetch of 5 starts at 1; the last expert is done at 4."""
    timeline = run(
        machine(ahead([0], [0]), initial=((0, 0, 0), (0, 1, 0)), loader=Loader(lookahead=1))
    )
    assert served(timeline) == [(0, 0, 1, -1)]
    assert timeline.makespan_ns == 4


@pytest.mark.parametrize(("service_ns", "found"), [(2, "hit"), (3, "late")])
def test_what_arrives_at_the_instant_of_a_gate_arrives_before_it(
    service_ns: int, found: str
) -> None:
    """The prefetch of 5 starts at 1. All is there at the first gate, so that the second follows at 3
    if nothing else is due by then.
    """
    loader, step = Loader(lookahead=1), ahead([0], [5])
    timeline = run(machine(step, initial=((0, 0, 0),), loader=loader, service_ns=(service_ns,)))
    assert outcomes(timeline)[-1] == found


# Contracts: C14
@pytest.mark.pure
@pytest.mark.parametrize("links", [2, 4, 5, 7])
def test_hops_that_end_at_one_instant_end_by_number_however_long_the_route(
    links: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outermost link takes as long as all others together. So it is through with the second
    transfer when the first one is there.
    """
    ended: list[tuple[int, int]] = []
    done = Controller.transfer_done

    def noted(of: Controller, link: int, transfer: Transfer) -> tuple[int, Transfer | None]:
        ended.append((transfer.number, link))
        return done(of, link, transfer)

    monkeypatch.setattr(Controller, "transfer_done", noted)
    route = (*(Link(0, 10) for _ in range(links - 1)), Link(0, 10 * (links - 1)))
    scenario = machine(token(gate(0, 1)), links=route)
    run(scenario)
    number = [n for n, _ in ended]
    assert ended == [(n, link) for n in (0, 1) for link in reversed(range(links))]
    told = reference(scenario).calls
    assert number == [n for _, call, n in told if call == "transfer_done"]


# Several engines


def test_three_engines_take_three_times_as_long_each() -> None:
    timeline = run(machine(token(gate(0, 1, 2)), links=(Link(0, 12, engines=3),)))
    assert served(timeline, "number", "engine", "start_ns", "end_ns") == [
        (n, n, 1, 37) for n in range(3)
    ]


def test_a_free_engine_takes_the_next_and_latencies_overlap() -> None:
    """Each takes 9, 3 of it latency.

    Two share the link from 4 to 16. The third has its latency from 16 on, then the whole link: it
    ends at 25.
    """
    timeline = run(machine(token(gate(0, 1, 2)), links=(Link(3, 6, engines=2),)))
    rows = served(timeline, "number", "engine", "start_ns", "end_ns")
    assert rows == [(0, 0, 1, 16), (1, 1, 1, 16), (2, 0, 16, 25)]


def test_one_that_comes_later_slows_what_is_there_and_is_faster_once_that_has_ended() -> None:
    """The prefetch does 5 alone until 6, and its other 5 at half the pace until 16.

    The demand then has 5 left.
    """
    timeline = run(
        machine(
            ahead([0], [1]),
            initial=((0, 0, 0),),
            base_ns=(4,),
            links=(Link(0, 10, engines=2),),
            loader=Loader(lookahead=1),
        )
    )
    assert served(timeline) == [(0, 0, 1, 16), (1, 0, 6, 21)]
    assert timeline.makespan_ns == 25


def test_a_latency_that_ends_slows_the_others_from_then_on() -> None:
    """Latency 4, 10 of work.

    The prefetch works alone from 5 until the demand's latency ends at 6 + 4 = 10: 5 are left. At
    half the pace it ends at 20. The demand has then done 5, and ends at 25.
    """
    timeline = run(
        machine(
            ahead([0], [1]),
            initial=((0, 0, 0),),
            base_ns=(4,),
            links=(Link(4, 10, engines=2),),
            loader=Loader(lookahead=1),
        )
    )
    assert served(timeline) == [(0, 0, 1, 20), (1, 0, 6, 25)]


def test_work_that_does_not_divide_ends_at_the_next_whole_nanosecond() -> None:
    """Three services of 5 begin at 1.

    At a third of the pace each has 11/3 left after 4 ns, when a fourth waits; all end at 1 + 15 =
    16.

    With a prefetch of 5 that began at 1 and demands of 5 at 3: the prefetch has 3 left, and at a
    third a ns is done at 12. The demands have 2 left at 12, and at a half a ns end at 16.
    """
    together = run(machine(token(gate(0, 1, 2, 3)), links=(Link(0, 5, engines=3),)))
    assert served(together)[:3] == [(n, 0, 1, 16) for n in range(3)]
    later = run(
        machine(
            ahead([0], [1, 2]),
            initial=((0, 0, 0),),
            links=(Link(0, 5, engines=3),),
            loader=Loader(lookahead=1),
        )
    )
    assert served(later) == [(0, 0, 1, 12), (1, 0, 3, 16), (2, 0, 3, 16)]


def test_what_is_left_of_a_nanosecond_is_kept() -> None:
    """Services of 7: two begin at 3, beside one that began at 1 and has 5 left.

    At thirds that one ends at 18. The others have 2 left, and end at 22.

    With one at 3 and another at 4: of the first, 7 - 2 - 1/2 = 9/2 are left at 4. At thirds it
    would be done at 17 1/2, and ends at 18. At 18 the second has 7 - 1/2 - 14/3 = 11/6 left, the
    third 7/3. At halves the second takes 3 2/3 more and ends at 22, having drawn its half until
    then. The third has 1/3 left and ends at 23.
    """
    link = (Link(0, 7, engines=3),)
    pair = run(
        machine(ahead([0], [1, 2]), initial=((0, 0, 0),), links=link, loader=Loader(lookahead=1))
    )
    assert served(pair) == [(0, 0, 1, 18), (1, 0, 3, 22), (2, 0, 3, 22)]
    three = token(
        gate(0), gate(0), gate(3), ahead={0: (foresee(5),), 1: (foresee(6),)}, dense_ns=(1, 1, 0)
    )
    timeline = run(
        machine(three, initial=((0, 0, 0), (0, 1, 0)), links=link, loader=Loader(lookahead=1))
    )
    assert served(timeline) == [(0, 0, 1, 18), (1, 0, 3, 22), (2, 0, 4, 23)]


# Cut-through


@pytest.mark.parametrize(
    ("outer", "inner", "rows"),
    [
        # The inner link is faster. It begins so late that it never starves, and ends a head after
        # the outer link.
        (Link(0, 5, head_bytes=1), Link(0, 2), [(0, 1, 1, 21), (0, 0, 15, 23)]),
        # The inner link is slower. It begins when the head is through.
        (Link(0, 2, head_bytes=1), Link(0, 5), [(0, 1, 1, 9), (0, 0, 3, 23)]),
        # The head is the whole transfer, so it is handed on at the end.
        (Link(0, 2, head_bytes=9), Link(0, 5), [(0, 1, 1, 9), (0, 0, 9, 29)]),
        # hop(1, 2) = 7, and 11 + 9 - 17 = 3.
        (Link(3, 2, head_bytes=2), Link(1, 4), [(0, 1, 1, 12), (0, 0, 8, 25)]),
        # There is no cut-through.
        (Link(0, 2), Link(0, 5), [(0, 1, 1, 9), (0, 0, 9, 29)]),
    ],
    ids=["faster inside", "slower inside", "a head of all", "overheads", "none"],
)
def test_a_hop_begins_when_enough_of_the_one_before_is_through(
    outer: Link, inner: Link, rows: list[tuple[int, ...]]
) -> None:
    timeline = run(machine(token(gate(0)), links=(inner, outer), **WIDE))
    assert served(timeline) == rows
    assert timeline.makespan_ns == rows[-1][-1] + 1


def test_a_hop_that_began_late_for_other_reasons_may_end_long_after() -> None:
    """0 and 1 follow each other on the outer link, 1..9 and 9..17.

    The inner link serves 0 until 23, then 1 until 43.
    """
    timeline = run(machine(token(gate(0, 1)), links=(Link(0, 5), Link(0, 2, head_bytes=1)), **WIDE))
    assert served(timeline) == [(0, 1, 1, 9), (0, 0, 3, 23), (1, 1, 9, 17), (1, 0, 23, 43)]
    assert timeline.transfers[1].hops == ((1, 1), (0, 11))


def test_what_finds_no_slot_when_handed_on_comes_back_with_the_end_of_its_hop() -> None:
    """The one slot is pinned by site 0's need until site 1's gate at 6.

    That gate needs what was handed on at 3.
    """
    timeline = run(
        machine(
            ahead([0], [5]),
            capacity=4,
            initial=((0, 0, 0),),
            base_ns=(4,),
            loader=Loader(lookahead=1),
            links=(Link(0, 5), Link(0, 2, head_bytes=1)),
            **WIDE,
        )
    )
    assert served(timeline) == [(0, 1, 1, 9), (0, 0, 9, 29)]
    assert outcomes(timeline) == ["hit", "late"]
    assert timeline.transfers[0].hops == ((1, 1), (0, 9))
    assert timeline.transfers[0].victims == (0,)


def test_what_finds_no_slot_at_the_end_of_its_hop_either_is_dropped() -> None:
    """Site 0's need is computed until 21.

    The prefetch is dropped at 9, and at 22 is a miss that goes all the way again.
    """
    timeline = run(
        machine(
            ahead([0], [5]),
            capacity=4,
            initial=((0, 0, 0),),
            base_ns=(20,),
            loader=Loader(lookahead=1),
            links=(Link(0, 5), Link(0, 2, head_bytes=1)),
            **WIDE,
        )
    )
    assert served(timeline) == [(0, 1, 1, 9), (1, 1, 22, 30), (1, 0, 24, 44)]
    assert timeline.prefetch["dropped"] == 1
    assert outcomes(timeline) == ["hit", "miss"]


# Chunks


def chunked(base: int, link: Link, chunk: int = 1) -> Timeline:
    """A prefetch of 4 bytes from 1 on, and a demand for another expert at 2 + ``base``."""
    return run(
        machine(
            ahead([0], [1]),
            initial=((0, 0, 0),),
            base_ns=(base,),
            links=(link,),
            loader=Loader(lookahead=1, chunk_bytes=chunk),
            **WIDE,
        )
    )


@pytest.mark.parametrize(
    ("base", "rows"),
    [
        # The demand comes at 3; the first chunk ends at 11.
        (1, [(0, 1, 11, 1), (1, 11, 51, 4)]),
        # It comes at 11, when a chunk has just ended, or at 12; the next chunk ends at 21.
        (9, [(0, 1, 21, 2), (1, 21, 61, 4)]),
        (10, [(0, 1, 21, 2), (1, 21, 61, 4)]),
        # It comes at 31, when the third chunk has just ended, or at 32; only the last is left.
        (29, [(0, 1, 41, 4), (1, 41, 81, 4)]),
        (30, [(0, 1, 41, 4), (1, 41, 81, 4)]),
    ],
)
def test_a_prefetch_gives_way_at_the_next_end_of_a_chunk_but_the_last(
    base: int, rows: list[tuple[int, ...]]
) -> None:
    assert loaded(chunked(base, Link(0, 10)))[:2] == rows


# Contracts: C63
def test_every_resumption_pays_the_overhead_again() -> None:
    """The overhead is 5, and a byte takes 10.

    The prefetch is cut at 1 + 15, the demand takes 45, and the 3 bytes that are left take 35: until
    96.
    """
    step = token(gate(0), gate(1), ahead={0: (foresee(5),)}, tail_ns=99)
    timeline = run(
        machine(
            step,
            initial=((0, 0, 0),),
            links=(Link(5, 10),),
            loader=Loader(lookahead=1, chunk_bytes=1),
            **WIDE,
        )
    )
    assert loaded(timeline) == [(0, 1, 16, 1), (1, 16, 61, 4), (0, 61, 96, 3)]


def test_a_chunk_may_be_larger_than_what_is_left_after_it() -> None:
    """Chunks are of 3 of 4 bytes, so the only point for a cut is 31."""
    assert loaded(chunked(1, Link(0, 10), chunk=3))[:2] == [(0, 1, 31, 3), (1, 31, 71, 4)]
    assert loaded(chunked(30, Link(0, 10), chunk=3))[:2] == [(0, 1, 41, 4), (1, 41, 81, 4)]


def test_what_a_need_waits_for_is_not_cut() -> None:
    """The demand at 3 is for 1, and 5, which is needed too, is on its way."""
    step = ahead([0], [5, 1])
    timeline = run(
        machine(
            step,
            initial=((0, 0, 0),),
            links=(Link(0, 10),),
            loader=Loader(lookahead=1, chunk_bytes=1),
            **WIDE,
        )
    )
    assert loaded(timeline) == [(0, 1, 41, 4), (1, 41, 81, 4)]
    assert outcomes(timeline) == ["hit", "late", "miss"]


def test_a_demand_is_never_cut() -> None:
    timeline = run(
        machine(token(gate(0, 1)), links=(Link(0, 10),), loader=Loader(chunk_bytes=1), **WIDE)
    )
    assert loaded(timeline) == [(0, 1, 41, 4), (1, 41, 81, 4)]


def test_time_behind_a_prefetch_ends_at_the_cut() -> None:
    """The stream is idle 3..11 behind the prefetch, 11..51 for the demand."""
    assert stalls(chunked(1, Link(0, 10))) == {"behind_prefetch": 8, "demand": 40}


# Write-back


@pytest.mark.parametrize(
    "link", [Link(2, 8), Link(2, 8, engines=2)], ids=["one engine", "two engines"]
)
def test_what_is_written_back_goes_over_the_link_in_the_same_service(link: Link) -> None:
    """0 is loaded 1..11 into the only slot; 1, at 13, takes 10 for 0 and 10 for itself."""
    timeline = run(
        machine(
            *sequence(gate(0), gate(1)), capacity=1, links=(link,), loader=Loader(write_back=True)
        )
    )
    assert served(timeline) == [(0, 0, 1, 11), (1, 0, 13, 33)]
    assert [row.bytes for row in timeline.services] == [1, 1]


# Which link


@pytest.mark.parametrize(
    ("links", "loader", "kinds"),
    [
        ((Link(0, 1),), Loader(), [PlainLink]),
        ((Link(0, 1), Link(0, 1, engines=2)), Loader(), [PlainLink, SharedLink]),
        ((Link(0, 1), Link(0, 1)), Loader(chunk_bytes=1), [ChunkedLink, ChunkedLink]),
        ((Link(0, 1), Link(0, 1, head_bytes=1)), Loader(chunk_bytes=1), [ChunkedLink, PlainLink]),
    ],
    ids=["one", "a shared one", "chunks", "chunks, but not with cut-through"],
)
def test_a_link_is_of_the_kind_that_its_machine_and_loader_ask_for(
    links: tuple[Link, ...], loader: Loader, kinds: list[type]
) -> None:
    scenario = machine(token(gate(0)), links=links, loader=loader)
    assert [type(link) for link in links_of(scenario)] == kinds


def links_of(scenario: Scenario) -> list[PlainLink]:
    controller, workload = controller_for(scenario), ScenarioWorkload(scenario)
    engines: list[Engine] = []

    class Kept(Engine):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            engines.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engine.simulate.Engine", Kept)
        simulate(controller, workload, ScenarioDurations(scenario, workload))  # type: ignore[arg-type]
    (engine,) = engines
    return [make_link(engine, index) for index in range(scenario.hops)]
