"""Random scenarios; this module also exports what `scenario_data` and `scenario_steps` define."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from differential.scenario_data import (
    CACHES,
    LAYOUTS,
    SKIP,
    Cache,
    CacheName,
    Devices,
    Fixed,
    Host,
    Key,
    Link,
    Loader,
    Place,
    Placement,
    PoolSpec,
    RamTier,
    Reroute,
    Rivalry,
    Scenario,
    Swap,
    Thresholds,
)
from differential.scenario_steps import (
    Batching,
    Forecast,
    Need,
    Prediction,
    Request,
    Routed,
    Row,
    Step,
    scored,
    union,
    union_forecast,
)

__all__ = [
    "CACHES",
    "LAYOUTS",
    "SKIP",
    "Batching",
    "Cache",
    "CacheName",
    "Devices",
    "Fixed",
    "Forecast",
    "Host",
    "Key",
    "Link",
    "Loader",
    "Need",
    "Place",
    "Placement",
    "PoolSpec",
    "Prediction",
    "RamTier",
    "Request",
    "Reroute",
    "Rivalry",
    "Routed",
    "Row",
    "Scenario",
    "Step",
    "Swap",
    "Thresholds",
    "draw_distinct",
    "foresee",
    "random_scenario",
    "scored",
    "union",
    "union_forecast",
]


def random_scenario(seed: int, ties: bool) -> Scenario:
    """A random valid scenario; with `ties` all times are tiny, zero included, so that much
    happens at one instant.
    """
    rng = np.random.default_rng([seed, int(ties)])
    sites = int(rng.choice([1, 2, 3, 4, 6], p=[0.1, 0.2, 0.25, 0.25, 0.2]))
    experts = int(rng.integers(2, 13))
    top_k = int(rng.integers(1, min(4, experts) + 1))
    precisions = int(rng.integers(1, 3))
    name: CacheName = CACHES[int(rng.integers(len(CACHES)))]  # type: ignore[assignment]
    selector = _random_selector(rng, precisions, fixed=name == "belady")
    loader = _random_loader(rng)
    slowness = int(rng.choice([1, 1, 3, 10]))
    low_bytes = int(rng.integers(1, 6))
    variant_bytes = (int(rng.integers(low_bytes, 5 * low_bytes + 1)), low_bytes)[:precisions]
    # Belady looks forward along the wanted variants: others are not in its future, so none is put
    # into its pools.
    allowed = (
        (selector.precision,)
        if name == "belady" and isinstance(selector, Fixed)
        else tuple(range(precisions))
    )
    weights = (
        [float(w) for w in rng.random(4) * rng.integers(0, 2, 4)] if name == "weighted" else []
    )
    service_ns = _by_bytes(
        variant_bytes, [slowness * t for t in _times(rng, ties, precisions, 4, 3000)]
    )
    base_ns = tuple(_times(rng, ties, precisions, 3, 800))
    return Scenario(
        sites=sites,
        experts=experts,
        variant_bytes=variant_bytes,
        service_ns=service_ns,
        base_ns=base_ns,
        per_token_ns=tuple(_times(rng, ties, precisions, 2, 200)),
        # Every second scenario has tiles. Nothing is drawn, so that seeds keep their scenarios.
        step_row_ns=tuple(ns % 7 for ns in base_ns) if seed % 2 else (),
        pools=_random_pools(rng, sites, experts, top_k, variant_bytes, allowed),
        steps=_random_steps(rng, ties, sites, experts, top_k, loader.lookahead),
        cache=Cache(name, *weights),  # type: ignore[arg-type]
        selector=selector,
        loader=loader,
    )


def _by_bytes(variant_bytes: tuple[int, ...], times: list[int]) -> tuple[int, ...]:
    """A link's time is a function of bytes: variants of equal bytes take equally long."""
    function = dict(zip(variant_bytes, times, strict=True))
    return tuple(function[size] for size in variant_bytes)


def _coin(rng: np.random.Generator, probability: float = 0.5) -> bool:
    return bool(rng.random() < probability)


def _times(rng: np.random.Generator, ties: bool, count: int, tiny: int, long: int) -> list[int]:
    """Durations: below `tiny` with ties (0 included), else up to `long` or a third of it."""
    if ties:
        return [int(x) for x in rng.integers(0, tiny, count)]
    return [int(x) for x in rng.integers(1, long // int(rng.choice([1, 3])), count)]


def _random_selector(rng: np.random.Generator, precisions: int, fixed: bool) -> Fixed | Thresholds:
    if fixed or _coin(rng, 0.35):
        return Fixed(int(rng.integers(precisions)))
    low = float(rng.choice([-0.5, 0.0, 0.2, 0.5, 0.8], p=[0.1, 0.2, 0.3, 0.25, 0.15]))
    skip = low if precisions == 1 else low + float(rng.choice([0.0, 0.2, 0.4, 1.0]))
    return Thresholds(low, skip)


def _random_loader(rng: np.random.Generator) -> Loader:
    budgets: tuple[int | Literal["all", "until_next_gate"], ...] = (
        "all",
        "all",
        "until_next_gate",
        1,
        2,
        3,
    )
    first: dict[str, Any] = {
        "lookahead": int(rng.choice([0, 1, 2, 3], p=[0.1, 0.3, 0.3, 0.3])),
        "depth": "all" if _coin(rng, 0.6) else "first_missing",
        "queue": "append" if _coin(rng, 0.6) else "replace",
    }
    rng.random()  # Nothing is drawn from it: it keeps the scenarios that seeds have always given.
    return Loader(
        **first,
        cancel_stale=_coin(rng),
        demand_first=_coin(rng, 0.6),
        in_flight=1 if _coin(rng) else 2,
        wait="wait_all" if _coin(rng) else "as_ready",
        prefetch_budget=budgets[int(rng.integers(len(budgets)))],
        low_for_high=_coin(rng, 0.4),
    )


def _random_pools(
    rng: np.random.Generator,
    sites: int,
    experts: int,
    top_k: int,
    variant_bytes: tuple[int, ...],
    allowed: tuple[int, ...],
) -> tuple[PoolSpec, ...]:
    """One pool, one per precision or per site; each holds one token's needs or more; empty, half
    full or full.
    """
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    everything = tuple(range(len(variant_bytes)))
    shapes: list[tuple[tuple[int, ...], int | None]]
    if layout == "global":
        shapes = [(everything, None)]
    elif layout == "per_precision":
        shapes = [((precision,), None) for precision in everything]
    else:
        shapes = [(everything, site) for site in range(sites)]
    tight = _coin(rng, 0.4)
    tokens = 1 if tight else int(rng.choice([1, 2, 3, 5]))
    roominess = 0.0 if tight else float(rng.choice([0.0, 0.3, 0.7, 1.5]))
    filled = float(rng.choice([0.0, 0.0, 0.5, 1.0]))
    pools = []
    for covered, site in shapes:
        largest = max(variant_bytes[p] for p in covered)
        keys: list[Key] = [
            (p, s, e)
            for p in covered
            for s in range(sites)
            for e in range(experts)
            if p in allowed and site in (None, s)
        ]
        ample = sum(variant_bytes[p] * experts * (sites if site is None else 1) for p in covered)
        capacity = (
            tokens * top_k * largest
            + int(rng.integers(largest))
            + int(roominess * rng.random() * ample)
        )
        initial: list[Key] = []
        room = int(capacity * filled)
        for index in rng.permutation(len(keys)):
            key = keys[int(index)]
            if variant_bytes[key[0]] <= room:
                room -= variant_bytes[key[0]]
                initial.append(key)
        pools.append(PoolSpec(capacity, covered, site, tuple(initial)))
    return tuple(pools)


def _random_steps(
    rng: np.random.Generator, ties: bool, sites: int, experts: int, top_k: int, lookahead: int
) -> tuple[Step, ...]:
    """One to three sequences of a prompt (one step of one or more rows) and some single tokens."""
    dense = _times(rng, ties, sites, 3, 2000)
    tail = _times(rng, ties, 1, 3, 2000)[0]
    accuracy = float(rng.choice([0.0, 0.3, 0.7, 0.9, 1.0]))
    popularity = (
        rng.dirichlet(np.full(experts, float(rng.choice([0.3, 1.0, 5.0]))), size=sites) + 0.01
    )
    popular = (popularity / popularity.sum(axis=1, keepdims=True)).tolist()
    steps = []
    for sequence in range(int(rng.integers(1, 4))):
        decodes = int(rng.integers(0, 9))
        token = 0
        for index in range(1 + decodes):
            rows = (
                int(rng.integers(1, 9))
                if (index == 0 and _coin(rng, 0.7)) or _coin(rng, 0.1)
                else 1
            )
            token += rows
            routed = [
                [_choose(rng, popular[site], top_k) for _ in range(rows)] for site in range(sites)
            ]
            needs = tuple(union(routing) for routing in routed)
            steps.append(
                Step(
                    sequence=sequence,
                    begins=index == 0,
                    ends=index == decodes,
                    rows=rows,
                    token=token,
                    dense_ns=tuple(dense)
                    if _coin(rng, 0.7)
                    else tuple(_times(rng, ties, sites, 3, 2000)),
                    tail_ns=tail,
                    needs=needs,
                    forecasts=tuple(
                        tuple(
                            foresee(rng, needs[site + j], experts, accuracy)
                            if rows == 1 and site + j < sites
                            else None
                            for j in range(1, lookahead + 1)
                        )
                        for site in range(sites)
                    ),
                )
            )
    return tuple(steps)


def _choose(
    rng: np.random.Generator, popularity: Sequence[float], top_k: int
) -> list[tuple[int, float]]:
    experts = draw_distinct(rng, popularity, top_k)
    return scored(tuple(zip(experts, rng.dirichlet([1.0] * top_k).tolist(), strict=True)))


def draw_distinct(rng: np.random.Generator, popularity: Sequence[float], count: int) -> list[int]:
    """The draws of `rng.choice(..., size=count, replace=False, p=popularity)`, five times as
    fast on so few experts.
    """
    left, drawn = list(popularity), []
    while len(drawn) < count:
        sums = list(accumulate(left))
        ends = [part / sums[-1] for part in sums]
        for x in rng.random(count - len(drawn)).tolist():
            expert = bisect_right(ends, x)
            if left[expert]:
                drawn.append(expert)
                left[expert] = 0.0
    return drawn


def foresee(
    rng: np.random.Generator, needs: tuple[Need, ...], experts: int, accuracy: float
) -> tuple[Forecast, ...]:
    """Each true expert is foreseen with probability `accuracy`, else another one is; the scores
    are the true ones.
    """
    chosen: list[Forecast] = []
    for need in needs:
        right = _coin(rng, accuracy)
        expert = need.expert if right else (need.expert + int(rng.integers(1, experts))) % experts
        if all(other.expert != expert for other in chosen):
            chosen.append(Forecast(expert, need.score))
    return tuple(chosen)
