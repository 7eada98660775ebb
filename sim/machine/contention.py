"""How fast those who share a machine go on while others are at work: exact, in whole millionths
of their own pace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMPUTE, CPU, FIRST_LINK = 0, 1, 2
"""Parties: the device's compute stream, the host's CPU, then the links, by number."""
WHOLE = 1_000_000
"""The pace of who is not held up."""


class Contention:
    """Paces by who is at work, as bits: bit p stands for party p.

    ``overlapped``: by link, the share of its bandwidth that is left while the compute stream works.
    ``draws_bytes_per_s``: by party of one shared memory, what it draws at its own pace; where those
    at work together draw more than ``memory_bytes_per_s``, all of them are slowed by the same
    factor. Paces are rounded down to a millionth, and at least one.
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
        """Of every party, in millionths, while those of ``at_work`` are at work."""
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
