"""Idle intervals split by hand, nanosecond by nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.told import DEMAND, DENSE, PREFETCH, Sent, Service, one, recorded
from sim.core.issued import Issued
from sim.machine.durations import FixedDurations
from sim.results.stalls import STALL_PARTS, Walk, split_stalls
from sim.values.record import CPU_RESULT, HOST_TIME, NO_REQUEST, Record

WRITE_BACK_NS = {3: 5}
"""The time of hop(0, bytes) for a victim of 3 B."""
KEY_BYTES = [3] * 10
DURATIONS = FixedDurations((), 0, (), WRITE_BACK_NS)


def split(idle: tuple[int, int, int], *sent: Sent) -> dict[str, int]:
    """The parts of one idle interval (start, end, cause), without those that are 0.

    The walk back and the plain arithmetic must split it alike.
    """
    record, issued = recorded([idle], sent)
    parts = split_stalls(record, issued, DURATIONS, KEY_BYTES)
    assert tuple(parts) == STALL_PARTS
    assert all(len(ns) == 1 for ns in parts.values())
    assert sum(int(ns[0]) for ns in parts.values()) == idle[1] - idle[0]
    return {part: int(ns[0]) for part, ns in parts.items() if ns[0]}


# One link, one service a transfer


def test_waiting_while_the_demand_itself_is_served() -> None:
    assert split((10, 25, 0), one(DEMAND, 10, 10, 25)) == {"demand": 15}


def test_waiting_for_a_prefetch_that_was_on_its_way() -> None:
    """It has been served since 4; only what falls into the interval counts."""
    assert split((10, 25, 0), one(PREFETCH, 3, 4, 25)) == {"late_prefetch": 15}


# Contracts: C55
def test_a_prefetch_that_was_urgent_when_its_service_began_counts_as_a_demand() -> None:
    urgent = Sent(PREFETCH, ((0, 3),), (Service(12, 25, urgent=True),))
    assert split((10, 25, 1), one(DEMAND, 0, 5, 12), urgent) == {"behind_demand": 2, "demand": 13}


# Contracts: C72
def test_waiting_behind_a_demand_and_a_prefetch_before_the_own_service() -> None:
    """10..12 behind a demand, 12..18 behind a prefetch, 18..25 served."""
    sent = (one(DEMAND, 0, 5, 12), one(PREFETCH, 1, 12, 18), one(DEMAND, 9, 18, 25))
    assert split((10, 25, 2), *sent) == {"behind_demand": 2, "behind_prefetch": 6, "demand": 7}


def test_behind_an_urgent_prefetch_is_behind_a_demand_and_so_is_behind_a_dense_block() -> None:
    urgent = Sent(PREFETCH, ((0, 0),), (Service(5, 12, urgent=True),))
    sent = (urgent, one(DENSE, 1, 12, 18), one(DEMAND, 9, 18, 25))
    assert split((10, 25, 2), *sent) == {"behind_demand": 8, "demand": 7}


def test_what_the_link_served_before_the_interval_does_not_count() -> None:
    sent = (one(DEMAND, 0, 0, 10), one(PREFETCH, 0, 10, 20), one(DEMAND, 15, 20, 30))
    assert split((15, 30, 2), *sent) == {"behind_prefetch": 5, "demand": 10}


def test_a_link_that_served_nothing_wanted_a_slot() -> None:
    """10..12 behind a demand, 12..18 nothing, 18..25 served."""
    assert split((10, 25, 1), one(DEMAND, 0, 5, 12), one(DEMAND, 10, 18, 25)) == {
        "behind_demand": 2,
        "no_slot": 6,
        "demand": 7,
    }


def test_several_intervals_are_split_each_for_itself() -> None:
    record, issued = recorded(
        [(2, 10, 0), (12, 30, 1)], (one(DEMAND, 0, 0, 10), one(PREFETCH, 5, 10, 30))
    )
    parts = split_stalls(record, issued, DURATIONS, KEY_BYTES)
    assert parts["demand"].tolist() == [8, 0]
    assert parts["late_prefetch"].tolist() == [0, 18]


def test_no_idle_time_has_no_parts() -> None:
    record, issued = recorded([], [one(DEMAND, 0, 0, 10)])
    assert all(len(ns) == 0 for ns in split_stalls(record, issued, DURATIONS, KEY_BYTES).values())
    assert all(
        len(ns) == 0 for ns in split_stalls(Record(), Issued(), DURATIONS, KEY_BYTES).values()
    )


# What is no transfer


# Contracts: C71
@pytest.mark.parametrize(
    ("cause", "part"), [(CPU_RESULT, "cpu_join"), (HOST_TIME, "host"), (NO_REQUEST, "no_request")]
)
def test_what_no_transfer_ended_is_one_part_as_a_whole(cause: int, part: str) -> None:
    assert split((10, 25, cause)) == {part: 15}


# Contracts: C71
def test_a_dense_block_is_one_part_as_a_whole_its_queue_included() -> None:
    assert split((10, 25, 1), one(DEMAND, 0, 5, 15), one(DENSE, 1, 15, 25)) == {"dense": 15}


# Several engines


def test_only_the_engine_that_was_then_used_counts() -> None:
    """Engine 1 serves a prefetch until 18, then the demand.

    Engine 0 serves a demand until 20, for which nobody here waits.
    """
    busy = Sent(DEMAND, ((0, 0),), (Service(4, 20, engine=0),))
    before = Sent(PREFETCH, ((0, 1),), (Service(5, 18, engine=1),))
    mine = Sent(DEMAND, ((0, 9),), (Service(18, 25, engine=1),))
    assert split((10, 25, 2), busy, before, mine) == {"behind_prefetch": 8, "demand": 7}


# Chunks


def test_a_prefetch_that_was_cut_waited_behind_what_it_gave_way_to() -> None:
    """Served 4..12 and 16..25; cut for a demand 12..16."""
    cut = Sent(PREFETCH, ((0, 3),), (Service(4, 12), Service(16, 25)))
    assert split((10, 25, 0), cut, one(DEMAND, 11, 12, 16)) == {
        "late_prefetch": 2 + 9,
        "behind_demand": 4,
    }


def test_a_prefetch_that_became_urgent_while_it_was_cut_is_a_demand_from_then_on() -> None:
    cut = Sent(PREFETCH, ((0, 3),), (Service(4, 12), Service(16, 25, urgent=True)))
    assert split((10, 25, 0), cut, one(DEMAND, 11, 12, 16)) == {
        "late_prefetch": 2,
        "behind_demand": 4,
        "demand": 9,
    }


def test_a_demand_waits_for_the_chunk_in_front_of_it() -> None:
    cut = Sent(PREFETCH, ((0, 3),), (Service(4, 12), Service(25, 40)))
    assert split((10, 25, 1), cut, one(DEMAND, 10, 12, 25)) == {"behind_prefetch": 2, "demand": 13}


# Routes


# Contracts: C72
def test_a_hop_before_the_last_is_storage() -> None:
    """Queued on link 1 at 8, read 8..18, on to link 0 at 18, moved 18..25."""
    mine = Sent(DEMAND, ((1, 8), (0, 18)), (Service(8, 18, link=1), Service(18, 25)))
    assert split((10, 25, 0), mine) == {"storage": 8, "demand": 7}


def test_queues_on_every_link_count_by_what_was_served_there() -> None:
    """Link 1: a prefetch 0..13, mine 13..18; link 0: a demand 16..20, mine 20..25."""
    first = Sent(PREFETCH, ((1, 0),), (Service(0, 13, link=1),))
    other = Sent(DEMAND, ((0, 15),), (Service(16, 20),))
    mine = Sent(DEMAND, ((1, 9), (0, 18)), (Service(13, 18, link=1), Service(20, 25)))
    assert split((10, 25, 2), first, other, mine) == {
        "behind_prefetch": 3,
        "storage": 5,
        "behind_demand": 2,
        "demand": 5,
    }


def test_a_link_on_the_way_that_served_nothing_wanted_a_slot_too() -> None:
    """There is no room in RAM until 14; it is read 14..18."""
    mine = Sent(DEMAND, ((1, 9), (0, 18)), (Service(14, 18, link=1), Service(18, 25)))
    assert split((10, 25, 0), mine) == {"no_slot": 4, "storage": 4, "demand": 7}


def test_a_late_prefetch_is_late_on_its_last_hop_and_storage_before() -> None:
    mine = Sent(PREFETCH, ((1, 3), (0, 18)), (Service(4, 18, link=1), Service(18, 25)))
    assert split((10, 25, 0), mine) == {"storage": 8, "late_prefetch": 7}


def test_with_cut_through_a_service_is_storage_up_to_where_it_handed_on() -> None:
    """It is read 8..22, and its head is through at 15.

    Link 0 moves it 16..25, after a demand that takes until 16.
    """
    other = Sent(DEMAND, ((0, 9),), (Service(9, 16),))
    mine = Sent(DEMAND, ((1, 8), (0, 15)), (Service(8, 22, link=1), Service(16, 25)))
    assert split((10, 25, 1), other, mine) == {"storage": 5, "behind_demand": 1, "demand": 9}


def test_three_links_are_walked_back_one_after_another() -> None:
    mine = Sent(
        DEMAND,
        ((2, 5), (1, 12), (0, 20)),
        (Service(6, 12, link=2), Service(13, 20, link=1), Service(20, 25)),
    )
    assert split((10, 25, 0), mine) == {"storage": 2 + 7, "no_slot": 1, "demand": 5}


# Partial moves, write-back


# Contracts: C72
def test_the_rest_of_a_partial_move_goes_on_with_the_prefetch_that_it_completes() -> None:
    """The prefetch arrives at 14; its rest waits for a demand until 17, and is there at 25."""
    part, other = one(PREFETCH, 2, 3, 14), one(DEMAND, 9, 14, 17)
    rest = one(DEMAND, 14, 17, 25, parent=0)
    assert split((10, 25, 2), part, other, rest) == {
        "late_prefetch": 4,
        "behind_demand": 3,
        "demand": 8,
    }


def test_the_rest_that_was_queued_at_the_gate_needs_no_parent() -> None:
    assert split((10, 25, 1), one(PREFETCH, 2, 3, 8), one(DEMAND, 10, 10, 25, parent=0)) == {
        "demand": 15
    }


def test_what_a_late_prefetch_writes_back_counts_as_a_demand() -> None:
    """There are two victims of 5 ns: it is served 12..40, the first 10 ns for them.

    In another case the interval begins within these 10 ns.
    """
    mine = one(PREFETCH, 3, 12, 40, write_back=(7, 8))
    assert split((10, 40, 0), mine) == {"no_slot": 2, "demand": 10, "late_prefetch": 18}
    assert split((15, 40, 0), mine) == {"demand": 7, "late_prefetch": 18}
    assert split((30, 40, 0), mine) == {"late_prefetch": 10}


def test_what_a_demand_writes_back_is_a_demand_like_itself() -> None:
    assert split((10, 40, 0), one(DEMAND, 3, 12, 40, write_back=(7,))) == {
        "no_slot": 2,
        "demand": 28,
    }


# No residual


# Contracts: C72
@pytest.mark.parametrize(
    "sent",
    [
        one(DEMAND, 10, 10, 24),
        one(DEMAND, 11, 11, 25),
        one(DEMAND, 0, 5, None),
        Sent(DEMAND, ((0, 5),)),
        Sent(DEMAND, ((1, 11), (0, 15)), (Service(11, 15, link=1), Service(15, 25))),
        Sent(DEMAND, ((1, 5), (0, 15)), (Service(5, 15, link=1),)),
    ],
    ids=[
        "ended before",
        "queued after the interval began",
        "never ended",
        "never served",
        "queued outside after the interval began",
        "never served on the last link",
    ],
)
def test_an_interval_that_its_transfer_does_not_explain_is_an_error_not_a_residual(
    sent: Sent,
) -> None:
    with pytest.raises(
        RuntimeError, match=r"idle interval 10\.\.25 ns is not explained by transfer 0 \(queued on"
    ):
        split((10, 25, 0), sent)


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (Sent(DEMAND, ((0, 5),)), "(queued on link 0 at 5; served never ns)"),
        (
            Sent(
                DEMAND,
                ((1, 5), (0, 15)),
                (Service(6, 15, link=1), Service(16, 20), Service(30, None)),
            ),
            "(queued on link 1 at 5, on link 0 at 15; served 6..15, 16..20, 30..cut ns)",
        ),
    ],
)
def test_the_error_tells_where_a_transfer_was_queued_and_when_it_was_served(
    mine: Sent, told: str
) -> None:
    other = one(DEMAND, 0, 1, 4)
    with pytest.raises(RuntimeError) as error:
        split((10, 25, 1), other, mine)
    assert str(error.value) == (f"idle interval 10..25 ns is not explained by transfer 1 {told}")


def test_a_rest_whose_prefetch_ended_at_another_time_explains_nothing() -> None:
    with pytest.raises(RuntimeError, match="not explained by transfer 1"):
        split((10, 25, 1), one(PREFETCH, 2, 3, 13), one(DEMAND, 14, 17, 25, parent=0))


# Both ways


@pytest.mark.parametrize("seed", range(20))
def test_walking_back_and_the_plain_arithmetic_agree(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One link, 40 transfers with pauses.

    Every transfer ends an interval that began after it was queued.
    """
    rng = np.random.default_rng(seed)
    sent, idle, free = [], [], 0
    for number in range(40):
        queued = int(rng.integers(max(0, free - 30), free + 5))
        start = max(queued, free) + int(rng.choice([0, 0, 3]))
        end = start + int(rng.integers(1, 20))
        sent.append(one([DEMAND, PREFETCH][int(rng.integers(2))], queued, start, end))
        idle.append((int(rng.integers(queued, end)), end, number))
        free = end
    record, issued = recorded(idle, sent)
    parts = split_stalls(record, issued, DURATIONS, KEY_BYTES)
    prepare = Walk.__init__

    def nothing_is_plain(self: Walk, *args: Any) -> None:
        prepare(self, *args)
        self.is_plain = np.zeros(len(issued), np.bool_)

    monkeypatch.setattr(Walk, "__init__", nothing_is_plain)
    again = split_stalls(record, issued, DURATIONS, KEY_BYTES)
    for part in STALL_PARTS:
        assert parts[part].tolist() == again[part].tolist(), part
    assert sum(int(ns.sum()) for ns in parts.values()) == sum(end - start for start, end, _ in idle)
