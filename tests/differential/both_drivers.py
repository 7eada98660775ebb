"""Compares one run in the simulator and through the device's main loop: rows, tables, decisions.

All of them must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import polars as pl

from real.driver.device import NullDevice
from real.driver.loop import drive
from sim.engine.simulate import simulate
from sim.results.calls import RecordedController, RecordedWorkload
from sim.results.frames import Frames
from sim.results.replay import first_difference, replay
from sim.results.run import Run
from sim.workload.steps import Workload


def check_both_drivers(fresh: Callable[[], Run]) -> Mapping[str, pl.DataFrame]:
    """Assert that both do the same with a fresh run each, and that a third one's controller, which
    hears the device's calls again, answers the same. The tables, by name.
    """
    simulated, driven = fresh(), fresh()
    in_sim, on_device = (
        RecordedController(simulated.controller),
        RecordedController(driven.controller),
    )
    steps = RecordedWorkload(driven.workload)
    of_sim = simulate(in_sim, simulated.workload, simulated.durations)
    of_device = drive(on_device, cast(Workload, steps), driven.durations, NullDevice())
    assert of_sim == of_device
    assert first_difference(in_sim.log, on_device.log) is None
    frames, of_other = (
        Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
        for run, record in ((simulated, of_sim), (driven, of_device))
    )
    tables, others = frames.tables(), of_other.tables()
    assert tables.keys() == others.keys()
    for name, table in tables.items():
        assert table.equals(others[name], null_equal=True), name
        parts = list(frames.parts(name, len(table) // 3 + 1))
        assert pl.concat(parts).equals(table, null_equal=True), name
    again = fresh()
    assert replay(on_device.log, again.controller, again.workload, steps.asked_ns) is None
    return tables
