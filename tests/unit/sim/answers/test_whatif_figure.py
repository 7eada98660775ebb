"""The figure of a what-if marks where something turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim.answers.whatif import Answer, BreakEven, Row
from sim.answers.whatif_figure import draw
from sim.results.labels import Labels

ROWS = tuple(Row(value, "lru", 2.0 * value, None, 0.5, 0.4) for value in (1.0, 2.0, 4.0))
EVEN = BreakEven("break-even", 3.0, 1.0, 4.0, None, "told elsewhere")
FOUND = Answer("link", "GB/s", ROWS, EVEN, 2.5, (), (("lru", Labels()),), False)


def texts(directory: Path, found: Answer) -> str:
    draw(directory, found, "lru")
    return (directory / "figure.svg").read_text(encoding="utf-8")


def test_break_even_and_knee_are_lines_with_their_values(tmp_path: Path) -> None:
    told = texts(tmp_path, FOUND)
    assert "break-even: 3<" in told
    assert "knee: 2.5<" in told


@pytest.mark.parametrize("even", [None, replace(EVEN, value=None), replace(EVEN, value=9.0)])
def test_what_does_not_turn_inside_the_figure_has_no_line(
    tmp_path: Path, even: BreakEven | None
) -> None:
    assert "break-even" not in texts(tmp_path, replace(FOUND, break_even=even, knee=None))
