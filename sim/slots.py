"""What is resident, what may be evicted, and how many bytes are free. No queue, no gate.

One byte a key (ABSENT, QUEUED, IN_FLIGHT, RESIDENT, UNUSED) and two bytearrays that cache policies read: ``pinned`` and
``blocked`` (pinned or masked).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.policies.base import CachePolicy
from sim.types import CapacityError, Cause, Geometry

ABSENT, QUEUED, IN_FLIGHT, RESIDENT, UNUSED = range(5)
"""UNUSED is resident, brought by a prefetch, and not yet found by a lookup."""


class Slots:
    """The device's expert bytes, divided into the cache policy's pools."""

    def __init__(self, geometry: Geometry, cache: CachePolicy) -> None:
        plan = cache.pools(geometry)
        self.geometry, self.cache = geometry, cache
        self.state = bytearray(geometry.num_keys)
        self.pinned = bytearray(geometry.num_keys)
        self.blocked = bytearray(geometry.num_keys)
        self.key_bytes = [geometry.variant_bytes[key // geometry.plane] for key in range(geometry.num_keys)]
        self.pool_of = list(plan.pool_of)
        self.capacity_bytes = plan.capacity_bytes
        self.initial = plan.initial
        self.free_bytes = list(plan.capacity_bytes)
        self._check_capacity()
        for key in plan.initial:
            self.free_bytes[self.pool_of[key]] -= self.key_bytes[key]
            self.state[key] = RESIDENT
            cache.on_insert(key, Cause.INITIAL)
        if min(self.free_bytes) < 0:
            raise CapacityError(f"initial contents exceed a pool: free bytes {self.free_bytes}")

    def _check_capacity(self) -> None:
        g = self.geometry
        largest = [0] * len(self.capacity_bytes)
        for pool, size in zip(self.pool_of, self.key_bytes, strict=True):
            largest[pool] = max(largest[pool], size)
        for pool, capacity in enumerate(self.capacity_bytes):
            need = g.top_k * largest[pool]
            if capacity < need:
                raise CapacityError(
                    f"pool {pool} holds {capacity} B, but one token may need {g.top_k} experts of {largest[pool]} B = "
                    f"{need} B there; raise budget.resident_share (or this pool's cache.shares)"
                )

    def claim(self, key: int, need_bytes: int, demand: bool) -> Sequence[int] | None:
        """Make room for a key: the keys to evict for it, least valuable first, or None if it does not fit.

        The bytes are taken at once; the caller evicts. A prefetch may take keys that are neither pinned nor masked, a
        demand takes those first and masked ones last.
        """
        pool = self.pool_of[key]
        free = self.free_bytes[pool] - need_bytes
        if free >= 0:
            self.free_bytes[pool] = free
            return ()
        victim = next(self.cache.victims(pool, key, self.blocked), -1)
        if victim >= 0 and free + self.key_bytes[victim] >= 0:
            self.free_bytes[pool] = free + self.key_bytes[victim]
            return (victim,)
        return self._claim_several(pool, key, free, demand)

    def _claim_several(self, pool: int, key: int, free: int, demand: bool) -> Sequence[int] | None:
        taken: list[int] = []
        for blocked in (self.blocked, self.pinned) if demand else (self.blocked,):
            for victim in self.cache.victims(pool, key, blocked):
                if victim not in taken:
                    taken.append(victim)
                    free += self.key_bytes[victim]
                    if free >= 0:
                        self.free_bytes[pool] = free
                        return taken
        return None

    def check(self) -> None:
        """Assert every invariant. Expensive, for tests."""
        used = [0] * len(self.capacity_bytes)
        for key, state in enumerate(self.state):
            if state >= IN_FLIGHT:
                used[self.pool_of[key]] += self.key_bytes[key]
            assert self.blocked[key] >= self.pinned[key], self.geometry.name_of(key)
        for pool, free in enumerate(self.free_bytes):
            assert free == self.capacity_bytes[pool] - used[pool] >= 0, (pool, free, used[pool])
