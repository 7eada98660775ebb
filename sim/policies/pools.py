"""The common part of cache policies: how bytes are divided into pools, and what is resident at the
start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from sim.policies.base import CachePolicy
from sim.policies.profile import Profile
from sim.policies.quotas import Quotas, given_quotas, spread
from sim.policies.requires import Given, Requires
from sim.values.types import Geometry, PoolPlan
from sim.values.units import as_written, part_of

SCOPES = ("global", "precision", "site", "layout")
INITIALS = ("ascending", "popular", "empty")


class Pooled(CachePolicy):
    """A cache policy with pools by scope. A subclass says which keys go first.

    ``scope`` divides the bytes:

    - ``global``: one pool for everything; of several devices one each (contract C158).
    - ``site``: one pool a site, with equally many slots (left-over slots go one by one to the first
      sites), or as many as ``quotas`` say: a list of slots by site, or a `Quotas`.
    - ``precision``: one pool a precision, the bytes divided by ``shares``, highest precision first.
      Shares of precisions that are not in play are left out, and the others scaled up.
    - ``layout``: one pool for each device and size of slot, whatever the site (contract C145). They share the
      bytes in the proportion of all their experts. Sites to which ``quotas`` give slots have pools
      of their own beside them; one that holds all experts of its site is full at the start,
      whatever ``initial`` says.

    ``initial`` fills the pools at the start:

    - ``ascending``: each pool with experts by site, then id, at the pool's highest precision,
      except those that a pool of a higher precision holds. A tier that keeps copies leaves none
      out, and goes on with lower precisions while there is room.
    - ``popular``: the same, but by most uses in the trace's fit sequences.
    - ``empty``: with nothing.
    """

    def __init__(
        self,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        if scope not in SCOPES:
            raise ValueError(f"unknown cache scope {scope!r}; known: {', '.join(SCOPES)}")
        if initial not in INITIALS:
            raise ValueError(f"unknown initial cache {initial!r}; known: {', '.join(INITIALS)}")
        if (scope == "precision") != bool(shares):
            raise ValueError(
                f"cache shares go with scope=precision, got scope={scope} shares={list(shares)}"
                + (f"; with scope={scope} set cache.shares=[]" if shares else "")
            )
        if not all(isinstance(share, int | float) and 0 < share < math.inf for share in shares):
            raise ValueError(f"cache.shares must be numbers > 0, got {list(shares)}")
        self.scope = scope
        self.shares = tuple(shares)
        self.initial = initial
        self.quotas = _checked(quotas, scope)
        self.needs_profile = initial == "popular" or self._divides_by_profile
        """``profile`` must be called before ``pools``."""
        self._profile: Profile | None = None
        self._pool_of: Sequence[int] = ()

    @property
    def _divides_by_profile(self) -> bool:
        return not isinstance(self.quotas, Sequence) and self.quotas.needs_profile

    @property
    def requires(self) -> Requires:
        # Counts of whole steps rank experts; how often a token's need is missed takes its own rows.
        reads = ("rows",) if self._divides_by_profile else ()
        return Requires(profile=self.needs_profile, recorded=reads)

    def prepare(self, given: Given) -> None:
        if self.shares and abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError(
                f"cache.shares={list(self.shares)} sum to {sum(self.shares):g}; they divide one"
                " budget: make it 1"
            )
        if self.needs_profile:
            self.profile(given.profile)

    def profile(self, profile: Profile) -> None:
        """Take what the trace's fit sequences chose; called once, before ``pools``."""
        self._profile = profile

    def pools(self, geometry: Geometry) -> PoolPlan:
        if self.needs_profile and self._profile is None:
            raise ValueError(
                "this cache needs the trace's fit sequences; call profile(...) before the run"
            )
        capacities, pool_of = self._divide(geometry)
        order = [] if self.initial == "empty" else list(self._fill(geometry))
        if self.scope == "layout":
            order = list(dict.fromkeys([*self._whole(geometry), *order]))
        initial = tuple(_filled(geometry, capacities, pool_of, order))
        return self.adopt(geometry, PoolPlan(capacities, pool_of, initial))

    def adopt(self, geometry: Geometry, plan: PoolPlan) -> PoolPlan:
        """Work on the pools of ``plan``, and return it."""
        self._pool_of = plan.pool_of
        self._prepare(geometry, plan)
        return plan

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        """Make the subclass's state for these pools."""

    def _divide(self, geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
        if self.scope == "global":
            if geometry.device_of:
                return _by_device(geometry)
            return (geometry.capacity_bytes,), [0] * geometry.num_keys
        if self.scope == "precision":
            return _by_precision(geometry, self.shares)
        quotas = self._quotas_by_site(geometry)
        if self.scope == "layout":
            return _by_layout(geometry, quotas)
        slot_bytes = max(geometry.slot_sizes)
        return tuple(quota * slot_bytes for quota in quotas), [
            geometry.site_of(k) for k in range(geometry.num_keys)
        ]

    def _quotas_by_site(self, geometry: Geometry) -> Sequence[int]:
        """Slots of each site's own pool; with ``scope: layout`` 0 where it has none."""
        slots = geometry.capacity_bytes // max(geometry.slot_sizes)
        if not isinstance(self.quotas, Sequence):
            return self.quotas.divide(geometry, slots, self._profile)
        if self.quotas:
            return given_quotas(self.quotas, geometry, slots)
        return [0] * geometry.sites if self.scope == "layout" else spread(slots, geometry.sites)

    def _whole(self, geometry: Geometry) -> Iterator[tuple[int, int]]:
        """(site, expert) of the sites whose own pools hold all of their experts."""
        stored = geometry.experts - geometry.null_experts
        for site, quota in enumerate(self._quotas_by_site(geometry)):
            if quota >= stored:
                yield from ((site, expert) for expert in range(stored))

    def _fill(self, geometry: Geometry) -> Iterable[tuple[int, int]]:
        """Every (site, expert) in the order in which pools are filled at the start."""
        if self.initial == "popular":
            assert self._profile is not None
            return self._profile.ranking
        return itertools.product(range(geometry.sites), range(geometry.experts))


def _checked(quotas: Quotas | Sequence[int], scope: str) -> Quotas | tuple[int, ...]:
    if isinstance(quotas, Sequence):
        if not all(
            isinstance(quota, int) and not isinstance(quota, bool) and quota >= 0
            for quota in quotas
        ):
            raise ValueError(
                f"cache.quotas={list(quotas)} must be whole numbers of slots, 0 or more, one a site"
            )
        quotas = tuple(quotas)
    if quotas and scope not in ("site", "layout"):
        raise ValueError(f"cache.quotas go with scope=site or layout, got scope={scope}")
    return quotas


def _by_precision(geometry: Geometry, shares: Sequence[float]) -> tuple[tuple[int, ...], list[int]]:
    in_play = len(geometry.precisions)
    if len(shares) < in_play:
        raise ValueError(
            f"cache shares {list(shares)} name {len(shares)} pools, but the precisions in play are "
            f"{', '.join(geometry.precisions)}; give one share for each"
        )
    parts = [as_written(share) for share in shares[:in_play]]
    total, whole = sum(parts), geometry.capacity_bytes
    capacities = [part_of(whole, part / total) for part in parts[:-1]]
    return (*capacities, whole - sum(capacities)), [
        key // geometry.plane for key in range(geometry.num_keys)
    ]


def _by_device(geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
    """One pool for each device, in the proportion of all its experts."""
    stored = geometry.experts - geometry.null_experts
    all_bytes = [0] * (max(geometry.device_of) + 1)
    for key, device in enumerate(geometry.device_of):
        all_bytes[device] += geometry.slot_bytes[key] * (geometry.expert_of(key) < stored)
    whole = sum(all_bytes)
    capacities = tuple(geometry.capacity_bytes * part // whole for part in all_bytes)
    return capacities, [geometry.on_device(key) for key in range(geometry.num_keys)]


def _by_layout(geometry: Geometry, quotas: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """First the pools of sites with a quota, then one for each device and size of slot: by device,
    the largest first.
    """
    own = [site for site, quota in enumerate(quotas) if quota]
    capacities = [quotas[site] * geometry.slot_bytes[geometry.key(0, site, 0)] for site in own]
    pool_of_site = {site: pool for pool, site in enumerate(own)}
    layouts = [
        (geometry.on_device(key), -geometry.slot_bytes[key])
        if geometry.site_of(key) not in pool_of_site
        else None
        for key in range(geometry.num_keys)
    ]
    kinds = sorted({layout for layout in layouts if layout})
    everything = [-kind[1] * layouts.count(kind) for kind in kinds]
    left, shared = geometry.capacity_bytes - sum(capacities), sum(everything)
    parts = [left * part // shared for part in everything]
    pool_of_kind = {kind: len(own) + place for place, kind in enumerate(kinds)}
    return (*capacities, *parts), [
        pool_of_site[geometry.site_of(key)] if layout is None else pool_of_kind[layout]
        for key, layout in enumerate(layouts)
    ]


def _filled(
    geometry: Geometry,
    capacities: Sequence[int],
    pool_of: Sequence[int],
    order: Iterable[tuple[int, int]],
) -> Iterator[int]:
    """The keys that fill the pools in this ``order`` of (site, expert), highest precision first.

    Each pool is filled up to its first key that does not fit. A tier that keeps copies then goes on
    with the next precision in the bytes that are left.
    """
    free = list(capacities)
    full = [False] * len(free)
    held: set[tuple[int, int]] = set()
    order, slot_bytes = list(order), geometry.slot_bytes
    for precision in range(len(geometry.precisions)):
        touched: set[int] = set()
        for site, expert in order:
            key = geometry.key(precision, site, expert)
            pool, size = pool_of[key], slot_bytes[key]
            is_there = not geometry.keeps_copies and (site, expert) in held
            if full[pool] or is_there or key in geometry.missing:
                continue
            touched.add(pool)
            if free[pool] < size:
                full[pool] = True
                continue
            free[pool] -= size
            held.add((site, expert))
            yield key
        if geometry.keeps_copies:
            full = [False] * len(free)
        elif not geometry.missing:
            # A pool takes one precision only, except where every expert has one variant only.
            for pool in touched:
                full[pool] = True
