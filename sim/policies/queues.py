"""Caches made of queues that look again at what was asked for: SIEVE, S3-FIFO, W-TinyLFU.

A key enters a queue when it arrives. Requests for keys that are not resident move nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, filterfalse

import numpy as np

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.policies.quotas import Quotas
from sim.policies.scored import Within, as_slice
from sim.values.types import Cause, Geometry, PoolPlan
from sim.values.units import part_of, require_number, require_range


class Sieve(Pooled):
    """A hand goes from the oldest key to the newest and round again. It evicts the first key that
    nobody asked for since the hand last passed, and forgives the others (contract C148).

    Source: Zhang et al., SIEVE, NSDI 2024, algorithm 1.
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._queues: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]
        self._asked = bytearray(geometry.num_keys)
        self._hands = [-1] * len(plan.capacity_bytes)
        """By pool, the key that the hand points at; -1: the oldest."""

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        around = list(filterfalse(blocked.__getitem__, self._from_hand(pool)))
        # By the second round the hand has forgiven all.
        yield from filterfalse(self._asked.__getitem__, around)
        yield from filter(self._asked.__getitem__, around)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            if key in self._queues[self._pool_of[key]]:
                self._asked[key] = 1

    def on_insert(self, key: int, cause: Cause) -> None:
        self._queues[self._pool_of[key]][key] = None
        self._asked[key] = 0

    def on_evict(self, key: int) -> None:
        pool = self._pool_of[key]
        queue = self._queues[pool]
        if key not in queue:
            return
        around = self._from_hand(pool)
        passed = around if self._asked[key] else around[: around.index(key)]
        for other in passed:
            self._asked[other] = 0
        newer = around.index(key) + 1
        is_newest = key == next(reversed(queue))
        self._hands[pool] = -1 if is_newest else around[newer % len(around)]
        del queue[key]

    def _from_hand(self, pool: int) -> list[int]:
        keys = list(self._queues[pool])
        start = keys.index(self._hands[pool]) if self._hands[pool] >= 0 else 0
        return keys[start:] + keys[:start]


class S3FIFO(Pooled):
    """Three queues: new keys wait in a small one, those asked for again go on to the main one, and
    ghosts remember keys that left the small one (contract C149).

    Source: Yang et al., FIFO queues are all you need, SOSP 2023; libCacheSim's ``S3FIFO.c``, by the
    same authors, where the paper leaves something open.
    """

    MOST = 3
    """The most requests that a key is credited with."""

    def __init__(
        self,
        small_share: float = 0.1,
        ghost_share: float = 0.9,
        threshold: int = 2,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        require_range("cache.small_share", small_share, 0, 1, "a share of the pool's slots")
        require_range("cache.ghost_share", ghost_share, 0, 1, "a share of the pool's slots")
        require_number("cache.threshold", threshold, minimum=1, whole=True)
        if threshold > self.MOST:
            raise ValueError(f"cache.threshold={threshold} must be at most {self.MOST}")
        self.small_share, self.ghost_share, self.threshold = small_share, ghost_share, threshold

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        slots = _slots(geometry, plan)
        pools = range(len(slots))
        self._small_slots = [max(1, part_of(n, self.small_share)) for n in slots]
        self._main_slots = [n - small for n, small in zip(slots, self._small_slots, strict=True)]
        self._ghost_slots = [part_of(n, self.ghost_share) for n in slots]
        self._small: list[list[int]] = [[] for _ in pools]
        self._main: list[list[int]] = [[] for _ in pools]
        self._ghosts: list[dict[int, None]] = [{} for _ in pools]
        self._credit: dict[int, int] = {}
        """By resident key, its requests, at most ``MOST``."""
        self._returning: set[int] = set()
        """Ghosts that were asked for and are not resident yet."""
        self._has_evicted = [False for _ in pools]

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        small, main, credit = self._small[pool][:], self._main[pool][:], dict(self._credit)
        most = self._main_slots[pool]
        while (gone := self._next(small, main, credit, most, blocked.__getitem__)) >= 0:
            yield gone

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            ghosts = self._ghosts[self._pool_of[key]]
            if key in self._credit:
                self._credit[key] = min(self._credit[key] + 1, self.MOST)
            elif key in ghosts:
                del ghosts[key]
                self._returning.add(key)

    def on_insert(self, key: int, cause: Cause) -> None:
        pool = self._pool_of[key]
        small = self._small[pool]
        fills = not self._has_evicted[pool] and len(small) >= self._small_slots[pool]
        (self._main[pool] if key in self._returning or fills else small).append(key)
        self._returning.discard(key)
        self._ghosts[pool].pop(key, None)
        self._credit[key] = 0

    def on_evict(self, key: int) -> None:
        if key not in self._credit:
            self._returning.discard(key)
            return
        pool = self._pool_of[key]
        small, main, ghosts = self._small[pool], self._main[pool], self._ghosts[pool]
        # The walk that named the key, again: what it passed over was blocked.
        self._next(small, main, self._credit, self._main_slots[pool], key.__ne__, ghosts)
        while len(ghosts) > self._ghost_slots[pool]:
            del ghosts[next(iter(ghosts))]
        self._has_evicted[pool] = True

    def _next(
        self,
        small: list[int],
        main: list[int],
        credit: dict[int, int],
        main_slots: int,
        blocked: Callable[[int], object],
        ghosts: dict[int, None] | None = None,
    ) -> int:
        """Take the next victim out of the queues, which move on, and name it; -1: there is none."""

        def from_small() -> int:
            place = 0
            while place < len(small):
                key = small[place]
                if credit[key] >= self.threshold:
                    main.append(small.pop(place))
                    credit[key] = 0
                elif blocked(key):
                    place += 1
                else:
                    if ghosts is not None:
                        ghosts[key] = None
                    return small.pop(place)
            return -1

        def from_main() -> int:
            place = 0
            while place < len(main):
                key = main[place]
                if credit[key]:
                    credit[key] -= 1
                    main.append(main.pop(place))
                elif blocked(key):
                    place += 1
                else:
                    return main.pop(place)
            return -1

        first, second = from_small, from_main
        if len(main) > main_slots or not small:
            first, second = second, first
        found = first()
        found = second() if found < 0 else found
        # What the first turn moved from small to main may still go.
        found = first() if found < 0 else found
        if found >= 0:
            del credit[found]
        return found


class WTinyLFU(Pooled):
    """A small window takes every new key; what leaves it stays only if it was asked for more often
    than the main part's next victim (contract C150).

    Source: Einziger, Friedman and Manes, TinyLFU, ACM Transactions on Storage 13(4), 2017. Counts
    are exact here, where the paper has a sketch.
    """

    def __init__(
        self,
        window_share: float = 0.01,
        protected_share: float = 0.8,
        sample: int = 10,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        require_range("cache.window_share", window_share, 0, 1, "a share of the pool's slots")
        require_range("cache.protected_share", protected_share, 0, 1, "a share of the main part")
        require_number("cache.sample", sample, minimum=1, whole=True)
        self.window_share, self.protected_share, self.sample = window_share, protected_share, sample

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        slots = _slots(geometry, plan)
        pools = range(len(slots))
        self._window_slots = [max(1, part_of(n, self.window_share)) for n in slots]
        self._protected_slots = [
            part_of(n - window, self.protected_share)
            for n, window in zip(slots, self._window_slots, strict=True)
        ]
        self._halve_after = [self.sample * n for n in slots]
        self._requests = [0 for _ in pools]
        self._count = np.zeros(geometry.num_keys, np.int64)
        pool_of = np.asarray(plan.pool_of)
        self._within: list[Within] = [as_slice(np.flatnonzero(pool_of == pool)) for pool in pools]
        # Least recent first.
        self._window: list[dict[int, None]] = [{} for _ in pools]
        self._probation: list[dict[int, None]] = [{} for _ in pools]
        self._protected: list[dict[int, None]] = [{} for _ in pools]

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        window, room = self._window[pool], self._window_slots[pool] - 1
        news = filterfalse(blocked.__getitem__, window)
        kept = filterfalse(blocked.__getitem__, chain(self._probation[pool], self._protected[pool]))
        yield from self._contested(news, kept, len(window) - room)

    def _contested(self, news: Iterable[int], kept: Iterable[int], leaving: int) -> Iterator[int]:
        """Keys of the window against those of the main part, while the window is to lose any."""
        news, kept = iter(news), iter(kept)
        new, old = next(news, -1), next(kept, -1)
        while new >= 0 or old >= 0:
            loses = leaving > 0 and new >= 0 and self._count[new] <= self._count[old]
            if old < 0 or loses:
                yield new
                leaving -= 1
                new = next(news, -1)
            else:
                yield old
                old = next(kept, -1)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            pool = self._pool_of[key]
            self._count[key] += 1
            self._requests[pool] += 1
            if self._requests[pool] == self._halve_after[pool]:
                self._requests[pool] = 0
                self._count[self._within[pool]] >>= 1
            window, probation = self._window[pool], self._probation[pool]
            protected = self._protected[pool]
            if key in window:
                del window[key]
                window[key] = None
            elif key in probation or key in protected:
                probation.pop(key, None)
                protected.pop(key, None)
                protected[key] = None
                if len(protected) > self._protected_slots[pool]:
                    demoted = next(iter(protected))
                    del protected[demoted]
                    probation[demoted] = None

    def on_insert(self, key: int, cause: Cause) -> None:
        pool = self._pool_of[key]
        window = self._window[pool]
        window[key] = None
        if len(window) > self._window_slots[pool]:
            leaving = next(iter(window))
            del window[leaving]
            self._probation[pool][leaving] = None

    def on_evict(self, key: int) -> None:
        pool = self._pool_of[key]
        for queue in (self._window[pool], self._probation[pool], self._protected[pool]):
            queue.pop(key, None)


def _slots(geometry: Geometry, plan: PoolPlan) -> list[int]:
    """By pool, how many of the largest variants it holds, at least 1."""
    largest = max(geometry.slot_sizes)
    return [max(1, capacity // largest) for capacity in plan.capacity_bytes]
