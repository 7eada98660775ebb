"""Victim orders of every cache policy, computed from a plain history of its notifications.

The history is one of requests, arrivals and evictions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from differential.scenario import Cache, Key, Scenario

if TYPE_CHECKING:
    from differential.ref_memory import Asked


class History:
    """What a tier's victim order looks at: when and how often keys were asked for, and when they
    came.

    `future`: the keys that will be asked for, for Belady.
    """

    def __init__(
        self, scenario: Scenario, cache: Cache, future: Sequence[Key] = (), is_ram: bool = False
    ) -> None:
        self.scenario, self.is_ram = scenario, is_ram
        self.cache = cache
        self.future = future
        self.past = 0
        self.clock = 0
        self.recency: dict[Key, int] = {}
        self.inserted: dict[Key, int] = {}
        self.placed: set[Key] = set()
        """Asked for or come since last evicted: what comes now keeps its place."""
        self.count: Counter[Key] = Counter()
        self.last_use: Counter[tuple[int, int]] = Counter()
        self.uses: Counter[tuple[int, int]] = Counter()
        self.high_uses: Counter[tuple[int, int]] = Counter()
        self.token, self.site = 1, 0
        self.step = 0
        self.steps_asked: dict[Key, list[int]] = {}
        """By key, the steps that asked for it."""
        self.touches: list[Key] = []
        """Requests, and arrivals without one."""

    def _stamp(self) -> int:
        self.clock += 1
        return self.clock

    def begin_sequence(self) -> None:
        for counter in (self.last_use, self.uses, self.high_uses):
            counter.clear()
        if self.cache.name == "lfu_sequence":
            self.count.clear()

    def requested(
        self,
        asked: Sequence[Asked],
        token: int,
        site: int,
        ranks: Sequence[Sequence[int]] | None = None,
        step: int = 0,
    ) -> None:
        """The requests of one call, in need order. Token count and site are those of the gate
        even if it skips all.
        """
        self.token, self.site = token, site
        self.asked_for((one.key for one in asked), step)
        for one in asked:
            expert = one.key[1:]
            self.last_use[expert] = token
            self.uses[expert] += one.need.tokens
            self.high_uses[expert] += one.need.tokens if one.wanted == 0 else 0
        if (
            self.cache.recency == "rows"
            and self.cache.name == "lru"
            and ranks is not None
            and len(ranks) > 1
        ):
            last = {
                expert: (row, rank)
                for row, experts in enumerate(ranks)
                for rank, expert in enumerate(experts)
            }
            for one in sorted(asked, key=lambda one: last[one.need.expert]):
                self.recency[one.key] = self._stamp()

    def asked_for(self, keys: Iterable[Key], step: int) -> None:
        self.step = step
        for key in keys:
            self.recency[key] = self._stamp()
            self.touches.append(key)
            self.steps_asked.setdefault(key, []).append(step)
            self.placed.add(key)
            self.count[key] += 1
            self.past += 1

    def arrived(self, key: Key) -> None:
        """At the recent end, unless a request came first."""
        self.inserted[key] = self._stamp()
        if key not in self.placed:
            self.recency[key] = self._stamp()
            self.touches.append(key)
            self.placed.add(key)

    def evicted(self, key: Key) -> None:
        """Gone, or asked for and held by no pool when its gate was over."""
        self.placed.discard(key)
        if self.cache.name == "lfu_resident":
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
            "class_lru": lambda key: (-self.aged(key), self.recency[key]),
            "lfru": lambda key: (
                len(self.steps_asked.get(key, ())) / max(self.age(key), 1),
                self.scenario.pack(key),
            ),
            "belady": lambda key: (-self.next_request(key), -self.scenario.pack(key)),
        }
        return sorted(keys, key=orders[self.cache.name])

    def score(self, key: Key) -> float:
        """HOBBIT eq. 3, in the page's order of float operations."""
        cache, expert = self.cache, key[1:]
        r, f, h = self.last_use[expert], self.uses[expert], self.high_uses[expert]
        sites = self.scenario.sites
        near: float = 1 - ((key[1] - self.site + sites) % sites) / sites
        return (
            (cache.w_lru * r + cache.w_lfu * f) + cache.w_lhu * h
        ) / self.token + cache.w_fld * near

    def age(self, key: Key) -> int:
        """How often the key's pool was touched since the key was."""
        tier = self.scenario.ram if self.is_ram else self.scenario
        assert tier is not None
        pool = next(pool for pool in tier.pools if pool.covers(key))
        return [other for other in self.touches[::-1] if pool.covers(other)].index(key)

    def aged(self, key: Key) -> Fraction:
        """ClassLRU's age / 2^class, from all touches and requests so far."""
        count = 0
        for life in range(self.step // self.cache.half_life + 1):
            asked = self.steps_asked.get(key, ())
            count = count // 2 + sum(step // self.cache.half_life == life for step in asked)
        return Fraction(self.age(key), 2 ** min(7, max(count, 1).bit_length() - 1))

    def next_request(self, key: Key) -> float:
        return next(
            (i for i in range(self.past, len(self.future)) if self.future[i] == key), math.inf
        )
