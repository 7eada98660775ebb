"""What is known of the order of streams, and what that saves; and times told from a read-out."""

from __future__ import annotations

import pytest

from helpers.fake_runtime import FakeEvent, FakeRuntime, OrderError
from helpers.lanes import lane_of
from real.cuda.lanes import Lane
from real.cuda.times import Times


class Waits(FakeRuntime):
    def __init__(self, late: int = 0) -> None:
        super().__init__(strict=True, late=late)
        self.waits = 0

    def wait(self, stream: object, event: FakeEvent) -> None:
        self.waits += 1
        super().wait(stream, event)  # type: ignore[arg-type]


def worked(runtime: FakeRuntime, lane: Lane, memory: object) -> None:
    runtime.run(lane.stream, lambda: None, writes=[memory])  # type: ignore[list-item]


def test_a_lane_waits_once_for_all_that_one_mark_covers() -> None:
    runtime = Waits()
    first, second = lane_of(runtime, "first"), lane_of(runtime, "second")
    memory, moments = [runtime.allocate(8) for _ in range(2)], []
    for one in memory:
        worked(runtime, first, one)
        moments.append(first.moment)
    second.follow(moments[1])
    second.follow(moments[0])
    assert runtime.waits == 1
    for one in memory:
        worked(runtime, second, one)


def test_what_the_host_has_seen_over_needs_no_wait() -> None:
    runtime = Waits(late=2)
    first, second, memory = lane_of(runtime, "1"), lane_of(runtime, "2"), runtime.allocate(8)
    worked(runtime, first, memory)
    moment, mark = first.moment, first.mark()
    assert [first.has_passed(mark) for _ in range(3)] == [False, False, True]
    second.follow(moment)
    worked(runtime, second, memory)
    assert runtime.waits == 0


def test_what_follows_too_early_a_moment_is_found() -> None:
    runtime = FakeRuntime(strict=True)
    first, second, memory = lane_of(runtime, "1"), lane_of(runtime, "2"), runtime.allocate(8)
    moment = first, first.mark()
    worked(runtime, first, memory)
    second.follow(moment)
    with pytest.raises(OrderError, match="2 writes memory that stream 1 may still be writing"):
        worked(runtime, second, memory)


def test_events_are_made_once_and_used_in_turn_whether_or_not_the_host_has_asked() -> None:
    """Seven marks of two events: who waits for an old mark waits for the one that took its event."""
    runtime = Waits()
    first, second, memory = Lane(runtime, "1", 2), lane_of(runtime, "2"), runtime.allocate(8)
    events = {id(first.event_of(number)) for number in range(7)}
    assert len(events) == 2
    worked(runtime, first, memory)
    moment = first.moment
    for _ in range(7):
        first.mark()
    second.follow(moment)
    worked(runtime, second, memory)
    assert runtime.waits == 1
    assert first.has_passed(first.marked)
    assert not first.is_busy


class Clocked(FakeRuntime):
    """Every event is recorded 10 ns after the one before."""

    def record(self, event: FakeEvent, stream: object) -> None:
        self.time_ns += 10
        super().record(event, stream)  # type: ignore[arg-type]


def test_times_are_told_from_the_read_out_and_works_of_one_launch_share_theirs() -> None:
    """The GPU's clock reads 10, 20 and 30; the host sees the third event over at 1000."""
    runtime = Clocked(strict=True)
    lane = Lane(runtime, "lane", 6, timed=True)
    times = Times(runtime, lane, lambda: pytest.fail("there is room for three groups"))
    for given_ns, works in ((950, 1), (960, 2), (975, 1)):
        times.note(given_ns, works)
    assert times.last == 3
    assert lane.has_passed(times.last)
    times.read_out(1000)
    assert times.last == 0
    assert times.spans() == [(950, 980), (980, 985), (985, 990), (990, 1000)]


def test_no_work_ends_before_it_was_given_whatever_the_clocks_say() -> None:
    runtime = Clocked(strict=True)
    times = Times(runtime, lane_of(runtime, "lane"), lambda: 0)
    for given_ns in (998, 999):
        times.note(given_ns, 1)
    times.read_out(1000)
    assert times.spans() == [(998, 998), (999, 1000)]


def test_where_events_run_out_the_host_waits_and_no_time_is_lost() -> None:
    """Of four events two may be unread, so the third group and the fifth come behind a wait."""
    runtime = Clocked(strict=True)
    times = Times(runtime, lane_of(runtime, "lane"), lambda: runtime.time_ns + 100)
    for number in range(5):
        times.note(100 + 10 * number, 1)
    times.read_out(runtime.time_ns + 100)
    assert [end_ns for _, end_ns in times.spans()] == [120, 130, 150, 160, 170]
