"""Victim orders of every cache policy, from a plain history of requests, arrivals and evictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import simpy

from differential.scenario import Fixed, Key, Need, Scenario
from differential.timeline import Kind


@dataclass(frozen=True)
class Readings:
    """Sentences of docs/design.md that can be read in two ways; the defaults are how this reference reads them."""

    refill_once: bool = True
    """Section 3: `transfer_done` issues at most one transfer. Else it fills the link up, as a poll would."""
    waves_in_call_order: bool = True
    """Section 7, wait_all: what an earlier call admitted is computed first. Else the batch that is complete first."""
    replace_spares_unadmitted: bool = False
    """Section 4, step 9: `queue: replace` spares also the prefetches of needs that still wait for their wave."""
    exhausted_budget_asks: bool = True
    """Section 4, step 9: with `prefetch_budget: 0` the first forecast is asked for (and masked). Else none is."""
    sequence_resets_gate: bool = False
    """Section 5, weighted: T and l_i, too, are as before the first gate when a sequence begins."""
    computes_served_precision: bool = True
    """Section 7: an expert's compute time is that of the variant that serves. Else that of the wanted one."""


@dataclass(eq=False)
class Transfer:
    """A variant on its way: queued, then issued (it has a number), then in service (it has a start), then ended."""

    key: Key
    kind: Kind
    place: int
    queued_ns: int
    arrived: simpy.Event
    needed: bool
    number: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    victims: tuple[Key, ...] = ()


@dataclass(eq=False)
class Admitted:
    """A need that was admitted, the variant that serves it, and the transfer it waits for, if any."""

    need: Need
    wanted: int
    key: Key
    transfer: Transfer | None = None


class History:
    """What the victim orders look at: when and how often variants and experts were asked for, and when they came."""

    def __init__(self, scenario: Scenario, readings: Readings) -> None:
        self.scenario = scenario
        self.readings = readings
        self.clock = 0
        self.recency: dict[Key, int] = {}
        self.inserted: dict[Key, int] = {}
        self.count: Counter[Key] = Counter()
        self.last_use: Counter[tuple[int, int]] = Counter()
        self.uses: Counter[tuple[int, int]] = Counter()
        self.high_uses: Counter[tuple[int, int]] = Counter()
        self.token, self.site = 1, 0
        self.past = 0
        wanted = scenario.selector.precision if isinstance(scenario.selector, Fixed) else 0
        self.flattened: list[Key] = [
            (wanted, site, need.expert)
            for step in scenario.steps
            for site, needs in enumerate(step.needs)
            for need in needs
        ]

    def _stamp(self) -> int:
        self.clock += 1
        return self.clock

    def begin_sequence(self) -> None:
        for counter in (self.last_use, self.uses, self.high_uses):
            counter.clear()
        if self.scenario.cache.name == "lfu_sequence":
            self.count.clear()
        if self.readings.sequence_resets_gate:
            self.token, self.site = 1, 0

    def requested(self, admitted: Iterable[Admitted], token: int, site: int) -> None:
        """The requests of one call, in need order. Token count and site are those of the gate even if it skips all."""
        self.token, self.site = token, site
        for one in admitted:
            expert = one.key[1:]
            self.recency[one.key] = self._stamp()
            self.count[one.key] += 1
            self.last_use[expert] = token
            self.uses[expert] += one.need.tokens
            self.high_uses[expert] += one.need.tokens if one.wanted == 0 else 0
            self.past += 1

    def arrived(self, key: Key, enters_recent: bool) -> None:
        self.inserted[key] = self._stamp()
        if enters_recent:
            self.recency[key] = self._stamp()

    def evicted(self, key: Key) -> None:
        if self.scenario.cache.name == "lfu_resident":
            del self.count[key]

    def victims_first(self, keys: Iterable[Key]) -> list[Key]:
        """The policy's total order of these resident keys, first victim first."""
        orders: dict[str, Any] = {
            "lru": lambda key: self.recency[key],
            "fifo": lambda key: self.inserted[key],
            "lfu_resident": lambda key: (self.count[key], self.recency[key]),
            "lfu_sequence": lambda key: (self.count[key], self.recency[key]),
            "lfu_model": lambda key: (self.count[key], self.recency[key]),
            "weighted": lambda key: (self.score(key), self.scenario.pack(key)),
            "belady": lambda key: (-self.next_request(key), -self.scenario.pack(key)),
        }
        return sorted(keys, key=orders[self.scenario.cache.name])

    def score(self, key: Key) -> float:
        """HOBBIT eq. 3, in the page's order of float operations."""
        cache, expert = self.scenario.cache, key[1:]
        r, f, h = self.last_use[expert], self.uses[expert], self.high_uses[expert]
        sites = self.scenario.sites
        near: float = 1 - ((key[1] - self.site + sites) % sites) / sites
        return ((cache.w_lru * r + cache.w_lfu * f) + cache.w_lhu * h) / self.token + cache.w_fld * near

    def next_request(self, key: Key) -> float:
        return next((i for i in range(self.past, len(self.flattened)) if self.flattened[i] == key), math.inf)
