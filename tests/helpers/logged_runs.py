"""Runs by hand whose decision logs have every kind of call, and how they are recorded and replayed."""

from __future__ import annotations

from dataclasses import replace

from differential import test_prefixes_by_hand
from differential.by_hand import foresee, gate, machine, sequence, token
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import (
    Cache,
    CacheName,
    Forecast,
    Link,
    Loader,
    Need,
    Placement,
    PoolSpec,
    RamTier,
    Scenario,
    Step,
)
from sim.core.controller import Controller
from sim.engine.simulate import simulate
from sim.results.calls import Call, RecordedController, RecordedWorkload
from sim.results.replay import Difference, replay


def keys_and_values() -> Scenario:
    """What the second prompt finds comes from RAM and from disk."""
    return test_prefixes_by_hand.scenario((0, 1, 2), links=2)


def scenario(cache: CacheName = "lru", slots: int = 2) -> Scenario:
    """Two sites of 4 experts (5 keys a site), with 0 and 6 resident.

    Transfers take 10, experts 1, dense work 1. Site 0 needs 0 and foresees 1 (key 6) and 2 (key 7)
    at site 1, which needs 2.
    """
    forecasts = (((Forecast(1), Forecast(2)),), (None,))
    step = Step(0, True, True, 1, 1, (1, 1), 0, ((Need(0),), (Need(2),)), forecasts)
    pools = (PoolSpec(slots, (0,), None, ((0, 0, 0), (0, 1, 1))),)
    return Scenario(
        2,
        4,
        (1,),
        (10,),
        (1,),
        (0,),
        pools,
        (step,),
        cache=Cache(cache),
        loader=Loader(lookahead=1),
    )


def wave() -> Scenario:
    """A prompt of three rows, with three needs for two slots."""
    step = Step(0, True, True, 3, 3, (1,), 0, ((Need(0), Need(1), Need(2)),), ((),))
    return Scenario(1, 4, (1,), (10,), (4,), (0,), (PoolSpec(2, (0,)),), (step,))


def on_cpu() -> Scenario:
    """One absent need, which is computed on the CPU."""
    return machine(*sequence(gate(0)), placement=Placement(cpu=frozenset({(0, 0)}), cpu_ns=5))


def foretold_late() -> Scenario:
    """The forecast is ready 1 ns after its gate."""
    return replace(scenario(slots=3), prediction_ns=1)


def through_two_links() -> Scenario:
    """4 bytes over two links, 2 ns a byte; the outer link hands on after its first byte."""
    links = (Link(0, 2), Link(0, 2, head_bytes=1))
    return machine(*sequence(gate(0)), variant_bytes=(4,), service_ns=(8,), links=links)


def in_chunks() -> Scenario:
    """Two sites of 9 keys, with 4 bytes an expert and 10 ns a byte.

    A prefetch of 11 is on its way when site 1 needs 10.
    """
    return machine(
        token(gate(0), gate(1), ahead={0: (foresee(2),)}),
        initial=((0, 0, 0),),
        variant_bytes=(4,),
        service_ns=(40,),
        links=(Link(0, 10),),
        loader=Loader(lookahead=1, chunk_bytes=1),
    )


def through_ram() -> Scenario:
    """Two needs, one after another, through a RAM with room for one."""
    return machine(
        *sequence(gate(0), gate(1)),
        links=(Link(0, 1), Link(0, 1)),
        ram=RamTier(1, (PoolSpec(1, (0,)),)),
    )


BY_HAND = (
    scenario,
    wave,
    on_cpu,
    foretold_late,
    through_two_links,
    in_chunks,
    through_ram,
    keys_and_values,
)


def record(chosen: Scenario) -> list[Call]:
    return record_with_times(chosen)[0]


def record_with_times(chosen: Scenario) -> tuple[list[Call], list[int]]:
    """The log of a run, and the times at which its steps were asked for."""
    controller, workload = (
        RecordedController(controller_for(chosen)),
        RecordedWorkload(ScenarioWorkload(chosen)),
    )  # type: ignore[arg-type]
    simulate(controller, workload, ScenarioDurations(chosen, workload._workload))  # type: ignore[arg-type]
    return controller.log, workload.asked_ns


def repeat(
    calls: list[Call], chosen: Scenario, controller: Controller | None = None
) -> Difference | None:
    return replay(calls, controller or controller_for(chosen), ScenarioWorkload(chosen))  # type: ignore[arg-type]
