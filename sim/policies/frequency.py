"""LFU: a cache that counts the requests of every key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import filterfalse

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.policies.quotas import Quotas
from sim.values.types import Cause, Geometry, PoolPlan

COUNT_SCOPES = ("resident", "sequence", "model")


class LFU(Pooled):
    """Fewest requests first, ties least recent first.

    ``counts`` says when counts are forgotten: ``resident`` a key's when it is evicted, ``sequence``
    all when a sequence begins, ``model`` never. A need of a union counts once, however many rows
    chose it.
    """

    def __init__(
        self,
        counts: str = "resident",
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        if counts not in COUNT_SCOPES:
            raise ValueError(f"unknown LFU counts {counts!r}; known: {', '.join(COUNT_SCOPES)}")
        self.counts = counts

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._count = [0] * geometry.num_keys
        self._stamp = [0] * geometry.num_keys
        self._clock = 0
        self._buckets: list[dict[int, dict[int, None]]] = [{} for _ in plan.capacity_bytes]
        self._levels: list[list[int]] = [[] for _ in plan.capacity_bytes]

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        buckets = self._buckets[pool]
        for level in self._levels[pool]:
            yield from filterfalse(blocked.__getitem__, buckets[level])

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            self._remove(key)
            self._count[key] += 1
            self._add(key)

    def on_insert(self, key: int, cause: Cause) -> None:
        if key not in self._buckets[self._pool_of[key]].get(self._count[key], ()):
            self._add(key)

    def on_evict(self, key: int) -> None:
        self._remove(key)
        if self.counts == "resident":
            self._count[key] = 0

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if not begins or self.counts != "sequence":
            return
        self._count = [0] * len(self._count)
        for pool, buckets in enumerate(self._buckets):
            keys = sorted(
                (key for bucket in buckets.values() for key in bucket), key=self._stamp.__getitem__
            )
            self._buckets[pool] = {0: dict.fromkeys(keys)} if keys else {}
            self._levels[pool] = [0] if keys else []

    def _add(self, key: int) -> None:
        self._clock += 1
        self._stamp[key] = self._clock
        pool, level = self._pool_of[key], self._count[key]
        bucket = self._buckets[pool].get(level)
        if bucket is None:
            bucket = self._buckets[pool][level] = {}
            insort(self._levels[pool], level)
        bucket[key] = None

    def _remove(self, key: int) -> None:
        pool, level = self._pool_of[key], self._count[key]
        bucket = self._buckets[pool].get(level)
        if bucket is None or key not in bucket:
            return
        del bucket[key]
        if not bucket:
            del self._buckets[pool][level]
            levels = self._levels[pool]
            del levels[bisect_left(levels, level)]
