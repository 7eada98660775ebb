"""Caches that evict by order: of requests (LRU), of inserts (FIFO), or of passes through the model
(least stale).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import filterfalse

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.policies.quotas import Quotas
from sim.values.types import Cause, Geometry, PoolPlan

DEMAND = Cause.DEMAND
RECENCIES = ("needs", "rows")


class LRU(Pooled):
    """Least recently requested first. A prefetched key counts as requested when it arrives.

    ``recency`` orders the needs of one gate of several rows: ``needs`` by need order, ``rows`` by
    the last (row, rank in the row) that chose the expert, as in an engine that touches its cache
    row by row.
    """

    def __init__(
        self,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        recency: str = "needs",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        if recency not in RECENCIES:
            raise ValueError(f"unknown LRU recency {recency!r}; known: {', '.join(RECENCIES)}")
        self.goes_by_rows = recency == "rows"
        # A subclass has rules of its own, and must say so itself.
        self.keeps_the_most_recent = type(self) is LRU and not (self.goes_by_rows or self.quotas)

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._units = geometry.units
        self._orders: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]
        self._only_order = (
            self._orders[0] if len(self._orders) == 1 and not self.goes_by_rows else None
        )

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        return filterfalse(blocked.__getitem__, self._orders[pool])

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        order = self._only_order
        if order is not None:
            for key in keys:
                order.pop(key, None)
                order[key] = None
            return
        if self.goes_by_rows and len(gate.experts) > 1:
            keys = self._by_last_row(keys, gate)
        orders, pool_of = self._orders, self._pool_of
        for key in keys:
            order = orders[pool_of[key]]
            order.pop(key, None)
            order[key] = None

    def on_insert(self, key: int, cause: Cause) -> None:
        # A demand got its place at its request.
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
    """Loading on demand, whatever the budget: the pool holds one token's needs at one site.

    It has ``top_k`` slots of the largest variant and starts empty.
    """

    def __init__(self) -> None:
        super().__init__(initial="empty")

    def _divide(self, geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
        buffer_bytes = geometry.top_k * max(geometry.slot_sizes)
        capacities, pool_of = super()._divide(geometry)
        return tuple(min(buffer_bytes, capacity) for capacity in capacities), pool_of


class LeastStale(Pooled):
    """Keys that were neither requested nor inserted in this pass through the model go first, then
    the others; oldest insert first in both groups.

    A pass is a step. The experts of a site are not requested again before the next pass, so recency
    inside a pass says nothing.

    Source: Hoang et al., SpecMD, arXiv:2602.03921, as reimplementations describe it: two
    generations, each first in, first out.
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._stale: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]
        self._fresh: list[dict[int, None]] = [{} for _ in plan.capacity_bytes]
        self._came = [0] * geometry.num_keys
        self._clock = 0
        self._step = -1

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        yield from filterfalse(blocked.__getitem__, self._stale[pool])
        yield from filterfalse(
            blocked.__getitem__, sorted(self._fresh[pool], key=self._came.__getitem__)
        )

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        if gate.step != self._step:
            self._step = gate.step
            for pool, fresh in enumerate(self._fresh):
                self._stale[pool] = dict.fromkeys(
                    sorted({**self._stale[pool], **fresh}, key=self._came.__getitem__)
                )
                fresh.clear()
        for key in keys:
            pool = self._pool_of[key]
            if key in self._stale[pool]:
                del self._stale[pool][key]
                self._fresh[pool][key] = None

    def on_insert(self, key: int, cause: Cause) -> None:
        self._clock += 1
        self._came[key] = self._clock
        self._fresh[self._pool_of[key]][key] = None

    def on_evict(self, key: int) -> None:
        pool = self._pool_of[key]
        self._stale[pool].pop(key, None)
        self._fresh[pool].pop(key, None)
