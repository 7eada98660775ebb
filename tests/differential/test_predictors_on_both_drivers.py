"""Every predictor of ``conf/predictor``, in the simulator and in the device's main loop.

Both run the bundled trace: requests alone, and several together with prompts cut up, where
forecasts are unions of rows. Oracle: the other driver. Tables are compared with ``==``, decisions
call by call, and each log is replayed into a fresh controller.
"""

from __future__ import annotations

import pytest

from differential.both_drivers import check_both_drivers
from helpers.bundled import Configure
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.trace import Trace
from sim.values.places import ROOT

PREDICTORS = sorted(
    path.stem for path in (ROOT / "conf" / "predictor").glob("*.yaml") if path.stem != "none"
)
SHORT = "+workload.decode_tokens=24"
ALONE = ("trace.max_sequences=1", SHORT, "loader=mixtral_offloading", "loader.queue=replace")
TOGETHER = (
    "trace.max_sequences=2",
    SHORT,
    "workload=continuous_4_chunked",
    "loader=hobbit",
    "precision=hobbit",
    "cache=weighted_score",
    "hardware.prediction_us=30",
)


LACKS = {"chosen_again": ("placement=absent_on_cpu",)}
"""What leaves something absent for a predictor of what has just been chosen: else it is there."""
USUAL = ("activation_matrix", "expert_paths", "gate_percentile", "learned")
"""One of each kind; the others run where time is no matter (``make thorough``)."""
CASES = [
    pytest.param(
        predictor,
        overrides,
        id=f"{predictor}-{name}",
        marks=()
        if predictor in USUAL and (name == "alone") == (index % 2 == 0)
        else pytest.mark.thorough,
    )
    for index, predictor in enumerate(PREDICTORS)
    for name, overrides in (("alone", ALONE), ("together", TOGETHER))
]


@pytest.mark.alike
@pytest.mark.parametrize(("predictor", "overrides"), CASES)
def test_a_predictor_does_the_same_on_both_drivers(
    configure: Configure, bundled_trace: Trace, predictor: str, overrides: tuple[str, ...]
) -> None:
    def fresh() -> Run:
        words = ("system=lru", f"predictor={predictor}", "budget.resident_share=0.25", *overrides)
        words += LACKS.get(predictor, ())
        return build(configure(*words), predictor, bundled_trace)

    tables = check_both_drivers(fresh)
    assert "prefetch" in tables["transfers"]["class"].to_list(), (
        "it forecast something that was absent"
    )
