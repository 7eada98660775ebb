"""How many heap events a run costs: a guard of speed without a clock (docs/design.md, section on speed)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import simpy
from omegaconf import DictConfig

from differential import production
from differential.production import ScenarioDurations, ScenarioWorkload
from differential.scenario import Scenario, random_scenario
from sim.build import build
from sim.controller import Controller
from sim.engine import simulate
from sim.record import Record
from sim.trace import Trace

THE_END = (1, 2)
"""The event that stops the run; some releases of SimPy put it back on the heap when it has."""


class Heap:
    """Counts what is put on SimPy's heap."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        schedule = simpy.Environment.schedule

        def counted(env: simpy.Environment, *args: object, **kwargs: object) -> None:
            self.events += 1
            schedule(env, *args, **kwargs)

        monkeypatch.setattr(simpy.Environment, "schedule", counted)


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    return Heap(monkeypatch)


def by_bytes(scenario: Scenario) -> Scenario:
    times = dict(zip(scenario.variant_bytes, scenario.service_ns, strict=True))
    return replace(scenario, service_ns=tuple(times[size] for size in scenario.variant_bytes))


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_a_run_costs_an_event_a_gate_a_service_a_wave_release_and_a_sequence_end(heap: Heap, ties: bool) -> None:
    """A service that the end of the run cuts had its event, too; a transfer whose service never began had none.

    Of a gate that is served in waves every need but the last may be released: by ``need_done``, one call each.
    """
    waves = 0
    for seed in range(80):
        scenario = by_bytes(random_scenario(seed, ties))
        seen: list[tuple[Controller, Record]] = []

        def kept(
            controller: Controller,
            workload: ScenarioWorkload,
            durations: ScenarioDurations,
            seen: list[tuple[Controller, Record]] = seen,
        ) -> Record:
            seen.append((controller, simulate(controller, workload, durations)))  # type: ignore[arg-type]
            return seen[0][1]

        before = heap.events
        production.run(scenario, kept)  # type: ignore[arg-type]
        controller, record = seen[0]
        gates = len(scenario.steps) * scenario.sites
        services = sum(start >= 0 for start in record.start_ns)
        releases = len(controller.wave_calls) // 2
        ends = sum(step.ends for step in scenario.steps)
        assert heap.events - before - (gates + services + releases + ends) in THE_END
        waves += releases
    assert waves > 20


@pytest.mark.parametrize("system", ["load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle"])
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_every_system_costs_no_more(
    heap: Heap, configure: Callable[..., DictConfig], bundled_trace: Trace, system: str, share: float
) -> None:
    overrides = ("trace.max_sequences=2", "experiment=more_memory", f"budget.resident_share={share}")
    run = build(configure(f"system={system}", *overrides), system, bundled_trace)
    before = heap.events
    record = simulate(run.controller, run.workload, run.durations)
    gates = len(run.workload.steps) * run.workload.sites
    services = sum(start >= 0 for start in record.start_ns)
    releases = len(run.controller.wave_calls) // 2
    ends = sum(bool(step.ends) for step in run.workload.steps)
    assert gates == 16 * len(run.workload.steps) > 1000
    assert heap.events - before - (gates + services + releases + ends) in THE_END
