"""Every other cache policy as a request stream, against a second implementation in plain Python.

The streams and the controller are those of tests/differential/test_request_streams.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from differential import plain_caches as plain
from differential.test_request_streams import (
    assert_same,
    belady_hits,
    keys_of,
    library_hits,
    next_uses,
    routing,
    run,
)
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.adaptive import ARC
from sim.policies.base import CachePolicy
from sim.policies.belady import Belady, CostAwareBelady
from sim.policies.expected_reuse import ExpectedReuse
from sim.policies.frequency import LFU
from sim.policies.frequency_classes import LFRU, ClassLRU, DecayedLFU
from sim.policies.large_gates import LargeGatesOnlyRead
from sim.policies.placements import Load
from sim.policies.popular import Popular
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.profile import Profile
from sim.policies.queues import S3FIFO, Sieve, WTinyLFU
from sim.policies.recency import LRU, LeastStale
from sim.policies.scores import (
    ActivationRatio,
    FrequencyOverDistance,
    Random,
    VisitCount,
)
from sim.policies.weighted_score import WeightedScore
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.values.types import Geometry, Outcome
from sim.workload.steps import Workload

SHAPES = ((1, 8, 400), (3, 6, 120), (5, 10, 60))
"""Sites, experts, steps."""
CASES = [(shape, seed) for shape in SHAPES for seed in range(2)]
COLD = {"initial": "empty"}
WEIGHTS = dict(zip(WeightedScore.TERMS, plain.WEIGHTS, strict=True))
MADE: dict[str, tuple[Callable[[], CachePolicy], plain.Victim]] = {
    "lfu_model": (partial(LFU, "model", **COLD), plain.lfu_model),
    "lfu_sequence": (partial(LFU, "sequence", **COLD), plain.lfu_sequence),
    "lfu_decayed": (partial(DecayedLFU, 0.98, **COLD), plain.lfu_decayed),
    "lfru": (partial(LFRU, **COLD), plain.lfru),
    "class_lru": (partial(ClassLRU, 16, **COLD), plain.class_lru),
    "few_classes": (partial(ClassLRU, 16, 2, **COLD), partial(plain.class_lru, classes=2)),
    "expected_reuse": (partial(ExpectedReuse, **COLD), plain.expected_reuse),
    "least_stale": (partial(LeastStale, **COLD), plain.least_stale),
    "visit_count": (partial(VisitCount, **COLD), plain.visit_count),
    "frequency_over_distance": (
        partial(FrequencyOverDistance, initial_counts="none", **COLD),
        plain.frequency_over_distance,
    ),
    "printed": (
        partial(FrequencyOverDistance, "since", initial_counts="none", **COLD),
        plain.frequency_over_distance_printed,
    ),
    "kept": (
        partial(FrequencyOverDistance, "ahead", "keep", "none", **COLD),
        plain.frequency_over_distance_kept,
    ),
    "activation_ratio": (partial(ActivationRatio, **COLD), plain.activation_ratio),
    "weighted_score": (partial(WeightedScore, WEIGHTS, "global", (), **COLD), plain.weighted_score),
}


def capacities(shape: tuple[int, int, int]) -> tuple[int, ...]:
    total = shape[0] * shape[1]
    return tuple(sorted({2, max(2, total // 4), total // 2, total - 1}))


def profile_of(chosen: np.ndarray, experts: int) -> Profile:
    uses = np.stack(
        [np.bincount(chosen[:, site], minlength=experts) for site in range(chosen.shape[1])]
    )
    return Profile(uses, chosen[:, :, None])


def hits_of(
    policy: CachePolicy, chosen: np.ndarray, experts: int, capacity: int, **switches: int
) -> list[int]:
    if getattr(policy, "needs_profile", False):
        policy.profile(profile_of(chosen, experts))  # type: ignore[attr-defined]
    return run(chosen, experts, capacity, policy, Loader(**switches))[0]


# Contracts: C47, C143, C147, C164
@pytest.mark.alike
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_hits_are_those_of_a_victim_chosen_from_the_whole_history(shape, seed, name):
    sites, experts, steps = shape
    chosen = routing(shape, seed)
    stream = plain.Stream(keys_of(chosen, experts), sites, experts + 1, steps // 2)
    make, victim = MADE[name]
    for capacity in capacities(shape):
        assert_same(
            hits_of(make(), chosen, experts, capacity),
            plain.replay(stream, capacity, victim),
            stream.keys,
        )


def test_the_streams_tell_these_policies_apart():
    sites, experts, _ = shape = SHAPES[2]
    chosen = routing(shape, 0)
    hits = {
        name: tuple(hits_of(make(), chosen, experts, sites * experts // 2))
        for name, (make, _) in MADE.items()
    }
    assert len(set(hits.values())) == len(MADE)


# ---- ARC


def by_site(hits_of_site: Callable[[list[int]], list[int]], chosen: np.ndarray) -> list[int]:
    """The hits of every site's own cache, in the order of the requests."""
    return (
        np.stack([hits_of_site(chosen[:, site].tolist()) for site in range(chosen.shape[1])], 1)
        .ravel()
        .tolist()
    )


@pytest.mark.alike
@pytest.mark.parametrize("oracle", ["paper", "libcachesim"])
@pytest.mark.parametrize(
    ("shape", "seed"), [(shape, seed) for shape in SHAPES for seed in range(4)]
)
def test_arc_has_the_hits_of_its_papers_figure_and_of_libcachesim(shape, seed, oracle):
    chosen = routing(shape, seed)
    requests = keys_of(chosen, shape[1])
    for capacity in capacities(shape):
        hits = hits_of(ARC(**COLD), chosen, shape[1], capacity)
        theirs = (
            plain.arc(requests, capacity)
            if oracle == "paper"
            else library_hits(requests, capacity, "arc")
        )
        assert_same(hits, theirs, requests)


@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_arc_a_site_has_the_hits_of_as_many_caches(shape, seed):
    sites, experts, _ = shape
    chosen = routing(shape, seed)
    for slots in (1, 2, experts // 2, experts - 1):
        hits = hits_of(ARC("site", **COLD), chosen, experts, slots * sites)
        expected = by_site(lambda requests, slots=slots: plain.arc(requests, slots), chosen)
        assert_same(hits, expected, keys_of(chosen, experts))


# ---- queues


QUEUES: dict[str, tuple[Callable[[], CachePolicy], Callable[[list[int], int], list[int]]]] = {
    "sieve": (partial(Sieve, **COLD), plain.sieve),
    "s3_fifo": (partial(S3FIFO, **COLD), plain.s3_fifo),
    "w_tiny_lfu": (partial(WTinyLFU, **COLD), plain.w_tiny_lfu),
}


# Contracts: C148, C149, C150
@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize(
    ("shape", "seed"), [(shape, seed) for shape in SHAPES for seed in range(3)]
)
def test_queues_have_the_hits_of_their_papers_algorithms(shape, seed, name):
    chosen = routing(shape, seed)
    requests = keys_of(chosen, shape[1])
    make, theirs = QUEUES[name]
    for capacity in capacities(shape):
        hits = hits_of(make(), chosen, shape[1], capacity)
        assert_same(hits, theirs(requests, capacity), requests)


@pytest.mark.alike
@pytest.mark.parametrize("name", ["sieve", "s3_fifo"])
@pytest.mark.parametrize("seed", range(3))
def test_queues_have_the_hits_of_libcachesim(seed, name):
    """Its S3-FIFO takes no key whose size is that of the small queue: 20 slots or more."""
    chosen = routing((6, 20, 150), seed)
    requests = keys_of(chosen, 20)
    for capacity in (20, 30, 60, 100):
        hits = hits_of(QUEUES[name][0](), chosen, 20, capacity)
        assert_same(hits, library_hits(requests, capacity, name), requests)


def test_the_streams_tell_queues_apart():
    shape = SHAPES[2]
    chosen = routing(shape, 0)
    hits = {tuple(hits_of(make(), chosen, shape[1], 25)) for make, _ in QUEUES.values()}
    assert len(hits) == len(QUEUES)


# ---- the future


@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_belady_with_bypass_keeps_what_comes_again_soonest_the_newcomer_included(shape, seed):
    chosen = routing(shape, seed)
    requests = keys_of(chosen, shape[1])
    again = next_uses(requests)
    for capacity in capacities(shape):
        hits = hits_of(Belady(bypass=True, **COLD), chosen, shape[1], capacity, staging_slots=1)
        assert_same(hits, plain.belady_bypass(requests, again, capacity), requests)
        assert sum(hits) >= sum(belady_hits(requests, capacity))


@pytest.mark.parametrize("overhead_bytes", [0, 700])
def test_with_equal_sizes_a_cost_changes_nothing(overhead_bytes):
    shape = SHAPES[1]
    chosen = routing(shape, 3)
    for capacity in capacities(shape):
        hits = hits_of(CostAwareBelady(overhead_bytes, **COLD), chosen, shape[1], capacity)
        assert hits == belady_hits(keys_of(chosen, shape[1]), capacity)


# ---- what does not go by requests


@pytest.mark.parametrize("scope", ["global", "site"])
def test_a_fixed_list_hits_exactly_what_is_on_it(scope):
    """The uses are those of the stream itself: a list a site has what its own experts' uses say."""
    sites, experts, _ = shape = SHAPES[1]
    chosen = routing(shape, 1)
    profile = profile_of(chosen, experts)
    requests = keys_of(chosen, experts)
    for slots in (1, 2, 4):
        if scope == "site":
            listed = {
                (experts + 1) * site + e
                for site in range(sites)
                for e in sorted(range(experts), key=lambda e: (-profile.uses[site, e], e))[:slots]
            }
        else:
            count = {
                key: requests.count(key)
                for key in range(sites * (experts + 1))
                if key % (experts + 1) < experts
            }
            listed = set(sorted(count, key=lambda key: (-count[key], key))[: slots * sites])
        hits = hits_of(Popular(scope=scope), chosen, experts, slots * sites, staging_slots=1)
        assert hits == [int(key in listed) for key in requests]


def test_random_hits_as_often_as_even_chances_say():
    """One site, experts drawn evenly, c of E resident: c / E of the requests hit, whatever is
    evicted. 20,000 of them: within four standard errors."""
    experts, capacity, steps = 8, 3, 20_000
    chosen = np.random.default_rng(4).integers(0, experts, (steps, 1)).astype(np.int16)
    hits = hits_of(Random(seed=5, **COLD), chosen, experts, capacity)
    share = capacity / experts
    assert abs(np.mean(hits) - share) < 4 * (share * (1 - share) / steps) ** 0.5


def test_random_on_a_loop_hits_where_lru_never_does():
    """A loop of c + 1 keys: the one that is missing was evicted 1 request in c at the place that
    comes next.
    """
    chosen = (np.arange(3000) % 5).astype(np.int16)[:, None]
    hits = hits_of(Random(seed=1, **COLD), chosen, 5, 4)
    assert 0.5 < np.mean(hits) < 0.9
    assert hits != hits_of(Random(seed=2, **COLD), chosen, 5, 4)
    assert hits == hits_of(Random(seed=1, **COLD), chosen, 5, 4)


# ---- gates of many rows


def read_by_prompts(
    workload: Workload, capacity: int, up_to_rows: int, units: int
) -> list[tuple[int, bool]]:
    """Each need with what it finds, in a plain LRU that gates of more rows leave as it is.

    What a small gate misses comes in when the gate is over, in need order.
    """
    held: list[int] = []  # least recent first
    found = []
    gate = workload.gate()
    for step in workload.steps:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            asked = [site * units + expert for expert in gate.needs]
            found += [(key, key in held) for key in asked]
            if step.rows > up_to_rows:
                continue
            held = [key for key in held if key not in asked] + [k for k in asked if k in held]
            missed = [key for key, hit in found[-len(asked) :] if not hit]
            # In need order hits and misses mix, so recency is that of the needs.
            for key in missed:
                del held[: max(0, len(held) + 1 - capacity)]
                later = [other for other in asked[asked.index(key) :] if other in held]
                held.insert(len(held) - len(later), key)
    return found


# Contracts: C144
@pytest.mark.parametrize("up_to_rows", [0, 1, 4, 32])
@pytest.mark.parametrize("seed", range(3))
def test_gates_of_many_rows_find_what_is_there_and_change_nothing(seed, up_to_rows):
    shape = ModelShape("read", "none", 3, 8, 2, 4, 4)
    workload = Workload(
        synthesize(shape, tokens=30, sequences=4, prompt_tokens=4 + seed, seed=seed, skew=1.0),
        split="all",
        batching="sequential",
    )
    for capacity in (2, 6, 12, 23):
        geometry = Geometry(3, 8, 2, ("fp16",), (16.0,), (1000,), capacity * 1000)
        cache = LargeGatesOnlyRead(LRU(scope="layout", **COLD), up_to_rows)
        loader = Loader(staging_slots=8)
        controller = Controller(geometry, NoPrediction(), cache, Fixed("fp16"), Load(), loader)
        simulate(controller, workload, FixedDurations([5] * 3, 3, [2], [{1000: 11}]))
        controller.check()
        expected = read_by_prompts(workload, capacity, up_to_rows, geometry.units)
        hits = [outcome == Outcome.HIT for outcome in controller.lookup_outcomes]
        assert list(zip(controller.lookup_keys, hits, strict=True)) == expected
