"""A payload that names fewer bytes than an access may move ends its run: it would be told a speed
that needs no bytes, or traffic below 0, and its experts would not be labelled as parts.
"""

from __future__ import annotations

import pytest

from sim.policies.payloads import Whole
from sim.setup.execute import execute
from sim.study.trials import prepared

WORDS = (
    "trace.max_sequences=1",
    "workload.decode_tokens=4",
    "budget.resident_share=0.4",
    "loader.staging_slots=4",
)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("system", "asked", "partial", "moved", "told"),
    [
        (
            "lru",
            "moved_bytes",
            True,
            0,
            r"moves 0 of the \d+ B of .*; it must .* 1 \(at step \d+, site \d+\)$",
        ),
        ("lru", "moved_bytes", True, -5, r"moves -5 of the "),
        (
            "lru",
            "moved_bytes",
            False,
            9,
            r"moves 9 of .* at least 352321536, or say partial = True \(at step",
        ),
        ("lru predictor=gate_lookahead_1", "forecast_bytes", True, 0, r"moves 0 of the "),
    ],
)
def test_fewer_bytes_than_an_access_may_move_are_refused(
    system: str,
    asked: str,
    partial: bool,
    moved: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Whole, "whole", False)
    monkeypatch.setattr(Whole, "partial", partial)
    monkeypatch.setattr(Whole, "moved_bytes", lambda self, key, gate, index: 352321536)
    monkeypatch.setattr(Whole, "forecast_bytes", lambda self, *words: 352321536)
    monkeypatch.setattr(Whole, asked, lambda self, *words: moved)
    run = prepared([f"system={system.split()[0]}", *system.split()[1:], *WORDS])
    with pytest.raises(ValueError, match=f"^Whole: `{asked}` {told}"):
        execute(run)
