"""Every predictor of ``conf/predictor`` on the bundled trace: the simulator and the device's main loop say the same.

Alone, and several requests together with prompts cut up, where forecasts are unions of rows.

Oracle: the other driver. Tables are compared with ``==``, decisions call by call, and each log is replayed into a fresh
controller.
"""

from __future__ import annotations

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

PREDICTORS = sorted(path.stem for path in (ROOT / "conf" / "predictor").glob("*.yaml") if path.stem != "none")
ALONE = ("trace.max_sequences=1", "loader=mixtral_offloading", "loader.queue=replace")
TOGETHER = ("trace.max_sequences=2", "workload=continuous_4_chunked", "loader=hobbit", "precision=hobbit",
            "cache=weighted_score", "hardware.prediction_us=30")  # fmt: skip


USUAL = ("activation_matrix", "expert_paths", "gate_percentile", "learned")
"""One of each kind; the others run where time is no matter (``make thorough``)."""
CASES = [
    pytest.param(predictor, overrides, id=f"{predictor}-{name}",
                 marks=() if predictor in USUAL and (name == "alone") == (index % 2 == 0) else pytest.mark.thorough)
    for index, predictor in enumerate(PREDICTORS) for name, overrides in (("alone", ALONE), ("together", TOGETHER))
]  # fmt: skip


@pytest.mark.parametrize(("predictor", "overrides"), CASES)
def test_a_predictor_does_the_same_on_both_drivers(
    configure: Configure, bundled_trace: Trace, predictor: str, overrides: tuple[str, ...]
) -> None:
    def fresh() -> Run:
        words = ("system=lru", f"predictor={predictor}", "budget.resident_share=0.25", *overrides)
        return build(configure(*words), predictor, bundled_trace)

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
        assert table.equals(tables[1][name], null_equal=True), name
    assert "prefetch" in tables[0]["transfers"]["class"].to_list(), "it forecast something that was absent"
    again = fresh()
    assert replay(on_device.log, again.controller, again.workload, steps.asked_ns) is None
