"""When the work of a compute stream ended: timed events, read when there is time for it.

The events of a GPU have a clock of their own, which drifts. So each is told from the next read-out,
whose end the host has seen: the host's time then, less what passed between the two events.
"""

from __future__ import annotations

from collections import deque

from real.cuda.lanes import Events, Lane, Mark
from real.cuda.runtime import Event, Runtime

Unread = tuple[int, Event, Event, int]
"""A group's number and event, that of the read-out behind it, and when the host saw that over.

The last group before a read-out has its event.
"""


class Times:
    """The times of all groups of work that ``lane`` is given; one event stands behind each."""

    def __init__(self, runtime: Runtime, lane: Lane, events: Events) -> None:
        self._runtime, self._lane, self._events = runtime, lane, events
        self._given: list[tuple[int, int]] = []
        """By group: when it was given, and of how many works it is."""
        self._end_ns: list[int] = []
        self._open: list[Mark] = []
        """The marks of the groups since the last read-out."""
        self._unread: deque[Unread] = deque()

    def note(self, given_ns: int, works: int) -> None:
        """Mark the end of the group that the lane was just given."""
        if not self._events.free:
            self.read_all()
        self._given.append((given_ns, works))
        self._end_ns.append(given_ns)
        self._open.append(self._lane.mark(self._events.take()))

    @property
    def last(self) -> Mark | None:
        """The mark behind everything that was noted since the last read-out."""
        return self._open[-1] if self._open else None

    def read_out(self, seen_ns: int) -> None:
        """Note that the host has seen ``last`` over at this time."""
        marks, number = self._open, len(self._given) - len(self._open)
        read_out = marks[-1].event
        for mark in marks:
            self._unread.append((number, mark.event, read_out, seen_ns))
            number += 1
        self._open = []

    def read_one(self) -> bool:
        """Read one event whose time is not known yet; return False if there is none."""
        if not self._unread:
            return False
        number, event, read_out, seen_ns = self._unread.popleft()
        before_ns = 0 if event is read_out else self._runtime.elapsed_ns(event, read_out)
        self._end_ns[number] = seen_ns - before_ns
        self._events.give_back(event)
        return True

    def read_all(self) -> None:
        while self.read_one():
            pass

    def spans(self) -> list[tuple[int, int]]:
        """Start and end of every work in order; works of one group share its time evenly.

        No work ends before it was given or before the one before it.
        """
        self.read_all()
        found, free_ns = [], 0
        for (given_ns, works), told_ns in zip(self._given, self._end_ns, strict=True):
            begin_ns = max(given_ns, free_ns)
            whole_ns = max(0, told_ns - begin_ns)
            for nth in range(works):
                end_ns = begin_ns + whole_ns * (nth + 1) // works
                found.append((begin_ns + whole_ns * nth // works, end_ns))
            free_ns = begin_ns + whole_ns
        return found
