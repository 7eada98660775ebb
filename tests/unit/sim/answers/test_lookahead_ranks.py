"""Without scores, or without a rule that chooses by them, there is no rank to tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.lookahead_ranks import forecasts


@pytest.mark.parametrize(
    ("norm", "rules"), [("layer", ["rule", "rule"]), ("raw", ["rule", None]), ("raw", [None, None])]
)
def test_a_gate_without_scores_or_a_rule_has_no_forecasts(
    norm: str, rules: list[str | None]
) -> None:
    run: Any = SimpleNamespace(choice=lambda section, key, default: norm)
    header = SimpleNamespace(sites=[SimpleNamespace(rule=rule) for rule in rules])
    trace: Any = SimpleNamespace(header=header, lookahead={"raw": "scores"})
    assert forecasts(run, trace, 0, 1, 0) == []
