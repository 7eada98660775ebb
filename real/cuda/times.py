"""When the work of a compute stream ended: timed events, read when there is time for it.

The events of a GPU have a clock of their own, which drifts. So each is told from the next read-out,
whose end the host has seen: the host's time then, less what passed between the two events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from real.cuda.lanes import Lane
from real.cuda.runtime import Runtime


class Times:
    """The times of all groups of work that ``lane`` is given; a mark stands behind each.

    The lane's events are timed, and most of its marks are these. ``now_ns()`` is the host's time.
    """

    def __init__(self, runtime: Runtime, lane: Lane, now_ns: Callable[[], int]) -> None:
        self._runtime, self._lane, self._now_ns = runtime, lane, now_ns
        self._most_unread = lane.num_events // 2
        self._groups: list[tuple[int, int, int]] = []
        """By group: when it was given, of how many works it is, and its mark."""
        self._end_ns: list[int] = []
        """By group, as far as they have been read."""
        self._read_outs: deque[tuple[int, int]] = deque()
        """By read-out not read yet: how many groups come before it, and when it was seen over."""
        self.last = 0
        """The mark behind everything that was noted since the last read-out; 0: nothing was."""

    def note(self, given_ns: int, works: int) -> None:
        """Mark the end of the group that the lane was just given."""
        groups = self._groups
        if len(groups) - len(self._end_ns) >= self._most_unread:
            self._make_room()
        self.last = mark = self._lane.mark()
        groups.append((given_ns, works, mark))

    def _make_room(self) -> None:
        """Let events be used again: read them, and wait for a read-out where there was none."""
        self.read_all()
        if len(self._groups) - len(self._end_ns) >= self._most_unread:
            self._lane.finish()
            self.read_out(self._now_ns())
            self.read_all()

    def read_out(self, seen_ns: int) -> None:
        """Note that the host has seen ``last`` over at this time."""
        self.last = 0
        self._read_outs.append((len(self._groups), seen_ns))

    def read_one(self) -> bool:
        """Read one event whose time is not known yet; return False if there is none."""
        if not self._read_outs:
            return False
        (until, seen_ns), number, lane = self._read_outs[0], len(self._end_ns), self._lane
        if number + 1 == until:
            self._read_outs.popleft()
            self._end_ns.append(seen_ns)
            return True
        mark, read_out = self._groups[number][2], self._groups[until - 1][2]
        before_ns = self._runtime.elapsed_ns(lane.event_of(mark), lane.event_of(read_out))
        self._end_ns.append(seen_ns - before_ns)
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
        for (given_ns, works, _), told_ns in zip(self._groups, self._end_ns, strict=True):
            begin_ns = max(given_ns, free_ns)
            whole_ns = max(0, told_ns - begin_ns)
            for nth in range(works):
                end_ns = begin_ns + whole_ns * (nth + 1) // works
                found.append((begin_ns + whole_ns * nth // works, end_ns))
            free_ns = begin_ns + whole_ns
        return found
