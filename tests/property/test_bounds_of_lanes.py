"""No run with lanes is below its bound, and none that computes projection by projection."""

from __future__ import annotations

import pytest

from differential.by_hand import gate, machine, sequence
from differential.scenario import Link, Loader
from differential.test_engine_against_reference import LANE_MIXTURE, given
from property.test_relaxation import bounded
from sim.bounds import relaxation


# Contracts: C115, C167
def test_only_the_last_projection_is_computed_after_the_last_arrival() -> None:
    """Two experts take turns in one slot. Each of three projections is read in 10 ns and computed
    in 10, so a gate takes 40 ns: less than its load and an expert, 60.
    """
    scenario = machine(
        *sequence(*(gate(token % 2) for token in range(6))),
        links=(Link(0, 1, by_projection=True),),
        variant_bytes=(30,),
        base_ns=(30,),
        projection_bytes=((10, 10, 10),),
        capacity=30,
        loader=Loader(wait="by_projection"),
    )
    bounds, makespan_ns = bounded(scenario)
    assert makespan_ns == 6 * (1 + 40)
    assert 6 * 30 <= bounds.lower_ns <= makespan_ns


# Contracts: C116, C165
@pytest.mark.parametrize("kind", ["lanes", LANE_MIXTURE])
def test_no_run_with_lanes_is_below_its_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxation, "ROUNDS", (40, 40))
    seen = 0
    for seed in range(24):
        scenario = given(kind, seed, ties=seed % 2 == 0)
        low_above = getattr(scenario.selector, "low_above", None)
        if scenario.requests or not (
            low_above is None or (low_above >= 0 and scenario.precisions > 1)
        ):
            continue
        bounds, makespan_ns = bounded(scenario)
        assert bounds.lower_ns <= makespan_ns, (kind, seed)
        seen += 1
    assert seen > 5
