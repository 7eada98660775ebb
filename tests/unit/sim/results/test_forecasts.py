"""How good forecasts were: sums by hand, and two ways to count that must agree."""

from __future__ import annotations

import pytest

from sim.results.forecasts import SHARES, Counts, count_forecasts
from sim.study.trials import prepared


def test_three_gates_by_hand() -> None:
    counts = Counts()
    assert counts.shares() == dict.fromkeys(SHARES)
    counts.add([3, 1], [1, 2])
    counts.add([5], [5])
    counts.add([2, 4], [4, 2, 7])
    assert counts == Counts(gates=3, best_needed=2, equal=1, named=5, needed=6, both=4)
    assert counts.shares() == {
        "top1": 2 / 3,
        "recall_at_issued": 4 / 6,
        "precision": 4 / 5,
        "exact_set": 1 / 3,
    }


@pytest.mark.alike
@pytest.mark.parametrize("workload", ["sequential", "continuous_4"])
def test_columns_of_the_workload_count_what_asking_at_each_gate_counts(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one row and of several; prompts are asked in either way."""
    run = prepared(
        (
            "system=hobbit",
            f"workload={workload}",
            "trace.max_sequences=3",
            "workload.decode_tokens=4",
        )
    )
    predictor = run.controller.predictor
    assert predictor.as_routed
    from_columns = count_forecasts(run.workload, predictor)
    monkeypatch.setattr(predictor, "as_routed", False)
    assert count_forecasts(run.workload, predictor) == from_columns
    decode, prefill = from_columns
    assert min(decode.gates, prefill.gates) >= 15
