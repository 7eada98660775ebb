"""The relaxation's bound is below the best schedule and below every simulated run.

The best schedule is found by brute force.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from differential import production_rows
from differential.production import ScenarioDurations, ScenarioWorkload
from differential.scenario import Scenario
from differential.test_engine_against_reference import AMONG_RIVALS, given
from property.brute_force import Instance, shortest
from property.watched import names, scenario_of
from sim.bounds import relaxation
from sim.bounds.bounds import RELAXATION, Bounds, lower_bounds
from sim.bounds.problem import Permitted, work_of
from sim.bounds.relaxation import Problem, Requests, relaxed_ns
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy
from sim.policies.belady import Belady
from sim.policies.frequency import LFU
from sim.policies.placements import Load
from sim.policies.precisions import Fixed, ScoreThreshold
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.results.run import Run
from sim.study.trials import prepared
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.values.places import ROOT
from sim.values.record import Record
from sim.values.types import Geometry
from sim.workload.steps import Workload
from sim.workload.unions import Needs

UNIT = 1000
"""Nanoseconds in a unit of the brute force, so that rounding to whole ns hides nothing."""
EXPERTS = 4


def one_size(seed: int) -> Instance:
    """Three to five gates of two of four experts, with room for two to four, warm or cold."""
    rng = np.random.default_rng(seed)
    gates = tuple(
        tuple((int(e), 0) for e in rng.choice(EXPERTS, 2, replace=False))
        for _ in range(rng.integers(3, 6))
    )
    capacity = int(rng.integers(2, 5))
    warm = (
        frozenset((expert, 0) for expert in range(capacity)) if rng.random() < 0.5 else frozenset()
    )
    dense, expert, load = int(rng.integers(0, 4)), int(rng.integers(0, 2)), int(rng.integers(1, 5))
    dense += not dense + expert
    return Instance(gates, capacity, dense, (expert,), (load,), (1,), warm)


def two_sizes(seed: int) -> Instance:
    """Two or three gates, each with one need that may be served low.

    A low variant has a quarter of the bytes, and takes a quarter or half of the time.
    """
    rng = np.random.default_rng(1000 + seed)
    chosen = [rng.choice(3, 2, replace=False) for _ in range(rng.integers(2, 4))]
    gates = tuple(((int(high), 0), (int(low), 1)) for high, low in chosen)
    load = (4, 1) if rng.random() < 0.5 else (2, 1)
    return Instance(gates, 8, int(rng.integers(0, 3)), (2, 1), load, (4, 1))


ONE_SIZE, TWO_SIZES = [one_size(seed) for seed in range(40)], [two_sizes(seed) for seed in range(8)]


@cache
def optimum_ns(instance: Instance) -> int:
    return shortest(instance) * UNIT


def as_run(instance: Instance, cache: CachePolicy) -> tuple[Workload, FixedDurations, Controller]:
    """The instance in the project's own terms: a trace of one site, one token a step."""
    gates = len(instance.gates)
    base = synthesize(ModelShape("tiny", "none", 1, EXPERTS, 2, 8, 8), tokens=gates, lookahead=0)
    ids = np.array([[[expert for expert, _ in needs]] for needs in instance.gates], np.int16)
    weights = np.broadcast_to(np.array([0.75, 0.25], np.float32), ids.shape)
    workload = Workload(replace(base, ids=ids, weights=weights), split="all")
    # A gate's second need has the score 3/4.
    selector: Any = (
        ScoreThreshold("fp16", "int4", 0.5, 0.8) if len(instance.size) > 1 else Fixed("fp16")
    )
    names, bits = ("fp16", "int4")[: len(instance.size)], (16.0, 4.0)[: len(instance.size)]
    geometry = Geometry(1, EXPERTS, 2, names, bits, instance.size, instance.capacity)
    if isinstance(cache, Belady):
        cache.foresee(
            [[geometry.key(0, 0, expert) for expert, _ in needs] for needs in instance.gates]
        )
    loads = {size: time * UNIT for size, time in zip(instance.size, instance.load, strict=True)}
    durations = FixedDurations(
        (instance.dense * UNIT,), 0, [time * UNIT for time in instance.expert], loads
    )
    loader = Loader(wait="as_ready")
    return (
        workload,
        durations,
        Controller(geometry, NoPrediction(), cache, selector, Load(), loader),
    )


def initial(instance: Instance) -> str:
    return "ascending" if instance.initial else "empty"


def bound_ns(instance: Instance) -> tuple[int, int]:
    """The relaxation's bound alone, and that of ``max``, in ns."""
    run = as_run(instance, LRU(initial=initial(instance)))
    found = lower_bounds(*run, RELAXATION)
    assert found.relaxed_ns is not None
    return found.relaxed_ns, max(found.compute_ns, found.link_ns)


# Contracts: C115
@pytest.mark.alike
@pytest.mark.parametrize("instance", [*ONE_SIZE, *TWO_SIZES], ids=str)
def test_the_bound_is_below_the_best_schedule_there_is(instance: Instance) -> None:
    relaxed, simple = bound_ns(instance)
    assert max(relaxed, simple) <= optimum_ns(instance)


@pytest.mark.thorough
def test_on_tiny_instances_the_bound_is_near_the_best_schedule() -> None:
    """Mostly the bound is reached.

    It is often above what compute and link alone give, since pinned variants leave no room.
    """
    found = [(*bound_ns(instance), optimum_ns(instance)) for instance in ONE_SIZE]
    gaps = [1 - max(relaxed, simple) / best for relaxed, simple, best in found]
    assert np.mean(np.array(gaps) < 0.01) > 0.5
    assert np.mean(gaps) < 0.08
    assert np.mean([relaxed > 1.02 * simple for relaxed, simple, _ in found]) > 0.15


def test_the_ascent_ends_where_it_ended() -> None:
    """Any end is a bound. Steps of another width end elsewhere, by more than two ns."""
    found = [bound_ns(ONE_SIZE[number])[0] for number in (0, 2, 3)]
    assert found == pytest.approx([19_901, 12_973, 9_958], abs=2)


def test_no_cache_is_below_the_best_schedule() -> None:
    """So the brute force has missed no schedule."""
    reached = 0
    for instance in ONE_SIZE:
        for policy in (LRU, LFU, Belady):
            workload, durations, controller = as_run(instance, policy(initial=initial(instance)))
            spent = simulate(controller, workload, durations).makespan_ns
            assert spent >= optimum_ns(instance), (instance, policy)
            reached += spent == optimum_ns(instance)
    assert reached > 5


@pytest.mark.parametrize(
    ("instance", "units"),
    [
        (
            Instance(
                (((0, 0), (1, 0)), ((2, 0), (3, 0)), ((0, 0), (1, 0))), 2, 1, (1,), (3,), (1,)
            ),
            23,
        ),
        (
            Instance(
                (((0, 0), (1, 0)), ((2, 0), (3, 0)), ((0, 0), (1, 0))), 4, 1, (1,), (3,), (1,)
            ),
            16,
        ),
        (
            Instance(
                (((0, 0), (1, 0)), ((0, 0), (1, 0))),
                2,
                2,
                (1,),
                (3,),
                (1,),
                frozenset({(0, 0), (1, 0)}),
            ),
            8,
        ),
        (Instance((((0, 0), (1, 1)), ((0, 0), (1, 1))), 8, 1, (2, 1), (4, 1), (4, 1)), 11),
    ],
    ids=[
        "two slots, all pinned",
        "four slots hold all",
        "nothing to load",
        "the second need is low",
    ],
)
def test_best_schedules_on_paper(instance: Instance, units: int) -> None:
    """The cases by hand:

    - Two slots: loads end at 3 and 6, needs are computed at 7, dense work ends at 8. Only then is
      there room: 8 + 6 + 1, dense 1, and 6 + 1 again make 23.
    - Four slots: the link loads 2 until 9 and 3 until 12; they are computed at 13, dense work ends
      at 14, and 0 and 1 are there: 16.
    - Warm: 2 x (2 + 2).
    - Low: 1 is there at 1 and computed at 2, 0 is there at 5 and computed at 7, dense work ends at
      8, and 2 + 1 make 11.
    """
    assert shortest(instance) == units


# Runs


class Foretold:
    """A scenario's workload with what a bound asks of one: its gates and their needs."""

    is_timed = False

    def __init__(self, workload: ScenarioWorkload) -> None:
        self.steps = workload.steps
        gates = [(step, site) for step in workload.told for site in step.sites]
        lengths = [len(step.sites) for step in workload.told]
        self.gate_step = np.repeat(np.arange(len(lengths)), lengths)
        self.num_gates = len(gates)
        self.gate_site = np.array([site for _, site in gates], np.int64)
        rows = [
            (tick, need) for tick, (step, site) in enumerate(gates) for need in step.needs[site]
        ]
        self.needs = Needs(
            np.array([tick for tick, _ in rows], np.int64),
            np.array([need.expert for _, need in rows]),
            np.array([need.tokens for _, need in rows]),
            np.zeros(len(rows), np.float32),
            lambda: np.array([need.score for _, need in rows]),
        )


def bounded(scenario: Scenario) -> tuple[Bounds, int]:
    """The bounds of a random scenario, and how long its run took."""
    seen: list[Any] = []

    def driven(
        controller: Controller, workload: ScenarioWorkload, durations: ScenarioDurations
    ) -> Record:
        record = simulate(controller, workload, durations)  # type: ignore[arg-type]
        seen.extend((lower_bounds(Foretold(workload), durations, controller, RELAXATION), record))  # type: ignore[arg-type]
        return record

    production_rows.run(scenario, driven)  # type: ignore[arg-type]
    first = min((request.arrival_ns for request in scenario.requests), default=0)
    return seen[0], seen[1].makespan_ns - first


@pytest.mark.alike
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_no_run_of_any_feature_is_below_its_bound(
    ties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is shortened, since every number that it passes through is a bound."""
    monkeypatch.setattr(relaxation, "ROUNDS", (100, 100))
    above = seen = 0
    for kind, seed in names():
        scenario = scenario_of(kind, seed, ties)
        low_above = getattr(scenario.selector, "low_above", None)
        if low_above is not None and (low_above < 0 or scenario.precisions == 1):
            # The selector does not say what it permits, or permits a precision that is not in play.
            continue
        bounds, makespan_ns = bounded(scenario)
        assert bounds.relaxed_ns is not None
        assert bounds.lower_ns <= makespan_ns, (kind, seed)
        above += bounds.relaxed_ns > max(bounds.compute_ns, bounds.link_ns)
        seen += 1
    assert seen > 60
    assert above > 15


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    ["two_hops", "three_hops", "ram_tier", "cut_through", "rivals", "write_back", *AMONG_RIVALS],
)
def test_no_run_over_a_route_is_below_its_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every link of the route is bounded; often the outer one gives the highest bound."""
    monkeypatch.setattr(relaxation, "ROUNDS", (100, 100))
    for seed in range(60):
        scenario = given(kind, seed, ties=seed % 2 == 0)
        low_above = getattr(scenario.selector, "low_above", None)
        if low_above is None or (low_above >= 0 and scenario.precisions > 1):
            bounds, makespan_ns = bounded(scenario)
            assert bounds.lower_ns <= makespan_ns, seed


def test_a_slow_drive_bounds_a_run_from_it() -> None:
    """The drive reads at 3 GB/s, behind a link of 26 GB/s.

    So the bound is the drive's, far above the other link's.
    """
    words = (
        "system=load_on_demand",
        "hardware=rtx4090_nvme",
        "ram_cache=lru",
        "hardware.ram.capacity_gib=1",
        "trace.max_sequences=1",
        "workload.prompt_tokens=1",
        "workload.decode_tokens=4",
    )
    run = prepared(words)
    makespan_ns = simulate(run.controller, run.workload, run.durations).makespan_ns
    found = lower_bounds(run.workload, run.durations, run.controller, RELAXATION)
    assert found.belady_loads is not None
    to_the_device_ns = found.belady_loads * run.durations.hop_ns(
        0, run.controller.geometry.variant_bytes[0]
    )
    assert 3 * to_the_device_ns < found.lower_ns <= makespan_ns


USUAL = ("hobbit", "fate", "oracle", "moe_infinity", "deepspeed_mii")
ALL = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))


@pytest.mark.alike
@pytest.mark.parametrize(
    "system",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.thorough) for name in ALL],
)
@pytest.mark.parametrize("share", [0.4, pytest.param(0.75, marks=pytest.mark.thorough)])
def test_no_system_is_below_its_bound(system: str, share: float) -> None:
    """On the bundled trace, whose gates have prompts of many rows and decoded tokens of one."""
    words = ("trace.max_sequences=1", "hardware.memory_gib=96", f"budget.resident_share={share}")
    run = prepared([f"system={system}", *words])
    makespan_ns = simulate(run.controller, run.workload, run.durations).makespan_ns
    found = lower_bounds(run.workload, run.durations, run.controller, RELAXATION)
    assert 0 < found.lower_ns <= makespan_ns
    assert found.lower_ns == max(found.compute_ns, found.link_ns, found.relaxed_ns or 0)


# The problem as it is posed


def test_the_work_of_all_intervals_is_the_compute_bound() -> None:
    run = prepared(["system=hobbit", "trace.max_sequences=1"])
    permitted = Permitted([(0,)], np.zeros(len(run.workload.needs.tick), np.int64))
    work = work_of(run.workload, run.durations, run.controller, permitted)
    spent = compute_busy_ns_at_high(run)
    assert work.compute_ns.sum() == spent
    assert (work.after_ns <= work.compute_ns).all()


def compute_busy_ns_at_high(run: Run) -> int:
    """The time of all the run's computations at the highest precision, operation by operation."""
    durations, needs = run.durations, run.workload.needs
    dense = sum(
        sum(durations.dense_ns(step)) + durations.tail_ns(step) for step in run.workload.steps
    )
    return dense + sum(durations.expert_ns(0, 0, tokens) for tokens in needs.tokens.tolist())


def test_a_problem_asked_again_is_remembered_and_another_is_not() -> None:
    before = relaxation._solved.cache_info()
    for instance in (ONE_SIZE[0], ONE_SIZE[0], replace(ONE_SIZE[0], dense=7)):
        bound_ns(instance)
    after = relaxation._solved.cache_info()
    assert (after.hits + after.misses) - (before.hits + before.misses) == 3
    assert after.misses - before.misses <= 2
    assert bound_ns(ONE_SIZE[0]) != bound_ns(replace(ONE_SIZE[0], dense=7))


def test_a_run_with_nothing_to_load_is_bound_by_what_it_computes() -> None:
    nothing = np.zeros(0, np.int64)
    requests = Requests(nothing, nothing, nothing, nothing, nothing.astype(np.bool_))
    work = np.array([3, 4, 5])
    assert relaxed_ns(Problem(work, work, np.array([1, 1]), requests)) == 12
