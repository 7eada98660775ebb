"""Events that ring and can be set again, and their order at equal times (docs/design.md section 3)."""

from __future__ import annotations

from collections.abc import Callable

import simpy

TRANSFER_END, CPU_DONE, NEED_DONE, PREDICTION, SEQUENCE_END, GATE, ARRIVAL = (rank << 48 for rank in range(2, 9))
"""Priorities above SimPy's own (0 and 1), in the order of equal times; a number is added."""


class Alarm(simpy.Event):  # type: ignore[misc]  # simpy ships no types
    """An event that rings ``callback`` and can then be set again. ``at_ns``: when it rings, or rang."""

    def __init__(self, env: simpy.Environment, callback: Callable[[Alarm], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.ring = [callback]
        self.at_ns = -1

    def set(self, now: int, at_ns: int, priority: int) -> None:
        self.at_ns = at_ns
        self.callbacks = self.ring
        self.env.schedule(self, priority, at_ns - now)
