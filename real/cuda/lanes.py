"""Streams with what is known of their order: how far each has come, and what it is behind.

A lane's events are recorded in turn, and each such *mark* has a number, from 1 on. A *moment* is a
lane and a number: all that the lane was given before that mark. Before a stream uses memory it is
put behind the moment of the memory's last use on another stream. That costs a call only where the
order is not known already: because the host has seen the moment pass, or because the stream waits
for a later moment of the same stream.
"""

from __future__ import annotations

from real.cuda.runtime import Event, Runtime

Moment = tuple["Lane", int]
"""What a lane was given before the mark of a number, which may be still to come."""


def is_over(moment: Moment) -> bool:
    """Whether the host has seen that all of it is over."""
    lane, number = moment
    return number <= lane.over


class Lane:
    """A stream, and events that are made before a run and used again and again.

    An event has its next use ``num_events`` marks later. Whoever asks or waits for an older mark
    then asks for more work than it must: that is late, and never wrong.
    """

    def __init__(
        self, runtime: Runtime, name: str, num_events: int = 64, *, timed: bool = False
    ) -> None:
        self._runtime = runtime
        self._record, self._query = runtime.record, runtime.query
        self.stream = runtime.stream(name)
        self._events = [runtime.event(timed=timed) for _ in range(num_events)]
        self.num_events = num_events
        self.marked = 0
        """The number of the last mark."""
        self.over = 0
        """The number of the last mark that the host has seen to be over."""
        self._behind: dict[Lane, int] = {}

    @property
    def moment(self) -> Moment:
        """All that the lane has been given by its next mark: what it has been given so far, too."""
        return self, self.marked + 1

    def event_of(self, number: int) -> Event:
        """The event of a mark."""
        return self._events[number % self.num_events]

    def mark(self) -> int:
        """Record an event behind all that was given so far; return the mark's number."""
        self.marked = number = self.marked + 1
        self._record(self._events[number % self.num_events], self.stream)
        return number

    def follow(self, moment: Moment) -> None:
        """Let what comes next on this lane be done behind a moment of another one."""
        other, number = moment
        if other is self or number <= other.over or number <= self._behind.get(other, 0):
            return
        if number > other.marked:
            other.mark()
        self._runtime.wait(self.stream, other.event_of(number))
        self._behind[other] = number

    def has_passed(self, number: int) -> bool:
        """Ask whether a mark that was made is over; then all before it is over, too."""
        if number <= self.over:
            return True
        if not self._query(self._events[number % self.num_events]):
            return False
        self.over = number
        return True

    def ask(self) -> None:
        """Ask for the oldest mark that has not been seen to be over."""
        if self.is_busy:
            self.has_passed(self.over + 1)

    def finish(self) -> None:
        """Wait until everything given is over."""
        number = self.mark()
        self._runtime.synchronize(self.event_of(number))
        self.over = number

    @property
    def is_busy(self) -> bool:
        """Whether there are marks that have not been seen to be over."""
        return self.over < self.marked
