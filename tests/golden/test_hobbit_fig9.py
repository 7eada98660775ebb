"""HOBBIT, Fig. 9 (arXiv:2411.01433), worked out by hand, through the production engine.

There are two layers, top-1 of two experts, one token and a cold cache. Attention takes 3 ms, an
expert 2 ms, and its load 14 ms (3.5 ms at low precision). ``figure_9`` of the reference's tests has
the arithmetic line by line.
"""

from __future__ import annotations

import pytest

from differential import production_rows
from differential.by_hand import WAITS, figure_9, service
from differential.rows import Timeline
from differential.scenario import Forecast, Prediction

MS = 1_000_000

# (forecast of the first layer, score of the second layer's need, makespan, idle time for a demand,
# behind a prefetch, for a late prefetch)
CASES = {
    "a: no prefetch": (None, 0.0, 38.0, 28.0, 0.0, 0.0),
    "b: right prefetch": ((Forecast(0),), 0.0, 33.0, 14.0, 0.0, 9.0),
    "c: wrong prefetch": ((Forecast(1),), 0.0, 47.0, 28.0, 9.0, 0.0),
    "d: right low prefetch": ((Forecast(0, 0.6),), 0.6, 24.0, 14.0, 0.0, 0.0),
    "e: wrong low prefetch": ((Forecast(1, 0.6),), 0.6, 27.5, 17.5, 0.0, 0.0),
}


def stall_ms(timeline: Timeline) -> dict[str, float]:
    return {name: ns / MS for name, ns in timeline.stall.items() if ns}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hobbit_figure_9(
    case: tuple[Prediction, float, float, float, float, float], wait: str
) -> None:
    """The stream is busy for 2 * (3 + 2) = 10 ms; the rest is idle time, by cause.

    Every case idles 3..17 for the first layer's demand. Then:

    - (a) 22..36 for the second layer's demand;
    - (b) 22..31 for the prefetch that has been loading since 17;
    - (c) 22..31 behind the wrong prefetch, 31..45 for the demand;
    - (d) not at all;
    - (e) 22..25.5.
    """
    forecast, score, makespan, demand, behind, late = case
    timeline = production_rows.run(figure_9(wait, forecast, score))
    assert timeline.makespan_ns / MS == makespan
    assert timeline.busy_ns == 10 * MS
    expected = {"demand": demand, "behind_prefetch": behind, "late_prefetch": late}
    assert stall_ms(timeline) == {name: ms for name, ms in expected.items() if ms}


def test_the_loads_of_the_wrong_prefetch_follow_each_other() -> None:
    """Case (c): the first layer's load 3..17, the wrong one 17..31, the right one 31..45.

    The right one is queued at the gate at 22.
    """
    timeline = production_rows.run(figure_9("as_ready", (Forecast(1),), 0.0))
    times = [
        (kind, *(ns / MS for ns in times))
        for kind, *times in service(timeline, "kind", "queued_ns", "start_ns", "end_ns")
    ]
    assert times == [("demand", 3, 3, 17), ("prefetch", 3, 17, 31), ("demand", 22, 31, 45)]
    assert timeline.prefetch["unused_at_end"] == 1


def test_the_low_prefetch_is_a_hit_of_its_own_precision() -> None:
    """Case (d): keys are (precision * 2 sites + site) * 3 units + expert.

    So the low variant at site 1 is key 9.
    """
    timeline = production_rows.run(figure_9("wait_all", (Forecast(0, 0.6),), 0.6))
    assert [(row.key, row.wanted, row.outcome) for row in timeline.lookups] == [
        (0, 0, "miss"),
        (9, 1, "hit"),
    ]
    assert timeline.prefetch["used"] == 1
