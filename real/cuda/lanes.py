"""Streams with what is known of their order: how far each has come, and what it is behind.

Everything given to a stream has a place in its order, and a *moment* is such a place. Before a
stream uses memory it is put behind the moment of the memory's last use on another stream. That
costs a call only where the order is not known already: because the host has seen the moment pass,
or because the stream waits for a later moment of the same stream.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from real.cuda.runtime import Event, Runtime

Moment = tuple["Lane", int]
"""What a lane has been given up to a place in its order."""


def is_over(moment: Moment) -> bool:
    """Whether the host has seen that all of it is over."""
    lane, place = moment
    return place <= lane.over


class Events:
    """Events that are made before a run and used again and again."""

    def __init__(self, runtime: Runtime, count: int, *, timed: bool = False) -> None:
        self._runtime, self._timed = runtime, timed
        self.free = [runtime.event(timed=timed) for _ in range(count)]

    def take(self) -> Event:
        """An event that nobody uses; a new one where all are in use."""
        return self.free.pop() if self.free else self._runtime.event(timed=self._timed)

    def give_back(self, event: Event) -> None:
        self.free.append(event)

    def __len__(self) -> int:
        return len(self.free)


@dataclass(eq=False, slots=True)
class Mark:
    """An event recorded behind everything up to ``place``; ``is_kept``: its user gives it back."""

    place: int
    event: Event
    is_kept: bool


class Lane:
    """A stream. Whoever gives it work says so (``note``)."""

    def __init__(self, runtime: Runtime, name: str, events: Events) -> None:
        self._runtime, self._events = runtime, events
        self.stream = runtime.stream(name)
        self.place = 0
        """How many pieces of work it has been given."""
        self.over = 0
        """How many of these the host has seen to be over."""
        self._marks: deque[Mark] = deque()
        self._behind: dict[Lane, int] = {}

    def note(self) -> None:
        """Note that the stream has been given a piece of work."""
        self.place += 1

    @property
    def moment(self) -> Moment:
        return self, self.place

    def mark(self, event: Event | None = None) -> Mark:
        """Record an event behind all that was given so far.

        An ``event`` of the caller's stays the caller's; others come from the lane's own.
        """
        is_kept = event is not None
        if event is None:
            event = self._events.take()
        self._runtime.record(event, self.stream)
        found = Mark(self.place, event, is_kept)
        self._marks.append(found)
        return found

    def follow(self, moment: Moment) -> None:
        """Let what comes next on this lane be done behind a moment of another one."""
        other, place = moment
        if other is self or place <= other.over or place <= self._behind.get(other, 0):
            return
        mark = next((mark for mark in other._marks if mark.place >= place), None) or other.mark()
        self._runtime.wait(self.stream, mark.event)
        self._behind[other] = mark.place

    def has_passed(self, mark: Mark) -> bool:
        """Ask whether a mark's event has ended; then all before it is over, too."""
        if mark.place <= self.over:
            return True
        if not self._runtime.query(mark.event):
            return False
        self._see(mark.place)
        return True

    def ask(self) -> None:
        """Ask for the oldest mark that has not been seen to be over."""
        if self._marks:
            self.has_passed(self._marks[0])

    def finish(self) -> None:
        """Wait until everything given is over."""
        if self.place > self.over:
            mark = self.mark()
            self._runtime.synchronize(mark.event)
            self._see(mark.place)

    @property
    def is_busy(self) -> bool:
        """Whether there are marks that have not been seen to be over."""
        return bool(self._marks)

    def _see(self, place: int) -> None:
        self.over, marks = place, self._marks
        while marks and marks[0].place <= place:
            mark = marks.popleft()
            if not mark.is_kept:
                self._events.give_back(mark.event)
