"""Runs a scenario through the project's own controller and drivers.

It translates the scenario's policies, workload and times into the project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from differential.scenario import (
    Batching,
    Cache,
    Fixed,
    Forecast,
    Need,
    PoolSpec,
    Prediction,
    Scenario,
    Step,
    scored,
    union,
    union_forecast,
)
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.machine.contention import Contention
from sim.machine.devices_costs import OnLayers, OnOwners
from sim.machine.durations import Durations
from sim.machine.lanes import Lanes, in_projections
from sim.machine.swap import Paging
from sim.policies import base as policies
from sim.policies.base import CachePolicy, Choice, Gate, PrecisionSelector, Queued, Resident
from sim.policies.belady import Belady
from sim.policies.frequency import LFU
from sim.policies.frequency_classes import LFRU, ClassLRU
from sim.policies.placements import Load
from sim.policies.pools import Pooled
from sim.policies.precisions import ScoreThreshold
from sim.policies.predictors import GateLookahead, NoPrediction
from sim.policies.recency import FIFO, LRU
from sim.policies.reroutes import ForecastRoutes
from sim.policies.weighted_score import WeightedScore
from sim.values.record import Record
from sim.values.types import REROUTE, Geometry, HostCosts, Place, PoolPlan, Route, rerouted
from sim.values.types import Step as RunStep
from sim.values.units import NS_PER_S
from sim.workload.batching import Batcher, Request
from sim.workload.prefixes import Tiers
from sim.workload.speculation import Speculation
from sim.workload.step_shares import drafters_of, found_of

Driver = Callable[[Controller, "ScenarioWorkload", Durations], Record]
NONE = np.zeros((0, 0))


class ScenarioChoice:
    """A forecast; ``asked`` are the scenario's own forecasts, for the payload."""

    def __init__(self, site: int, first: int, prediction: Prediction) -> None:
        """``first``: the site's first key of precision 0."""
        self.site = site
        self.asked: Sequence[Need | Forecast] = prediction or ()
        self.needs = [forecast.expert for forecast in self.asked]
        self.keys = [first + expert for expert in self.needs]
        self.scores = [forecast.score for forecast in self.asked]
        self.tokens = [1] * len(self.needs)
        likely = [getattr(forecast, "likeliness", 0.0) for forecast in self.asked]
        self.experts, self.weights = np.array([self.needs], np.int64), np.array([likely])


class ScenarioGate:
    """The gate object of a scenario: ``open`` and ``visit`` as ``sim.workload.gates.StepGate``."""

    weights = NONE

    def __init__(self, workload: ScenarioWorkload) -> None:
        self.workload, self.tick, self.site = workload, -1, 0
        self._units = workload.scenario.experts + 1

    def open(self, step: RunStep) -> None:
        self._step: Step = self.workload.told[step.index]
        self.step, self.token = step.index, step.token

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        self.asked = self._step.needs[site]
        self.needs = [need.expert for need in self.asked]
        self.keys = [site * self._units + expert for expert in self.needs]
        self.tokens = [need.tokens for need in self.asked]
        self.scores = [need.score for need in self.asked]

    @property
    def experts(self) -> Any:
        """The rows in rank order, where the scenario has them; else as many that all name every
        need.
        """
        return np.array(
            self._step.ranks[self.site] if self._step.ranks else [self.needs] * self._step.rows
        )

    def forecasts(self, sites: int) -> Sequence[Choice]:
        """Up to the first site that has none."""
        own = self._step.own[self.site : self.site + 1]
        coming = enumerate(
            (*own, *self._step.forecasts[self.site][:sites]), start=self.site + 1 - len(own)
        )
        known = takewhile(lambda pair: pair[1] is not None, coming)
        return [ScenarioChoice(site, site * self._units, prediction) for site, prediction in known]  # type: ignore[misc]


class ScenarioWorkload:
    """The steps of a scenario, given or composed, as ``sim.workload.steps.Workload`` offers them to
    a driver.

    ``told`` are the same steps in the scenario's words.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.sites = scenario, scenario.sites
        self.told: list[Step] = []
        self.steps: list[RunStep] = []
        if not scenario.requests:
            self._tell(scenario.steps)

    def foretold(self) -> Sequence[Step]:
        """The steps as they will be, if that does not depend on time."""
        schedule = self.start()
        while schedule.next(0) is not None:
            pass
        return self.told

    def _tell(self, steps: Sequence[Step]) -> None:
        for step in steps:
            index = len(self.steps)
            self.told.append(step)
            self.steps.append(
                RunStep(
                    index,
                    index,
                    index + step.rows,
                    step.members,
                    step.token,
                    step.rows == 1,
                    self._first(step, index),
                    self._last(step, index),
                    step.sites,
                )
            )

    def _first(self, step: Step, index: int) -> tuple[int, ...]:
        if not step.sequences:
            return (step.sequence,) if step.begins else ()
        before = {s for other in self.scenario.steps[:index] for s in other.members}
        return tuple(s for s in step.members if s not in before)

    def _last(self, step: Step, index: int) -> tuple[int, ...]:
        if not step.sequences:
            return (step.sequence,) if step.ends else ()
        after = {s for other in self.scenario.steps[index + 1 :] for s in other.members}
        return tuple(s for s in step.members if s not in after)

    def gate(self) -> ScenarioGate:
        return ScenarioGate(self)

    def start(self) -> Schedule:
        if self.scenario.requests:
            self.told, self.steps = [], []
        return Schedule(self)


def speculation_of(batching: Batching) -> Speculation:
    return Speculation(
        batching.drafts,
        batching.accepted,
        batching.draft_seed,
        batching.draft_sites,
        "offloaded" if batching.draft_sites else "on_device",
    )


def tiers_of(batching: Batching) -> Tiers | None:
    return Tiers(batching.block_tokens, *batching.tiers) if batching.block_tokens else None


class Schedule:
    """``next(now_ns)``: the next step, the time to wait for, or None."""

    def __init__(self, workload: ScenarioWorkload) -> None:
        self.workload, scenario = workload, workload.scenario
        self._given = iter(workload.steps)
        self._batcher: Batcher | None = None
        batching = scenario.batching
        if batching is not None and scenario.requests:
            requests = [
                Request(number, len(r.prompt), len(r.decode), r.arrival_ns, r.blocks)
                for number, r in enumerate(scenario.requests)
            ]
            self._batcher = Batcher(
                requests,
                batching.kind,
                batching.size,
                batching.prefill_chunk or None,
                batching.encoder_sites > 0,
                speculation_of(batching),
                tiers_of(batching),
            )

    def next(self, now_ns: int) -> RunStep | int | None:
        if self._batcher is None:
            return next(self._given, None)
        parts = self._batcher.next(now_ns)
        return self._compose(parts) if isinstance(parts, tuple) else parts

    def _compose(self, parts: Sequence[Any]) -> RunStep:
        workload, scenario = self.workload, self.workload.scenario
        batching = scenario.batching
        assert batching is not None
        index = len(workload.steps)
        rows = []
        for part in parts:
            request = scenario.requests[part.request.sequence]
            rows += [*request.prompt, *request.decode][part.first : part.first + part.count]
        token = max(part.first + part.count + part.ahead for part in parts)
        sequences = tuple(part.request.sequence for part in parts)
        decode = all(part.decode for part in parts)
        own = scenario.sites - batching.draft_sites
        sites = tuple(range(scenario.sites))
        sites = sites[own:] if parts[0].drafting else sites[:own]
        if batching.encoder_sites:
            sites = sites[batching.encoder_sites :] if decode else sites[: batching.encoder_sites]
        every = range(scenario.sites)
        needs = tuple(union([scored(row.routed[site]) for row in rows]) for site in every)
        ahead = scenario.loader.lookahead
        forecasts = tuple(
            tuple(
                union_forecast([_forecast_of(row.forecasts[site], j) for row in rows])
                for j in range(ahead)
            )
            for site in every
        )
        dense = tuple(batching.dense_work_ns(site, len(rows)) for site in every)
        ranks = tuple(
            tuple(tuple(e for e, _ in scored(row.routed[site])) for row in rows) for site in every
        )
        told = Step(
            sequences[0],
            False,
            False,
            len(rows),
            token,
            dense,
            batching.tail_ns,
            needs,
            forecasts,
            sequences,
            sites,
            ranks,
        )
        step = RunStep(
            index,
            index,
            index + len(rows),
            sequences,
            token,
            decode,
            tuple(sorted(p.request.sequence for p in parts if p.begins)),
            tuple(sorted(p.request.sequence for p in parts if p.ends)),
            sites,
            drafters_of(parts),
            tuple(p.kept for p in parts) if batching.drafts else (),
            found_of(parts) if batching.block_tokens else None,
            parts[0].drafting,
        )
        workload.told.append(told)
        workload.steps.append(step)
        return step


def _forecast_of(predictions: Sequence[Prediction], j: int) -> Prediction:
    return predictions[j] if j < len(predictions) else None


def durations_for(scenario: Scenario, workload: ScenarioWorkload) -> Durations:
    """The durations of a scenario: of several devices the production code joins those of each."""
    where = scenario.devices
    if where is None:
        return ScenarioDurations(scenario, workload)
    alone = [ScenarioDurations(scenario, workload, device) for device in range(len(where.slower))]

    def crossing_ns(rows: int) -> int:
        return where.cross_ns + rows * where.cross_row_ns

    if where.owner:
        return OnOwners(alone, where.shared, crossing_ns)
    return OnLayers(alone, where.of, where.head, where.shared, crossing_ns)


class ScenarioDurations:
    def __init__(self, scenario: Scenario, workload: ScenarioWorkload, device: int = 0) -> None:
        """`device`: the one that this machine has, of several."""
        self._scenario, self._workload = scenario, workload
        where = scenario.devices
        self._slower = where.slower[device] if where else 1
        self._first_link = device if where and not where.shared else 0
        host = vars(scenario.host).copy()
        byte_ns = host.pop("load_byte_ns")
        self.host = HostCosts(**host, load_bytes_per_s=NS_PER_S / byte_ns if byte_ns else None)
        self.prediction_ns = scenario.prediction_ns
        rivalry = scenario.rivalry
        self.paging = Paging(**vars(scenario.swap)) if scenario.swap and not device else None
        self.contention: Contention | None = None
        self.cpu_latency_ns = rivalry.cpu_latency_ns if rivalry else 0
        if rivalry is not None:
            draws = {party: rate for party, rate in enumerate(rivalry.draws) if rate}
            self.contention = Contention(
                scenario.hops,
                {(party, rival): share for party, rival, share in rivalry.kept},
                rivalry.memory,
                draws,
            )

    def dense_ns(self, step: RunStep) -> Sequence[int]:
        return [time * self._slower for time in self._workload.told[step.index].dense_ns]

    def tail_ns(self, step: RunStep) -> int:
        return self._slower * self._workload.told[step.index].tail_ns

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._slower * self._scenario.expert_ns(precision, tokens, rows)

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        assert self._scenario.placement is not None
        return self._scenario.placement.time_ns(tokens)

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._scenario.hop_ns(self._first_link + link, moved_bytes)

    def latency_ns(self, link: int) -> int:
        return self._scenario.latency_ns(self._first_link + link)

    def lanes(self, link: int) -> Lanes | None:
        if not self._scenario.is_laned(link):
            return None
        one = self._scenario.links[link]
        rate = NS_PER_S / one.copy_ns if one.copy_ns else None
        return Lanes(one.pace, one.wake_ns, rate, one.by_projection)

    def projection_bytes(self, precision: int, site: int, moved_bytes: int) -> Sequence[int]:
        return in_projections(self._scenario.projection_bytes[precision], moved_bytes)

    def page_cache_bytes(self, link: int) -> int:
        return self._scenario.links[link].page_cache_bytes if self._scenario.links else 0

    def kept_ns(self, link: int, moved_bytes: int) -> int:
        return self._scenario.links[link].kept_ns * moved_bytes


class FixedAt(PrecisionSelector):
    """Every need at one precision of several in play: the project's own ``Fixed`` knows only
    one.
    """

    reroutes = False

    def __init__(self, precision: int) -> None:
        self.constant, self.precisions = precision, ("high", "low")

    def permitted(self, score: float) -> tuple[int, ...]:
        return (self.constant,)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        raise AssertionError("a selector with a constant is never asked")


class Rerouting(PrecisionSelector):
    """The scenario's selector, and for some needs of a gate another expert instead."""

    constant: int | None = None
    reroutes = True

    def __init__(self, scenario: Scenario, selector: PrecisionSelector) -> None:
        assert scenario.reroute is not None
        self._selector, self._instead = selector, dict(scenario.reroute.instead)
        self._count, self.precisions = scenario.precisions, ("high", "low")[: scenario.precisions]

    def permitted(self, score: float) -> tuple[int, ...]:
        return (*self._selector.permitted(score), REROUTE)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        fixed = self._selector.constant
        plain = (
            self._selector.select(choice, resident)
            if fixed is None
            else [fixed] * len(choice.needs)
        )
        if not hasattr(choice, "tick"):
            return plain
        found = [
            (self._instead.get((choice.site, expert)), answer)
            for expert, answer in zip(choice.needs, plain, strict=True)
        ]
        return [answer if to is None else rerouted(*to, self._count) for to, answer in found]


class ScenarioPlacement(policies.Placement):
    constant: int | None = None

    def __init__(self, scenario: Scenario) -> None:
        assert scenario.placement is not None
        self._rule = scenario.placement

    def place(
        self, gate: Gate, keys: Sequence[int], resident: Resident, queued: Queued
    ) -> Sequence[int]:
        tokens = dict(zip(gate.needs, gate.tokens, strict=True))
        experts = [resident.expert_of(key) for key in keys]
        return [
            Place[self._rule.place(gate.site, expert, tokens[expert]).upper()] for expert in experts
        ]


class ScenarioPayload(policies.Payload):
    whole = False
    partial = True
    active_share = 1.0

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def moved_bytes(self, key: int, gate: Gate, index: int) -> int:
        return self._scenario.moved_bytes(self._scenario.unpack(key), gate.asked[index])  # type: ignore[attr-defined]

    def forecast_bytes(self, key: int, choice: Choice, index: int, gate: Gate) -> int:
        return self._scenario.moved_bytes(self._scenario.unpack(key), choice.asked[index])  # type: ignore[attr-defined]

    def missing_bytes(self, key: int, gate: Gate, index: int, moved_bytes: int) -> int:
        asked = gate.asked[index]  # type: ignore[attr-defined]
        return self._scenario.missing_bytes(self._scenario.unpack(key), asked, moved_bytes)


def _selector(scenario: Scenario) -> PrecisionSelector:
    if scenario.reroute is None:
        return _plain_selector(scenario)
    return (
        ForecastRoutes("high")
        if scenario.reroute.by_forecast
        else Rerouting(scenario, _plain_selector(scenario))
    )


def _plain_selector(scenario: Scenario) -> PrecisionSelector:
    chosen = scenario.selector
    if isinstance(chosen, Fixed):
        return FixedAt(chosen.precision)
    selector = ScoreThreshold("high", "low", 0.0, 1.0)
    # A scenario's thresholds may lie outside 0..1, which a user's may not.
    selector.low_above, selector.skip_above = chosen.low_above, chosen.skip_above
    selector.precisions = selector.precisions[: scenario.precisions]
    return selector


def _cache(scenario: Scenario, cache: Cache) -> Pooled:
    if cache.name == "weighted":
        weights = {"lru": cache.w_lru, "lfu": cache.w_lfu, "lhu": cache.w_lhu, "fld": cache.w_fld}
        return WeightedScore(weights)
    if cache.name == "belady":
        policy = Belady()
        assert isinstance(scenario.selector, Fixed)
        wanted = scenario.selector.precision
        policy.foresee(
            [
                [scenario.pack((wanted, site, need.expert)) for need in step.needs[site]]
                for step in ScenarioWorkload(scenario).foretold()
                for site in step.sites
            ]
        )
        return policy
    if cache.name == "class_lru":
        return ClassLRU(cache.half_life)
    if cache.name == "lfru":
        return LFRU()
    if cache.name.startswith("lfu"):
        return LFU(counts=cache.name.removeprefix("lfu_"))
    return FIFO() if cache.name == "fifo" else LRU(recency=cache.recency)


def _with_pools(policy: Pooled, scenario: Scenario, pools: Sequence[PoolSpec]) -> Pooled:
    units = scenario.experts + 1
    keys = [
        (p, s, u)
        for p in range(scenario.precisions)
        for s in range(scenario.sites)
        for u in range(units)
    ]
    pool_of = [next(i for i, pool in enumerate(pools) if pool.covers(key)) for key in keys]
    initial = tuple(scenario.pack(key) for pool in pools for key in pool.initial)
    plan = PoolPlan(tuple(pool.capacity_bytes for pool in pools), pool_of, initial)
    policy.pools = lambda geometry: policy.adopt(geometry, plan)  # type: ignore[method-assign]
    return policy


def _device_cache(scenario: Scenario) -> CachePolicy:
    policy = _with_pools(_cache(scenario, scenario.cache), scenario, scenario.pools)
    if scenario.refuses:
        policy.admits_all = False
        policy.admit = lambda key, victims: scenario.admits(scenario.unpack(key), len(victims))  # type: ignore[method-assign]
    return policy


def _device_of(scenario: Scenario) -> tuple[int, ...]:
    """By key of a precision; where devices own experts, the dense block after them is home's."""
    where = scenario.devices
    return tuple(
        where.has((0, site, unit))
        for site in range(scenario.sites)
        for unit in range(scenario.experts + 1)
        if where
    )


def _route(scenario: Scenario) -> Route:
    links, ram = range(scenario.hops), scenario.ram
    return Route(
        tuple(scenario.engines(link) for link in links),
        tuple(scenario.head_bytes(link) for link in links),
        ram.link if ram else None,
        sum(pool.capacity_bytes for pool in ram.pools) if ram else 0,
        _device_of(scenario) if scenario.devices and not scenario.devices.shared else (),
    )


def controller_for(scenario: Scenario) -> Controller:
    switches = {name: value for name, value in vars(scenario.loader).items() if name != "lookahead"}
    switches["chunk_bytes"] = switches["chunk_bytes"] or None
    lookahead, ram = scenario.loader.lookahead, scenario.ram
    geometry = Geometry(
        scenario.sites,
        scenario.experts,
        scenario.at_once,
        ("high", "low")[: scenario.precisions],
        (16.0, 4.0)[: scenario.precisions],
        tuple(max(sizes) for sizes in scenario.site_bytes) or scenario.variant_bytes,
        sum(pool.capacity_bytes for pool in scenario.pools),
        scenario.site_bytes or None,
        held_bytes=scenario.held_bytes,
        device_of=_device_of(scenario),
    )
    options: dict[str, Any] = (
        {"payload": ScenarioPayload(scenario)} if scenario.moves_partially else {}
    )
    return Controller(
        geometry,
        GateLookahead(lookahead) if lookahead else NoPrediction(),
        _device_cache(scenario),
        _selector(scenario),
        ScenarioPlacement(scenario) if scenario.placement else Load(),
        Loader(**switches),
        route=_route(scenario),
        ram_cache=_with_pools(_cache(scenario, ram.cache), scenario, ram.pools) if ram else None,
        predicts_later=scenario.prediction_ns > 0,
        dense_bytes=scenario.dense_bytes,
        spare_bytes=scenario.spare if scenario.spare_bytes else None,
        kv_bytes=scenario.kv_bytes,
        **options,
    )
