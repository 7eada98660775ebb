"""The managed RAM tier: what it holds of what is asked for there, and what is on its way
through.
"""

from __future__ import annotations

from dataclasses import replace

from sim.core.slots import ABSENT, IN_FLIGHT, RESIDENT, Slots
from sim.policies.base import CachePolicy, Gate
from sim.values.types import Cause, Geometry, Outcome, Route

HIT, MISS = int(Outcome.HIT), int(Outcome.MISS)


class RamTier(Slots):
    """Slots of whole variants at the inner end of ``link``, with a cache policy of their own.

    Nothing is masked here. What a transfer asks for is pinned, resident or not, until the transfer
    is over. It begins with as much of what storage holds as there is room for: the highest
    precision first, then the lower ones.
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
        """Keys that were looked up, and the policy has not been told."""
        self._outcomes: list[int] = []
        self._plane = geometry.plane

    def look_up(self, key: int) -> bool:
        """Whether a key is resident. It is pinned from now on, and ``tell`` will say so to the
        policy.
        """
        found = self.state[key] == RESIDENT
        self.pinned[key] = 1
        self.untold.append(key)
        self._outcomes.append(HIT if found else MISS)
        return found

    def tell(self, gate: Gate) -> None:
        """Tell the policy what has been looked up since it was last told (``untold``), in one
        call.
        """
        keys, outcomes, plane = self.untold, self._outcomes, self._plane
        # What is queued is the wanted variant: only what is there or on its way can serve for
        # another.
        self.cache.on_requests(keys, [key // plane for key in keys], outcomes, gate)
        self.lookups += len(keys)
        self.hits += outcomes.count(HIT)
        self.untold, self._outcomes = [], []

    def take_in(self, key: int, must: bool, call: int) -> bool:
        """Claim the slot that a hop brings a key into, unless that is done; False if there is
        none.
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
        """A transfer is over or given up: its copy, if it got here, may go."""
        self.pinned[key] = 0
        if self.state[key] != RESIDENT:
            if self.state[key] == IN_FLIGHT:
                self.release(key)
                self.state[key] = ABSENT
            self.cache.on_evict(key)
