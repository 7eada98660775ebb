"""SimPy's clock and event heap, with alarms that can be set again and again.

Alarms of one instant ring in the order of contract C14, by their priorities.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import simpy

TRANSFER_END, CPU_DONE, NEED_DONE, PREDICTION, SEQUENCE_END, GATE, ARRIVAL = (
    rank << 48 for rank in range(2, 9)
)
"""Priorities of alarms, in the order in which alarms of one instant ring. SimPy's own are 0 and 1.
A number is added to each, such as the transfer's or the gate's, which orders alarms of one kind.
"""
LINKS = 256
"""A transfer's number is multiplied by so many, and the place of its link from the outermost on is added
(`from_outside`): of one transfer the outer link's hop ends first. No route has more links.
"""


class StuckError(RuntimeError):
    """The run has not ended, and no alarm is set."""


Entry = tuple[int, int, int, simpy.Event]
"""An entry of SimPy's heap: time, priority, number, event."""


Ring = Callable[[int], None]
"""What an alarm calls, with the time at which it rings in ns."""


def from_outside(link: int) -> int:
    """The place of a link, of which 0 is the innermost, in the order of a transfer's hops."""
    return LINKS - 1 - link


class Alarm(simpy.Event):  # type: ignore[misc]  # simpy ships no types
    """An event that calls ``callback`` with the time when it rings, and can then be set again."""

    def __init__(self, env: Clock, callback: Ring) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks = [callback]

    def set(self, at_ns: int, priority: int) -> None:
        """Ring at a time. Of alarms at one time the lower priority rings first; of one priority
        the alarm that was set first.
        """
        self.env.put((at_ns, priority, next(self.env.numbers), self))


def _stop(now: int) -> None:
    raise simpy.core.StopSimulation


class Clock(simpy.Environment):  # type: ignore[misc]
    """A SimPy environment for alarms only. They cannot fail, and each keeps its one callback, so
    that the loop needs none of SimPy's checks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self._eid
        self.put: Callable[[Entry], None] = partial(heappush, self._queue)
        """Put an entry on the heap: SimPy's ``schedule``, for a time instead of a delay."""
        self.due: list[Entry] = self._queue
        """The heap itself: what is due first is its first entry."""

    def run(self, until: simpy.Event) -> None:
        """Ring the alarms in order until ``until`` does. Raise StuckError if none is left."""
        queue, pop = self._queue, heappop
        until.callbacks.append(_stop)
        try:
            # CPython 3.11 makes a loop faster after some rounds, but not one that ends by its condition.
            while True:
                if not queue:
                    break
                now, _, _, alarm = pop(queue)
                self._now = now
                alarm.callbacks[0](now)
        except simpy.core.StopSimulation:
            return
        raise StuckError("nothing is due any more, and the run has not ended")
