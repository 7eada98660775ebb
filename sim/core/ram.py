"""The managed RAM tier: what is resident in RAM, and what passes through it to the device."""

from __future__ import annotations

from dataclasses import replace

from sim.core.slots import ABSENT, IN_FLIGHT, RESIDENT, Slots
from sim.policies.base import CachePolicy, Gate
from sim.values.types import Cause, Geometry, Outcome, Route

HIT, MISS = int(Outcome.HIT), int(Outcome.MISS)


class RamTier(Slots):
    """A tier of whole variants at the inner end of ``link``, with a cache policy of its own.

    Nothing is masked here. A key that a transfer asks for is pinned until the transfer is over,
    whether it is resident or not. Before the run the tier is filled from storage as far as it has
    room: with the highest precision first, then with lower ones.
    """

    def __init__(self, geometry: Geometry, cache: CachePolicy, route: Route) -> None:
        assert route.ram_link is not None
        here = replace(geometry, capacity_bytes=route.ram_bytes, held_bytes=(), keeps_copies=True)
        super().__init__(here, cache, at_once=1)
        self.link = route.ram_link
        self.blocked = self.pinned
        self.lookups = self.hits = 0
        self.evictions: list[tuple[int, int]] = []  # (call, key)
        self.untold: list[int] = []
        """Keys that have been looked up since the policy was last told."""
        self._outcomes: list[int] = []
        self._plane = geometry.plane

    def look_up(self, key: int) -> bool:
        """Whether a key is resident. The key is pinned from now on, and the next ``tell`` reports
        the lookup to the policy.
        """
        found = self.state[key] == RESIDENT
        self.pinned[key] = 1
        self.untold.append(key)
        self._outcomes.append(HIT if found else MISS)
        return found

    def tell(self, gate: Gate) -> None:
        """Report the lookups of ``untold`` to the policy, in one call."""
        keys, outcomes, plane = self.untold, self._outcomes, self._plane
        # A key that is loaded is the wanted variant itself: only a variant that is on the device,
        # or on its way there, serves in the place of another.
        self.cache.on_requests(keys, [key // plane for key in keys], outcomes, gate)
        self.lookups += len(keys)
        self.hits += outcomes.count(HIT)
        self.untold, self._outcomes = [], []

    def take_in(self, key: int, must: bool, call: int) -> bool:
        """Claim the slot for a key that a hop brings here, unless it has one; False if there is
        none to be had. ``must``: see `Slots.claim`.
        """
        if self.state[key] == IN_FLIGHT:
            return True
        victims = self.claim(key, must)
        if victims is None:
            return False
        self.state[key] = IN_FLIGHT
        for victim in victims:
            self.state[victim] = ABSENT
            self.cache.on_evict(victim)
            self.evictions.append((call, victim))
        return True

    def could_take_in(self, key: int) -> bool:
        return self.state[key] == IN_FLIGHT or self.could_claim(key)

    def arrive(self, key: int, cause: Cause) -> None:
        self.state[key] = RESIDENT
        self.cache.on_insert(key, cause)

    def leave(self, key: int) -> None:
        """Unpin the key of a transfer that is over or given up. If the key has not arrived, its
        slot is given back, and the policy hears that it is gone.
        """
        self.pinned[key] = 0
        if self.state[key] != RESIDENT:
            if self.state[key] == IN_FLIGHT:
                self.release(key)
                self.state[key] = ABSENT
            self.cache.on_evict(key)
