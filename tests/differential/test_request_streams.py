"""Cache policies as request streams, against libCacheSim and against a page of plain Python.

A run is what the literature on caches calls a request stream if it has one expert a gate, no
prefetch, one row a step, equal sizes, one pool and a cold start. Then what is requested is resident
before the next request, and the only pinned key is the one being asked for. So the hits must be
those of the textbook policy, request by request, whatever the times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from sim.core.controller import ONE_LINK, Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy
from sim.policies.belady import Belady, Foreseeing
from sim.policies.frequency import LFU
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import FIFO, LRU
from sim.traces.trace import DECODE, Header, ModelShape, Site, Trace, TraceSequence
from sim.values.types import Geometry, Outcome, Route
from sim.workload.steps import Workload

EXPERT_BYTES = 1000
NEVER = 1 << 62
SHAPES = ((1, 8, 900), (3, 6, 300), (6, 20, 150))
"""Sites, experts, steps."""
CASES = [(shape, seed) for shape in SHAPES for seed in range(3)]
POLICIES = ("lru", "lfu", "fifo", "belady")


def capacities(shape: tuple[int, int, int]) -> tuple[int, ...]:
    """In experts: the least that is allowed, a quarter, a half, and all but one."""
    total = shape[0] * shape[1]
    return tuple(sorted({2, max(2, total // 4), total // 2, total - 1}))


@cache
def routing(shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """Experts [steps, sites]: skewed popularity that drifts, with repeats, and a loop that LRU
    is known to lose on.
    """
    sites, experts, steps = shape
    rng = np.random.default_rng([seed, *shape])
    popularity = rng.dirichlet(np.full(experts, 0.5), size=(3, sites))
    chosen = np.empty((steps, sites), np.int16)
    for step in range(steps):
        for site in range(sites):
            if step and rng.random() < 0.3:
                chosen[step, site] = chosen[step - 1, site]
            else:
                chosen[step, site] = rng.choice(experts, p=popularity[step * 3 // steps, site])
    loop = slice(steps // 3, steps // 3 + 3 * experts)
    chosen[loop] = (np.arange(steps)[loop] % experts)[:, None]
    chosen.setflags(write=False)
    return chosen


def keys_of(chosen: np.ndarray, experts: int) -> list[int]:
    """The requests in order, as contract C3 numbers them."""
    return (chosen + np.arange(chosen.shape[1]) * (experts + 1)).reshape(-1).tolist()


# The project's own controller and engine


def trace_of(chosen: np.ndarray, experts: int) -> Trace:
    """Two sequences of single decode steps."""
    steps, sites = chosen.shape
    first = steps // 2
    sequence = (np.arange(steps) >= first).astype(np.int32)
    return Trace(
        header=Header(
            name="requests",
            created="",
            source="synthetic",
            model=ModelShape("requests", "none", sites, experts, 1, 1, 1),
            dtype="none",
            experts_implementation="none",
            sites=tuple(Site(site, f"site {site}", site) for site in range(sites)),
            sequences=(
                TraceSequence(0, "eval", "", 0, first),
                TraceSequence(1, "eval", "", 0, steps - first),
            ),
            licence="none",
        ),
        step=np.arange(steps, dtype=np.int32),
        phase=np.full(steps, DECODE, np.uint8),
        sequence=sequence,
        position=np.arange(steps, dtype=np.int32) - first * sequence,
        token=np.full(steps, -1, np.int32),
        valid=np.ones(steps, np.bool_),
        ids=chosen[:, :, None],
        weights=np.ones((steps, sites, 1), np.float32),
    )


def policy_of(name: str) -> CachePolicy:
    made = {
        "lru": LRU,
        "fifo": FIFO,
        "belady": Belady,
        "lfu": lambda initial: LFU("resident", initial=initial),
    }
    return made[name](initial="empty")  # type: ignore[operator]


@cache
def simulated_hits(shape: tuple[int, int, int], seed: int, capacity: int, name: str) -> list[int]:
    return run(routing(shape, seed), shape[1], capacity, name, Loader())[0]


def run(
    chosen: np.ndarray,
    experts: int,
    capacity: int,
    cache: str | CachePolicy,
    loader: Loader,
    route: Route = ONE_LINK,
    ram: str = "",
) -> tuple[list[int], list[tuple[int, bool]]]:
    """The hits, and key and finding of every lookup in RAM, if ``ram`` names a policy for it."""
    sites = chosen.shape[1]
    workload = Workload(trace_of(chosen, experts))
    geometry = Geometry(
        sites, experts, 1, ("fp16",), (16.0,), (EXPERT_BYTES,), capacity * EXPERT_BYTES
    )
    policy = policy_of(cache) if isinstance(cache, str) else cache
    if isinstance(policy, Foreseeing):
        policy.foresee([[key] for key in keys_of(chosen, experts)])
    controller = Controller(
        geometry,
        NoPrediction(),
        policy,
        Fixed("fp16"),
        Load(),
        loader,
        route=route,
        ram_cache=policy_of(ram) if ram else None,
    )
    asked = []
    if controller.ram is not None:
        look_up = controller.ram.look_up
        controller.ram.look_up = lambda key: asked.append((key, look_up(key))) or asked[-1][1]  # type: ignore
    hops = [
        {EXPERT_BYTES: 11 + 4 * link, EXPERT_BYTES // 2: 6 + 2 * link}
        for link in range(route.links)
    ]
    simulate(
        controller,
        workload,
        FixedDurations([5] * sites, 3, [2], hops, latency_ns=[1] * route.links),
    )
    controller.check()
    assert controller.lookup_keys == keys_of(chosen, experts)
    assert set(controller.lookup_outcomes) <= {Outcome.HIT, Outcome.MISS}
    return [int(outcome == Outcome.HIT) for outcome in controller.lookup_outcomes], asked


# Plain Python


def lru_hits(requests: Sequence[int], capacity: int) -> list[int]:
    held: list[int] = []  # least recent first
    hits = []
    for key in requests:
        hits.append(int(key in held))
        if key in held:
            held.remove(key)
        elif len(held) == capacity:
            held.pop(0)
        held.append(key)
    return hits


def fifo_hits(requests: Sequence[int], capacity: int) -> list[int]:
    held: list[int] = []  # oldest first
    hits = []
    for key in requests:
        hits.append(int(key in held))
        if key not in held:
            if len(held) == capacity:
                held.pop(0)
            held.append(key)
    return hits


def lfu_hits(requests: Sequence[int], capacity: int) -> list[int]:
    held: dict[int, tuple[int, int]] = {}  # uses since it came, time of the last
    hits = []
    for now, key in enumerate(requests):
        hits.append(int(key in held))
        if key not in held and len(held) == capacity:
            del held[min(held, key=held.__getitem__)]
        uses, _ = held.get(key, (0, 0))
        held[key] = (uses + 1, now)
    return hits


def next_uses(requests: Sequence[int]) -> list[int]:
    """When each request's key is requested again."""
    return [
        next((later for later in range(now + 1, len(requests)) if requests[later] == key), NEVER)
        for now, key in enumerate(requests)
    ]


def belady_hits(requests: Sequence[int], capacity: int) -> list[int]:
    held: dict[int, int] = {}  # next use
    hits = []
    for key, again in zip(requests, next_uses(requests), strict=True):
        hits.append(int(key in held))
        if key not in held and len(held) == capacity:
            del held[max(held, key=held.__getitem__)]
        held[key] = again
    return hits


PLAIN: dict[str, Callable[[Sequence[int], int], list[int]]] = {
    "lru": lru_hits,
    "lfu": lfu_hits,
    "fifo": fifo_hits,
    "belady": belady_hits,
}


# libCacheSim


def library_hits(requests: Sequence[int], capacity: int, name: str) -> list[int]:
    library = pytest.importorskip("libcachesim")
    cache = {
        "lru": library.LRU,
        "lfu": library.LFU,
        "fifo": library.FIFO,
        "belady": library.Belady,
        "arc": library.ARC,
        "sieve": library.Sieve,
        "s3_fifo": library.S3FIFO,
    }[name](capacity)
    request = library.Request(obj_size=1)
    again = next_uses(requests)
    hits = []
    for now, key in enumerate(requests):
        request.obj_id, request.clock_time, request.next_access_vtime = key, now, again[now]
        hits.append(int(cache.get(request)))
    return hits


def assert_same(ours: list[int], theirs: list[int], requests: Sequence[int]) -> None:
    for now, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == other, (
            f"first divergence at request {now} of key {requests[now]}: {mine}, oracle {other}"
        )


@pytest.mark.alike
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_hits_are_those_of_plain_python_request_by_request(shape, seed, name):
    chosen = routing(shape, seed)
    requests = keys_of(chosen, shape[1])
    for capacity in capacities(shape):
        hits = simulated_hits(shape, seed, capacity, name)
        assert_same(hits, PLAIN[name](requests, capacity), requests)


@pytest.mark.alike
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_hits_are_those_of_libcachesim_request_by_request(shape, seed, name):
    pytest.importorskip("libcachesim")
    chosen = routing(shape, seed)
    requests = keys_of(chosen, shape[1])
    for capacity in capacities(shape):
        hits = simulated_hits(shape, seed, capacity, name)
        assert_same(hits, library_hits(requests, capacity, name), requests)


@pytest.mark.alike
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "switches",
    [
        {"in_flight": 2},
        {"wait": "as_ready"},
        {"wait": "in_order"},
        {"demand_first": False},
        {"retention": "after_batch"},
        {"replay_unit": "access"},
        {"write_back": True},
        {"staging_slots": 2},
        {"chunk_bytes": EXPERT_BYTES // 2},
    ],
    ids=str,
)
def test_switches_that_concern_prefetches_or_times_change_no_hit(name, switches):
    shape = SHAPES[1]
    chosen = routing(shape, seed=9)
    for capacity in capacities(shape)[::2]:
        expected = PLAIN[name](keys_of(chosen, shape[1]), capacity)
        assert run(chosen, shape[1], capacity, name, Loader(**switches))[0] == expected


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "route",
    [Route((2,)), Route((1, 1), (0, 0)), Route((2, 1, 1), (0, 0, EXPERT_BYTES // 2))],
    ids=["two engines", "two links", "three links, cut through and shared"],
)
def test_the_way_to_the_device_changes_no_hit(name, route):
    shape = SHAPES[1]
    chosen = routing(shape, seed=9)
    for capacity in capacities(shape)[::2]:
        expected = PLAIN[name](keys_of(chosen, shape[1]), capacity)
        assert run(chosen, shape[1], capacity, name, Loader(), route)[0] == expected


@pytest.mark.alike
@pytest.mark.parametrize("device", POLICIES)
@pytest.mark.parametrize("ram", ["lru", "lfu", "fifo"])
@pytest.mark.parametrize("link", [1, 2])
def test_ram_hits_are_those_of_plain_python_on_what_the_device_misses(device, ram, link):
    """The stream of a tier are the requests that reach it."""
    shape = SHAPES[1]
    chosen = routing(shape, seed=5)
    requests = keys_of(chosen, shape[1])
    found = 0
    for capacity, slots in ((2, 4), (4, 9)):
        route = Route((1, 1, 1), (0, 0, 0), ram_link=link, ram_bytes=slots * EXPERT_BYTES)
        hits, asked = run(chosen, shape[1], capacity, device, Loader(), route, ram)
        assert hits == PLAIN[device](requests, capacity)
        missed = [key for key, hit in zip(requests, hits, strict=True) if not hit]
        assert [key for key, _ in asked] == missed
        assert_same([int(hit) for _, hit in asked], PLAIN[ram](missed, slots), missed)
        found += sum(hit for _, hit in asked)
    assert found > 20


@pytest.mark.parametrize(("shape", "seed"), CASES)
def test_no_policy_has_more_hits_than_belady(shape, seed):
    for capacity in capacities(shape):
        best = sum(simulated_hits(shape, seed, capacity, "belady"))
        for name in ("lru", "lfu", "fifo"):
            assert sum(simulated_hits(shape, seed, capacity, name)) <= best


@pytest.mark.parametrize("shape", SHAPES)
def test_the_streams_tell_the_policies_apart(shape):
    half = shape[0] * shape[1] // 2
    vectors = {name: simulated_hits(shape, 0, half, name) for name in POLICIES}
    assert len({tuple(hits) for hits in vectors.values()}) == len(POLICIES)
    assert all(0.1 < sum(hits) / len(hits) < 0.9 for hits in vectors.values())
