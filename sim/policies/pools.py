"""How a cache policy divides its bytes into pools, and what is resident at the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sim.policies.base import Gate
from sim.types import Cause, Geometry, PoolPlan

SCOPES = ("global", "precision", "site")
INITIALS = ("ascending", "empty")


class Pooled:
    """The part that cache policies share: pools by scope, and doing nothing where a policy has nothing to learn.

    ``scope``: ``global`` is one pool for everything; ``site`` one pool a site, equal in slots (left-over slots go one
    by one to the first sites); ``precision`` one pool a precision, the bytes divided by ``shares`` (highest precision
    first; shares of precisions that are not in play are left out and the rest scaled up).
    ``initial``: ``ascending`` fills every pool with experts by site, then id, at the pool's highest precision, leaving
    out those that a higher precision's pool already holds; ``empty`` starts cold.
    """

    admits_all = True

    def __init__(self, scope: str = "global", shares: Sequence[float] = (), initial: str = "ascending") -> None:
        if scope not in SCOPES:
            raise ValueError(f"unknown cache scope {scope!r}; known: {', '.join(SCOPES)}")
        if initial not in INITIALS:
            raise ValueError(f"unknown initial cache {initial!r}; known: {', '.join(INITIALS)}")
        if (scope == "precision") != bool(shares):
            raise ValueError(f"cache shares go with scope=precision, got scope={scope} shares={list(shares)}")
        if not all(isinstance(share, int | float) and share > 0 for share in shares):
            raise ValueError(f"cache.shares must be numbers > 0, got {list(shares)}")
        self.scope = scope
        self.shares = tuple(shares)
        self.initial = initial
        self._pool_of: Sequence[int] = ()

    def pools(self, geometry: Geometry) -> PoolPlan:
        capacities, pool_of = self._divide(geometry)
        initial = tuple(_ascending(geometry, capacities, pool_of)) if self.initial == "ascending" else ()
        return self.adopt(geometry, PoolPlan(capacities, pool_of, initial))

    def adopt(self, geometry: Geometry, plan: PoolPlan) -> PoolPlan:
        """Work on these pools."""
        self._pool_of = plan.pool_of
        self._prepare(geometry, plan)
        return plan

    def admit(self, key: int, cause: Cause) -> bool:
        return True

    def on_requests(self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
        pass

    def on_sequence(self, sequence: int, begins: bool) -> None:
        pass

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        """Make the policy's own state for these pools."""

    def _divide(self, geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
        if self.scope == "global":
            return (geometry.capacity_bytes,), [0] * geometry.num_keys
        if self.scope == "precision":
            return _by_precision(geometry, self.shares)
        return _by_site(geometry)


def _by_precision(geometry: Geometry, shares: Sequence[float]) -> tuple[tuple[int, ...], list[int]]:
    in_play = len(geometry.precisions)
    if len(shares) < in_play:
        raise ValueError(
            f"cache shares {list(shares)} name {len(shares)} pools, but the precisions in play are "
            f"{', '.join(geometry.precisions)}; give one share for each"
        )
    total = sum(shares[:in_play])
    rest = geometry.capacity_bytes
    capacities = []
    for share in shares[: in_play - 1]:
        capacities.append(int(geometry.capacity_bytes * share / total))
        rest -= capacities[-1]
    capacities.append(rest)
    return tuple(capacities), [key // geometry.plane for key in range(geometry.num_keys)]


def _by_site(geometry: Geometry) -> tuple[tuple[int, ...], list[int]]:
    slot_bytes = max(geometry.variant_bytes)
    each, extra = divmod(geometry.capacity_bytes // slot_bytes, geometry.sites)
    capacities = tuple((each + (site < extra)) * slot_bytes for site in range(geometry.sites))
    return capacities, [geometry.site_of(key) for key in range(geometry.num_keys)]


def _ascending(geometry: Geometry, capacities: Sequence[int], pool_of: Sequence[int]) -> Iterator[int]:
    free = list(capacities)
    full = [False] * len(free)
    held: set[tuple[int, int]] = set()
    for precision in range(len(geometry.precisions)):
        touched: set[int] = set()
        for site in range(geometry.sites):
            for expert in range(geometry.experts):
                key = geometry.key(precision, site, expert)
                pool, size = pool_of[key], geometry.bytes_of(key)
                if full[pool] or (site, expert) in held or key in geometry.missing:
                    continue
                touched.add(pool)
                if free[pool] < size:
                    full[pool] = True
                    continue
                free[pool] -= size
                held.add((site, expert))
                yield key
        for pool in touched:
            full[pool] = True
