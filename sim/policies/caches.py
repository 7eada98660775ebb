"""Cache policies: what is worth least when room is needed.

Requests change recency and counts whether they hit or miss; a missed key is pinned until it has arrived, so a policy
may rank it before it is resident: the controller's ``blocked`` keeps it from being offered. ``on_evict`` may name a key
that was requested and never inserted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.types import Cause, Geometry, PoolPlan

DEMAND = Cause.DEMAND
COUNT_SCOPES = ("resident", "sequence", "model")
RECENCIES = ("needs", "rows")
NEVER = 1 << 62
"""The next request of a key that is not requested again."""


class LRU(Pooled):
    """Least recently requested first; a prefetched key counts as recent when it arrives.

    ``recency``: inside a gate of several rows ``needs`` goes by need order, ``rows`` by the last (row, rank in the row)
    that chose an expert, as an engine does that touches its cache row by row.
    """

    def __init__(self, scope: str = "global", shares: Sequence[float] = (), initial: str = "ascending",
                 recency: str = "needs") -> None:  # fmt: skip
        super().__init__(scope, shares, initial)
        if recency not in RECENCIES:
            raise ValueError(f"unknown LRU recency {recency!r}; known: {', '.join(RECENCIES)}")
        self._by_rows = recency == "rows"

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._units = geometry.units
        self._orders: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]
        self._only_order = self._orders[0] if len(self._orders) == 1 and not self._by_rows else None

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return filterfalse(blocked.__getitem__, self._orders[pool])

    def on_requests(self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
        order = self._only_order
        if order is not None:
            for key in keys:
                order.pop(key, None)
                order[key] = None
            return
        if self._by_rows:
            keys = self._by_last_row(keys, gate)
        for key in keys:
            order = self._orders[self._pool_of[key]]
            order.pop(key, None)
            order[key] = None

    def on_insert(self, key: int, cause: Cause) -> None:
        # A demand has its place since its request.
        if cause is not DEMAND:
            self._orders[self._pool_of[key]].setdefault(key)

    def on_evict(self, key: int) -> None:
        del self._orders[self._pool_of[key]][key]

    def _by_last_row(self, keys: Sequence[int], gate: Gate) -> Sequence[int]:
        last = {expert: place for place, expert in enumerate(gate.experts.ravel().tolist())}
        return sorted(keys, key=lambda key: last[key % self._units])


class FIFO(Pooled):
    """Oldest insert first."""

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._orders: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return filterfalse(blocked.__getitem__, self._orders[pool])

    def on_insert(self, key: int, cause: Cause) -> None:
        self._orders[self._pool_of[key]][key] = None

    def on_evict(self, key: int) -> None:
        self._orders[self._pool_of[key]].pop(key, None)


class Transient(FIFO):
    """Holds no more than one token's needs of one site: loading on demand, whatever the budget.

    The pool is cut to ``top_k`` slots of the largest variant and starts empty.
    """

    def __init__(self) -> None:
        super().__init__(initial="empty")

    def _divide(self, geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
        buffer_bytes = geometry.top_k * max(geometry.variant_bytes)
        return (min(buffer_bytes, geometry.capacity_bytes),), [0] * geometry.num_keys


class LFU(Pooled):
    """Fewest requests first, ties least recent first.

    ``counts``: ``resident`` forgets a key's count when it is evicted, ``sequence`` all counts when a sequence begins,
    ``model`` never. A union's need counts once, however many rows chose it.
    """

    def __init__(self, counts: str = "resident", scope: str = "global", shares: Sequence[float] = (),
                 initial: str = "ascending") -> None:  # fmt: skip
        super().__init__(scope, shares, initial)
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

    def on_requests(self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
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
            keys = sorted((key for bucket in buckets.values() for key in bucket), key=self._stamp.__getitem__)
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


class WeightedScore(Pooled):
    """Lowest ``p`` first, ties lowest key first.

    ``p = ((w_lru*R + w_lfu*F) + w_lhu*H) / T + w_fld * (1 - ((l_t - l_i + L) mod L) / L)`` with, for an expert at
    whatever precision, R the token of its last use, F its token uses and H its token uses at high precision in this
    sequence; T the tokens so far, l_t the expert's site, l_i the site of the last gate, L the number of sites.
    Scores are held as arrays over (site, unit), so a victim costs one pass of numpy over its pool.

    Source: Tang et al., HOBBIT, arXiv:2411.01433, section 3.4, eq. 3.
    """

    TERMS = ("lru", "lfu", "lhu", "fld")

    def __init__(self, weights: Mapping[str, float], scope: str = "precision", shares: Sequence[float] = (0.8, 0.2),
                 initial: str = "ascending") -> None:  # fmt: skip
        super().__init__(scope, shares, initial)
        numbers = [w for w in weights.values() if isinstance(w, int | float) and not isinstance(w, bool) and w >= 0]
        if set(weights) != set(self.TERMS) or len(numbers) != len(self.TERMS):
            raise ValueError(f"cache.weights need {', '.join(self.TERMS)}, each a number >= 0; got {dict(weights)}")
        self.weights = tuple(float(weights[term]) for term in self.TERMS)

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        sites, units = geometry.sites, geometry.units
        self._plane = geometry.plane
        self._units = units
        experts = [[0] * self._plane for _ in range(3)]
        self._recent, self._uses, self._high_uses = experts
        planes = len(geometry.precisions)
        # +inf marks what is not resident: it can never be the minimum.
        self._absent = np.full(geometry.num_keys, np.inf)
        self._base = np.zeros(geometry.num_keys)
        distance = (np.arange(sites)[None, :] - np.arange(sites)[:, None] + sites) % sites
        far = self.weights[3] * (1 - distance / sites)
        self._far = np.tile(np.repeat(far, units, axis=1), (1, planes))
        pool_of = np.asarray(plan.pool_of)
        self._keys = [np.flatnonzero(pool_of == pool) for pool in range(len(plan.capacity_bytes))]
        self._within = [_as_slice(keys) for keys in self._keys]
        self._token, self._site = 1, 0

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        keys, within = self._keys[pool], self._within[pool]
        score = self._base[within] / self._token
        score += self._far[self._site][within]
        score += self._absent[within]
        score[np.frombuffer(blocked, np.bool_)[within]] = np.inf
        while True:
            best = int(score.argmin())
            if score[best] == np.inf:
                return
            yield int(keys[best])
            score[best] = np.inf

    def on_requests(self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
        plane = self._plane
        w_lru, w_lfu, w_lhu, _ = self.weights
        recent, uses, high_uses, base = self._recent, self._uses, self._high_uses, self._base
        token = self._token = gate.token
        self._site = gate.site
        tokens_of = dict(zip(gate.needs, gate.tokens, strict=True))
        for key, precision in zip(keys, wanted, strict=True):
            expert = key % plane
            count = tokens_of[expert % self._units]
            recent[expert] = token
            uses[expert] += count
            if precision == 0:
                high_uses[expert] += count
            base[expert::plane] = (w_lru * token + w_lfu * uses[expert]) + w_lhu * high_uses[expert]

    def on_insert(self, key: int, cause: Cause) -> None:
        self._absent[key] = 0.0

    def on_evict(self, key: int) -> None:
        self._absent[key] = np.inf

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._recent, self._uses, self._high_uses = ([0] * self._plane for _ in range(3))
            self._base[:] = 0.0


def _as_slice(keys: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """The same keys as a slice where they lie side by side: numpy then works on a view."""
    first, last = int(keys[0]), int(keys[-1]) + 1
    return slice(first, last) if last - first == len(keys) else keys


class Belady(Pooled):
    """Latest next request first (never again: last), ties largest key first.

    Needs the future: ``schedule[tick]`` are the keys that the run's gates will request, in need order.

    Source: Belady, IBM Systems Journal 5(2), 1966.
    """

    def __init__(self, scope: str = "global", shares: Sequence[float] = (), initial: str = "ascending") -> None:
        super().__init__(scope, shares, initial)
        self._schedule: Sequence[Sequence[int]] = ()

    def foresee(self, schedule: Sequence[Sequence[int]]) -> None:
        """Give the policy the run's requests; called once, before ``pools``."""
        self._schedule = schedule

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        if not len(self._schedule):
            raise ValueError("cache=belady needs the run's future requests; call foresee(schedule) before the run")
        upcoming = [NEVER] * geometry.num_keys
        position = sum(len(keys) for keys in self._schedule)
        self._after: list[dict[int, int]] = []
        for keys in reversed(self._schedule):
            position -= len(keys)
            self._after.append({key: upcoming[key] for key in keys})
            for offset, key in enumerate(keys):
                upcoming[key] = position + offset
        self._after.reverse()
        self._upcoming = upcoming
        self._orders: list[list[tuple[int, int]]] = [[] for _ in plan.capacity_bytes]
        self._held: set[int] = set()

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return (key for _, key in reversed(self._orders[pool]) if not blocked[key])

    def on_requests(self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
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
