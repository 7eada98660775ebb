"""Every system of ``conf/system`` on the bundled trace: the simulator and the device's main loop say the same.

Machines of one link and of two, one request after another and several together.

Oracle: the other driver. Tables are compared with ``==``, decisions call by call, and each log is replayed into a fresh
controller.
"""

from __future__ import annotations

from itertools import cycle
from typing import cast

import pytest

from bundled import Configure
from real.device import NullDevice
from real.driver import drive
from sim.build import ROOT, build
from sim.calls import RecordedController, RecordedWorkload, first_difference, replay
from sim.engine import simulate
from sim.frames import Frames
from sim.run import Run
from sim.trace import Trace
from sim.workload import Workload

SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
ALONE, TOGETHER = ("trace.max_sequences=1",), ("workload=continuous_4_chunked", "trace.max_sequences=2")
NVME = ("hardware=rtx4090_nvme", "hardware.ram.capacity_gib=1", "trace.max_sequences=1")
OVER_TIME = (*TOGETHER, "workload.arrivals_per_s=4")
MORE = (
    ("hobbit", NVME),
    ("mixtral_offloading", (*NVME, "placement=absent_on_cpu", "loader.wait=in_order", "hardware.host.wake_us=20")),
    ("hobbit", (*TOGETHER, "loader.chunk_bytes=4194304", "hardware.prediction_us=30")),
    ("hobbit", OVER_TIME),
)
USUAL = ("deepspeed_inference", "edgemoe", "fate", "fiddler", "floe", "hobbit", "moe_infinity", "oracle")
"""One of each kind; the others, of the same parts, run where time is no matter (``make thorough``)."""
CASES = [
    pytest.param(system, (f"budget.resident_share={share}", *ALONE),
                 marks=() if system in USUAL else pytest.mark.thorough)
    for system, share in zip(SYSTEMS, cycle((0.25, 0.5)), strict=False)
]  # fmt: skip


@pytest.mark.parametrize(("system", "overrides"), [*CASES, *MORE])
def test_a_system_does_the_same_on_both_drivers(
    configure: Configure, bundled_trace: Trace, system: str, overrides: tuple[str, ...]
) -> None:
    def fresh() -> Run:
        return build(configure(f"system={system}", *overrides), system, bundled_trace)

    simulated, driven = fresh(), fresh()
    in_sim, on_device = RecordedController(simulated.controller), RecordedController(driven.controller)
    steps = RecordedWorkload(driven.workload)
    of_sim = simulate(in_sim, simulated.workload, simulated.durations)
    of_device = drive(on_device, cast(Workload, steps), driven.durations, NullDevice())
    assert of_sim == of_device
    assert first_difference(in_sim.log, on_device.log) is None
    tables = [
        Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names).tables()
        for run, record in ((simulated, of_sim), (driven, of_device))
    ]
    for name, table in tables[0].items():
        # Experts that are absent are the CPU's in this one, and nothing else moves.
        assert len(table) or (system, name) == ("llama_cpp", "transfers"), name
        assert table.equals(tables[1][name], null_equal=True), name
    again = fresh()
    assert replay(on_device.log, again.controller, again.workload, steps.asked_ns) is None
