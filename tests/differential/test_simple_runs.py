"""Short ways and full ways decide the same: random scenarios, both ways (`sim.core.simple`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
import pytest

from differential import production_rows
from differential.features import SIMULATED
from differential.production import ScenarioDurations, ScenarioWorkload
from differential.rows import Timeline
from differential.scenario import Scenario
from differential.test_engine_against_reference import MIXTURE, PLAIN, given
from sim.core import controller
from sim.core.controller import Controller
from sim.core.simple import Simple
from sim.engine.simulate import simulate
from sim.values.record import Record
from sim.values.types import Event

SEEDS = {PLAIN: 60, MIXTURE: 10, "chunks": 8}
"""Of each other feature 4."""
FULL = Simple(*[False] * len(Simple._fields))


def scenarios() -> Iterator[tuple[str, Scenario]]:
    for kind in (PLAIN, MIXTURE, *SIMULATED):
        for seed in range(SEEDS.get(kind, 4)):
            for ties in (True, False):
                yield f"{kind} {seed} {ties}", given(kind, seed, ties)
    for nth, kind in enumerate((PLAIN, MIXTURE, *SIMULATED)):
        unit: Literal["union", "access"] = "access" if nth % 2 else "union"
        yield f"{kind} ranked", ranked(given(kind, 1000 + nth, ties=True), unit)


def ranked(scenario: Scenario, unit: Literal["union", "access"]) -> Scenario:
    """What every gate forecasts stands in one queue, in place of what stood there."""
    loader = replace(
        scenario.loader,
        replay_unit=unit,
        prefetch_order="likeliest",
        queue="replace",
        demand_first=True,
        chunk_bytes=0,
        prefetch_budget="all",
    )
    return replace(scenario, loader=loader)


class Ran:
    """What a run decided and wrote down."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline: Timeline = production_rows.run(scenario, self._drive)  # type: ignore[arg-type]

    def _drive(
        self, controller: Controller, workload: ScenarioWorkload, durations: ScenarioDurations
    ) -> Record:
        self.controller = controller
        self.record = simulate(controller, workload, durations)  # type: ignore[arg-type]
        return self.record

    @property
    def log(self) -> dict[str, list[Any]]:
        """The decision log. A claim of several victims writes its rows after the row of its issue
        in the short way, and before it in the full one: they are compared on their own.
        """
        one = self.controller
        columns = (np.asarray(column).tolist() for column in one.event_columns.values())
        events = list(zip(*columns, strict=True))
        return {
            "events": [row for row in events if row[1] != Event.EVICT],
            "evictions": [row for row in events if row[1] == Event.EVICT],
            "gate_calls": one.gate_calls,
            "wave_calls": one.wave_calls,
            "lookup_keys": one.lookup_keys,
            "lookup_outcomes": one.lookup_outcomes,
            "lookup_wanted": one.lookup_wanted or [0] * len(one.lookup_keys),
            "prefetch_counts": one.prefetch_counts,
            "free_bytes": one.slots.free_bytes,
            "state": one.state,
            "calls": [one.calls],
        }


def test_a_run_that_takes_every_short_way_it_may_is_the_run_that_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[str] = Counter()
    for name, scenario in scenarios():
        short = Ran(scenario)
        simple = short.controller.simple
        if not any(simple):
            continue
        seen.update(part for part, may in simple._asdict().items() if may)
        seen["all but one"] += all(simple[:-1])
        seen["several variants"] += simple.variants and not simple.one_variant
        seen["waves"] += simple.gates and bool(short.controller.wave_calls)
        prefetches = bool(sum(short.controller.prefetch_counts))
        seen["prefetches"] += simple.moves and prefetches
        seen["ranked prefetches"] += simple.ranked and prefetches
        with monkeypatch.context() as patch:
            patch.setattr(controller, "how_simple", lambda *_, **__: FULL)
            full = Ran(scenario)
        assert full.controller.simple == FULL
        assert short.log == full.log, name
        assert short.timeline == full.timeline, name
        for column in fields(Record):
            mine, other = (getattr(run.record, column.name) for run in (short, full))
            assert mine == other, (name, column.name)
    told = ("all but one", "several variants", "waves", "prefetches", "ranked prefetches")
    assert min(seen[part] for part in (*Simple._fields, *told)) >= 15, seen
