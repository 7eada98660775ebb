"""The figures of a run and of a comparison: every bar is a time, and bars of a step add up to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.drawn import curves, is_all_inside, legend, named_bars, ticks, upright
from sim.answers import python_figures
from sim.answers.comparison import Comparison
from sim.answers.python_figures import compared, step_parts_ns, time_by_cause
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.results.stalls import STALL_PARTS
from sim.values.record import Record

MS = 1_000_000
SUMMARY = {"system": "s", "hardware": "h", "model": "m", "labels": {}, "overrides": ["seed=1"]}


def frames(
    steps: list[tuple[int, int, bool]], idle: list[tuple[int, int, str]]
) -> Any:  # Only what the figure asks of `Frames`.
    """Steps (start, end, whether it decodes) and waits (start, end, part), in ms."""
    record = Record(
        step_start_ns=[start * MS for start, _, _ in steps],
        step_end_ns=[end * MS for _, end, _ in steps],
        idle_start_ns=[start * MS for start, _, _ in idle],
        idle_end_ns=[end * MS for _, end, _ in idle],
    )
    stalls = {
        part: np.array([(end - start) * MS * (of == part) for start, end, of in idle], np.int64)
        for part in STALL_PARTS
    }
    workload = SimpleNamespace(steps=[SimpleNamespace(decode=decode) for _, _, decode in steps])
    return SimpleNamespace(record=record, stalls=stalls, workload=workload)


RUN = frames(
    [(0, 50, False), (50, 57, True), (60, 71, True), (71, 84, True)],
    [(10, 40, "demand"), (50, 52, "demand"), (57, 60, "no_request"), (65, 71, "host")],
)


def test_a_wait_belongs_to_the_step_it_begins_in_and_between_steps_to_none() -> None:
    parts = {part: (of // MS).tolist() for part, of in step_parts_ns(RUN).items()}
    assert parts["compute"] == [20, 5, 5, 13]
    assert parts["demand"] == [30, 2, 0, 0]
    assert parts["host"] == [0, 0, 6, 0]
    assert parts["no_request"] == [0, 0, 0, 0]


def heights(axis: Any) -> dict[str, list[tuple[float, float, float, float]]]:
    """By series: where each bar begins, its width, its foot and its height."""
    return {
        series.get_label(): [
            (bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in series.patches
        ]
        for series in axis.containers
    }


def test_a_bar_is_a_decoding_step_and_its_parts_stand_on_each_other() -> None:
    (axis,) = time_by_cause(RUN, SUMMARY).axes
    assert heights(axis) == {
        "computing": [(0, 1, 0, 5), (1, 1, 0, 5), (2, 1, 0, 13)],
        "waiting: demand": [(0, 1, 5, 2), (1, 1, 5, 0), (2, 1, 13, 0)],
        "waiting: host": [(0, 1, 7, 0), (1, 1, 5, 6), (2, 1, 13, 0)],
    }
    assert legend(axis) == ["computing", "waiting: demand", "waiting: host"]
    assert axis.get_xlabel() == "decoding step, in order"
    assert axis.get_ylabel() == "time of a decoding step (ms)"
    assert axis.get_xlim() == (0, 3)
    assert is_all_inside(axis)
    assert axis.figure.get_suptitle() == "s on h, m\nwith seed=1"


def test_where_nothing_decodes_every_step_is_shown() -> None:
    made = frames([(0, 3, False), (3, 7, False)], [])
    (axis,) = time_by_cause(made, SUMMARY).axes
    assert heights(axis) == {"computing": [(0, 1, 0, 3), (1, 1, 0, 4)]}
    assert axis.get_ylabel() == "time of a step (ms)"


def test_of_many_steps_a_bar_is_the_mean_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_figures, "BINS", 2)
    ends = np.cumsum([4, 8, 1, 2, 6]).tolist()
    made = frames([(a, b, True) for a, b in zip([0, *ends], ends, strict=False)], [])
    (axis,) = time_by_cause(made, SUMMARY).axes
    assert heights(axis) == {"computing": [(0, 2, 0, 6), (2, 3, 0, 3)]}


RATIOS = {
    "all steps": Paired(1.31, (1.17, 1.46), 0.99, 8),
    "decode": Paired(0.94, (0.83, 1.04), 0.2, 8),
    "prefill": Paired(0.71, None, None, 1),
}
FOUND = Comparison(
    ("lru", "lfu"),
    {
        **dict.fromkeys(("compute", *STALL_PARTS), (0, 0)),
        "compute": (2_100_000_000, 2_300_000_000),
        "demand": (1_700_000_000, 900_000_000),
        "no_slot": (0, 3_100_000_000),
    },
    RATIOS,
    (Labels(lossy="lossy (x)"), Labels()),
)


def test_a_bar_of_a_comparison_is_a_part_of_a_makespan_and_a_dot_a_ratio() -> None:
    figure = compared(FOUND)
    left, right = figure.axes
    assert named_bars(left) == {
        "computing": {"A: lru": (0, 2.1), "B: lfu": (0, 2.3)},
        "waiting: demand": {
            "A: lru": (2.1, pytest.approx(3.8)),
            "B: lfu": (2.3, pytest.approx(3.2)),
        },
        "waiting: no slot": {
            "A: lru": (pytest.approx(3.8),) * 2,
            "B: lfu": (pytest.approx(3.2), pytest.approx(6.3)),
        },
    }
    assert legend(left) == list(named_bars(left))
    assert left.get_xlabel() == "time of the whole run (s)"
    assert (left.yaxis_inverted(), right.yaxis_inverted()) == (True, True)
    assert list(ticks(right, "y").items()) == [(0, "all steps"), (1, "decode"), (2, "prefill")]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in right.lines]
    dots = [line for line in right.lines if line.get_marker() == "o"]
    for at, ratio in enumerate(RATIOS.values()):
        assert (list(ratio.interval or (ratio.speedup,) * 2), [at, at]) in drawn
        assert (list(dots[at].get_xdata()), list(dots[at].get_ydata())) == ([ratio.speedup], [at])
    assert [dot.get_color() for dot in dots] == ["black", "0.6", "0.6"], "who is surely faster"
    assert upright(right) == [1]
    assert right.get_xlabel() == "B's time over A's (above 1: A is faster)"
    assert is_all_inside(left)
    assert is_all_inside(right)
    title = figure.get_suptitle()
    assert title.startswith("A is faster than B; 95 % intervals are over")
    assert "A: lossy (x)" in title
    assert curves(right) == {}, "no line needs a legend"


def test_a_comparison_that_tells_nothing_says_so_above_its_figure() -> None:
    found = replace(FOUND, ratios={"all steps": RATIOS["decode"]})
    assert compared(found).get_suptitle().startswith("who is faster: cannot tell; ")
