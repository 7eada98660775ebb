"""The slots of a tier: what it holds, how many bytes are free, and which victims a claim takes.

Each key has a state: RESIDENT, UNUSED, IN_FLIGHT, QUEUED or ABSENT. The states are ints in a list,
which Python indexes fastest. Cache policies read two bytearrays over all keys: ``pinned``, and
``blocked`` (pinned or masked). The owner of a tier writes them; for the device that is
`sim.core.protection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sim.policies.base import CachePolicy
from sim.policies.requires import PolicyError, name_of
from sim.values.types import CapacityError, Cause, Geometry

RESIDENT: Final = 0
UNUSED: Final = 1
IN_FLIGHT: Final = 2
QUEUED: Final = 3
ABSENT: Final = 4
"""UNUSED is resident, too: brought by a prefetch that no lookup has found yet. So a key is there
if its state is <= UNUSED. RESIDENT is 0, so that a state is true where a key is not plainly there.
"""


class Slots:
    """A tier's bytes for experts, divided into the pools of its cache policy.

    ``at_once``: how many of its largest experts each pool must hold. ``overflows``: a claim that
    must succeed does so without evicting, and ``excess`` says what is then too much. ``stages``:
    there is staging, so that a pool may be short, even of no bytes; its variants land in staging.

    Raise CapacityError if a pool is short without staging, or if its initial contents do not fit.
    """

    def __init__(
        self,
        geometry: Geometry,
        cache: CachePolicy,
        at_once: int,
        overflows: bool = False,
        stages: bool = False,
    ) -> None:
        plan = cache.pools(geometry)
        self.geometry, self.cache, self.overflows = geometry, cache, overflows
        self._names_first = names_first(type(cache))
        self.state = [ABSENT] * geometry.num_keys
        self.pinned = bytearray(geometry.num_keys)
        self.blocked = bytearray(geometry.num_keys)
        self.key_bytes = list(geometry.key_bytes)
        """By key, the bytes that a load moves. ``slot_bytes``: the bytes that it takes here."""
        self.slot_bytes = list(geometry.slot_bytes) if geometry.held_bytes else self.key_bytes
        self.pool_of = list(plan.pool_of)
        self.capacity_bytes = plan.capacity_bytes
        self.room_bytes = list(plan.capacity_bytes)
        """What each pool may hold now: its capacity, and what is lent to it (contract C174)."""
        self.is_lent_to = False
        self.initial = plan.initial
        self.free_bytes = list(plan.capacity_bytes)
        self.is_short = self._short_pools(at_once, stages)
        """By pool, whether it holds less than one token's needs."""
        for key in plan.initial:
            self.free_bytes[self.pool_of[key]] -= self.slot_bytes[key]
            self.state[key] = RESIDENT
            cache.on_insert(key, Cause.INITIAL)
        if min(self.free_bytes) < 0:
            raise CapacityError(f"initial contents exceed a pool: free bytes {self.free_bytes}")
        self._least_free = list(self.free_bytes)

    def _short_pools(self, at_once: int, stages: bool) -> list[bool]:
        largest = self._largest()
        short = [
            capacity < at_once * size
            for capacity, size in zip(self.capacity_bytes, largest, strict=True)
        ]
        if any(short) and not stages:
            pool = short.index(True)
            raise CapacityError(
                f"pool {pool} holds {self.capacity_bytes[pool]} B, but one token may need {at_once}"
                f" experts of {largest[pool]} B = {at_once * largest[pool]} B there; raise"
                " budget.resident_share or slots_gib (or this pool's cache.shares), or serve such"
                f" pools from staging: loader.staging_slots={at_once}"
            )
        return short

    @property
    def count(self) -> int:
        """How many experts the tier holds, over its pools, each pool's largest in all of it."""
        return self.count_in(self.capacity_bytes)

    def count_in(self, rooms: Sequence[int]) -> int:
        """``count`` where the pools have so many bytes."""
        sizes = zip(rooms, self._largest(), strict=True)
        return sum(room // size for room, size in sizes if size)

    def _largest(self) -> list[int]:
        """By pool, the bytes of its largest expert."""
        largest = [0] * len(self.capacity_bytes)
        for pool, size in zip(self.pool_of, self.slot_bytes, strict=True):
            largest[pool] = max(largest[pool], size)
        return largest

    def bytes_by_device(self) -> dict[int, int]:
        """The bytes of each device's pools; no pool spans devices."""
        device_of = self.geometry.device_of
        found: dict[int, int] = dict.fromkeys(device_of, 0)
        seen: set[int] = set()
        for key, pool in enumerate(self.pool_of):
            if device_of and pool not in seen:
                seen.add(pool)
                found[self.geometry.on_device(key)] += self.capacity_bytes[pool]
        return found

    @property
    def peak_bytes(self) -> int:
        """The sum of the most bytes that each pool ever held, those not counted that were lent."""
        return sum(self.capacity_bytes) - sum(self._least_free)

    def rooms(self, spare_bytes: int) -> list[int]:
        """What each pool may hold where ``spare_bytes`` are lent to all of them."""
        whole = sum(self.capacity_bytes) or 1
        return [own + spare_bytes * own // whole for own in self.capacity_bytes]

    def lend(self, spare_bytes: int) -> None:
        """Lend the pools so many bytes instead of those that they were lent before. A pool may then
        hold too much, and ``excess`` says what.
        """
        self.is_lent_to = True
        for pool, room in enumerate(self.rooms(spare_bytes)):
            self.free_bytes[pool] += room - self.room_bytes[pool]
            self.room_bytes[pool] = room

    def claim(self, key: int, must: bool) -> Sequence[int] | None:
        """Take a key's bytes from its pool: the keys to evict for it, least valuable first, or
        None if there is no room to be had; then nothing is taken.

        The caller evicts them. A claim takes keys that are neither pinned nor masked; with ``must``
        it takes masked keys, too, after all others.
        """
        pool = self.pool_of[key]
        free = self.free_bytes[pool] - self.slot_bytes[key]
        if free >= 0 or (must and self.overflows):
            self.free_bytes[pool] = free
            if free < self._least_free[pool]:
                self._least_free[pool] = free
            return ()
        blocked = self.blocked
        if self._names_first:
            victim = self.cache.first_victim(pool, key, blocked)
        else:
            victim = next(self.cache.victims(pool, key, blocked), -1)
        if victim >= 0 and (left := free + self.slot_bytes[victim]) >= 0:
            if blocked[victim] or self.state[victim] > UNUSED or self.pool_of[victim] != pool:
                raise self._wrong(victim, pool, blocked)
            self.free_bytes[pool] = left
            return (victim,)
        if victim < 0 and not must:
            return None
        victims = self._several_victims(pool, key, free, must)
        if victims is not None:
            self.free_bytes[pool] = free + sum(map(self.slot_bytes.__getitem__, victims))
        return victims

    def could_claim(self, key: int, must: bool = True) -> bool:
        """Whether ``claim`` would succeed now."""
        return self.would_evict(key, must) is not None

    def would_evict(self, key: int, must: bool) -> Sequence[int] | None:
        """What ``claim`` would answer now; nothing is taken."""
        pool = self.pool_of[key]
        free = self.free_bytes[pool] - self.slot_bytes[key]
        if free >= 0 or (must and self.overflows):
            return ()
        return self._several_victims(pool, key, free, must)

    def _several_victims(self, pool: int, key: int, free: int, must: bool) -> list[int] | None:
        taken: list[int] = []
        for blocked in (self.blocked, self.pinned) if must else (self.blocked,):
            for victim in self.cache.victims(pool, key, blocked):
                if victim not in taken:
                    self._require(victim, pool, blocked)
                    taken.append(victim)
                    free += self.slot_bytes[victim]
                    if free >= 0:
                        return taken
        return None

    def _require(self, victim: int, pool: int, blocked: bytearray) -> None:
        """Raise ValueError unless the pool's policy may name this key."""
        if (
            not 0 <= victim < len(blocked)
            or blocked[victim]
            or self.state[victim] > UNUSED
            or self.pool_of[victim] != pool
        ):
            raise self._wrong(victim, pool, blocked)

    def _wrong(self, victim: int, pool: int, blocked: bytearray) -> ValueError:
        """Why the policy may not name this key. A run would count hits that no cache can have."""
        if not 0 <= victim < len(blocked):
            what = f"key {victim}, and keys are from 0 to {len(blocked) - 1}"
        else:
            why = (
                "is blocked: it is needed, or forecast"
                if blocked[victim]
                else "is not resident"
                if self.state[victim] > UNUSED
                else f"is of pool {self.pool_of[victim]}, not {pool}"
            )
            what = f"{self.geometry.name_of(victim)}, which {why}"
        return PolicyError(
            f"{name_of(self.cache)}: `victims` names {what}. It must name the resident keys of the pool"
            " that are not blocked, each once; docs/add_policy.md says what else a cache must do"
        )

    def release(self, key: int) -> None:
        """Give back the bytes of a claim, or of a key that is evicted without one."""
        self.free_bytes[self.pool_of[key]] += self.slot_bytes[key]

    def excess(self, pools: Iterable[int]) -> list[int]:
        """The keys to evict so that none of these pools holds more than its capacity. Masked keys
        come last, and what is pinned stays, even if a pool remains too full.
        """
        gone: list[int] = []
        for pool in pools:
            free = self.free_bytes[pool]
            for blocked in (self.blocked, self.pinned):
                if free >= 0:
                    break
                for victim in self.cache.victims(pool, -1, blocked):
                    if victim not in gone:
                        self._require(victim, pool, blocked)
                        gone.append(victim)
                        free += self.slot_bytes[victim]
                        if free >= 0:
                            break
        return gone

    def check(self) -> None:
        """Assert every invariant that holds between calls. Expensive: for tests."""
        for key in range(len(self.pinned)):
            assert self.blocked[key] >= self.pinned[key], self.geometry.name_of(key)
        for pool, free in enumerate(self.free_bytes):
            assert free <= self.room_bytes[pool], (pool, free)
            assert free >= 0 or self.overflows or self.is_lent_to, (pool, free)


def names_first(policy: type) -> bool:
    """Whether a class of policies, or what it derives from, has a ``first_victim`` of its own, and no
    other ``victims`` below that.
    """
    for kind in policy.__mro__:
        if kind is CachePolicy:
            break
        if "first_victim" in vars(kind):
            return True
        if "victims" in vars(kind):
            break
    return False
