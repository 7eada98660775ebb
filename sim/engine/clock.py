"""SimPy's clock and event heap, for events that ring again and again, and their order at equal
times.

See contract C14.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import simpy

TRANSFER_END, CPU_DONE, NEED_DONE, PREDICTION, SEQUENCE_END, GATE, ARRIVAL = (
    rank << 48 for rank in range(2, 9)
)
"""Priorities above SimPy's own (0 and 1), in the order of equal times; a number is added."""


class StuckError(RuntimeError):
    """Everything waits for something that nobody will do."""


Entry = tuple[int, int, int, simpy.Event]
"""As it lies on SimPy's heap: time, priority, number, event."""


class Alarm(simpy.Event):  # type: ignore[misc]  # simpy ships no types
    """An event that rings ``callback`` and can then be set again. ``at_ns``: when it rings, or
    rang.
    """

    def __init__(self, env: Clock, callback: Callable[[Alarm], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks = [callback]
        self.at_ns = -1

    def set(self, at_ns: int, priority: int) -> None:
        """Ring at a time; of equal times the lower priority comes first, then what was set
        before.
        """
        self.at_ns = at_ns
        self.env.put((at_ns, priority, next(self.env.numbers), self))


class Clock(simpy.Environment):  # type: ignore[misc]
    """An environment of alarms: they cannot fail and keep their one callback, so the loop is
    bare.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self._eid
        self.put: Callable[[Entry], None] = partial(heappush, self._queue)
        """``schedule`` for a time instead of a delay, in one piece."""

    def run(self, until: simpy.Event) -> None:
        """Ring what is due, in order, until ``until`` does."""
        queue, pop = self._queue, heappop
        until.callbacks.append(simpy.core.StopSimulation.callback)
        try:
            while queue:
                self._now, _, _, event = pop(queue)
                event.callbacks[0](event)
        except simpy.core.StopSimulation:
            return
        raise StuckError("nothing is due any more, and the run has not ended")
