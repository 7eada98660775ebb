"""The figure of an overview: a bar or a point for each run, with its interval and its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from helpers.drawn import kept, legend, named_bars, points, ticks
from helpers.overviews import BOUNDED, LOST, run
from sim.results import overview_figure
from sim.results.looks import COLOURS, MARKERS
from sim.results.overview import Done, overview
from sim.results.overview_figure import TALLEST, draw

RUNS = [
    run("seer", 9.3, labels=BOUNDED),
    run("low", 4.7, labels=LOST, ends=(4.1, 5.9)),
    run("a", 2.1),
    run("b", 1.2, ends=None),
]
MARK = {"seer": " (a bound)", "low": " (lossy)"}
COLOUR = {"seer": to_hex("0.7"), "low": COLOURS[1].lower()}


def drawn(runs: list[Done], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    figures = kept(monkeypatch)
    assert draw(overview(runs), Path("nowhere/figure")) == (
        Path("nowhere/figure.png"),
        Path("nowhere/figure.svg"),
    )
    return list(figures[0].axes)


def test_at_one_budget_a_bar_is_a_run_the_fastest_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    (axis,) = drawn(RUNS, monkeypatch)
    names = ["seer", "low", "a", "b"]
    assert list(ticks(axis, "y").items()) == [
        (at, name + MARK.get(name, "")) for at, name in enumerate(names)
    ]
    bars = points(axis)
    for at, (bar, of) in enumerate(zip(bars, RUNS, strict=True)):
        speed = of.summary["decode_tokens_per_s"]
        ends = of.summary["ci95"]["decode_tokens_per_s"] or (speed, speed)
        assert (bar.x, bar.y) == ([speed], [at])
        assert bar.across == [pytest.approx(tuple(ends))]
        assert bar.colour == COLOUR.get(names[at], COLOURS[0].lower())
    assert [bar.get_hatch() for bar in axis.patches] == ["//", None, None, None]
    assert {left for ends in named_bars(axis).values() for left, _ in ends.values()} == {0}
    assert axis.yaxis_inverted()
    assert axis.get_xlabel() == "decode (tokens/s), 25.0% resident (10 GiB)"
    assert axis.get_xlim()[0] == 0
    assert axis.get_xlim()[1] > 1.1 * 9.3
    assert axis.get_title() == "m on h; trace t (eval), 4 sequences; sequential"


def test_every_panel_is_as_tall_as_the_one_with_most_runs_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = kept(monkeypatch)
    runs = [run("a", 2.1), run("b", 1.2), run("c", 1.1), run("a", 1.0, name="t1")]
    draw(overview(runs), Path("nowhere/figure"))
    assert figures[0].get_figheight() == pytest.approx(2 * (2.2 + 3 * 0.2))


def test_a_long_title_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept(monkeypatch)
    word = "hardware.links.pcie.peak_gb_per_s="
    runs = [run(f"a_long_name_{at}", 2.1, at / 4) for at in (1, 2)]
    keys = (word, "hardware.compute.memory_gb_per_s=", "workload.context_tokens=")
    runs = [
        Done(one.summary, tuple(f"{key}{at}" for key in keys), one.decode_ns)
        for at in (8, 16)
        for one in runs
    ]
    draw(overview(runs), Path("nowhere/figure"))
    (figure,) = figures
    figure.draw_without_rendering()
    for axis in figure.axes:
        assert word in axis.get_title()
        ends = axis.title.get_window_extent()
        assert 0 <= ends.x0 < ends.x1 <= figure.bbox.width


def test_labels_take_no_room_from_the_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept(monkeypatch)
    many = {name: f"{name} of a run" for name in ("transplanted", "part", "machine")}
    heights = []
    for labels in ({}, many):
        runs = [run("a", 2.1, share, labels=labels) for share in (0.25, 0.5)]
        draw(overview(runs), Path("nowhere"))
        figures[-1].draw_without_rendering()
        heights.append(figures[-1].axes[0].get_window_extent().height)
    assert heights[1] > 0.95 * heights[0]


def test_over_several_budgets_a_curve_is_a_system(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = [run(name, speed, 0.125) for name, speed in (("a", 1.7), ("b", 1.1))]
    (axis,) = drawn([*RUNS, *slower], monkeypatch)
    found = {curve.label: curve for curve in points(axis)}
    assert list(found) == ["seer (a bound)", "low (lossy)", "a", "b"] == legend(axis)
    assert (found["a"].x, found["a"].y) == ([5.0, 10.0], [1.7, 2.1])
    assert (found["b"].x, found["b"].y) == ([5.0, 10.0], [1.1, 1.2])
    assert found["a"].up == [pytest.approx((0.9 * 1.7, 1.1 * 1.7)), pytest.approx((1.89, 2.31))]
    assert found["b"].up == [pytest.approx((0.99, 1.21)), pytest.approx((1.2, 1.2))]
    assert found["low (lossy)"].up == [pytest.approx((4.1, 5.9))]
    lines = [series.lines[0] for series in axis.containers]
    assert [line.get_linestyle() for line in lines] == ["--", ":", "-", "-"]
    assert [line.get_marker() for line in lines] == list(MARKERS[:4])
    assert [curve.colour for curve in points(axis)] == [one.lower() for one in COLOURS[:4]]
    assert axis.get_xlabel() == "expert bytes on the device (GiB)"
    assert axis.get_ylabel() == "decode (tokens/s)"
    assert axis.get_ylim() == (0, pytest.approx(TALLEST * 9.3))


def test_bars_of_other_work_are_drawn_on_one_scale_and_curves_on_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = [run("a", 40.0, sha256="other", name="long")]
    third = [run("a", 90.0, share, name="longer") for share in (0.25, 0.5)]
    short, long, curve = drawn([*RUNS, *other, *third], monkeypatch)
    assert short.get_xlim() == long.get_xlim() == (0, pytest.approx(44 * 1.05, rel=0.01))
    assert curve.get_xlim()[1] < 44
    assert "trace long " in long.get_title()


def test_of_many_systems_the_fastest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_figure, "MOST_NAMES", 3)
    many = [run(f"s{at}", 1 + at) for at in range(5)]
    (axis,) = drawn(many, monkeypatch)
    shown = ["s4", "s3", "s2"]
    assert list(ticks(axis, "y").values()) == shown
    (axis,) = drawn([*many, run("s0", 0.5, 0.125)], monkeypatch)
    assert [curve.label for curve in points(axis)] == shown


def test_of_many_kinds_of_work_the_first_are_drawn_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview_figure, "MOST_PANELS", 2)
    panels = drawn([run("a", 1 + at, name=f"t{at}") for at in range(4)], monkeypatch)
    assert [axis.get_title().split()[4] for axis in panels] == ["t0", "t1"]
    assert panels[0].figure.get_suptitle() == (
        "95 % intervals over the trace's sequences; 2 more in the table"
    )


def test_a_dollar_begins_no_formula_and_intervals_are_spoken_of_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = run("a", 2.0, name="$x$")
    (axis,) = drawn([one], monkeypatch)
    assert r"trace \$x\$ " in axis.get_title()
    assert axis.figure.get_suptitle() == "95 % intervals over the trace's sequences"
    one.summary["ci95"] = {"decode_tokens_per_s": None}
    (axis,) = drawn([one], monkeypatch)
    assert axis.figure.get_suptitle() == ""
