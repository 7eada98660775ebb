"""Every system of ``conf/system`` on the bundled trace: the simulator and the device's main loop say the same.

Oracle: the other driver. Tables are compared with ``==``, decisions call by call, and each log replayed into a fresh
controller.
"""

from __future__ import annotations

import pytest

from conftest import Configure
from real.device import NullDevice
from real.driver import drive
from sim.build import ROOT, build
from sim.calls import RecordedController, first_difference, replay
from sim.engine import simulate
from sim.frames import Frames
from sim.run import Run
from sim.trace import Trace

SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_does_the_same_on_both_drivers(
    configure: Configure, bundled_trace: Trace, system: str, share: float
) -> None:
    def fresh() -> Run:
        overrides = (f"system={system}", f"budget.resident_share={share}", "trace.max_sequences=2")
        return build(configure(*overrides), system, bundled_trace)

    simulated, driven = fresh(), fresh()
    in_sim, on_device = RecordedController(simulated.controller), RecordedController(driven.controller)
    of_sim = simulate(in_sim, simulated.workload, simulated.durations)
    of_device = drive(on_device, driven.workload, driven.durations, NullDevice())
    assert of_sim == of_device
    assert first_difference(in_sim.log, on_device.log) is None
    tables = [
        Frames(run.controller, run.workload, run.durations, record, "pcie").tables()
        for run, record in ((simulated, of_sim), (driven, of_device))
    ]
    for name, table in tables[0].items():
        assert len(table), name
        assert table.equals(tables[1][name], null_equal=True), name
    for log in (in_sim.log, on_device.log):
        again = fresh()
        assert replay(log, again.controller, again.workload) is None
