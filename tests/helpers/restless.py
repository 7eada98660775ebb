"""A null device that hands over events which are close together in any order, as threads do."""

from __future__ import annotations

import random

from real.driver.device import Event, NullDevice, Turn


class Restless(NullDevice):
    """Hands over events that end within ``close_ns`` in random order; those overtaken come late."""

    def __init__(self, seed: int, close_ns: int) -> None:
        self._random, self._close_ns = random.Random(seed), close_ns
        self.num_swapped = 0

    def _next_event(self) -> Event | None:
        first = super()._next_event()
        if first is None or self._random.random() < 0.7:
            return first
        until_ns = max(first[0][0], self._now_ns) + self._close_ns
        # For one transfer the head still comes before the end, and the end on an outer link before
        # the end on an inner one.
        events = sorted(self._events(), key=lambda event: (event[0][3], event[0]), reverse=True)
        firsts = {event[0][1:3]: event for event in events}
        chosen = self._random.choice(
            [event for event in firsts.values() if event[0][0] <= until_ns]
        )
        self.num_swapped += chosen[0] != first[0]
        return chosen

    def _hand_over(self, event: Event) -> None:
        (time_ns, *rest), do = event
        super()._hand_over(((max(time_ns, self._now_ns), *rest), do))  # type: ignore[arg-type]

    def _pass_to(self, time_ns: int, turn: Turn) -> None:
        super()._pass_to(max(time_ns, self._now_ns), turn)
        self._now_ns = max(time_ns, self._now_ns)
