"""The memories of the reference: pools, the tiers made of them, staging, and keys in flight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Literal

import simpy

from differential.history import History
from differential.rows import Kind
from differential.scenario import Key, Need, PoolSpec, Scenario

Place = Literal["pool", "staging", "dense", "kv", "ram", "nothing"]


@dataclass(eq=False)
class Transfer:
    """A variant (or the part `moved` of it) on its way to the device, over some links, one hop
    after another.

    It waits in a link's queue (`waits_on`), or it is issued on links (`hops_open`; on two of them
    with cut-through), or it was handed on early and found no slot (`aside`).
    """

    key: Key
    kind: Kind
    moved: int
    whole: bool
    arrived: simpy.Event
    needed: bool
    place: int = 0
    urgent: bool = False
    number: int | None = None
    waits_on: int | None = None
    hops_open: set[int] = field(default_factory=set)
    handed_on: set[int] = field(default_factory=set)
    aside: int | None = None
    """The link whose hop handed it on early, but where it went there was no slot."""
    left: dict[int, int] = field(default_factory=dict)
    """By link, the bytes that a cut has left of the hop."""
    slot: Place | None = None
    ram: Literal["no", "claimed", "resident"] = "no"
    hops: list[tuple[int, int]] = field(default_factory=list)
    victims: tuple[Key, ...] = ()
    lacking: Need | None = None
    """The need that found this partial prefetch in flight."""
    overtaken: bool = False
    """A gate of its site has not asked for this partial prefetch."""
    completes: Transfer | None = None
    call: int = 0
    """Of all calls the one that queued it."""
    come: set[int] = field(default_factory=set)
    """The projections that have come."""

    @property
    def started(self) -> bool:
        return self.number is not None

    @property
    def ahead_of_prefetches(self) -> bool:
        return self.kind != "prefetch" or self.urgent


@dataclass(eq=False)
class Asked:
    """A need of a gate, as it was looked up: what serves it, and the transfer that it waits for, if
    any.

    The selector's skip has no key of its own; `wanted` is SKIP, and so is the key's precision.
    `need` names the expert that serves and the rows that it serves; `chosen` is the router's. What
    `joins` is served by another need's.
    """

    need: Need
    wanted: int
    key: Key
    tick: int
    lookup_ns: int
    chosen: int = -1
    joins: bool = False
    outcome: str = ""
    transfer: Transfer | None = None
    ready_ns: int | None = None


@dataclass(frozen=True)
class Claim:
    """What a transfer may take, and what must go for it."""

    place: Place
    victims: tuple[Key, ...] = ()


NOTHING = Claim("nothing")


@dataclass(eq=False)
class Pool:
    """Whole variants against a byte budget. `claimed` holds the slots of what has not arrived."""

    spec: PoolSpec
    resident: set[Key] = field(default_factory=set)
    claimed: set[Key] = field(default_factory=set)
    more: int = 0
    """The bytes that it has beside its capacity in this step."""

    @property
    def room(self) -> int:
        return self.spec.capacity_bytes + self.more


class Tier:
    """A memory of pools with one victim order."""

    def __init__(
        self,
        scenario: Scenario,
        specs: Iterable[PoolSpec],
        history: History,
        size: Callable[[Key], int],
    ) -> None:
        """`size`: the bytes that a key takes here."""
        self.scenario, self.size = scenario, size
        self.history = history
        self.pools = [Pool(spec) for spec in specs]
        for pool in self.pools:
            for key in pool.spec.initial:
                pool.resident.add(key)
                history.arrived(key)

    def pool(self, key: Key) -> Pool:
        found = [pool for pool in self.pools if pool.spec.covers(key)]
        assert len(found) == 1, f"{key} must belong to one pool"
        return found[0]

    def bytes(self, keys: Iterable[Key]) -> int:
        return sum(self.size(key) for key in keys)

    def holds(self, key: Key) -> bool:
        return key in self.pool(key).resident

    def over(self, pool: Pool) -> int:
        """By how much the pool holds more than its capacity."""
        return self.bytes(pool.resident | pool.claimed) - pool.room

    def victims(
        self, key: Key, pinned: Collection[Key], masked: Collection[Key], demand: bool
    ) -> list[Key] | None:
        """The keys that must go for it, in the order of their going; None if too few may go. A
        demand takes masked ones last, a prefetch none."""
        pool = self.pool(key)
        lacking = self.over(pool) + self.size(key)
        ordered = self.history.victims_first(pool.resident - set(pinned))
        candidates = [key for key in ordered if key not in masked]
        if demand:
            candidates += [key for key in ordered if key in masked]
        victims: list[Key] = []
        for candidate in candidates:
            if self.bytes(victims) >= lacking:
                break
            victims.append(candidate)
        return victims if self.bytes(victims) >= lacking else None

    def evict(self, key: Key) -> None:
        self.pool(key).resident.remove(key)
        self.history.evicted(key)

    def claim(self, key: Key) -> None:
        self.pool(key).claimed.add(key)

    def grow(self, spare: int) -> None:
        """Divide what keys and values leave among the pools, as their plan divides its bytes."""
        everything = sum(pool.spec.capacity_bytes for pool in self.pools)
        for pool in self.pools:
            share = Fraction(pool.spec.capacity_bytes, everything) if everything else Fraction(0)
            pool.more = floor(spare * share)

    def fits(self, key: Key) -> bool:
        """Whether the key's pool is within its capacity."""
        return self.over(self.pool(key)) <= 0

    def give_back(self, key: Key) -> None:
        self.pool(key).claimed.remove(key)

    def insert(self, key: Key) -> None:
        self.pool(key).claimed.discard(key)
        self.pool(key).resident.add(key)
        self.history.arrived(key)


@dataclass(eq=False)
class Staging:
    """Slots outside the pools. `staged`: what is there, in order of arrival, with the bytes that
    were moved.
    """

    slots: int
    claimed: int = 0
    staged: dict[Key, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.slots - self.claimed - len(self.staged)
