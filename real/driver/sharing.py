"""How engines share one link's bandwidth, computed exactly (contract C58).

The caller passes every time in: this module has no clock.
"""

from __future__ import annotations

from math import lcm


class Sharing:
    """The services under way on a link, and how much work each has left.

    For the first ``latency_ns`` of a service its engine draws no bandwidth. With m engines past
    their latency each does 1/m ns of its work per ns. Work is counted in parts of a ns that make
    every such share a whole number, so nothing is rounded.
    """

    def __init__(self, engines: int) -> None:
        self._unit = lcm(*range(1, engines + 1))
        self._now_ns = 0
        self._left: dict[int, int] = {}
        self._active_from_ns: dict[int, int] = {}

    def begin(self, engine: int, now_ns: int, latency_ns: int, work_ns: int) -> None:
        """Begin a service; alone on the link it would take ``work_ns`` beyond its latency."""
        self.settle(now_ns)
        self._left[engine] = work_ns * self._unit
        self._active_from_ns[engine] = now_ns + latency_ns

    def end(self, engine: int, now_ns: int) -> None:
        """End a service; the others share the bandwidth that it drew."""
        self.settle(now_ns)
        del self._left[engine], self._active_from_ns[engine]

    def settle(self, now_ns: int) -> None:
        """Let time pass up to ``now_ns``."""
        while self._now_ns < now_ns:
            until_ns = min([now_ns, *self._later_starts(self._now_ns)])
            active = self._active(self._now_ns)
            for engine in active:
                done = (until_ns - self._now_ns) * (self._unit // len(active))
                self._left[engine] = max(0, self._left[engine] - done)
            self._now_ns = until_ns

    def end_ns(self, engine: int) -> int:
        """The first whole ns at which a service has nothing left, if none ends or begins before."""
        at_ns, left = self._now_ns, self._left[engine]
        while True:
            active, later = self._active(at_ns), self._later_starts(at_ns)
            if engine in active:
                share = self._unit // len(active)
                end_ns = at_ns - (-left // share)
                if not later or end_ns <= later[0]:
                    return end_ns
                left -= (later[0] - at_ns) * share
            at_ns = later[0]

    def _active(self, at_ns: int) -> list[int]:
        return [engine for engine, from_ns in self._active_from_ns.items() if from_ns <= at_ns]

    def _later_starts(self, after_ns: int) -> list[int]:
        return sorted(from_ns for from_ns in self._active_from_ns.values() if from_ns > after_ns)
