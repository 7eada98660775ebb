"""The paces of the parties that share a machine, depending on who else is at work.

A party is the compute stream, the CPU or a link. Its pace is in whole millionths of what it does
alone, so that work left can be counted exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMPUTE, CPU, FIRST_LINK = 0, 1, 2
"""Numbers of the parties: the device's compute stream, the host's CPU, then the links in order."""
WHOLE = 1_000_000
"""The pace of a party that works alone."""


class Contention:
    """The pace of every party for each set of parties at work; a set is an int with bit p for p.

    - ``overlapped``: by link, the share of its bandwidth that is left while the compute stream
      works.
    - ``draws_bytes_per_s``: by party of one shared memory, what it draws at full pace. Where those
      at work together draw more than ``memory_bytes_per_s``, all of them are slowed by the same
      factor.

    Paces are rounded down to a millionth, and are at least one millionth.
    """

    def __init__(
        self,
        overlapped: Sequence[float],
        memory_bytes_per_s: float = 0.0,
        draws_bytes_per_s: Mapping[int, float] | None = None,
    ) -> None:
        self.parties = FIRST_LINK + len(overlapped)
        self._overlapped = [round(share * WHOLE) for share in overlapped]
        self._memory_bytes_per_s = int(memory_bytes_per_s)
        self._draws = {party: int(rate) for party, rate in (draws_bytes_per_s or {}).items()}
        self._known: dict[int, tuple[int, ...]] = {}

    def paces(self, at_work: int) -> tuple[int, ...]:
        """The pace of every party, in millionths, while the parties in ``at_work`` work."""
        if at_work not in self._known:
            self._known[at_work] = tuple(
                self._pace(party, at_work) for party in range(self.parties)
            )
        return self._known[at_work]

    def _pace(self, party: int, at_work: int) -> int:
        pace = WHOLE
        if party >= FIRST_LINK and at_work >> COMPUTE & 1:
            pace = self._overlapped[party - FIRST_LINK]
        if party in self._draws:
            drawn = sum(rate for other, rate in self._draws.items() if at_work >> other & 1)
            if drawn > self._memory_bytes_per_s:
                pace = pace * self._memory_bytes_per_s // drawn
        return max(1, pace)
