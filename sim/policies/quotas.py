"""Quotas: how many slots each site gets where every site has a pool of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.policies.profile import Profile
from sim.values.types import CapacityError, Geometry


class Quotas(Protocol):
    """Divides ``slots`` equal slots of the device among the sites of a geometry."""

    needs_profile: bool
    """``divide`` must be given the profile of the trace's fit sequences."""

    def divide(self, geometry: Geometry, slots: int, profile: Profile | None) -> Sequence[int]:
        """Slots by site, at most ``slots`` in all. No site should get more than it has experts."""


def spread(slots: int, sites: int) -> list[int]:
    """Equally many slots for each site; left-over slots go one by one to the first sites."""
    each, extra = divmod(slots, sites)
    return [each + (site < extra) for site in range(sites)]


class ShallowFirst:
    """The first ``shallow_sites`` sites get slots for all their experts, in order; the deeper ones
    share the rest evenly.

    A site never gets more slots than it has experts. The remainder of the even division goes one by
    one to the shallowest of the deep sites.

    Source: Fang et al., Fate, arXiv:2502.12224, section 4.4.
    """

    needs_profile = False

    def __init__(self, shallow_sites: int) -> None:
        if (
            isinstance(shallow_sites, bool)
            or not isinstance(shallow_sites, int)
            or shallow_sites < 0
        ):
            raise ValueError(
                f"cache.quotas.shallow_sites={shallow_sites!r} must be a whole number, 0 or more"
            )
        self.shallow_sites = shallow_sites

    def divide(self, geometry: Geometry, slots: int, profile: Profile | None) -> Sequence[int]:
        if self.shallow_sites > geometry.sites:
            raise ValueError(
                f"cache.quotas.shallow_sites={self.shallow_sites} exceeds the model's"
                f" {geometry.sites} sites"
            )
        quotas = []
        for _ in range(self.shallow_sites):
            quotas.append(min(geometry.experts, slots))
            slots -= quotas[-1]
        deep = geometry.sites - self.shallow_sites
        return (
            quotas + [min(geometry.experts, share) for share in spread(slots, deep)]
            if deep
            else quotas
        )


class MeasuredLoads:
    """The division with which one LRU for each site misses least often on the decoded tokens of the
    fit sequences.

    It is exact, by dynamic programming over sites. Of equally good divisions it takes the one that
    gives later sites fewer slots.
    """

    needs_profile = True

    def divide(self, geometry: Geometry, slots: int, profile: Profile | None) -> Sequence[int]:
        assert profile is not None
        costs = [profile.lru_misses(site) for site in range(geometry.sites)]
        return fewest_loads(costs, slots, geometry.top_k)


class ExpectedLoads:
    """The division with the fewest expected loads a token, if each site's slots hold experts at
    random.

    A site that holds s of its E experts needs ``a f(1) + (1 - a) f(K)`` loads, where
    ``f(k) = k (1 - s/E) - b (1 - C(s, k) / C(E, k))``. Of k experts drawn evenly, k (1 - s/E) are
    absent on average. If any is absent, one is brought in time with probability b.

    ``prefetch_accuracy`` is b, ``single_share`` is a: the share of tokens that use one expert only.
    Each is a number or a list by site. A number for b stands for every site but the first, for
    which nothing is prefetched.

    Source: Zhong et al., AdapMoE, arXiv:2408.10284, as its public code computes it for E = 8 and K
    = 2 (src/dp.py); for other E and K the same hypergeometric count.
    """

    needs_profile = False

    def __init__(
        self,
        prefetch_accuracy: float | Sequence[float],
        single_share: float | Sequence[float] = 0.0,
    ) -> None:
        self.prefetch_accuracy = _shares("prefetch_accuracy", prefetch_accuracy)
        self.single_share = _shares("single_share", single_share)

    def divide(self, geometry: Geometry, slots: int, profile: Profile | None) -> Sequence[int]:
        sites, experts, top_k = geometry.sites, geometry.experts, geometry.top_k
        accuracy = _by_site("prefetch_accuracy", self.prefetch_accuracy, sites, first=0.0)
        single = _by_site("single_share", self.single_share, sites)

        def loads(k: int, held: int, b: float) -> float:
            return k * (1 - held / experts) - b * (1 - math.comb(held, k) / math.comb(experts, k))

        costs = [
            [a * loads(1, held, b) + (1 - a) * loads(top_k, held, b) for held in range(experts + 1)]
            for a, b in zip(single, accuracy, strict=True)
        ]
        return fewest_loads(costs, slots, top_k)


def fewest_loads(costs: Sequence[Sequence[float]], slots: int, least: int) -> list[int]:
    """Slots by site that minimise ``sum(costs[site][slots of the site])``, with at least ``least``
    a site and ``slots`` in all.

    ``costs[site]`` is a list by number of slots, from 0 to all experts. Slots beyond all experts of
    all sites are given to no site. Raise CapacityError where ``slots`` are too few.
    """
    sites, most = len(costs), len(costs[0]) - 1
    if slots < least * sites:
        raise CapacityError(
            f"cache.quotas give each of {sites} sites at least {least} slots, one token's needs:"
            f" {least * sites} in all, but the budget holds {slots}; raise budget.resident_share or"
            " slots_gib"
        )
    slots = min(slots, most * sites)
    best = np.full(slots + 1, np.inf)
    best[0] = 0.0
    chosen: list[NDArray[np.int64]] = []
    for cost in costs:
        total, picked = np.full(slots + 1, np.inf), np.zeros(slots + 1, np.int64)
        for own in range(least, min(most, slots) + 1):
            candidate = best[: slots + 1 - own] + cost[own]
            better = candidate < total[own:]
            total[own:][better] = candidate[better]
            picked[own:][better] = own
        best = total
        chosen.append(picked)
    quotas = []
    for picked in reversed(chosen):
        quotas.append(int(picked[slots]))
        slots -= quotas[-1]
    return quotas[::-1]


def given_quotas(quotas: Sequence[int], geometry: Geometry, slots: int) -> list[int]:
    """Quotas from a list. Raise ValueError unless they fit the model's sites and the slots."""
    if len(quotas) != geometry.sites:
        raise ValueError(
            f"cache.quotas={list(quotas)} name {len(quotas)} sites, the model has {geometry.sites}"
        )
    if sum(quotas) > slots:
        raise ValueError(
            f"cache.quotas={list(quotas)} take {sum(quotas)} slots, but the cache has {slots};"
            " lower them, or raise budget.resident_share or slots_gib"
        )
    return list(quotas)


def _shares(name: str, value: float | Sequence[float]) -> float | tuple[float, ...]:
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    if not numbers or not all(_is_share(number) for number in numbers):
        raise ValueError(
            f"cache.quotas.{name}={value!r} must be a number from 0 to 1, or a list of these, one a"
            " site"
        )
    return tuple(map(float, numbers)) if isinstance(value, Sequence) else float(value)


def _is_share(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1


def _by_site(
    name: str, value: float | tuple[float, ...], sites: int, first: float | None = None
) -> list[float]:
    if isinstance(value, float):
        return [value if first is None else first, *[value] * (sites - 1)]
    if len(value) != sites:
        raise ValueError(
            f"cache.quotas.{name} lists {len(value)} values, the model has {sites} sites"
        )
    return list(value)
