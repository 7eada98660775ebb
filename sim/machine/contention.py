"""The paces of the parties that share a machine, depending on who else is at work.

A party is the compute stream, the CPU or a link. Its pace is in whole millionths of what it does
alone, so that work left can be counted exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

COMPUTE, CPU, FIRST_LINK = 0, 1, 2
"""Numbers of the parties: the device's compute stream, the host's CPU, then the links in order."""
WHOLE = 1_000_000
"""The pace of a party that works alone."""


class Contention:
    """The pace of every party for each set of parties at work; a set is an int with bit p for p.

    - ``kept``: by (party, rival), the millionths of its pace that a party keeps while the rival
      works. Beside several rivals it keeps the product.
    - ``draws_bytes_per_s``: by party of one shared memory, what it draws at full pace. It asks for no
      more than ``memory_bytes_per_s``, which is all that it could get alone. Where those at work
      together ask for more than that, each gets the same part of what it asks.

    Paces are rounded down to a millionth, once, and are at least one millionth.
    """

    def __init__(
        self,
        links: int,
        kept: Mapping[tuple[int, int], int] | None = None,
        memory_bytes_per_s: float = 0.0,
        draws_bytes_per_s: Mapping[int, float] | None = None,
    ) -> None:
        self.parties = FIRST_LINK + links
        self._kept = dict(kept or {})
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
        pace, whole = WHOLE, 1
        for (slowed, rival), kept in self._kept.items():
            if slowed == party and at_work >> rival & 1:
                pace, whole = pace * kept, whole * WHOLE
        if party in self._draws:
            memory, draws = self._memory_bytes_per_s, self._draws[party]
            asked = sum(
                min(rate, memory) for other, rate in self._draws.items() if at_work >> other & 1
            )
            if draws > memory:
                pace, whole = pace * memory, whole * draws
            if asked > memory:
                pace, whole = pace * memory, whole * asked
        return max(1, pace // whole)
