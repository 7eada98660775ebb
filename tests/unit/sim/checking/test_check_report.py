"""The lines of a check, from verdicts that are made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim import check


class Log(SimpleNamespace):
    def __len__(self) -> int:
        return 8


def verdict(name: str, *wrong: int) -> Any:
    return SimpleNamespace(
        contract=name, wrong=np.array(wrong, int), replay=SimpleNamespace(resident="R"), refusal=""
    )


def lines(*verdicts: Any, prefetched: int = 0, at_odds: tuple[int, ...] = ()) -> list[str]:
    log = Log(
        trace=SimpleNamespace(header=SimpleNamespace(name="log")),
        resident=np.arange(8) < 3,
        num_prefetched=prefetched,
        at_odds=np.isin(np.arange(8), at_odds),
        line=np.arange(8) + 100,
    )
    return check.report(SimpleNamespace(log=log), verdicts, 20)  # type: ignore[arg-type]


def test_a_report_has_the_best_contracts_their_deviations_and_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "hits_of", lambda log, resident: "hits")
    monkeypatch.setattr(check, "tell", lambda replayer, replay, lookup: f"lookup {lookup}.")
    monkeypatch.setattr(check, "tell_exchanged", lambda *words: " Exchanged.")
    monkeypatch.setattr(
        check, "faults", lambda replayer, best, budget: [f"{best.contract} {budget}"]
    )
    monkeypatch.setattr(check, "SHOWN", 2)
    monkeypatch.setattr(check, "ALONE", " Alone.")
    head = "log: 8 lookups, 3 of them flagged resident: hits"
    b = [
        "explains 7 of 8 flags (87.50 %): b: hits",
        "  first deviation: lookup 5. Exchanged. Alone.",
    ]
    c = ["explains 5 of 8 flags (62.50 %): c: hits", "  first deviation: lookup 1. Exchanged."]
    refused = SimpleNamespace(contract="f", wrong=None, replay=None, refusal="too little")
    rest = [
        verdict("b", 5),
        verdict("c", 1, 2, 3),
        verdict("d", *range(4)),
        verdict("e", *range(6)),
    ]
    assert lines(verdict("a"), verdict("a2"), *rest[:2], prefetched=4) == [
        head,
        "note: 4 found what the engine had prefetched; a replay prefetches nothing",
        "explains all 8 flags: a: hits",
        "explains all 8 flags: a2: hits",
        "this log cannot tell these contracts apart",
        *b,
        *c,
    ]
    assert lines(*rest, refused, at_odds=(3, 6)) == [
        head,
        "no contract explains every flag",
        *b,
        "  b 20",
        *c,
        "2 more explain fewer, down to 25.00 %",
        "note: 2 flags are not what was read for them, the first in row 103",
        "not replayed: f: too little",
    ]
