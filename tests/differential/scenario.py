"""One run of the simulator as plain frozen data, and a generator of random ones.

Nothing here decides anything: a scenario names the machine (sizes, times, pools), the policies (by name and numbers),
the loader's switches and the routing (needs and forecasts of every gate). The reference and the production engine are
both given the same scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Key: TypeAlias = tuple[int, int, int]
"""A variant in words: (precision, site, expert)."""

CACHES = ("lru", "fifo", "lfu_resident", "lfu_sequence", "lfu_model", "weighted", "belady")
CacheName: TypeAlias = Literal["lru", "fifo", "lfu_resident", "lfu_sequence", "lfu_model", "weighted", "belady"]
LAYOUTS = ("global", "per_precision", "per_site")

SKIP = -1
"""The wanted precision of a need that is left out; also the key of its lookup."""


@dataclass(frozen=True)
class PoolSpec:
    """A byte budget for variants of some precisions, at one site or at all (None). Initial keys came in this order."""

    capacity_bytes: int
    precisions: tuple[int, ...]
    site: int | None = None
    initial: tuple[Key, ...] = ()

    def covers(self, key: Key) -> bool:
        return key[0] in self.precisions and self.site in (None, key[1])


@dataclass(frozen=True)
class Cache:
    """A victim order by name. The weights are those of `weighted`; it is the only one that reads them."""

    name: CacheName = "lru"
    w_lru: float = 0.0
    w_lfu: float = 0.0
    w_lhu: float = 0.0
    w_fld: float = 0.0


@dataclass(frozen=True)
class Fixed:
    """Every need wants this precision."""

    precision: int = 0


@dataclass(frozen=True)
class Thresholds:
    """Score up to low_above: precision 0; up to skip_above: 1; above: the highest resident precision, else SKIP."""

    low_above: float
    skip_above: float


@dataclass(frozen=True)
class Loader:
    """The loader's switches, by the names of docs/design.md. `lookahead`: the sites that the predictor sees ahead."""

    lookahead: int = 0
    depth: Literal["all", "first_missing"] = "all"
    queue: Literal["append", "replace"] = "append"
    promote: bool = True
    cancel_stale: bool = True
    demand_first: bool = True
    in_flight: Literal[1, 2] = 1
    wait: Literal["wait_all", "as_ready"] = "as_ready"
    prefetch_budget: int | Literal["all", "until_next_gate"] = "all"
    low_for_high: bool = False


@dataclass(frozen=True)
class Need:
    """An expert that a gate asks for, the number of rows that ask for it, and its score (HOBBIT eq. 2)."""

    expert: int
    tokens: int = 1
    score: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """An expert that a later site is expected to ask for, and its expected score."""

    expert: int
    score: float = 0.0


Prediction: TypeAlias = tuple[Forecast, ...] | None
"""The forecast for one site, best first; None where there is none."""


@dataclass(frozen=True)
class Step:
    """One forward call of one sequence. `token` counts the sequence's tokens, prompt and this step's rows included."""

    sequence: int
    begins: bool
    ends: bool
    rows: int
    token: int
    dense_ns: tuple[int, ...]
    tail_ns: int
    needs: tuple[tuple[Need, ...], ...]
    forecasts: tuple[tuple[Prediction, ...], ...]


@dataclass(frozen=True)
class Scenario:
    """Everything that one run depends on."""

    sites: int
    experts: int
    variant_bytes: tuple[int, ...]
    service_ns: tuple[int, ...]
    base_ns: tuple[int, ...]
    per_token_ns: tuple[int, ...]
    pools: tuple[PoolSpec, ...]
    steps: tuple[Step, ...]
    cache: Cache = Cache()
    selector: Fixed | Thresholds = Fixed()
    loader: Loader = Loader()

    @property
    def precisions(self) -> int:
        return len(self.variant_bytes)

    def expert_ns(self, precision: int, tokens: int) -> int:
        """Compute time of an expert at a precision for so many rows."""
        return self.base_ns[precision] + self.per_token_ns[precision] * tokens

    def pack(self, key: Key) -> int:
        """The key as the one int of docs/design.md section 2."""
        precision, site, expert = key
        return (precision * self.sites + site) * (self.experts + 1) + expert

    def unpack(self, packed: int) -> Key:
        rest, expert = divmod(packed, self.experts + 1)
        precision, site = divmod(rest, self.sites)
        return precision, site, expert


def random_scenario(seed: int, ties: bool) -> Scenario:
    """A random valid scenario; with `ties` all times are tiny, zero included, so that much happens at one instant."""
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
    # Belady looks forward along the wanted variants: others are not in its future, so none is put into its pools.
    allowed = (selector.precision,) if name == "belady" and isinstance(selector, Fixed) else tuple(range(precisions))
    weights = [float(w) for w in rng.random(4) * rng.integers(0, 2, 4)] if name == "weighted" else []
    return Scenario(
        sites=sites,
        experts=experts,
        variant_bytes=variant_bytes,
        service_ns=tuple(slowness * t for t in _times(rng, ties, precisions, 4, 3000)),
        base_ns=tuple(_times(rng, ties, precisions, 3, 800)),
        per_token_ns=tuple(_times(rng, ties, precisions, 2, 200)),
        pools=_random_pools(rng, sites, experts, top_k, variant_bytes, allowed),
        steps=_random_steps(rng, ties, sites, experts, top_k, loader.lookahead),
        cache=Cache(name, *weights),
        selector=selector,
        loader=loader,
    )


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
    budgets: tuple[int | Literal["all", "until_next_gate"], ...] = ("all", "all", "until_next_gate", 1, 2, 3)
    return Loader(
        lookahead=int(rng.choice([0, 1, 2, 3], p=[0.1, 0.3, 0.3, 0.3])),
        depth="all" if _coin(rng, 0.6) else "first_missing",
        queue="append" if _coin(rng, 0.6) else "replace",
        promote=_coin(rng),
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
    """One pool, one per precision or per site; each holds one token's needs or more; empty, half full or full."""
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
        capacity = tokens * top_k * largest + int(rng.integers(largest)) + int(roominess * rng.random() * ample)
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
    popularity = rng.dirichlet(np.full(experts, float(rng.choice([0.3, 1.0, 5.0]))), size=sites) + 0.01
    popularity /= popularity.sum(axis=1, keepdims=True)
    steps = []
    for sequence in range(int(rng.integers(1, 4))):
        decodes = int(rng.integers(0, 9))
        token = 0
        for index in range(1 + decodes):
            rows = int(rng.integers(1, 9)) if (index == 0 and _coin(rng, 0.7)) or _coin(rng, 0.1) else 1
            token += rows
            routed = [[_choose(rng, popularity[site], top_k) for _ in range(rows)] for site in range(sites)]
            needs = tuple(_union(routing) for routing in routed)
            steps.append(
                Step(
                    sequence=sequence,
                    begins=index == 0,
                    ends=index == decodes,
                    rows=rows,
                    token=token,
                    dense_ns=tuple(dense) if _coin(rng, 0.7) else tuple(_times(rng, ties, sites, 3, 2000)),
                    tail_ns=tail,
                    needs=needs,
                    forecasts=tuple(
                        tuple(
                            _forecast(rng, needs[site + j], experts, accuracy)
                            if rows == 1 and site + j < sites
                            else None
                            for j in range(1, lookahead + 1)
                        )
                        for site in range(sites)
                    ),
                )
            )
    return tuple(steps)


def _scored(experts: list[int], weights: list[float]) -> list[tuple[int, float]]:
    """The experts of one row by descending weight, then id, each with the sum of the weights before it."""
    ranked = sorted(zip(experts, weights, strict=True), key=lambda pair: (-pair[1], pair[0]))
    total = sum(weight for _, weight in ranked)
    before, scored = 0.0, []
    for expert, weight in ranked:
        scored.append((expert, before))
        before += weight / total
    return scored


def _choose(rng: np.random.Generator, popularity: np.ndarray, top_k: int) -> list[tuple[int, float]]:
    experts = [int(e) for e in rng.choice(len(popularity), size=top_k, replace=False, p=popularity)]
    return _scored(experts, [float(w) for w in rng.dirichlet(np.ones(top_k))])


def _union(routing: list[list[tuple[int, float]]]) -> tuple[Need, ...]:
    """The needs of all rows of a gate, in need order."""
    if len(routing) == 1:
        return tuple(Need(expert, 1, score) for expert, score in routing[0])
    scores: dict[int, list[float]] = {}
    for row in routing:
        for expert, score in row:
            scores.setdefault(expert, []).append(score)
    needs = [Need(expert, len(found), min(found)) for expert, found in scores.items()]
    return tuple(sorted(needs, key=lambda need: (-need.tokens, need.expert)))


def _forecast(rng: np.random.Generator, needs: tuple[Need, ...], experts: int, accuracy: float) -> tuple[Forecast, ...]:
    """Each true expert is foreseen with probability `accuracy`, else another one is; the scores are the true ones."""
    chosen: list[Forecast] = []
    for need in needs:
        right = _coin(rng, accuracy)
        expert = need.expert if right else (need.expert + int(rng.integers(1, experts))) % experts
        if all(other.expert != expert for other in chosen):
            chosen.append(Forecast(expert, need.score))
    return tuple(chosen)
