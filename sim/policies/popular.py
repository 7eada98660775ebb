"""A cache that does not change: it keeps the experts of a list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.policies.quotas import Quotas
from sim.policies.scored import Floats, Scored, Within
from sim.values.types import Geometry, PoolPlan


class Popular(Scored):
    """A fixed list of experts stays resident. Other experts are refused, and served from staging.

    The list is what fills the pools at the start: ``ranking``, (site, expert) pairs with the most
    popular first, or else the most used experts of the trace's fit sequences. Prefetches may still
    enter (loader.destination=pool). They are evicted first, then the list from its end.
    """

    admits_all = False

    def __init__(
        self,
        ranking: Sequence[Sequence[int]] = (),
        scope: str = "global",
        shares: Sequence[float] = (),
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, "popular", quotas)
        self.ranking = _checked_ranking(ranking)
        self.needs_profile = not self.ranking or self._divides_by_profile

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        return key in self._listed

    def _fill(self, geometry: Geometry) -> Sequence[tuple[int, int]]:
        for site, expert in self.ranking:
            if site >= geometry.sites or expert >= geometry.experts:
                raise ValueError(
                    f"cache.ranking names site {site} expert {expert}, but the model has"
                    f" {geometry.sites} sites of {geometry.experts} experts"
                )
        if self.ranking:
            return self.ranking
        assert self._profile is not None
        return self._profile.ranking

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._listed = frozenset(plan.initial)
        self._value = np.full(geometry.num_keys, -float(geometry.num_keys))
        self._value[list(plan.initial)] = -np.arange(len(plan.initial), dtype=np.float64)

    def _score(self, within: Within) -> Floats:
        return self._value[within].copy()


def _checked_ranking(ranking: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    for pair in ranking:
        match pair:
            case [int(site), int(expert)] if site >= 0 and expert >= 0:
                if (site, expert) in seen:
                    raise ValueError(f"cache.ranking names site {site} expert {expert} twice")
                seen.add((site, expert))
                pairs.append((site, expert))
            case _:
                raise ValueError(
                    "cache.ranking must list pairs [site, expert] of numbers from 0 on, got"
                    f" {pair!r}"
                )
    return pairs
