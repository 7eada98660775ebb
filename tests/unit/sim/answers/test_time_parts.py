"""The parts of a decode step's time, on tables made by hand."""

from __future__ import annotations

import polars as pl
import pytest

from sim.answers.time_parts import Interval, Service, Tables, intervals_of, services_of

Lookup = tuple[int, int, int, int, str, int, int]
"""Tick, step, site, key, outcome, and when its gate was and when it was ready."""
Copy = tuple[int, int, int, int, int, int, str]
"""Number, hop, key, start, end, bytes and class."""


def copies(*of: Copy) -> pl.DataFrame:
    columns = ("number", "hop", "key", "start_ns", "end_ns", "moved_bytes", "class")
    return pl.DataFrame(list(of), schema=columns, orient="row")


NO_COPIES = copies((0, 0, 99, 0, 1, 1, "demand"))
"""One that ends before the first gate."""


def tables(
    lookups: list[Lookup],
    transfers: pl.DataFrame = NO_COPIES,
    wait: str = "wait_each",
    share: float = 0.0,
    steps: tuple[tuple[int, int, int, int], ...] = ((7, 1000, 5000, 2000),),
) -> Tables:
    """Two tokens of each step are decoded, and step 6 is a prompt's."""
    tokens = [("decode", *step) for step in steps for _ in range(2)]
    return Tables(
        pl.DataFrame(
            lookups,
            schema=("tick", "step", "site", "key", "outcome", "gate_ns", "ready_ns"),
            orient="row",
        ),
        transfers,
        pl.DataFrame(
            [*tokens, ("prefill", 6, 0, 900, 800)],
            schema=("phase", "step", "start_ns", "end_ns", "compute_ns"),
            orient="row",
        ),
        wait,
        share,
    )


def test_services_come_in_the_order_of_their_starts_with_what_follows_at_once_not_first() -> None:
    """Two of them end 2000 and 2001 ns before the next one; one was under way at the end."""
    found = services_of(
        copies(
            (3, 0, 30, 8001, 9000, 3, "demand"),
            (1, 0, 10, 1990, 2000, 1, "prefetch"),
            (2, 0, 20, 4000, 6000, 2, "demand"),
            (4, 0, 40, 11_000, -1, 4, "demand"),
        )
    )
    assert found == [
        Service(10, 1990, 2000, 1, True, False),
        Service(20, 4000, 6000, 2, False, False),
        Service(30, 8001, 9000, 3, False, True),
    ]
    assert [one.ns for one in found] == [10, 2000, 999]


def test_the_first_service_of_a_run_follows_one_that_ended_before_its_time_began() -> None:
    starts = (1999, 2000)
    found = [services_of(copies((1, 0, 1, at, at + 5, 1, "demand")))[0] for at in starts]
    assert [one.is_first for one in found] == [False, True]


def test_of_a_transfer_over_several_links_its_last_hop_counts_even_where_it_ends_at_0() -> None:
    found = services_of(
        copies(
            (1, 0, 10, 5, 9, 1, "demand"), (1, 1, 10, 9, 12, 2, "demand"), (2, 0, 20, 0, 0, 3, "x")
        )
    )
    assert [(one.key, one.end_ns, one.moved_bytes) for one in found] == [(20, 0, 3), (10, 12, 2)]


def test_gates_split_a_step_from_its_begin_to_its_end() -> None:
    """Gates at 1500 and 3000; of 4000 ns of own work 2000 are computing."""
    found = intervals_of(
        tables(
            [
                (1, 6, 0, 5, "hit", 100, 100),
                (3, 7, 1, 8, "hit", 3100, 3000),
                (3, 7, 1, 7, "hit", 3000, 3000),
                (2, 7, 0, 9, "hit", 1500, 1500),
                (2, 7, 0, 4, "hit", 1600, 1500),
            ]
        )
    )
    first = Interval(7, 0, ((9, "hit"), (4, "hit")), own_ns=2000, compute_ns=1000.0)
    assert found == [
        first,
        Interval(7, 1, ((8, "hit"), (7, "hit")), own_ns=2000, compute_ns=1000.0),
    ]
    assert not first.has_waited
    assert (found[0].is_prefetch, found[0].is_first, found[0].beside) == (False, False, False)
    assert found[0].moved_bytes == 0


def test_steps_come_in_their_order_whatever_the_order_of_their_ticks() -> None:
    steps = ((8, 5000, 6000, 0), (7, 1000, 5000, 0))
    lookups: list[Lookup] = [
        (1, 8, 0, 1, "hit", 5100, 0),
        (2, 7, 0, 1, "hit", 1100, 0),
    ]
    assert [one.step for one in intervals_of(tables(lookups, steps=steps))] == [7, 8]


LATE: list[Lookup] = [
    (1, 7, 0, 1, "hit", 1500, 1500),
    (1, 7, 0, 2, "miss", 1500, 2600),
    (1, 7, 0, 3, "late", 1500, 2200),
]
LOADS = copies((1, 0, 3, 1400, 2200, 30, "demand"), (2, 0, 2, 2300, 2600, 20, "prefetch"))


def one_gate(of: Tables) -> Interval:
    (found,) = intervals_of(of)
    return found


def test_who_waits_for_all_loads_waits_for_the_last_one() -> None:
    """It waits from 1500 to 2600; 300 ns of that are the last service, which was a prefetch."""
    assert one_gate(tables(LATE, LOADS, "wait_all")) == Interval(
        7,
        0,
        ((1, "hit"), (2, "miss"), (3, "late")),
        served_ns=300,
        queued_ns=800,
        is_prefetch=True,
        moved_bytes=20,
        own_ns=2900,
        compute_ns=2000.0,
        beside=True,
    )


@pytest.mark.parametrize(("share", "waited_ns"), [(0.15, 900), (0.3, 700), (0.6, 300), (0.9, 100)])
def test_who_waits_for_each_load_computes_others_meanwhile(share: float, waited_ns: int) -> None:
    """An expert takes 100, 200, 400 or 600 ns: a third of the experts' computing.

    It waits for the first load from 1600, 1700, 1900 or 2100 to 2200. For the second, to 2600, it
    waits from 2300 or 2400; the others compute as long.
    """
    found = one_gate(tables(LATE, LOADS, share=share))
    assert found.served_ns + found.queued_ns == waited_ns


def test_a_service_that_began_before_the_gate_counts_from_the_gate() -> None:
    found = one_gate(tables(LATE[2:], LOADS))
    assert (found.served_ns, found.queued_ns, found.is_first) == (700, 0, False)


def test_a_service_is_waited_for_no_longer_than_the_stream_is_idle() -> None:
    """The hit computes from 1500 to 1900, so that 300 of the 700 ns are waited for."""
    found = one_gate(tables([LATE[0], LATE[2]], LOADS, share=0.4))
    assert (found.served_ns, found.queued_ns) == (300, 0)


def test_a_load_that_no_copy_brought_is_all_queueing() -> None:
    found = one_gate(tables(LATE, NO_COPIES))
    assert (found.served_ns, found.queued_ns, found.moved_bytes) == (0, 1100, 0)
    assert (found.own_ns, found.beside, found.has_waited) == (2900, False, True)


def test_loads_that_are_there_before_their_gate_are_not_waited_for() -> None:
    early = [(1, 7, 0, 2, "promoted", 1500, 1400)]
    for wait in ("wait_all", "wait_each"):
        found = one_gate(tables(early, LOADS, wait))
        assert (found.served_ns, found.queued_ns, found.own_ns) == (0, 0, 4000)


@pytest.mark.parametrize(
    ("wait", "idle_ns", "cpu_ns"), [("wait_all", 100, 600), ("wait_each", 0, 700)]
)
def test_the_cpu_is_waited_for_after_what_the_stream_computes(
    wait: str, idle_ns: int, cpu_ns: int
) -> None:
    """A hit and a load of 500 ns each, which comes at 1600; the CPU's last expert is there at 3200.

    Waiting for all, both are computed from 1600 to 2600; else from 1500 to 2500.
    """
    gate: list[Lookup] = [
        (1, 7, 0, 1, "hit", 1500, 1500),
        (1, 7, 0, 2, "miss", 1500, 1600),
        (1, 7, 0, 3, "cpu", 1500, 3200),
        (1, 7, 0, 4, "cpu", 1500, 1700),
        (1, 7, 0, 5, "skip", 1500, -1),
    ]
    found = one_gate(tables(gate, wait=wait, share=0.5))
    assert (found.cpu_ns, found.own_ns) == (cpu_ns, 4000 - cpu_ns - idle_ns)
    assert found.has_waited


def test_a_cpu_that_is_done_first_is_not_waited_for() -> None:
    found = one_gate(tables([(1, 7, 0, 3, "cpu", 1500, 1400)]))
    assert (found.cpu_ns, found.own_ns, found.has_waited) == (0, 4000, False)


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "is_beside"),
    [
        (900, 1000, False),
        (900, 1001, True),
        (1499, 1500, True),
        (1500, 2600, False),
        (1500, 2601, True),
        (4999, 5001, True),
        (5000, 5001, False),
    ],
)
def test_a_copy_is_beside_the_streams_work_but_not_beside_its_wait(
    start_ns: int, end_ns: int, is_beside: bool
) -> None:
    """The stream works from 1000 to its gate at 1500, and from 2600, after its wait, to 5000."""
    wait = [(1, 7, 0, 2, "miss", 1500, 2600)]
    assert one_gate(tables(wait, copies((1, 0, 9, start_ns, end_ns, 1, "x")))).beside == is_beside


def test_a_step_without_work_of_its_own_computes_nothing() -> None:
    steps = ((7, 1500, 2600, 2000),)
    found = one_gate(tables(LATE[1:2], LOADS, steps=steps))
    assert (found.own_ns, found.compute_ns) == (0, 0)


def test_experts_take_no_share_of_the_computing_unless_one_is_given() -> None:
    assert Tables(pl.DataFrame(), NO_COPIES, pl.DataFrame(), "wait_each").expert_share == 0
