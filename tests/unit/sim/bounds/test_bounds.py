"""Lower bounds, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.bounds import bounds as bounds_module
from sim.bounds.bounds import RELAXATION, Bounds, _link_ns, _why_no_belady, lower_bounds
from sim.bounds.loads import fewest_loads
from sim.bounds.problem import Permitted, problem_of, work_of
from sim.bounds.relaxation import Problem, Requests, relaxed_ns
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy, Placement
from sim.policies.placements import AbsentOnCpu, Load
from sim.policies.precisions import Fixed, ScoreThreshold, SkipLight
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU, Transient
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.values.types import SKIP, Geometry, HostCosts, Place, Route
from sim.workload.steps import Workload


def fewest(gates: list[list[int]], slots: int, *initial: int, whole: bool = False) -> int:
    ticks = np.array([tick for tick, needs in enumerate(gates) for _ in needs])
    items = np.array([item for needs in gates for item in needs])
    return fewest_loads(ticks, items, slots, initial, np.full(len(ticks), whole))


# Contracts: C117
@pytest.mark.parametrize(
    ("gates", "slots", "initial", "loads"),
    [
        ([[0], [1], [0]], 0, (), 3),
        ([[0], [1], [0]], 1, (), 2),
        ([[0], [1], [2], [0], [1], [2]], 1, (), 5),
        ([[0], [1], [2], [0], [1], [2]], 2, (), 4),
        ([[0], [1], [2], [0], [1], [2]], 3, (), 3),
        ([[0], [1], [0]], 2, (0, 1), 0),
        ([[0], [1], [0]], 1, (0, 1), 1),
        ([[0, 1], [0, 1]], 2, (), 2),
        ([[0, 1, 2], [0, 1, 2]], 2, (), 4),
        ([[0], [0]], 1, (5,), 1),
    ],
    ids=[
        "nothing is kept",
        "0 is kept",
        "one of three",
        "two of three",
        "all of three",
        "all is there at the start",
        "one of two is there",
        "a union",
        "a union wider than the slots",
        "what is there is of no use",
    ],
)
def test_the_fewest_loads_on_paper(
    gates: list[list[int]], slots: int, initial: tuple[int, ...], loads: int
) -> None:
    """What counts is what is kept from gate to gate.

    0 1 2 0 1 2: after the first 2 all three are worth keeping. In one slot keeping 0 (over 1 and 2)
    saves a load. Keeping 1 or 2 instead would not, since they end later; so 5 loads.
    """
    assert fewest(gates, slots, *initial) == loads


@pytest.mark.parametrize(
    ("gates", "slots", "initial", "loads"),
    [
        ([[0], [1], [0]], 1, (), 3),
        ([[0], [1], [2], [0], [1], [2]], 1, (), 6),
        ([[0], [1], [2], [0], [1], [2]], 2, (), 4),
        ([[0], [1], [2], [0], [1], [2]], 3, (), 3),
        ([[0], [1], [0]], 1, (0, 1), 2),
        ([[0], [0]], 1, (5,), 1),
        ([[0, 1], [2, 3], [0, 1]], 2, (), 6),
        ([[0, 1], [2, 3], [0, 1]], 3, (), 5),
        ([[0, 1, 2], [0, 1, 2]], 2, (), 4),
    ],
    ids=[
        "1 takes the only slot",
        "one of three",
        "two of three",
        "all of three",
        "0 is there, then 1 comes",
        "what is there is of no use",
        "a pair takes both slots",
        "one of a pair stays",
        "too wide to be whole",
    ],
)
def test_a_gate_that_is_whole_takes_its_slots_until_the_next(
    gates: list[list[int]], slots: int, initial: tuple[int, ...], loads: int
) -> None:
    """With top-1 this is Belady's minimum.

    0 1 2 0 1 2 in two slots: 2 takes one, so 1 is given up after 3 loads. Then 0 hits, 1 is loaded
    again and 2 hits: 4 loads.
    """
    assert fewest(gates, slots, *initial, whole=True) == loads


def workload() -> Workload:
    """Two sites, top-2 of 4, three tokens in one sequence, with weights 3/4 and 1/4.

    At both sites they choose 0 1, then 2 3, then 0 1.
    """
    base = synthesize(ModelShape("tiny", "none", 2, 4, 2, 8, 8), tokens=3, lookahead=0)
    ids = np.array([[[0, 1]] * 2, [[2, 3]] * 2, [[0, 1]] * 2], np.int16)
    weights = np.broadcast_to(np.array([0.75, 0.25], np.float32), ids.shape)
    return Workload(replace(base, ids=ids, weights=weights), split="all")


DURATIONS = FixedDurations((10, 20), 5, (7, 3), {8: 100, 6: 75, 2: 25}, (1, 1))
"""An expert takes 8 ns for one token at high precision, 4 ns at low."""
DENSE = 3 * (10 + 20 + 5)


def controller(
    selector: Any,
    capacity_bytes: int,
    variant_bytes: tuple[int, ...] = (8,),
    *,
    cache: CachePolicy | None = None,
    loader: Mapping[str, Any] | None = None,
    placement: Placement | None = None,
    site_bytes: Any = None,
    **options: Any,
) -> Controller:
    names, bits = ("fp16", "int4")[: len(variant_bytes)], (16.0, 4.0)[: len(variant_bytes)]
    geometry = Geometry(2, 4, 2, names, bits, variant_bytes, capacity_bytes, site_bytes)
    return Controller(
        geometry,
        NoPrediction(),
        cache or LRU(initial="empty"),
        selector,
        placement or Load(),
        Loader(**(loader or {})),
        **options,
    )


def bounds(
    selector: Any,
    capacity_bytes: int,
    variant_bytes: tuple[int, ...] = (8,),
    *,
    durations: FixedDurations = DURATIONS,
    **options: Any,
) -> Bounds:
    return lower_bounds(
        workload(), durations, controller(selector, capacity_bytes, variant_bytes, **options)
    )


def test_with_one_precision_every_need_is_computed_and_the_fewest_are_loaded() -> None:
    """12 needs take 8 each.

    Of four slots each gate's own pair takes two. One site's 0 and 1 stay, so 12 - 2 loads.
    """
    found = bounds(Fixed("fp16"), 32)
    assert (found.compute_ns, found.link_ns) == (DENSE + 12 * 8, 10 * 100)
    assert (found.belady_loads, found.why_no_belady, found.lower_ns) == (10, None, 1000)


def test_two_slots_keep_nothing_and_three_slots_one() -> None:
    """The kept ones are beside a gate's own pair."""
    assert bounds(Fixed("fp16"), 16).belady_loads == 12
    assert bounds(Fixed("fp16"), 24).belady_loads == 11


def test_what_is_there_at_the_start_need_not_be_loaded() -> None:
    """The four slots start with site 0's experts.

    0 and 1 are there at once, and stay or come back as before.
    """
    warm = bounds(Fixed("fp16"), 32, cache=LRU())
    assert warm.belady_loads == 6
    assert warm.link_ns == 600


def test_pools_of_their_own_bound_belady_but_not_the_link() -> None:
    """With two slots a site, 2 and 3 take both: 6 + 6 loads.

    Four slots together would make 10.
    """
    found = bounds(Fixed("fp16"), 32, cache=LRU("site", initial="empty"))
    assert (found.belady_loads, found.link_ns) == (12, 1000)


def test_a_long_computation_is_the_bound_when_all_is_there() -> None:
    found = bounds(Fixed("fp16"), 64, cache=LRU())
    assert (found.link_ns, found.lower_ns) == (0, DENSE + 12 * 8)


def test_a_need_that_low_precision_may_serve_is_computed_at_low_and_loads_nothing() -> None:
    """Scores are 0 and 3/4 everywhere, so the second need may be low.

    The high needs are 0 2 0 at either site: 4 loads.
    """
    found = bounds(ScoreThreshold("fp16", "int4", 0.5, 0.8), 32, (8, 2))
    assert (found.compute_ns, found.link_ns) == (DENSE + 6 * 8 + 6 * 4, 400)
    assert (found.belady_loads, found.why_no_belady) == (None, "variants of several sizes")


# Contracts: C117
@pytest.mark.parametrize("low_for_high", [False, True])
def test_what_is_left_out_whatever_is_there_is_loaded_by_no_cache(low_for_high: bool) -> None:
    """Only 0 2 0 are asked for at either site: 4 loads, where all needs make 10."""
    loader = {"low_for_high": low_for_high}
    found = bounds(SkipLight("fp16", 0.5), 32, loader=loader)
    assert (found.belady_loads, found.why_no_belady) == (4, None)
    assert found.compute_ns == DENSE + 6 * 8


def test_a_need_that_may_be_skipped_costs_nothing() -> None:
    found = bounds(ScoreThreshold("fp16", "int4", 0.5, 0.6), 32, (8, 2))
    assert found.compute_ns == DENSE + 6 * 8


def test_the_bound_is_for_every_cache_of_the_budget_not_for_what_one_makes_of_it() -> None:
    """``Transient`` uses two slots of the four.

    Belady in its pool loads 12 times; another cache needs only 10 loads.
    """
    found = bounds(Fixed("fp16"), 32, cache=Transient())
    assert (found.belady_loads, found.link_ns) == (12, 1000)


# What may avoid a load or make it cheaper


class Halves:
    """A payload that moves half of a variant."""

    whole = False
    partial = True

    def moved_bytes(self, key: int, choice: Any, index: int) -> int:
        return 4

    def forecast_bytes(self, key: int, choice: Any, index: int, gate: Any) -> int:
        return 4

    def missing_bytes(self, key: int, gate: Any, index: int, moved_bytes: int) -> int:
        return 0


def test_what_the_cpu_may_compute_costs_the_device_nothing() -> None:
    found = bounds(Fixed("fp16"), 32, placement=AbsentOnCpu(up_to_tokens=1))
    assert (found.compute_ns, found.link_ns, found.belady_loads) == (DENSE, 0, None)
    assert found.why_no_belady == "needs that may be computed elsewhere or not at all"


def test_partial_moves_may_make_any_load_cheap_but_no_computation() -> None:
    found = bounds(Fixed("fp16"), 32, loader={"staging_slots": 2}, payload=Halves())
    assert (found.compute_ns, found.link_ns, found.belady_loads) == (DENSE + 12 * 8, 0, None)


def test_where_low_may_serve_for_high_nothing_must_be_loaded_high() -> None:
    found = bounds(
        ScoreThreshold("fp16", "int4", 1.0, 1.0), 32, (8, 2), loader={"low_for_high": True}
    )
    assert (found.compute_ns, found.link_ns) == (DENSE + 12 * 4, 0)
    assert bounds(ScoreThreshold("fp16", "int4", 1.0, 1.0), 32, (8, 2)).link_ns == 1000


# Contracts: C115
def test_host_time_that_every_gate_takes_is_part_of_the_compute_bound() -> None:
    """Six gates of 2 + 3 + 4 ns; waking up is left out, since it depends on the waiting."""
    slow = FixedDurations((10, 20), 5, (7,), {8: 100}, (1,), host=HostCosts(2, 3, 1000, 4))
    assert bounds(Fixed("fp16"), 32, durations=slow).compute_ns == DENSE + 12 * 8 + 6 * 9


# Several engines, sizes, slots beside the pools


# Contracts: C116
@pytest.mark.parametrize(
    ("engines", "latency", "link"),
    [(1, 40, 1000), (2, 40, 640), (2, 80, 500), (4, 0, 1000), (4, 90, 250)],
    ids=[
        "one engine",
        "latencies hide behind the other's bytes",
        "each engine takes five services",
        "no latency",
        "four engines",
    ],
)
def test_engines_share_the_bandwidth_and_overlap_their_latencies(
    engines: int, latency: int, link: int
) -> None:
    """Ten loads of 100, ``latency`` of them without bytes.

    At best they take one latency, then the bytes of all ten. But each engine serves one at a time:
    ten services of 100 on two engines take at least 500.
    """
    durations = FixedDurations((10, 20), 5, (7,), {8: 100}, (1,), latency_ns=(latency,))
    found = bounds(Fixed("fp16"), 32, durations=durations, route=Route((engines,), (0,)))
    assert (found.belady_loads, found.link_ns) == (10, link)


def test_streamed_dense_blocks_take_the_link_for_every_gate_but_the_first() -> None:
    """Six gates, one slot: five blocks of 3 B take 30 ns each, beside the loads."""
    durations = FixedDurations((10, 20), 5, (7,), {8: 100, 3: 30}, (1,))
    found = bounds(
        Fixed("fp16"), 32, durations=durations, loader={"dense_slots": 1}, dense_bytes=(3, 3)
    )
    assert found.link_ns == 1000 + 5 * 30


def test_where_bytes_differ_from_site_to_site_each_load_counts_as_the_least() -> None:
    """8 B at site 0, 6 B at site 1.

    32 B may be 5 slots, of which a gate's pair takes two: 12 - 3 loads of 75.
    """
    found = bounds(Fixed("fp16"), 32, site_bytes=((8, 6),))
    assert (found.link_ns, found.belady_loads) == (9 * 75, None)
    assert found.why_no_belady == "variants of several sizes"


def test_staging_slots_hold_variants_too() -> None:
    """Two slots and two staging slots keep what four slots keep.

    No gate's pair need stay together.
    """
    found = bounds(Fixed("fp16"), 16, loader={"destination": "staging", "staging_slots": 2})
    assert (found.link_ns, found.belady_loads) == (800, None)
    assert found.why_no_belady == "variants held outside the pools"


# Contracts: C116
def test_pools_that_overflow_keep_a_gates_union_beside_nothing_else() -> None:
    """One row a gate needs both slots, so no more is kept than with strict pools."""
    assert bounds(Fixed("fp16"), 16, loader={"retention": "after_batch"}).link_ns == 12 * 100


def test_one_need_at_a_time_leaves_room_for_what_is_kept() -> None:
    """A gate's pair need not stay together.

    So four slots keep 0 and 1 of both sites, and 2 and 3 pass through.
    """
    assert bounds(Fixed("fp16"), 32, loader={"replay_unit": "access"}).link_ns == 800


def test_what_a_gate_leaves_over_the_slots_may_be_kept() -> None:
    """0 1 2 in two slots, then the same again.

    Two are kept; three where the gate may leave all of them.
    """
    ticks, items = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])
    assert fewest_loads(ticks, items, 2, (), over=np.zeros(6, np.int64)) == 4
    assert fewest_loads(ticks, items, 2, (), over=np.full(6, 3)) == 3


# Links further out

TWO_HOPS = FixedDurations((10, 20), 5, (7,), [{8: 100}, {8: 300}], (1,))


# Contracts: C116
def test_where_nobody_owns_the_memory_between_every_load_crosses_both_links() -> None:
    """There are ten loads, as before; the outer link takes 300 for each."""
    found = bounds(Fixed("fp16"), 32, durations=TWO_HOPS, route=Route((1, 1), (0, 0)))
    assert (found.belady_loads, found.link_ns) == (10, 10 * 300)


@pytest.mark.parametrize(
    ("ram_bytes", "initial", "outer"),
    [(32, "empty", 8), (32, "ascending", 4), (8, "empty", 9)],
    ids=["both tiers hold all", "half of all is in RAM at the start", "RAM keeps one more"],
)
def test_what_a_managed_tier_holds_need_not_come_over_the_links_beyond_it(
    ram_bytes: int, initial: str, outer: int
) -> None:
    """Four slots on the device and four in RAM hold all eight experts.

    So each is read once, or was there at the start.
    """
    route = Route((1, 1), (0, 0), ram_link=1, ram_bytes=ram_bytes)
    found = bounds(
        Fixed("fp16"), 32, durations=TWO_HOPS, route=route, ram_cache=LRU(initial=initial)
    )
    assert found.link_ns == max(10 * 100, outer * 300)


def test_a_run_whose_experts_rest_in_ram_is_not_bound_by_the_drive() -> None:
    """There are twelve loads of 100 from RAM.

    A bound that ignored RAM's contents would count ten of 300.
    """
    route = Route((1, 1), (0, 0), ram_link=1, ram_bytes=64)
    made = controller(Fixed("fp16"), 16, route=route, ram_cache=LRU(initial="ascending"))
    spent = simulate(made, workload(), TWO_HOPS).makespan_ns
    made = controller(Fixed("fp16"), 16, route=route, ram_cache=LRU(initial="ascending"))
    found = lower_bounds(workload(), TWO_HOPS, made, RELAXATION)
    assert 1200 <= found.lower_ns <= spent < 3000


@pytest.mark.parametrize(
    ("ram_link", "passes"),
    [(None, [False, True, True]), (1, [False, False, True]), (2, [False, True, False])],
)
def test_what_is_on_its_way_holds_a_slot_on_the_device_and_in_a_managed_tier(
    ram_link: int | None, passes: list[bool]
) -> None:
    durations = FixedDurations((10, 20), 5, (7,), [{8: 100}, {8: 200}, {8: 300}], (1,))
    route = Route((1,) * 3, (0,) * 3, ram_link, 32 if ram_link else 0)
    made = controller(
        Fixed("fp16"), 32, route=route, ram_cache=LRU(initial="empty") if ram_link else None
    )
    permitted = Permitted([(0,)], np.zeros(12, np.int64))
    work = work_of(workload(), durations, made, permitted)
    found = [problem_of(workload(), durations, made, work, permitted, link) for link in range(3)]
    assert [problem.passes for problem in found] == passes
    room = 32 if ram_link is None else 64
    assert [int(problem.capacity_bytes[0]) for problem in found] == [
        room if ram_link is not None and link >= ram_link else 32 for link in range(3)
    ]


def test_what_waits_without_a_slot_may_come_while_everything_is_pinned() -> None:
    """The one slot is pinned from gate to gate.

    Loads of 300 come after their gates, so each interval takes 1300. Where arrivals wait outside of
    the slots, they come before, and only the 1000 of computing counts.
    """
    gates = np.arange(4)
    requests = Requests(gates, np.full(4, 8), np.full(4, 300), np.full(4, -1), np.full(4, True))
    problem = Problem(np.full(5, 1000), np.full(5, 1000), np.full(4, 8), requests)
    assert 0.95 * (1000 + 300 + 4 * 1000 + 3 * 300) < relaxed_ns(problem) <= 1000 + 4 * 1300
    assert 4900 < relaxed_ns(replace(problem, passes=True)) <= 5000


class Paged(FixedDurations):
    """Durations in which what was read once is read again in no time."""

    def page_cache_bytes(self, link: int) -> int:
        return 1000

    def kept_ns(self, link: int, moved_bytes: int) -> int:
        return 1


def test_what_the_operating_system_may_keep_is_bound_by_its_rate() -> None:
    """36 loads, 8 of them from the drive.

    A bound with the drive's time for all of them would be above the run.
    """
    base = synthesize(ModelShape("tiny", "none", 2, 4, 2, 8, 8), tokens=9, lookahead=0)
    ids = np.array([[[0, 1]] * 2, [[2, 3]] * 2] * 4 + [[[0, 1]] * 2], np.int16)
    told = Workload(
        replace(base, ids=ids, weights=np.full(ids.shape, 0.5, np.float32)), split="all"
    )
    paged, plain = Paged((1, 1), 1, (1,), {8: 100}), FixedDurations((1, 1), 1, (1,), {8: 100})
    slots = 16
    found = lower_bounds(told, paged, controller(Fixed("fp16"), slots), RELAXATION)
    spent = simulate(controller(Fixed("fp16"), slots), told, paged).makespan_ns
    without = lower_bounds(told, plain, controller(Fixed("fp16"), slots), RELAXATION)
    assert found.lower_ns <= spent < without.lower_ns


def test_only_links_slower_than_the_first_are_relaxed_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest of their bounds counts, whichever link it is of."""
    hops = [{8: 100}, {8: 90}, {8: 100}, {8: 101}]
    durations = FixedDurations((10, 20), 5, (7,), hops, (1,))
    made = controller(Fixed("fp16"), 32, route=Route((1,) * 4, (0,) * 4))
    monkeypatch.setattr(bounds_module, "problem_of", lambda *given: given[-1])
    told: dict[int, int] = {0: 9000, 3: 7000}
    seen: list[int] = []
    found = []

    def relaxed(link: int) -> int:
        seen.append(link)
        return told[link]

    monkeypatch.setattr(bounds_module, "relaxed_ns", relaxed)
    for told[0] in (9000, 5000):
        found.append(lower_bounds(workload(), durations, made, RELAXATION).relaxed_ns)
    assert (found, seen) == ([9000, 7000], [0, 3] * 2)


def test_a_link_takes_its_transfers_times_and_nothing_for_none() -> None:
    """Transfers of 8 B take 100, of 2 B 25; fewer gates than dense slots ask for no block."""
    ways = [((1, 8), (0, 0)), ((2, 8), (1, 2)), ((0, 8), (0, 0)), ((-1, 3), (1, 2))]
    assert [_link_ns(DURATIONS, 0, 1, way) for way in ways] == [100, 225, 0, 25]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"geometry.precisions": ("fp16", "int4")}, "variants of several sizes"),
        ({"geometry.site_bytes": ((8, 6),)}, "variants of several sizes"),
        (
            {"placement.constant": Place.CPU},
            "needs that may be computed elsewhere or not at all",
        ),
        ({"selector.reroutes": True}, "needs that other experts may serve"),
        ({"payload.whole": False}, "accesses that move parts of a variant"),
        ({"loader.staging_slots": 1}, "variants held outside the pools"),
        ({"loader.retention": "after_batch"}, "variants held outside the pools"),
        ({"spare_bytes": (0,).__getitem__}, "slots that shrink as keys and values grow"),
        ({"answers": [(0,), (0, SKIP)]}, "needs that are left out where they are absent"),
        ({"answers": [(0,), (SKIP,)]}, None),
    ],
)
def test_why_beladys_rule_does_not_apply(changes: dict[str, Any], why: str | None) -> None:
    made: Any = SimpleNamespace(
        geometry=SimpleNamespace(precisions=("fp16",), site_bytes=None),
        placement=SimpleNamespace(constant=Place.LOAD),
        selector=SimpleNamespace(reroutes=False),
        payload=SimpleNamespace(whole=True),
        loader=SimpleNamespace(staging_slots=0, retention="strict"),
        spare_bytes=None,
        answers=[(0,)],
    )
    for place, value in changes.items():
        part, _, name = place.rpartition(".")
        setattr(getattr(made, part) if part else made, name, value)
    permitted = Permitted(made.answers, np.zeros(0, np.int64))
    assert _why_no_belady(made, permitted) == why
