"""What the demonstration prints, writes and draws: every number is a run's own.

The runs are summaries made by hand: a system's speed is a number that no other has.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.drawn import is_all_inside, kept, legend, named_bars, points, ticks
from helpers.printed import Heard, rows_of, shows
from sim import demo
from sim.demo import SHARES, SYSTEMS, main
from sim.results.labels import Labels

SPEED = dict(zip(SYSTEMS, (1.13, 4.37, 4.91, 9.46, 12.7), strict=True))
LABELS = {
    "hobbit": Labels(lossy="lossy (x)"),
    "oracle": Labels(knows_future="knows the future (y)"),
}
TIMES = np.array([1.0, 2.0, 1.5, 1.1]) * 1e9
WOBBLE = np.array([1.1, 0.9, 1.2, 1.0])
"""By sequence, so that intervals have a width."""


def summary(system: str, share: float) -> dict[str, Any]:
    speed = SPEED[system] * (1 + share)
    return {
        "system": system,
        "model": "m",
        "hardware": "h",
        "trace": {"name": "t"},
        "budget": {"resident_share": share},
        "decode_tokens_per_s": speed,
        "ci95": {"decode_tokens_per_s": [0.83 * speed, 1.21 * speed]},
        "stall_s": {
            "demand": 7.3 / speed,
            "host": 0.0,
            "no_slot": 1.9 if system == "hobbit" else 0.0,
        },
        "compute_busy_s": 0.4 + share,
        "quality_proxy": {"low_share": 0.37, "skip_share": 0.0243},
        "labels": LABELS.get(system, Labels()).kinds(),
        "overrides": [],
    }


class Shown(Heard):
    """What was printed, the files and the figure of a demonstration."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.figure = folder, None


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    heard: Any = Shown(tmp_path_factory.mktemp("demo") / "out")

    def asked(*words: str) -> tuple[Any, str]:
        given = dict(word.split("=") for word in words)
        assert given["trace.max_sequences"] == "3"
        return (given["system"], float(given["budget.resident_share"])), given["system"]

    def simulated(run: Any) -> Any:
        return SimpleNamespace(summary=summary(*run.cell), frames=run.cell)

    def times(cell: tuple[str, float]) -> Any:
        wobble = 1.0 if cell[0] == "lru" else WOBBLE
        return TIMES * wobble / SPEED[cell[0]] / (1 + cell[1]), np.ones(4)

    with pytest.MonkeyPatch.context() as patch:
        figures = kept(patch)
        patch.setattr(demo, "load_trace", lambda *_, **__: None)
        patch.setattr(demo, "configure", asked)
        patch.setattr(
            demo,
            "build",
            lambda cell, *_, **__: SimpleNamespace(
                cell=cell, controller=SimpleNamespace(loader=SimpleNamespace(wait="wait_all"))
            ),
        )
        patch.setattr(demo, "execute", simulated)
        patch.setattr(demo, "decode_time_and_tokens", times)
        patch.setattr(demo, "trace_events", lambda cell, *_: {"timeline of": cell, "run": _[-1]})
        patch.setattr(demo, "Console", lambda **_: heard)
        patch.setattr(demo, "Shown", Bar)
        assert main([f"output_dir={heard.folder}", "sequences=3"]) == 0
    (heard.figure,) = figures
    return heard


def test_a_word_of_no_demo_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sequences=none"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        "error: sequences=none must be a whole number from 2 on\n",
    )
    assert list(tmp_path.iterdir()) == []


class Bar:
    def __init__(self, **_: Any) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def track(self, pairs: Any, description: str) -> Any:
        return pairs


def test_every_cell_of_the_table_is_the_number_in_the_file(shown: Any) -> None:
    runs = {
        (one["system"], one["budget"]["resident_share"]): one
        for one in json.loads((shown.folder / "table.json").read_text(encoding="utf-8"))
    }
    assert list(runs) == [(system, share) for share in SHARES for system in SYSTEMS]
    rows = rows_of(shown.tables[0])
    assert [row["system"] for row in rows] == list(SYSTEMS)
    for row in rows:
        for share, head in zip(SHARES, list(row)[1:], strict=True):
            one = runs[row["system"], share]
            shows(head, share)
            ratio = one["speedup_over_lru"]
            faster = ratio["speedup"]
            cell = row[head].replace("x", " ").replace("~", "")
            shows(cell, one["decode_tokens_per_s"], faster, *one["ci95"]["decode_tokens_per_s"])
            surely = not ratio["interval"][0] <= 1 <= ratio["interval"][1]
            assert ("~" in row[head]) == (row["system"] != "lru" and not surely)
    assert any("~" in cell for cell in rows[2].values()), "4.91 is not surely more than 4.37"
    assert shown.tables[0].title == ("decode tokens/s [95 % interval], x against lru; h, m")
    for text in ("hobbit: lossy (x)", "oracle: knows the future (y)"):
        assert text in shown.tables[0].caption


def test_a_ratio_is_the_baselines_time_over_the_systems(shown: Any) -> None:
    for one in json.loads((shown.folder / "table.json").read_text(encoding="utf-8")):
        wobble = 1.0 if one["system"] == "lru" else (TIMES * WOBBLE).sum() / TIMES.sum()
        expected = SPEED[one["system"]] / SPEED["lru"] / wobble
        assert one["speedup_over_lru"]["speedup"] == pytest.approx(expected)


def test_the_sentence_is_about_half_of_the_experts(shown: Any) -> None:
    told = shown.lines[0]
    (one,) = [
        one
        for one in json.loads((shown.folder / "table.json").read_text(encoding="utf-8"))
        if (one["system"], one["budget"]["resident_share"]) == ("hobbit", 0.5)
    ]
    ratio = one["speedup_over_lru"]
    assert (
        "mixtral_offloading, lru tie as the fastest lossless systems, mixtral_offloading with "
        in told
    )
    shows(
        told.replace("x lru", " lru"),
        0.5,
        4.91 * 1.5,
        ratio["speedup"],
        0.95,
        4,
        *ratio["interval"],
        0.37,
        0.0243,
    )
    assert shown.lines[1] == (
        f"files: {shown.folder}/comparison.png, comparison.svg, table.json, timeline.json (open it"
        " in ui.perfetto.dev)"
    )


def test_of_too_few_sequences_nobody_ties_and_no_interval_is_said_to_contain_one() -> None:
    """Two sequences: ``load_on_demand`` is at 0.23x, and its interval leaves out 1."""
    cells = {
        (system, share): demo.Cell(
            summary(system, share), TIMES[:2] / SPEED[system] / (1 + share), np.ones(2)
        )
        for system in SYSTEMS
        for share in SHARES
    }
    interval = demo._speedup(cells, "load_on_demand", 0.5).interval
    assert interval is not None
    assert interval[1] < 1
    few = "fewer than 4 independent sequences"
    assert demo._answer(cells).startswith(
        "At 50% resident mixtral_offloading has the highest speed of lossless systems, 7.37"
        f" tokens/s (not sure: {few}); hobbit is "
    )
    caption = str(demo._table(cells).caption)
    assert f"~: cannot tell: {few}" in caption
    assert "contains 1" not in caption


def test_the_timeline_is_of_the_run_that_loses_something_at_half_of_the_experts(
    shown: Any,
) -> None:
    told = json.loads((shown.folder / "timeline.json").read_text(encoding="utf-8"))
    assert told["timeline of"] == ["hobbit", 0.5]
    assert told["run"] == {
        key: of
        for key, of in summary("hobbit", 0.5).items()
        if key in ("system", "model", "hardware", "trace", "budget", "labels")
    }


def test_a_curve_is_a_system_by_budget(shown: Any) -> None:
    left, right = shown.figure.axes
    drawn = points(left)
    assert [curve.label for curve in drawn] == list(SYSTEMS) == legend(left)
    for curve in drawn:
        speeds = [summary(curve.label, share)["decode_tokens_per_s"] for share in SHARES]
        assert curve.x == [25, 50, 75]
        assert curve.y == pytest.approx(speeds)
        assert curve.up == [pytest.approx((0.83 * one, 1.21 * one)) for one in speeds]
    dashed = [series.lines[0].get_linestyle() for series in left.containers]
    assert dashed == ["-", "-", "-", "-", "--"], "the oracle is no system"
    assert list(ticks(left, "x")) == [25, 50, 75]
    assert left.get_xlabel() == "expert bytes resident (%)"
    assert left.get_ylabel() == "decode (tokens/s)"
    assert left.get_ylim()[0] == 0
    assert is_all_inside(left)
    assert right.get_xlabel() == "time of the whole run (s), 50% resident"
    assert shown.figure.get_suptitle().startswith("m on h, batch 1, 95 % intervals over the trace")


def test_a_bar_is_the_time_of_a_system_at_half_of_the_experts(shown: Any) -> None:
    axis = shown.figure.axes[1]
    bars = named_bars(axis)
    assert list(bars) == ["compute", "demand", "no slot"] == legend(axis)
    for system in SYSTEMS:
        of = summary(system, 0.5)
        ends = np.cumsum([of["compute_busy_s"], of["stall_s"]["demand"], of["stall_s"]["no_slot"]])
        begins = [0, *ends[:-1]]
        found = [bars[part][system] for part in bars]
        assert [one[0] for one in found] == pytest.approx(begins)
        assert [one[1] for one in found] == pytest.approx(ends)
    assert axis.yaxis_inverted()
    assert is_all_inside(axis)


@pytest.mark.parametrize(("words", "overwrite"), [([], False), (["overwrite=yes"], True)])
def test_a_folder_is_written_over_where_that_is_said(
    words: list[str],
    overwrite: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuses(place: Path, overwrite: bool) -> None:
        raise OSError(f"{place} {overwrite}")

    monkeypatch.setattr(demo, "own_folder", refuses)
    assert main([*words, "output_dir=out"]) == 2
    assert capsys.readouterr().err == f"error: out {overwrite}\n"
