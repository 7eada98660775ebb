"""What moved over links: rows, bytes, shares of cut services, and busy times, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.told import DEMAND, DENSE, PREFETCH, Sent, Service, one, recorded
from sim.machine.durations import FixedDurations
from sim.results.transfer_frames import Services, Traffic
from sim.values.types import PrefetchOutcome

HOPS = {size: 10 + 2 * size for size in range(200)}
"""The time of a hop by bytes: 10 ns without bytes, and 2 ns a byte."""
DURATIONS = FixedDurations((), 0, (), (HOPS, HOPS), latency_ns=(10, 10))
KEY_BYTES = [3, 5, 7, 11, 13]


def traffic(*sent: Sent, makespan: int = 1000, links: Sequence[str] = ("near", "far")) -> Traffic:
    record, issued = recorded([], sent)
    record.makespan_ns = makespan
    controller: Any = SimpleNamespace(
        issued=issued,
        loader=SimpleNamespace(write_back=any(one.write_back for one in sent)),
        slots=SimpleNamespace(key_bytes=KEY_BYTES),
        route=SimpleNamespace(ends=1),
    )
    return Traffic(controller, DURATIONS, record, links)


# Contracts: C104
def test_a_hop_has_a_row_with_its_own_link_and_times() -> None:
    mine = Sent(DEMAND, ((1, 8), (0, 18)), (Service(8, 18, link=1, moved=13), Service(19, 25)))
    other = Sent(PREFETCH, ((0, 4),), (Service(5, 9),), outcome=int(PrefetchOutcome.USED))
    assert traffic(mine, other).table.rows() == [
        (0, "far", 0, 0, "demand", 13, 8, 8, 18, None, "loaded"),
        (0, "near", 1, 0, "demand", 3, 18, 19, 25, None, "loaded"),
        (1, "near", 0, 1, "prefetch", 3, 4, 5, 9, None, "used"),
    ]


def test_a_dense_block_is_of_a_class_of_its_own_and_what_is_evicted_stands_with_the_last_hop() -> (
    None
):
    block = one(DENSE, 1, 2, 9)
    mine = Sent(
        DEMAND, ((1, 8), (0, 18)), (Service(8, 18, link=1), Service(18, 25)), write_back=(4, 2)
    )
    table = traffic(block, mine).table
    assert table["class"].to_list() == ["dense", "demand", "demand"]
    assert table["outcome"].to_list() == ["loaded"] * 3
    assert table["victim"].to_list() == [None, None, 4]


def test_a_transfer_that_was_cut_has_the_bytes_of_all_its_services_from_the_first_to_the_last() -> (
    None
):
    cut = Sent(PREFETCH, ((0, 3),), (Service(4, 12, moved=2), Service(16, 25, moved=9)))
    (row,) = traffic(cut).table.select("moved_bytes", "start_ns", "end_ns").rows()
    assert row == (11, 4, 25)


def test_what_the_end_of_the_run_cuts_has_moved_its_share_rounded_down() -> None:
    """50 B take 110 ns; of 70 ns served they are 50 * 70 / 110 = 31.8.

    What has not begun has moved nothing.
    """
    begun = Sent(PREFETCH, ((0, 900),), (Service(930, None, moved=50),))
    waiting = Sent(PREFETCH, ((0, 950),))
    table = traffic(begun, waiting).table
    assert table.select("moved_bytes", "start_ns", "end_ns").rows() == [
        (31, 930, 1000),
        (0, 1000, 1000),
    ]


def test_a_hop_that_was_handed_on_and_not_begun_has_moved_nothing() -> None:
    mine = Sent(DEMAND, ((1, 900), (0, 990)), (Service(900, 990, link=1, moved=40),))
    assert traffic(mine).table.select("link", "moved_bytes", "start_ns", "end_ns").rows() == [
        ("far", 40, 900, 990),
        ("near", 0, 1000, 1000),
    ]


def test_bytes_are_summed_by_link_and_class() -> None:
    mine = Sent(DEMAND, ((1, 8), (0, 18)), (Service(8, 18, link=1, moved=13), Service(19, 25)))
    bytes_by_link = traffic(
        mine, one(PREFETCH, 30, 30, 40), one(DENSE, 40, 40, 50), one(DEMAND, 50, 50, 60)
    ).bytes_by_link()
    assert bytes_by_link == {
        "near": {"demand": 6, "prefetch": 3, "dense": 3, "write_back": 0, "activation": 0},
        "far": {"demand": 13, "prefetch": 0, "dense": 0, "write_back": 0, "activation": 0},
    }


def test_prefetches_waste_what_nobody_found_on_the_links_that_reach_devices() -> None:
    """One for each outcome, apart by their bytes. What crosses the outer link only is not, nor is
    what a demand or a dense block moves, whatever outcome stands in it.
    """
    inner = [
        Sent(PREFETCH, ((0, 4),), (Service(5, 9, moved=1 << outcome),), outcome=int(outcome))
        for outcome in PrefetchOutcome
    ]
    dropped = int(PrefetchOutcome.DROPPED)
    outer = Sent(PREFETCH, ((1, 8),), (Service(8, 18, link=1, moved=1 << 20),), outcome=dropped)
    others = [
        Sent(kind, ((0, 8),), (Service(8, 18, moved=1 << 21),), outcome=dropped)
        for kind in (DEMAND, DENSE)
    ]
    assert traffic(*inner, outer, *others).wasted_bytes() == (
        (1 << PrefetchOutcome.EVICTED_UNUSED)
        + (1 << PrefetchOutcome.UNUSED_AT_END)
        + (1 << PrefetchOutcome.DROPPED)
    )


def test_what_is_written_back_counts_beside_what_is_brought() -> None:
    """Keys 1 and 3 have 5 and 11 B; cut at 21 of 16 + 20 + 32 = 68 ns: 21 / 68 of 3 and of 16 B."""
    whole = one(DEMAND, 0, 0, 68, write_back=(1, 3))
    assert traffic(whole).bytes_by_link()["near"]["write_back"] == 16
    cut = traffic(one(DEMAND, 0, 979, None, write_back=(1, 3)))
    assert cut.bytes_by_link()["near"] == {
        "demand": 0,
        "prefetch": 0,
        "dense": 0,
        "write_back": 4,
        "activation": 0,
    }


def test_a_link_is_busy_while_any_of_its_engines_serves() -> None:
    """10..30 and 20..50 on two engines, 60..70: 50 ns; the other link 5 ns."""
    sent = (
        Sent(DEMAND, ((0, 0),), (Service(10, 30, engine=0),)),
        Sent(DEMAND, ((0, 0),), (Service(20, 50, engine=1),)),
        Sent(DEMAND, ((0, 0),), (Service(25, 28, engine=2),)),
        Sent(DEMAND, ((0, 0),), (Service(60, 70, engine=0),)),
        Sent(DEMAND, ((1, 0),), (Service(20, 25, link=1),)),
    )
    assert traffic(*sent).busy_ns() == {"near": 50, "far": 5}


def test_a_run_without_transfers_has_moved_nothing() -> None:
    empty = traffic(links=("near",))
    assert empty.table.is_empty()
    assert empty.busy_ns() == {"near": 0}
    assert empty.bytes_by_link() == {
        "near": dict.fromkeys(("demand", "prefetch", "dense", "write_back", "activation"), 0)
    }


def test_of_a_cut_service_whose_rest_is_known_the_rest_is_left() -> None:
    """50 B and two victims of 5 and 11 B take 110 + 20 + 32 = 162 ns; 62 of them are left. Of link
    1 the victims are none of its work: 10 B take 30 ns, and 31 are left.
    """
    cut = Sent(
        DEMAND,
        ((1, 900), (0, 910)),
        (Service(900, None, link=1, moved=10), Service(930, None, moved=50)),
        write_back=(1, 3),
    )
    told = traffic(cut)
    told.record.service_left_ns.update({0: 31, 1: 62})
    assert told.services.moved_bytes.tolist() == [0, 50 * 100 // 162]
    assert told.services.written_bytes.tolist() == [0, 16 * 100 // 162]
    told = traffic(cut)
    told.record.service_left_ns.update({0: 12, 1: 162})
    assert told.services.moved_bytes.tolist() == [10 * 18 // 30, 0]


def test_who_shares_a_link_with_an_engine_until_it_ends_leaves_it_alone_from_then_on() -> None:
    """Row 0 is alone 10..30 and from 36 on, and row 1 shares 30..36; row 2 never began to move."""
    number = np.array([0, 1, 2])
    services = Services(
        number,
        np.zeros(3, np.int64),
        number,
        np.array([0, 20, 25]),
        np.array([40, 36, 33]),
        number,
        number,
    )
    assert services.progress_ns(0, 10, 40) == 10 + 20 + Fraction(6, 2) + 4
    assert services.progress_ns(1, 10, 36) == 10 + Fraction(6, 2)


@pytest.mark.parametrize(
    ("row", "until", "done"),
    [
        (0, 40, Fraction(10 + 20 + 5)),
        (1, 40, Fraction(10 + 5)),
        (0, 8, Fraction(8)),
        (2, 100, Fraction(10 + 40)),
    ],
    ids=[
        "alone, then shared",
        "shared from the end of its latency on",
        "still in its latency",
        "the other link",
    ],
)
def test_engines_past_their_latency_share_the_link(row: int, until: int, done: Fraction) -> None:
    """The latency is 10.

    Engine 0 serves from 0, alone 10..30. Engine 1 serves from 20 and is past its latency at 30;
    they share 30..40 in halves.
    """
    number = np.array([0, 1, 2])
    services = Services(
        number,
        np.array([0, 0, 1]),
        np.array([0, 1, 0]),
        np.array([0, 20, 50]),
        np.array([until] * 3),
        number,
        number,
    )
    assert services.progress_ns(row, 10, until) == done
