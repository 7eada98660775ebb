"""Screening against the engine, bit for bit, on random runs of every kind that it accepts.

Half of them have ties.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import Host, Scenario, random_scenario
from sim.engine.simulate import simulate
from sim.screening.moves import ScreenError, first_pass, require_screenable
from sim.screening.times import second_pass
from sim.values.types import Outcome


def without_prefetches(seed: int, ties: bool) -> Scenario:
    """A random scenario, its prefetches left out, sometimes with host time and overflowing or
    written-back pools.
    """
    rng = np.random.default_rng([seed, 7])
    scenario = random_scenario(seed, ties)
    changes: dict[str, Any] = {
        "lookahead": 0,
        "wait": ("wait_all", "as_ready", "in_order")[seed % 3],
    }
    if rng.random() < 0.2:
        changes["retention"] = "after_batch"
    elif rng.random() < 0.3:
        changes["write_back"] = True
    host = (
        Host(*(int(x) for x in rng.integers(0, 4 if ties else 300, 4)))
        if rng.random() < 0.5
        else Host()
    )
    if rng.random() < 0.4:
        waits = sorted({int(x) for x in rng.integers(1, 12 if ties else 900, 3)})
        points = tuple((at, int(rng.integers(0, 5 if ties else 300))) for at in waits)
        host = replace(host, wakes=points)
    return replace(scenario, loader=replace(scenario.loader, **changes), host=host)


def slower(scenario: Scenario, factor: int) -> Scenario:
    return replace(
        scenario, service_ns=tuple(factor * t + factor // 2 for t in scenario.service_ns)
    )


# Contracts: C118
@pytest.mark.parametrize("scenarios", [120, pytest.param(1000, marks=pytest.mark.thorough)])
def test_screening_is_the_engine_bit_for_bit_on_three_machines_at_a_time(scenarios: int) -> None:
    compared = waves = awaited = 0
    for seed in range(scenarios):
        for ties in (False, True):
            scenario = without_prefetches(seed, ties)
            machines = [scenario, slower(scenario, 2), slower(scenario, 5)]
            controller, workload = controller_for(scenario), ScenarioWorkload(scenario)
            require_screenable(controller, False)
            try:
                moves = first_pass(controller, workload)
            except ScreenError:  # a union that is served in waves
                waves += 1
                continue
            durations = [
                ScenarioDurations(machine, ScenarioWorkload(machine)) for machine in machines
            ]
            times = second_pass(moves, durations, kind_of=attrgetter("index"))
            for index, machine in enumerate(machines):
                theirs = controller_for(machine)
                steps = ScenarioWorkload(machine)
                record = simulate(theirs, steps, ScenarioDurations(machine, steps))
                assert times.makespan_ns[index] == record.makespan_ns, (seed, ties, index)
                assert times.step_end_ns[:, index].tolist() == record.step_end_ns, (
                    seed,
                    ties,
                    index,
                )
                assert times.step_start_ns[:, index].tolist() == record.step_start_ns, (
                    seed,
                    ties,
                    index,
                )
                for told in ("lookup_keys", "lookup_outcomes", "events"):
                    assert getattr(controller, told) == getattr(theirs, told), (seed, ties, told)
                awaited += sum(
                    wait > ready
                    for wait, ready in zip(record.ready_ns, record.lookup_ns, strict=True)
                )
                compared += 1
    assert compared >= 500, f"{compared} compared, {waves} scenarios served in waves"
    assert awaited > 1000


# Contracts: C118
def test_what_depends_on_time_is_refused_by_its_switch() -> None:
    scenario = random_scenario(3, False)
    controller = controller_for(replace(scenario, loader=replace(scenario.loader, lookahead=1)))
    with pytest.raises(
        ScreenError, match=r"set predictor=none or loader\.prefetch_budget=0; moelab run runs it"
    ):
        require_screenable(controller, False)


IN_ORDER: dict[str, Any] = {
    "cancel_stale": False,
    "demand_first": False,
    "depth": "all",
    "queue": "append",
    "in_flight": 1,
    "destination": "pool",
    "staging_slots": 0,
    "prefetch_budget": "all",
    "retention": "strict",
    "write_back": False,
    "lookahead": 1,
}
"""Prefetches in one line with demands, whose slots and victims are chosen when they are queued:
nothing in the loader's switches looks at the time."""


def test_with_prefetches_what_is_missing_depends_on_the_link_even_where_no_switch_looks_at_the_time() -> (
    None
):
    """Why prefetches are not screened: what has not arrived yet can be no victim."""
    compared = differ = 0
    for seed in range(30):
        scenario = random_scenario(seed, False)
        plain = replace(scenario, loader=replace(scenario.loader, lookahead=0, retention="strict"))
        try:
            controller = controller_for(plain)
            require_screenable(controller, False)
            first_pass(controller, ScenarioWorkload(plain))
        except ScreenError:
            continue
        scenario = replace(scenario, loader=replace(scenario.loader, **IN_ORDER))
        misses = []
        for machine in (scenario, slower(scenario, 7)):
            theirs, steps = controller_for(machine), ScenarioWorkload(machine)
            simulate(theirs, steps, ScenarioDurations(machine, steps))
            misses.append([outcome == Outcome.MISS for outcome in theirs.lookup_outcomes])
        compared += 1
        differ += misses[0] != misses[1]
    assert compared >= 5
    assert differ > 0
