"""A scenario through the project's own controller and drivers, told in the reference's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from differential.reference import GateRow, LookupRow, Timeline, TransferRow
from differential.scenario import Fixed, Prediction, Scenario, Step
from sim.controller import Controller
from sim.costs import Durations
from sim.engine import simulate
from sim.loader import Loader
from sim.policies.base import CachePolicy, Choice, PrecisionSelector, Resident
from sim.policies.caches import FIFO, LFU, LRU, Belady, WeightedScore
from sim.policies.placements import Load
from sim.policies.pools import Pooled
from sim.policies.precisions import ScoreThreshold
from sim.policies.predictors import GateLookahead, NoPrediction
from sim.record import Record
from sim.stalls import split_stalls
from sim.types import Geometry, Outcome, PoolPlan, PrefetchOutcome
from sim.types import Step as RunStep

Driver = Callable[[Controller, "ScenarioWorkload", Durations], Record]


class ScenarioChoice:
    def __init__(self, site: int, prediction: Prediction) -> None:
        self.site = site
        self.needs = [forecast.expert for forecast in prediction or ()]
        self.scores = [forecast.score for forecast in prediction or ()]
        self.tokens = [1] * len(self.needs)


class ScenarioGate:
    """The gate object of a scenario: ``open`` and ``visit`` as ``sim.workload.StepGate``."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.tick, self.site = scenario, -1, 0

    def open(self, step: RunStep) -> None:
        self._step: Step = self.scenario.steps[step.index]
        self.step, self.token = step.index, step.token

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        needs = self._step.needs[site]
        self.needs = [need.expert for need in needs]
        self.tokens = [need.tokens for need in needs]
        self.scores = [need.score for need in needs]

    def routed(self, j: int) -> Choice | None:
        predictions = self._step.forecasts[self.site]
        prediction = predictions[j - 1] if j <= len(predictions) else None
        return None if prediction is None else ScenarioChoice(self.site + j, prediction)  # type: ignore[return-value]


class ScenarioWorkload:
    """The steps of a scenario, as ``sim.workload.Workload`` offers them to a driver."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.sites = scenario, scenario.sites
        self.steps = [
            RunStep(i, i, i + step.rows, (step.sequence,), step.token, step.rows == 1,
                    (step.sequence,) if step.begins else (), (step.sequence,) if step.ends else ())
            for i, step in enumerate(scenario.steps)
        ]  # fmt: skip

    def gate(self) -> ScenarioGate:
        return ScenarioGate(self.scenario)


class ScenarioDurations:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._transfer = dict(zip(scenario.variant_bytes, scenario.service_ns, strict=True))

    def dense_ns(self, step: RunStep) -> Sequence[int]:
        return self._scenario.steps[step.index].dense_ns

    def tail_ns(self, step: RunStep) -> int:
        return self._scenario.steps[step.index].tail_ns

    def expert_ns(self, precision: int, tokens: int) -> int:
        return self._scenario.expert_ns(precision, tokens)

    def transfer_ns(self, moved_bytes: int) -> int:
        return self._transfer[moved_bytes]


class FixedAt:
    """Every need at one precision of several in play: the project's own ``Fixed`` knows only one."""

    def __init__(self, precision: int) -> None:
        self.constant, self.precisions = precision, ("high", "low")

    def permitted(self, score: float) -> tuple[int, ...]:
        return (self.constant,)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        raise AssertionError("a selector with a constant is never asked")


def _selector(scenario: Scenario) -> PrecisionSelector:
    chosen = scenario.selector
    if isinstance(chosen, Fixed):
        return FixedAt(chosen.precision)
    selector = ScoreThreshold("high", "low", 0.0, 1.0)
    # A scenario's thresholds may lie outside 0..1, which a user's may not.
    selector.low_above, selector.skip_above = chosen.low_above, chosen.skip_above
    selector.precisions = selector.precisions[: scenario.precisions]
    return selector


def _cache(scenario: Scenario) -> CachePolicy:
    cache = scenario.cache
    if cache.name == "weighted":
        weights = {"lru": cache.w_lru, "lfu": cache.w_lfu, "lhu": cache.w_lhu, "fld": cache.w_fld}
        return WeightedScore(weights)
    if cache.name == "belady":
        policy = Belady()
        assert isinstance(scenario.selector, Fixed)
        wanted = scenario.selector.precision
        policy.foresee([[scenario.pack((wanted, site, need.expert)) for need in needs]
                        for step in scenario.steps for site, needs in enumerate(step.needs)])  # fmt: skip
        return policy
    if cache.name.startswith("lfu"):
        return LFU(counts=cache.name.removeprefix("lfu_"))
    return {"lru": LRU, "fifo": FIFO}[cache.name]()


def _with_pools(policy: CachePolicy, scenario: Scenario) -> CachePolicy:
    assert isinstance(policy, Pooled)
    units = scenario.experts + 1
    keys = [(p, s, u) for p in range(scenario.precisions) for s in range(scenario.sites) for u in range(units)]
    pool_of = [next(i for i, pool in enumerate(scenario.pools) if pool.covers(key)) for key in keys]
    initial = tuple(scenario.pack(key) for pool in scenario.pools for key in pool.initial)
    plan = PoolPlan(tuple(pool.capacity_bytes for pool in scenario.pools), pool_of, initial)
    policy.pools = lambda geometry: policy.adopt(geometry, plan)  # type: ignore[method-assign]
    return policy


def controller_for(scenario: Scenario) -> Controller:
    switches = {name: value for name, value in vars(scenario.loader).items() if name != "lookahead"}
    lookahead = scenario.loader.lookahead
    top_k = max(len(needs) for step in scenario.steps if step.rows == 1 for needs in step.needs) if any(
        step.rows == 1 for step in scenario.steps) else 1  # fmt: skip
    geometry = Geometry(
        scenario.sites, scenario.experts, top_k, ("high", "low")[: scenario.precisions], (16.0, 4.0),
        scenario.variant_bytes, sum(pool.capacity_bytes for pool in scenario.pools),
    )  # fmt: skip
    return Controller(
        geometry, GateLookahead(lookahead) if lookahead else NoPrediction(), _with_pools(_cache(scenario), scenario),
        _selector(scenario), Load(), Loader(**switches),
    )  # fmt: skip


def run(scenario: Scenario, driver: Driver = simulate) -> Timeline:  # type: ignore[assignment]
    """The timeline of the production code; ``driver`` is the engine or another driver of the same controller."""
    controller, workload = controller_for(scenario), ScenarioWorkload(scenario)
    record = driver(controller, workload, ScenarioDurations(scenario))
    controller.check()
    return _timeline(scenario, controller, workload, record)


def _timeline(scenario: Scenario, controller: Controller, workload: ScenarioWorkload, record: Record) -> Timeline:
    makespan = record.makespan_ns
    queued_ns = [record.call_ns[call - 1] for call in (t.call for t in controller.issued)]
    gates = tuple(GateRow(tick, g, e) for tick, (g, e) in enumerate(zip(record.gate_ns, record.end_ns, strict=True)))
    lookups = tuple(_lookups(scenario, controller, record))
    stalls = split_stalls(record, [t.prefetch for t in controller.issued], queued_ns)
    idle = sum(record.idle_end_ns) - sum(record.idle_start_ns)
    counts = {outcome.name.lower(): controller.prefetch_counts[outcome] for outcome in PrefetchOutcome}
    issued = sum(t.prefetch for t in controller.issued)
    return Timeline(
        gates=gates,
        lookups=lookups,
        transfers=tuple(_transfers(controller, record, queued_ns)),
        prefetch={**counts, "queued": controller.num_prefetches_queued, "started": issued},
        makespan_ns=makespan,
        busy_ns=makespan - idle,
        stall={part: int(ns.sum()) for part, ns in stalls.items()},
        sequence_ends=tuple(
            (sequence, record.step_end_ns[step.index]) for step in workload.steps for sequence in step.ends
        ),
    )


def _lookups(scenario: Scenario, controller: Controller, record: Record) -> Sequence[LookupRow]:
    ticks = [tick for tick, needs in enumerate(n for step in scenario.steps for n in step.needs) for _ in needs]
    wanted = controller.lookup_wanted or [0] * len(ticks)
    columns = (ticks, controller.lookup_keys, wanted, controller.lookup_outcomes, record.lookup_ns, record.ready_ns)
    return [LookupRow(tick, key, want, Outcome(outcome).name.lower(), at, ready)
            for tick, key, want, outcome, at, ready in zip(*columns, strict=True)]  # fmt: skip


def _transfers(controller: Controller, record: Record, queued_ns: Sequence[int]) -> Sequence[TransferRow]:
    makespan = record.makespan_ns
    rows = []
    for number, transfer in enumerate(controller.issued):
        start, end = record.start_ns[number], record.service_end_ns[number]
        kind = "prefetch" if transfer.prefetch else "demand"
        rows.append(TransferRow(number, transfer.key, kind, queued_ns[number], makespan if start < 0 else start,
                                makespan if end < 0 else end, tuple(transfer.victims)))  # fmt: skip
    return rows
