"""Idle intervals split by hand, nanosecond by nanosecond."""

from __future__ import annotations

import pytest

from sim.record import Record
from sim.stalls import STALL_PARTS, split_stalls

Transfer = tuple[int, int, int, bool]
"""(queued, start, end, prefetch)"""


def split(idle: tuple[int, int, int], *transfers: Transfer) -> dict[str, int]:
    """The parts of one idle interval (start, end, number of the transfer that closed it), without those that are 0."""
    record = Record(
        start_ns=[t[1] for t in transfers], service_end_ns=[t[2] for t in transfers],
        idle_start_ns=[idle[0]], idle_end_ns=[idle[1]], idle_cause=[idle[2]],
    )  # fmt: skip
    parts = split_stalls(record, [t[3] for t in transfers], [t[0] for t in transfers])
    assert tuple(parts) == STALL_PARTS
    assert all(len(ns) == 1 for ns in parts.values())
    return {part: int(ns[0]) for part, ns in parts.items() if ns[0]}


DEMAND, PREFETCH = False, True


def test_waiting_while_the_demand_itself_is_served() -> None:
    assert split((10, 25, 0), (10, 10, 25, DEMAND)) == {"demand": 15}


def test_waiting_for_a_prefetch_that_was_on_its_way() -> None:
    """It has been served since 4; only what falls into the interval counts."""
    assert split((10, 25, 0), (3, 4, 25, PREFETCH)) == {"late_prefetch": 15}


def test_waiting_behind_a_demand_and_a_prefetch_before_the_own_service() -> None:
    """10..12 behind a demand, 12..18 behind a prefetch, 18..25 served."""
    transfers = ((0, 5, 12, DEMAND), (1, 12, 18, PREFETCH), (9, 18, 25, DEMAND))
    assert split((10, 25, 2), *transfers) == {"behind_demand": 2, "behind_prefetch": 6, "demand": 7}


def test_what_the_link_served_before_the_interval_does_not_count() -> None:
    transfers = ((0, 0, 10, DEMAND), (0, 10, 20, PREFETCH), (15, 20, 30, DEMAND))
    assert split((15, 30, 2), *transfers) == {"behind_prefetch": 5, "demand": 10}


def test_a_link_that_served_nothing_wanted_a_slot() -> None:
    """10..12 behind a demand, 12..18 nothing, 18..25 served."""
    assert split((10, 25, 1), (0, 5, 12, DEMAND), (10, 18, 25, DEMAND)) == {
        "behind_demand": 2, "no_slot": 6, "demand": 7,
    }  # fmt: skip


def test_several_intervals_are_split_each_for_itself() -> None:
    record = Record(start_ns=[0, 10], service_end_ns=[10, 30], idle_start_ns=[2, 12], idle_end_ns=[10, 30],
                    idle_cause=[0, 1])  # fmt: skip
    parts = split_stalls(record, [DEMAND, PREFETCH], [0, 5])
    assert parts["demand"].tolist() == [8, 0]
    assert parts["late_prefetch"].tolist() == [0, 18]


def test_no_idle_time_has_no_parts() -> None:
    parts = split_stalls(Record(start_ns=[0], service_end_ns=[10]), [DEMAND], [0])
    assert all(len(ns) == 0 for ns in parts.values())


@pytest.mark.parametrize(
    ("idle", "transfer"),
    [((10, 25, 0), (10, 10, 24, DEMAND)), ((10, 25, 0), (11, 11, 25, DEMAND)), ((10, 25, 0), (0, -1, -1, DEMAND))],
    ids=["ended before", "queued after the interval began", "never ended"],
)
def test_an_interval_that_its_transfer_does_not_explain_is_an_error_not_a_residual(
    idle: tuple[int, int, int], transfer: Transfer
) -> None:
    with pytest.raises(RuntimeError, match=r"idle interval 10\.\.25 ns is not explained by transfer 0"):
        split(idle, transfer)
