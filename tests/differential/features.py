"""Random scenarios in which one feature of docs/contracts, or a random mixture of them, matters.

Every draw takes an otherwise random scenario (`random_scenario`) and changes what the features
need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from differential.dice import COMPOSED, Draw
from differential.scenario import (
    Cache,
    Devices,
    Fixed,
    Forecast,
    Host,
    Key,
    Link,
    Placement,
    PoolSpec,
    Prediction,
    RamTier,
    Reroute,
    Rivalry,
    Scenario,
    Swap,
    random_scenario,
)

FEATURES = (
    "engines",
    "two_hops",
    "three_hops",
    "cut_through",
    "ram_tier",
    "chunks",
    "write_back",
    "staging",
    "refusals",
    "partial",
    "dense",
    "site_bytes",
    "cpu",
    "after_batch",
    "spared_forecasts",
    "per_access",
    "host",
    "prediction_latency",
    "in_order",
    "many_sequences",
    "encoder_decoder",
    "static",
    "continuous",
    "prefill_chunk",
    "arrivals",
    "recency_rows",
    "reroute",
    "forecast_routes",
    "likeliest",
    "own_site",
    "short_pools",
    "held_bytes",
    "drafts",
)
RIVALS = "rivals"
"""Parties that hold each other up. Only the simulator is told of it: a device's own do so by
themselves.
"""
DEVICES = "devices"
"""Several devices with some sites each. Only the simulator has them."""
LANES = "lanes"
"""Engines with a pace of their own, reads and kernels by projection, host time a load. Only the
simulator has them.
"""
OWNERS = "owners"
"""Several devices that own experts of every site. Only the simulator has them."""
SHRINKING = "shrinking"
"""Pools that give way to keys and values, and come back. Only the simulator has them."""
PREFIXES = "prefixes"
"""Prompts that begin alike, and keys and values in tiers. Only the simulator moves these."""
DRAFT_SITES = "draft_sites"
"""Drafts whose experts are offloaded, too. Only the simulator drafts."""
KEPT = "until_next_visit"
"""Pools that keep what a batch asked for until their next visit."""
SWAP = "swap"
"""Weights that the memory does not hold. Only the simulator has it."""
SIMULATED = (
    *FEATURES,
    RIVALS,
    DEVICES,
    LANES,
    OWNERS,
    SHRINKING,
    PREFIXES,
    DRAFT_SITES,
    KEPT,
    SWAP,
)
NOT_BESIDE_LANES = {"cut_through", "chunks", "write_back", "partial"}
"""What links with lanes, or kernels that go by projection, refuse (contract C141)."""
OF_ONE_DEVICE = {
    "two_hops",
    "three_hops",
    "cut_through",
    "ram_tier",
    "write_back",
    "partial",
    "dense",
    PREFIXES,
}
"""What several devices refuse (contracts C163 and C179)."""
NOT_BESIDE_PREFIXES = {"dense", "encoder_decoder", "partial", "own_site", "many_sequences"}
"""What held prefixes refuse (contract C179), and what recorded steps alone have."""
NOT_BESIDE_DRAFTS = {"dense", "encoder_decoder", "partial", "own_site", "many_sequences"}
"""What drafts that offload their experts refuse (contract C186), and what recorded steps have."""
NOT_BESIDE_SWAP = {"dense", "write_back", "after_batch", "spared_forecasts"}
"""What swap, or a pool that keeps a batch, refuses (contracts C140 and C183)."""
COMPANIONS = ("engines", "cut_through", "chunks")
"""What a service on a link does before its end, or beside another: among rivals when so much of
its work is done.
"""

LOOKS_AHEAD = {
    "chunks",
    "staging",
    "partial",
    "prediction_latency",
    "forecast_routes",
    "likeliest",
    "own_site",
    "spared_forecasts",
}
CONFLICTS = (
    ("chunks", {"engines", "write_back"}),
    (
        "write_back",
        {"staging", "refusals", "partial", "after_batch", "short_pools", "spared_forecasts"},
    ),
    ("after_batch", {"spared_forecasts"}),
    ("own_site", COMPOSED),
    ("dense", {"encoder_decoder", PREFIXES}),
    (PREFIXES, {"encoder_decoder"}),
    ("partial", COMPOSED | {"reroute", "forecast_routes"}),
    ("reroute", {"forecast_routes"}),
    ("many_sequences", COMPOSED | {"encoder_decoder"}),
    ("static", {"continuous"}),
    ("three_hops", {"two_hops"}),
)
"""Contracts C140 to C142, and what excludes itself; partial moves are given with recorded needs
only."""


def random_feature(name: str, seed: int, ties: bool) -> Scenario:
    """One feature, and what it cannot be without."""
    return _build({name}, seed, ties, SIMULATED.index(name))


def random_companions(name: str, seed: int, ties: bool) -> Scenario:
    """Rivals, and a feature of links that they change the course of."""
    return _build({RIVALS, name}, seed, ties, len(FEATURES) + 2 + COMPANIONS.index(name))


def random_mixture(
    seed: int,
    ties: bool,
    *,
    rivals: bool = False,
    devices: str = "",
    lanes: bool = False,
    shrinks: bool = False,
    prefixes: bool = False,
    drafts: bool = False,
    swaps: bool = False,
) -> Scenario:
    """A random valid subset of the features, and rivals, devices, lanes, pools that shrink or swap if
    they are asked for. `devices`: how they split the model.
    """
    rng = np.random.default_rng([seed, int(ties), len(FEATURES)])
    chosen = {name for name in FEATURES if rng.random() < rng.choice([0.1, 0.3, 0.6])}
    conflicts = list(CONFLICTS)
    for index in rng.permutation(len(conflicts)):
        name, others = conflicts[int(index)]
        if name in chosen and chosen & others:
            chosen -= others if rng.random() < 0.5 else {name}
    if rivals:
        chosen |= {RIVALS}
    if devices:
        chosen = (chosen | {devices}) - OF_ONE_DEVICE
    if lanes:
        chosen = (chosen | {LANES}) - NOT_BESIDE_LANES
    if shrinks:
        chosen = (chosen | {SHRINKING}) - {"write_back"}
    if prefixes:
        chosen = (chosen | {PREFIXES}) - NOT_BESIDE_PREFIXES
    if drafts:
        chosen = (chosen | {DRAFT_SITES}) - NOT_BESIDE_DRAFTS
    if swaps:
        chosen = (chosen | {KEPT, SWAP}) - NOT_BESIDE_SWAP
    return _build(chosen, seed, ties, len(FEATURES))


def _build(chosen: Collection[str], seed: int, ties: bool, salt: int) -> Scenario:
    names = set(chosen)
    if DRAFT_SITES in names:
        names.add("drafts")
    rng = np.random.default_rng([seed, int(ties), 100 + salt])
    if names & {"prefill_chunk", "arrivals", "drafts", PREFIXES} and not names & {
        "static",
        "continuous",
    }:
        names.add("static" if rng.random() < 0.5 else "continuous")
    if {"prefill_chunk", "encoder_decoder"} <= names:
        names.discard("encoder_decoder")
    draw = Draw(rng, ties)
    scenario = next(
        s
        for offset in range(1000)
        if _suits(s := random_scenario(seed + 10_007 * offset, ties), names)
    )
    if names & LOOKS_AHEAD and scenario.loader.lookahead == 0:
        scenario = draw.with_rows(
            replace(scenario, loader=replace(scenario.loader, lookahead=2)), names
        )
    elif names & (COMPOSED | {"many_sequences", "encoder_decoder", "recency_rows"}):
        scenario = draw.with_rows(scenario, names)
    scenario = draw.with_links(scenario, names)
    for name in SIMULATED:
        if name in names and (change := CHANGES.get(name)):
            scenario = change(draw, scenario)
    return scenario


def _suits(scenario: Scenario, names: set[str]) -> bool:
    """Whether the features can matter in this scenario, and are not refused in it."""
    apart = {"dense", "encoder_decoder", DEVICES, DRAFT_SITES} | LOOKS_AHEAD
    return (scenario.sites > 1 or not names & apart) and (
        scenario.precisions == 1 or not names & {"partial", "forecast_routes"}
    )


# ---- what each feature changes


def _loader(scenario: Scenario, **switches: Any) -> Scenario:
    return replace(scenario, loader=replace(scenario.loader, **switches))


def _ram_tier(draw: Draw, scenario: Scenario) -> Scenario:
    """One RAM pool, or one a precision or a site; room for one variant or for most of them;
    empty or full.
    """
    largest = max(scenario.variant_bytes)
    everything = tuple(range(scenario.precisions))
    shapes: list[tuple[tuple[int, ...], int | None]] = [(everything, None)]
    if draw.coin(0.3):
        shapes = [((precision,), None) for precision in everything]
    elif draw.coin(0.3):
        shapes = [(everything, site) for site in range(scenario.sites)]
    pools = []
    for covered, site in shapes:
        capacity = largest + draw.between(0, int(draw.rng.choice([0, 4, 20])) * largest)
        keys = [
            (p, s, e)
            for p in covered
            for s in range(scenario.sites)
            for e in range(scenario.experts)
            if site in (None, s)
        ]
        initial, room = [], capacity if draw.coin(0.5) else 0
        for index in draw.rng.permutation(len(keys)):
            key = keys[int(index)]
            if scenario.size(key) <= room:
                room -= scenario.size(key)
                initial.append(key)
        pools.append(PoolSpec(capacity, covered, site, tuple(initial)))
    caches = ("lru", "fifo", "lfu_resident", "lfu_sequence", "lfu_model")
    cache = Cache(caches[draw.between(0, 4)])  # type: ignore[arg-type]
    return replace(scenario, ram=RamTier(draw.between(1, scenario.hops - 1), tuple(pools), cache))


def _chunks(draw: Draw, scenario: Scenario) -> Scenario:
    chunk = draw.between(1, max(1, max(scenario.variant_bytes) // 2))
    return _loader(scenario, chunk_bytes=chunk, demand_first=True)


def _staging_slots(draw: Draw, scenario: Scenario) -> int:
    return max(scenario.loader.staging_slots, draw.between(1, 5))


def _staging(draw: Draw, scenario: Scenario) -> Scenario:
    return _loader(scenario, destination="staging", staging_slots=_staging_slots(draw, scenario))


def _refusals(draw: Draw, scenario: Scenario) -> Scenario:
    def some() -> frozenset[int]:
        probability = float(draw.rng.choice([0.0, 0.3, 0.7, 1.0]))
        return frozenset(expert for expert in range(scenario.experts) if draw.coin(probability))

    refused = replace(scenario, refused=some() | {0}, displace_none=some())
    return _loader(refused, staging_slots=_staging_slots(draw, scenario))


def _partial(draw: Draw, scenario: Scenario) -> Scenario:
    """Some needs and forecasts ask for less than the variant."""
    share = float(draw.rng.choice([0.4, 1.0]))

    def less(asked: Any) -> Any:
        if not draw.coin(share):
            return asked
        return replace(asked, moved_bytes=draw.between(1, scenario.variant_bytes[0]))

    steps = tuple(
        replace(
            step,
            needs=tuple(tuple(less(need) for need in needs) for needs in step.needs),
            forecasts=tuple(
                tuple(
                    None if forecast is None else tuple(less(one) for one in forecast)
                    for forecast in forecasts
                )
                for forecasts in step.forecasts
            ),
        )
        for step in scenario.steps
    )
    return _loader(replace(scenario, steps=steps), staging_slots=_staging_slots(draw, scenario))


def _dense(draw: Draw, scenario: Scenario) -> Scenario:
    sizes = tuple(draw.between(1, 2 * max(scenario.variant_bytes)) for _ in range(scenario.sites))
    return _loader(
        replace(scenario, dense_bytes=sizes), dense_slots=draw.between(1, scenario.sites - 1)
    )


def _site_bytes(draw: Draw, scenario: Scenario) -> Scenario:
    """Never more than the variant's bytes, for which there is room."""
    sizes = tuple(
        tuple(draw.between(1, size) for _ in range(scenario.sites))
        for size in scenario.variant_bytes
    )
    return replace(scenario, site_bytes=sizes)


def _cpu(draw: Draw, scenario: Scenario) -> Scenario:
    def some(probability: float) -> frozenset[tuple[int, int]]:
        return frozenset(
            (s, e)
            for s in range(scenario.sites)
            for e in range(scenario.experts)
            if draw.coin(probability)
        )

    placement = Placement(
        cpu=some(float(draw.rng.choice([0.3, 0.6, 1.0]))),
        skip=some(float(draw.rng.choice([0.0, 0.0, 0.2]))),
        cpu_rows=int(draw.rng.choice([1, 2, 100])),
        cpu_ns=draw.below(4, 2000),
        cpu_row_ns=draw.below(2, 300),
    )
    return replace(scenario, placement=placement)


def _without_future(scenario: Scenario) -> Scenario:
    """Belady looks forward along what routers choose."""
    return replace(scenario, cache=Cache("lru")) if scenario.cache.name == "belady" else scenario


def _reroute(draw: Draw, scenario: Scenario) -> Scenario:
    """Some experts are served by others, often the same ones, at any precision."""
    share = float(draw.rng.choice([0.3, 0.6, 1.0]))
    hubs = [draw.between(0, scenario.experts - 1) for _ in range(draw.between(1, 3))]
    instead = tuple(
        (
            (site, expert),
            (hubs[draw.between(0, len(hubs) - 1)], draw.between(0, scenario.precisions - 1)),
        )
        for site in range(scenario.sites)
        for expert in range(scenario.experts)
        if draw.coin(share)
    )
    return replace(_without_future(scenario), reroute=Reroute(instead))


def _host(draw: Draw, scenario: Scenario) -> Scenario:
    times = [draw.below(3, 300) * draw.coin(0.7) for _ in range(4)]
    if draw.coin(0.6):
        return replace(scenario, host=Host(*times))
    waits = sorted({draw.below(12, 900) for _ in range(draw.between(2, 4))})
    return replace(scenario, host=Host(*times, tuple((at, draw.below(5, 300)) for at in waits)))


def _rivals(draw: Draw, scenario: Scenario) -> Scenario:
    """Those at work leave each other a part of their pace, or ask for more than their memory gives,
    or both. Any party may hold up any other.
    """
    parties = range(2 + scenario.hops)
    kept = tuple(
        (party, rival, draw.between(1, 1000) * 1000)
        for party in parties
        for rival in parties
        if party != rival and draw.coin(0.5)
    )
    draws = tuple(draw.between(1, 1000) if draw.coin(0.7) else 0 for _ in parties)
    memory = draw.between(1, max(1, sum(draws))) if draw.coin(0.7) else sum(draws)
    return replace(scenario, rivalry=Rivalry(kept, draws, memory, draw.below(3, 800)))


def _likeliest(draw: Draw, scenario: Scenario) -> Scenario:
    """Every forecast has a likeliness, often the same one, and all sites' forecasts stand in one
    queue.
    """
    most = draw.between(1, 6)

    def likely(forecast: Prediction) -> Prediction:
        if forecast is None:
            return None
        return tuple(replace(one, likeliness=draw.between(0, most) / 8) for one in forecast)

    def all_likely(by_site: Any) -> Any:
        return tuple(tuple(likely(forecast) for forecast in forecasts) for forecasts in by_site)

    steps = tuple(replace(step, forecasts=all_likely(step.forecasts)) for step in scenario.steps)
    requests = tuple(
        replace(
            request,
            decode=tuple(
                replace(row, forecasts=all_likely(row.forecasts)) for row in request.decode
            ),
        )
        for request in scenario.requests
    )
    return _loader(replace(scenario, steps=steps, requests=requests), prefetch_order="likeliest")


def _own_site(draw: Draw, scenario: Scenario) -> Scenario:
    """At some gates experts of the gate's own site are forecast, too."""

    def some() -> Prediction:
        chosen = draw.rng.permutation(scenario.experts)[: draw.between(1, scenario.experts)]
        likely = [draw.between(0, 8) / 8 for _ in chosen]
        return tuple(
            Forecast(int(e), draw.between(0, 8) / 8, None, x)
            for e, x in zip(chosen, likely, strict=True)
        )

    return replace(
        scenario,
        steps=tuple(
            replace(
                step, own=tuple(some() if draw.coin(0.7) else None for _ in range(scenario.sites))
            )
            for step in scenario.steps
        ),
    )


def _as_fits(scenario: Scenario, pool: PoolSpec, capacity: int) -> PoolSpec:
    """The pool with another capacity, and of its first contents what that holds."""
    room, kept = capacity, []
    for key in pool.initial:
        if scenario.slot(key) <= room:
            room -= scenario.slot(key)
            kept.append(key)
    return replace(pool, capacity_bytes=capacity, initial=tuple(kept))


def _short_pools(draw: Draw, scenario: Scenario) -> Scenario:
    """Some pools hold less than one token's needs, down to nothing."""

    def shortened(pool: PoolSpec) -> PoolSpec:
        if not draw.coin(0.7):
            return pool
        one_token = scenario.at_once * max(scenario.variant_bytes)
        return _as_fits(scenario, pool, draw.between(0, min(pool.capacity_bytes, one_token)))

    pools = tuple(shortened(pool) for pool in scenario.pools)
    return _loader(replace(scenario, pools=pools), staging_slots=_staging_slots(draw, scenario))


def _held_bytes(draw: Draw, scenario: Scenario) -> Scenario:
    """Slots hold up to three times what is moved; pools grow as much as the variant that grows
    most.
    """
    grown = [draw.between(1, 3) for _ in scenario.variant_bytes]
    held = tuple(size * times for size, times in zip(scenario.variant_bytes, grown, strict=True))
    pools = tuple(
        replace(pool, capacity_bytes=pool.capacity_bytes * max(grown)) for pool in scenario.pools
    )
    scenario = replace(scenario, held_bytes=held, pools=pools)
    return replace(
        scenario, pools=tuple(_as_fits(scenario, pool, pool.capacity_bytes) for pool in pools)
    )


def _spared_forecasts(draw: Draw, scenario: Scenario) -> Scenario:
    """A demand takes nothing that is forecast."""
    return _loader(scenario, demand_evicts="unmasked", staging_slots=_staging_slots(draw, scenario))


def _devices(draw: Draw, scenario: Scenario) -> Scenario:
    """Two or three devices, each slower or not, with links of their own or one that they share."""
    count = draw.between(2, min(3, scenario.sites))
    places = range(1, scenario.sites)
    cuts = sorted(int(c) for c in draw.rng.choice(places, size=count - 1, replace=False))
    of = tuple(sum(site >= cut for cut in cuts) for site in range(scenario.sites))
    where = Devices(
        of,
        tuple(draw.between(1, 3) for _ in range(count)),
        draw.between(0, count - 1) if draw.coin(0.3) else count - 1,
        draw.below(3, 300),
        draw.below(2, 60),
        shared=draw.coin(0.3),
    )
    (first,) = scenario.links
    links = [first] + [
        Link(draw.below(3, 400), max(1, draw.below(3, 300)), draw.between(1, first.engines))
        for _ in range(count - 1)
    ]
    return _on_devices(scenario, where, tuple(links))


def _owners(draw: Draw, scenario: Scenario) -> Scenario:
    """Two or three devices that own experts, other ones at each site."""
    count = draw.between(2, min(3, scenario.experts))
    places = range(1, scenario.experts)
    cuts = sorted(int(c) for c in draw.rng.choice(places, size=count - 1, replace=False))
    where = Devices(
        (),
        tuple(draw.between(1, 3) for _ in range(count)),
        0,
        draw.below(3, 300),
        draw.below(2, 60),
        shared=draw.coin(0.3),
        owner=tuple(sum(e >= cut for cut in cuts) for e in range(scenario.experts)),
        turn=tuple(draw.between(0, scenario.experts - 1) for _ in range(scenario.sites)),
    )
    (first,) = scenario.links
    links = [first] + [
        Link(draw.below(3, 400), max(1, draw.below(3, 300)), draw.between(1, first.engines))
        for _ in range(count - 1)
    ]
    return _on_devices(scenario, where, tuple(links))


def _on_devices(scenario: Scenario, where: Devices, links: tuple[Link, ...]) -> Scenario:
    """No pool spans devices."""
    pools = tuple(
        part
        for pool in scenario.pools
        for part in (
            [pool]
            if pool.site is not None and not where.owner
            else _by_device(scenario, pool, where)
        )
    )
    return replace(scenario, devices=where, pools=pools, links=links[:1] if where.shared else links)


def _by_device(scenario: Scenario, pool: PoolSpec, where: Devices) -> list[PoolSpec]:
    """A pool of each device in the place of one for all of them."""
    found = []
    for device in range(len(where.slower)):
        sites = tuple(site for site, of in enumerate(where.of) if of == device)
        # The place after the last expert is the dense block's.
        every = product(range(scenario.sites), range(scenario.experts + 1) if where.owner else ())
        owned = frozenset(key for key in every if where.has((0, *key)) == device)
        mine = replace(pool, sites=sites, owned=owned)
        found.append(replace(mine, initial=tuple(filter(mine.covers, pool.initial))))
    return found


def _lanes(draw: Draw, scenario: Scenario) -> Scenario:
    """Some links have lanes of any kind, and the kernels may go by projection."""

    def laned(link: Link) -> Link:
        engines = draw.between(1, 4)
        own = draw.between(-(-1_000_000 // engines), 1_000_000)
        return replace(
            link,
            engines=engines,
            pace=own if draw.coin(0.7) else 1_000_000,
            wake_ns=draw.below(3, 300) * draw.coin(0.6),
            copy_ns=draw.below(3, 100) * draw.coin(0.6),
            by_projection=draw.coin(0.7),
        )

    links = tuple(laned(link) if draw.coin(0.8) else link for link in scenario.links)
    if not any(scenario.is_laned(place) for place in range(len(links))):
        links = (replace(laned(links[0]), by_projection=True), *links[1:])
    changed = replace(
        scenario,
        links=links,
        host=replace(scenario.host, load_ns=draw.below(3, 200) * draw.coin(0.6)),
        projection_bytes=tuple(
            tuple(draw.between(1, max(1, size // 2)) for _ in range(draw.between(2, 3)))
            for size in scenario.variant_bytes
        ),
    )
    changed = _loader(changed, wait="by_projection") if draw.coin(0.7) else changed
    byte_ns = draw.below(2, 20) * draw.coin(0.4)
    return replace(changed, host=replace(changed.host, load_byte_ns=byte_ns))


def _shrinking(draw: Draw, scenario: Scenario) -> Scenario:
    """At each step the pools have something beside their capacity, up to twice as much. It mostly
    becomes less, and sometimes all comes back.
    """
    most = draw.between(1, 2 * max(1, sum(pool.capacity_bytes for pool in scenario.pools)))
    spare = [most]
    for _ in range(draw.between(1, 9)):
        spare.append(most if draw.coin(0.2) else draw.between(0, spare[-1]))
    return replace(scenario, spare_bytes=tuple(spare))


def _prefixes(draw: Draw, scenario: Scenario) -> Scenario:
    """Keys and values of each site, and a disk only where a further link leads to one."""
    assert scenario.batching is not None
    device, ram, disk = scenario.batching.tiers
    tiers = (device, ram, disk if scenario.hops > 1 else 0)
    most = max(1, max(scenario.variant_bytes) // 2)
    return replace(
        scenario,
        batching=replace(scenario.batching, tiers=tiers),
        kv_bytes=tuple(draw.between(1, most) for _ in range(scenario.sites)),
    )


def _kept(draw: Draw, scenario: Scenario) -> Scenario:
    """Where one pool is for all sites, mostly each site has one of its own instead."""
    changed = _loader(scenario, retention="until_next_visit")
    if len(scenario.pools) > 1 or not draw.coin(0.8) or scenario.sites == 1:
        return changed
    pool = scenario.pools[0]
    least = scenario.at_once * max(map(scenario.slot, _variants(scenario)))
    return replace(
        changed,
        pools=tuple(
            PoolSpec(
                max(least, pool.capacity_bytes // scenario.sites),
                pool.precisions,
                site,
                (),
            )
            for site in range(scenario.sites)
        ),
    )


def _variants(scenario: Scenario) -> list[Key]:
    return [(p, site, 0) for p in range(scenario.precisions) for site in range(scenario.sites)]


def _swap(draw: Draw, scenario: Scenario) -> Scenario:
    """Room for some of the weights; pages that divide nothing."""
    largest = max(scenario.variant_bytes)
    slots = sum(pool.capacity_bytes for pool in scenario.pools)
    dense = tuple(draw.between(0, 2 * largest) for _ in range(scenario.sites))
    rest = draw.between(0, 2 * largest)
    swap = Swap(
        page_bytes=draw.between(1, largest),
        room_bytes=draw.between(1, slots + sum(dense) + rest),
        dense_bytes=dense,
        rest_bytes=rest,
        in_ns=draw.below(3, 50),
        out_ns=draw.below(3, 50) * draw.coin(0.6),
    )
    return replace(scenario, swap=swap)


CHANGES: dict[str, Callable[[Draw, Scenario], Scenario]] = {
    "ram_tier": _ram_tier,
    "chunks": _chunks,
    "write_back": lambda draw, scenario: _loader(scenario, write_back=True),
    "staging": _staging,
    "refusals": _refusals,
    "partial": _partial,
    "dense": _dense,
    "site_bytes": _site_bytes,
    "cpu": _cpu,
    "after_batch": lambda draw, scenario: _loader(scenario, retention="after_batch"),
    "per_access": lambda draw, scenario: _loader(scenario, replay_unit="access"),
    "host": _host,
    "prediction_latency": lambda draw, scenario: replace(
        scenario, prediction_ns=1 + draw.below(5, 4000)
    ),
    "in_order": lambda draw, scenario: _loader(scenario, wait="in_order"),
    "arrivals": lambda draw, scenario: _without_future(scenario),
    "recency_rows": lambda draw, scenario: replace(scenario, cache=Cache("lru", recency="rows")),
    "reroute": _reroute,
    "likeliest": _likeliest,
    "own_site": _own_site,
    "short_pools": _short_pools,
    "held_bytes": _held_bytes,
    "spared_forecasts": _spared_forecasts,
    "rivals": _rivals,
    DEVICES: _devices,
    LANES: _lanes,
    OWNERS: _owners,
    SHRINKING: _shrinking,
    PREFIXES: _prefixes,
    KEPT: _kept,
    SWAP: _swap,
    "forecast_routes": lambda draw, scenario: replace(
        _without_future(scenario), selector=Fixed(), reroute=Reroute(by_forecast=True)
    ),
}
