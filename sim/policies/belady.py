"""Caches that know the run's future requests. They are references, not systems."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.policies.quotas import Quotas
from sim.policies.requires import Given, Requires
from sim.policies.scored import Floats, Scored, Within
from sim.values.types import Cause, Geometry, PoolPlan
from sim.values.units import require_flag

NEVER = 1 << 62
"""The next request of a key that is not requested again."""


class Foreseeing(Pooled):
    """A cache that knows when each key is requested next, as a position in the flattened needs of
    the run.
    """

    _schedule: Sequence[Sequence[int]] = ()

    @property
    def requires(self) -> Requires:
        return replace(super().requires, future=True)

    def prepare(self, given: Given) -> None:
        super().prepare(given)
        self.foresee(given.future.keys(given.geometry))

    def foresee(self, schedule: Sequence[Sequence[int]]) -> None:
        """Take the run's requests: ``schedule[tick]`` are the keys of a gate in need order. Called
        once, before ``pools``.
        """
        self._schedule = schedule

    def _look_ahead(self, num_keys: int) -> None:
        """Make ``_upcoming``, the next request of each key, and ``_after[tick]``, the next request
        of each key of that gate after the gate.
        """
        if not len(self._schedule):
            raise ValueError(
                "cache=belady needs the run's future requests; call foresee(schedule) before"
                " the run"
            )
        upcoming = [NEVER] * num_keys
        position = sum(len(keys) for keys in self._schedule)
        self._after: list[dict[int, int]] = []
        for keys in reversed(self._schedule):
            position -= len(keys)
            self._after.append({key: upcoming[key] for key in keys})
            for offset, key in enumerate(keys):
                upcoming[key] = position + offset
        self._after.reverse()
        self._upcoming = upcoming


class Belady(Foreseeing):
    """The key whose next request is latest goes first, ties largest key first. A key that is never
    requested again has the latest of all.

    ``bypass``: a loaded expert is served from staging. When its need is over, it enters if its next
    request comes before those of all keys that would have to go for it.

    Where sizes are equal, nothing is prefetched and each gate is served at once, this makes the
    fewest loads: with ``bypass`` of all caches, without it of the caches that keep what a gate has
    loaded until the next gate.

    Source: Belady, IBM Systems Journal 5(2), 1966.
    """

    def __init__(
        self,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
        bypass: bool = False,
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        require_flag("cache.bypass", bypass)
        self.bypass = bypass
        self.admits_all = not bypass

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._look_ahead(geometry.num_keys)
        self._orders: list[list[tuple[int, int]]] = [[] for _ in plan.capacity_bytes]
        self._held: set[int] = set()

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return (key for _, key in reversed(self._orders[pool]) if not blocked[key])

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        if not self.bypass:
            return True
        again = self._upcoming
        return all((again[victim], victim) > (again[key], key) for victim in victims)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        after = self._after[gate.tick]
        for key in keys:
            if key in self._held:
                self._drop(key)
            self._upcoming[key] = after[key]
            self._hold(key)

    def on_insert(self, key: int, cause: Cause) -> None:
        if key not in self._held:
            self._hold(key)

    def on_evict(self, key: int) -> None:
        if key in self._held:
            self._drop(key)

    def _hold(self, key: int) -> None:
        self._held.add(key)
        insort(self._orders[self._pool_of[key]], (self._upcoming[key], key))

    def _drop(self, key: int) -> None:
        self._held.remove(key)
        order = self._orders[self._pool_of[key]]
        del order[bisect_left(order, (self._upcoming[key], key))]


class CostAwareBelady(Foreseeing, Scored):
    """The key that saves least for its room goes first, ties largest key first: lowest
    ``(overhead + bytes) / room / requests until the next``.

    A load costs the variant's own bytes and ``overhead_bytes``, which is what the link could have
    moved while the load starts. Where all variants have one size this is Belady.

    Source: the clairvoyant form of GreedyDual-Size-Frequency's cost over size (Cherkasova,
    HPL-98-69, 1998).
    """

    def __init__(
        self,
        overhead_bytes: int = 0,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        if (
            isinstance(overhead_bytes, bool)
            or not isinstance(overhead_bytes, int)
            or overhead_bytes < 0
        ):
            raise ValueError(
                f"cache.overhead_bytes={overhead_bytes!r} must be a whole number, 0 or more"
            )
        self.overhead_bytes = overhead_bytes

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._look_ahead(geometry.num_keys)
        self._next = np.asarray(self._upcoming, np.float64)
        self._next[self._next == NEVER] = np.inf
        moved, room = (
            np.asarray(sizes, np.float64) for sizes in (geometry.key_bytes, geometry.slot_bytes)
        )
        self._worth = (self.overhead_bytes + moved) / room
        self._later = -np.arange(geometry.num_keys)
        self._starts = np.cumsum([0, *(len(keys) for keys in self._schedule)]).tolist()
        self._now = -1

    def _score(self, within: Within) -> Floats:
        score: Floats = self._worth[within] / (self._next[within] - self._now)
        return score

    def _tie(self, within: Within) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._later[within]

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        after = self._after[gate.tick]
        for key in keys:
            self._next[key] = after[key] if after[key] != NEVER else np.inf
        if keys:
            # A wave tells of only some needs of its gate; the needs after them are still to come.
            self._now = self._starts[gate.tick] + self._schedule[gate.tick].index(keys[-1])
