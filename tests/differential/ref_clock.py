"""The order of events at one instant, on SimPy's clock.

Events of the contract carry their class and number as SimPy priority, far above SimPy's own URGENT
and NORMAL. So whatever SimPy does at an instant to resume processes and to hand over resources is
over before the contract's next event of that instant.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import IntEnum
from typing import Any

import simpy

Process = Generator[simpy.Event, Any, None]


class Rank(IntEnum):
    """Contract C14: the order at equal times; 1 and up, as SimPy's own priorities
    are 0 and 1.

    The compute stream goes on of its own accord (after host time, say) in NEED_DONE: after all that
    arrives.
    """

    TRANSFER = 1
    CPU_DONE = 2
    NEED_DONE = 3
    PREDICTION = 4
    END_SEQUENCE = 5
    GATE = 6
    BEGIN_SEQUENCE = 7


class Moment(simpy.Event):  # type: ignore[misc]  # mypy skips simpy
    """An event that is sure to happen, like a Timeout, but scheduled by whoever makes it."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None


class Clock:
    """A SimPy environment that knows the contract's order, and the log of what was called when."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.calls: list[tuple[int, str, int]] = []

    @property
    def now(self) -> int:
        return int(self.env.now)

    def at(self, rank: Rank, number: int = 0, delay: int = 0) -> simpy.Event:
        """An event of the contract, which takes place after everything of a lower class or
        number at its instant.
        """
        event = Moment(self.env)
        self.env.schedule(event, priority=rank << 48 | number, delay=delay)
        return event

    def say(self, call: str, number: int) -> None:
        self.calls.append((self.now, call, number))
