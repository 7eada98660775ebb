"""The figure of a what-if has every point with its interval, and a line where something turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.drawn import curves, is_all_inside, kept, legend, points, ticks, upright
from sim.answers.whatif import Answer, BreakEven, Row
from sim.answers.whatif_figure import draw
from sim.results.labels import Labels

ROWS = tuple(
    Row(
        value,
        name,
        speed,
        (speed - 0.3, speed + 0.7) if value > 1 else None,
        0.5,
        0.4,
        None,
        None,
        0.0,
    )
    for value, speed in ((1.0, 2.0), (2.0, 3.5), (4.0, 9.0))
    for name, speed in (("fetch", speed), ("compute", 10 - speed))
)
EVEN = BreakEven("break-even", 3.0, 1.0, 4.0, None, "told elsewhere")
NEEDED = BreakEven("target", 5.5, 1.0, 4.0, None, "told elsewhere")
FOUND = Answer("link", "GB/s", ROWS, EVEN, 2.5, (), (("lru", Labels()),), False)


def drawn(found: Answer, monkeypatch: pytest.MonkeyPatch) -> Any:
    figures = kept(monkeypatch)
    draw(Path("nowhere"), found, "lru")
    return figures[0].axes[0]


@pytest.mark.parametrize("is_log", [False, True])
def test_every_row_is_a_point_with_its_interval(
    is_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(FOUND, is_log=is_log, about="m on h")
    axis = drawn(found, monkeypatch)
    for series in points(axis):
        rows = [row for row in ROWS if row.series == series.label]
        assert series.x == [row.value for row in rows]
        assert series.y == [row.tokens_per_s for row in rows]
        assert series.across is None
        for ends, row in zip(series.up or (), rows, strict=True):
            assert ends == pytest.approx(row.interval or (row.tokens_per_s,) * 2)
    assert [series.label for series in points(axis)] == ["fetch", "compute"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("GB/s", "decode (tokens/s)")
    assert is_all_inside(axis)
    assert (axis.get_xscale(), axis.get_yscale()) == (("log",) * 2 if is_log else ("linear",) * 2)
    if is_log:
        assert ticks(axis, "x") == {1.0: "1", 2.0: "2", 4.0: "4"}
    else:
        assert axis.get_ylim()[0] == 0
    assert axis.figure.get_suptitle().startswith("lru: m on h\n95 % intervals over")
    without = replace(found, rows=tuple(replace(row, interval=None) for row in ROWS))
    assert drawn(without, monkeypatch).figure.get_suptitle() == "lru: m on h"


@pytest.mark.parametrize("is_log", [False, True])
def test_points_can_be_read_beside_an_interval_that_is_far_longer(
    is_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of two sequences reaches to 46 times the speed here."""
    rows = (replace(ROWS[0], interval=(0.01, 92.0)), *ROWS[1:])
    axis = drawn(replace(FOUND, rows=rows, is_log=is_log), monkeypatch)
    low, high = axis.get_ylim()
    assert (low, high) == pytest.approx((1 / 3 if is_log else 0, 27.0))
    assert axis.figure.get_suptitle() == (
        "lru\n95 % intervals over the trace's sequences; some end beyond the figure"
    )


def test_series_of_one_point_each_are_one_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(
        Row(bits, f"int{bits:g}", 9 / bits, None, 0.5, 0.4, None, None, 0.0)
        for bits in (2.0, 4.0, 8.0)
    )
    (curve,) = points(drawn(replace(FOUND, rows=rows), monkeypatch))
    assert (curve.label, curve.x, curve.y) == ("decode", [2.0, 4.0, 8.0], [4.5, 2.25, 1.125])


def test_a_series_of_which_one_point_could_run_stays_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = points(drawn(replace(FOUND, rows=ROWS[:3]), monkeypatch))
    assert [(curve.label, curve.x) for curve in found] == [
        ("fetch", [1.0, 2.0]),
        ("compute", [1.0]),
    ]


def test_break_even_target_and_knee_are_lines_with_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    axis = drawn(replace(FOUND, target=NEEDED), monkeypatch)
    assert upright(axis) == [3.0, 5.5, 2.5]
    assert {name: x for name, (x, _) in curves(axis).items()} == {
        "break-even: 3": [3.0, 3.0],
        "needed: 5.5": [5.5, 5.5],
        "knee: 2.5": [2.5, 2.5],
    }
    assert legend(axis) == [*curves(axis), "fetch", "compute"]


@pytest.mark.parametrize("value", [1.0, 4.0])
def test_what_turns_at_the_first_or_the_last_point_has_its_line(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    even = replace(FOUND, break_even=replace(EVEN, value=value), knee=None)
    assert upright(drawn(even, monkeypatch)) == [value]


@pytest.mark.parametrize(
    "even", [None, *(replace(EVEN, value=value) for value in (None, 0.9, 9.0))]
)
def test_what_does_not_turn_inside_the_figure_has_no_line(
    even: BreakEven | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(FOUND, break_even=even, knee=None, target=replace(NEEDED, value=None))
    assert upright(drawn(found, monkeypatch)) == []
