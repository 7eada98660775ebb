"""Long work says how far it is wherever it is read."""

from __future__ import annotations

import io

from rich.console import Console

from sim.process.progress import Shown


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
