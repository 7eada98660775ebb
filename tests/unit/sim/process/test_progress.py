"""Long work says how far it is wherever it is read."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from sim.process import progress
from sim.process.progress import Shown
from sim.values.places import ROOT


def shown(is_terminal: bool, seconds: list[float]) -> str:
    """What is written while work advances at these times."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=80)
    clock = iter([0.0, *seconds])
    with Shown(console=console, clock=lambda: next(clock)) as bar:
        task = bar.add_task("runs", total=len(seconds))
        for _ in seconds:
            bar.advance(task)
    return text.getvalue()


def test_where_there_is_no_terminal_a_line_comes_every_ten_seconds() -> None:
    told = shown(False, [1, 9, 11, 12, 20, 22, 40])
    assert told.splitlines() == [
        "runs: 3 of 7 after 11 s",
        "runs: 6 of 7 after 22 s",
        "runs: 7 of 7 after 40 s",
    ]


def test_quick_work_says_nothing_and_a_terminal_has_its_bar() -> None:
    assert shown(False, [1, 2, 3]) == ""
    assert "after" not in shown(True, [1, 20, 40])


def test_work_that_nobody_can_count_says_what_it_does_and_notes_follow() -> None:
    text = io.StringIO()
    clock = iter([0.0, 12, 24, 36])
    with Shown(console=Console(file=text, width=80), clock=lambda: next(clock)) as bar:
        task = bar.add_task("loading", total=None)
        bar.update(task, description="fate: sequence 3")
        bar.update(task, description="fate: sequence 4", note="loss 3.1")
        assert list(bar.track("a", description="sites")) == ["a"]
    assert text.getvalue().splitlines() == [
        "fate: sequence 3, after 12 s",
        "fate: sequence 4, after 24 s, loss 3.1",
        "sites: 1 of 1 after 36 s",
    ]


def test_work_that_says_nothing_for_long_is_told_of_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "LOOK_EVERY_S", 0.001)
    told, before = "", set(threading.enumerate())
    with progress.saying("calibrating mine") as say:
        say("copies")
        while told.count("\n") < 3:
            told += capsys.readouterr().err
    # The first look may come before the first word.
    assert set(told.splitlines()) - {"calibrating mine, after 0 s"} == {
        "calibrating mine: copies, after 0 s"
    }
    assert set(threading.enumerate()) <= before


def test_every_command_shows_its_progress_in_this_one_way() -> None:
    """A bar of rich alone says nothing where there is no terminal."""
    others = [
        str(path.relative_to(ROOT))
        for package in ("sim", "capture", "real")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "progress.py"
        and re.search(
            r"rich\.progress import[^\n]*\b(Progress|track)\b|[cC]onsole[^\n]*\.status\(",
            path.read_text(encoding="utf-8"),
        )
    ]
    assert others == []
