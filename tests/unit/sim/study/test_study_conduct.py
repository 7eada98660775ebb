"""While a study runs it says how many cells are done, how fast, how many went wrong, what is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.study import conduct
from sim.study.rows import DONE, FAILED, REFUSED, overview_of


class Bar:
    """What a bar is told, in place of one on a terminal."""

    def __init__(self, *columns: Any) -> None:
        self.told: list[Any] = [[type(column).__name__ for column in columns]]
        BARS.append(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def add_task(self, *words: Any, **fields: Any) -> int:
        self.told.append((words, fields))
        return 7

    def update(self, task: int, **fields: Any) -> None:
        assert task == 7
        self.told.append(tuple(fields.values()))


BARS: list[Bar] = []


def test_a_row_is_told_with_the_rate_what_went_wrong_and_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    BARS.clear()
    times = iter([100.0, 104.0, 105.0, 106.0, 116.0])
    monkeypatch.setattr(conduct, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(conduct, "Shown", Bar)
    with conduct.showing_progress("s", 6) as report:
        for status in (DONE, REFUSED, FAILED, REFUSED):
            report({"status": status})
    (bar,) = BARS
    assert bar.told == [
        ["TextColumn", "BarColumn", "MofNCompleteColumn", "TextColumn", "TimeElapsedColumn"],
        (("s",), {"total": 6, "note": ""}),
        (1, "0.25 cells/s, 20 s left"),
        (2, "0.4 cells/s, 1 refused, 10 s left"),
        (3, "0.5 cells/s, 1 refused, 1 failed, 6 s left"),
        (4, "0.25 cells/s, 2 refused, 1 failed, 8 s left"),
    ]


def test_a_row_that_comes_at_once_divides_by_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    BARS.clear()
    monkeypatch.setattr(conduct, "time", SimpleNamespace(monotonic=lambda: 5.0))
    monkeypatch.setattr(conduct, "Shown", Bar)
    with conduct.showing_progress("s", 2) as report:
        report({"status": DONE})
    assert BARS[0].told[-1] == (1, "1e+09 cells/s, 0 s left")


def test_an_overview_tells_what_was_refused_from_what_failed() -> None:
    rows = [
        {"status": "refused", "overrides": "a=1", "error": "no room"},
        {"status": "failed", "overrides": "a=2", "error": "died"},
    ]
    refused = overview_of(rows).refused
    assert [(one.words, one.why) for one in refused] == [
        ("a=1", "no room"),
        ("a=2", "it failed: died"),
    ]
