"""Engines of a link with a pace of their own, and variants read projection by projection.

Contracts C165 to C167 say what that means. A machine whose links have none is served as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

from sim.machine.contention import WHOLE
from sim.values.units import NS_PER_S

UNITS = ("variant", "projection")
"""What an engine serves at a time."""


@dataclass(frozen=True)
class Lanes:
    """How the engines of one link serve.

    - ``pace``: the millionths of the link's rate that one engine reaches alone.
    - ``wake_ns``: how much longer an engine takes to begin that stood idle.
    - ``copy_bytes_per_s``: the rate at which an engine then copies what it read; None: at once.
    - ``by_projection``: an engine serves one projection of a variant at a time.
    """

    pace: int = WHOLE
    wake_ns: int = 0
    copy_bytes_per_s: float | None = None
    by_projection: bool = False

    def copy_ns(self, moved_bytes: int) -> int:
        if self.copy_bytes_per_s is None:
            return 0
        return round(moved_bytes * NS_PER_S / self.copy_bytes_per_s)


@runtime_checkable
class LanedDurations(Protocol):
    """Durations of a machine whose engines may have a pace of their own."""

    def lanes(self, link: int) -> Lanes | None:
        """How the engines of a link serve; None where they share its bandwidth and no more."""

    def projection_bytes(self, precision: int, site: int, moved_bytes: int) -> Sequence[int]:
        """The bytes of each projection of a variant of ``moved_bytes``; they sum to these."""


def in_projections(nominal_bytes: Sequence[int], moved_bytes: int) -> tuple[int, ...]:
    """``moved_bytes`` in projections: each but the last has its nominal bytes, the last the rest.

    >>> in_projections((4, 4, 6), 15)
    (4, 4, 7)
    """
    ends = [min(end, moved_bytes) for end in accumulate(nominal_bytes[:-1])]
    return tuple(after - before for before, after in pairwise((0, *ends, moved_bytes)))


def in_proportion(whole: int, parts: Sequence[int]) -> tuple[int, ...]:
    """``whole`` divided as ``parts`` are, cumulated shares rounded down.

    >>> in_proportion(10, (4, 4, 7))
    (2, 3, 5)
    """
    total = sum(parts)
    ends = [whole * end // total for end in accumulate(parts)]
    return tuple(after - before for before, after in pairwise((0, *ends)))
