"""Fronts of speed and quality, against brute force; nothing is ranked without its quality."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.textpath import TextPath
from rich.console import Console

from helpers import drawn
from helpers.printed import Heard, plain, rows_of, shows
from helpers.summaries import summary_of
from sim.pareto import (
    LOSSLESS,
    LOSSY,
    UNMEASURED,
    Point,
    draw,
    join,
    main,
    mark,
    print_points,
    quality_class,
    read,
)
from sim.results.fronts import front
from sim.results.labels import Labels
from sim.results.looks import COLOURS, NEUTRAL
from sim.results.overview import work_of
from sim.study.trials import trial

COARSE = st.integers(0, 4).map(float)


def _summary(
    system: str, speed: float, slots: tuple[str, ...] = ("fp16",), low: float = 0.0, **labels: str
) -> dict[str, Any]:
    lossy = "lossy (somehow)" if low or slots[0] != "fp16" else None
    return summary_of(
        system=system,
        trace={"sequences": 4},
        contracts={"batching": "sequential", "together": 1},
        labels={"lossy": lossy, **labels},
        budget={"resident_share": 0.25, "slots": dict.fromkeys(slots, 1)},
        decode_tokens_per_s=speed,
        ci95={"decode_tokens_per_s": [speed - 1, speed + 1]},
        quality_proxy={"low_share": low, "skip_share": 0.0},
    )


def test_runs_of_other_work_have_a_front_of_their_own_and_say_what_differs() -> None:
    """Four sequences at once decode more tokens a second than one does; the system is the same."""
    one, four = _summary("lru", 3.0), _summary("lru", 5.0)
    four["contracts"] = {"batching": "continuous", "together": 4}
    points = join([one, four], [])
    assert mark(points) == [True, True]
    assert [point.system for point in points] == [
        "lru (batching sequential, together 1)",
        "lru (batching continuous, together 4)",
    ]
    assert mark(join([one, _summary("lru", 5.0)], [])) == [False, True]
    # A quality of another work, too, is of that one, even where all runs are of one.
    quality = _quality("hobbit", 0.01, speed=9.0)
    assert mark(join([one], [quality])) == [True, True]
    assert join([one], [quality])[1].work == points[0].work
    quality["work"] = work_of(four)
    assert join([one], [quality])[1].system == "hobbit (batching continuous, together 4)"
    quality["divergence"] = 0.0
    assert mark(join([one], [quality])) == [True, True]
    quality["work"] = work_of(one)
    assert mark(join([one], [quality])) == [False, True]


def test_a_machine_with_another_figure_is_another_machine_with_a_front_of_its_own() -> None:
    """A link that is twice as fast beats no run on the machine as its file has it."""
    slow, fast = _summary("lru", 3.0), _summary("lru", 5.0)
    word = "hardware.links.pcie.peak_gb_per_s=63"
    fast["overrides"] = ["model=m", "trace.max_sequences=4", word, "hardware.memory_gib=80"]
    points = join([slow, fast], [_quality("lru", 0.01)])
    assert mark(points) == [True, True]
    assert [point.system for point in points] == ["lru (machine h)", f"lru (machine h {word})"]
    assert [point.loss for point in points] == [0.01, 0.0], "the quality is of the first one"
    fast["overrides"] = ["model=m", "hardware.memory_gib=80"]
    assert mark(join([slow, fast], [])) == [False, True]


def _quality(system: str, loss: float, loop: str = "closed", speed: float = 5.0) -> dict[str, Any]:
    row: dict[str, Any] = {
        "system": system,
        "trace": "t",
        "model": "m",
        "hardware": "h",
        "resident_share": 0.25,
        "loop": loop,
        "labels": {"synthetic": "SYNTHETIC gates: t"},
        "work": work_of(_summary(system, speed)),
    }
    for name, value in (
        ("divergence", loss),
        ("increase", 2 * loss),
        ("decode_tokens_per_s", speed),
    ):
        row |= {name: value, f"{name}_low": value, f"{name}_high": value}
    return row


@given(
    st.lists(st.tuples(COARSE, st.one_of(COARSE, st.just(float("nan")))), min_size=1, max_size=12)
)
def test_a_front_has_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    speed, loss = (np.array(column) for column in zip(*points, strict=True))
    found = front(speed, loss)
    for i, (fast, lost) in enumerate(points):
        beaten = any(s >= fast and m <= lost and (s > fast or m < lost) for s, m in points)
        assert found[i] == (not np.isnan(lost) and not beaten)


def test_a_run_gets_the_quality_of_its_own_configuration_the_closed_loops_first() -> None:
    summaries = [
        _summary("lru", 3.0),
        _summary("hobbit", 6.0, ("fp16", "int4"), 0.2),
        _summary("x", 9.0, ("int4",)),
    ]
    qualities = [
        _quality("hobbit", 0.01),
        _quality("hobbit", 0.5, "open"),
        _quality("fate", 0.3, speed=7.0),
    ]
    points = {point.key[0]: point for point in join(summaries, qualities)}
    assert (points["lru"].loss, points["lru"].quality_class) == (0.0, LOSSLESS)
    assert (points["hobbit"].loss, points["hobbit"].loop, points["hobbit"].speed) == (
        0.01,
        "closed",
        6.0,
    )
    turned = {point.key[0]: point.loss for point in join(summaries, qualities[::-1])}
    assert turned["hobbit"] == 0.01, "whichever is read first"
    assert (points["x"].loss, points["x"].quality_class) == (None, UNMEASURED)
    assert (points["fate"].speed, points["fate"].quality_class) == (7.0, LOSSY)
    assert {name for name, on in zip(points, mark(list(points.values())), strict=True) if on} == {
        "lru",
        "hobbit",
        "fate",
    }
    assert join(summaries, qualities, "increase")[1].loss == 0.02


def test_a_run_keeps_its_own_labels_and_says_the_words_of_a_quality_with_others() -> None:
    """The speed was of two sequences, and the table said that all was of four."""
    two = _summary("hobbit", 6.0, ("fp16", "int4"), 0.2) | {"overrides": ["trace.max_sequences=2"]}
    four = _quality("hobbit", 0.01)
    four["labels"] = {"changed": ["trace.max_sequences=4"]}
    (point,) = join([two], [four])
    heard = Heard()
    print_points([point], "divergence", heard)
    (row,) = rows_of(heard.tables[0])
    assert row["quality"] == "lossy (closed loop, measured with trace.max_sequences=4)"
    assert "with trace.max_sequences=2" in heard.lines
    assert "with trace.max_sequences=4" not in heard.lines
    four["labels"] = {"changed": two["overrides"]}
    assert join([two], [four])[0].measured == ""


def test_one_low_precision_for_all_is_lossy_though_no_share_is_low() -> None:
    few = ("trace.max_sequences=1", "workload.decode_tokens=4")
    for words, expected in (
        (("system=lru",), LOSSLESS),
        (("system=lru", "precision=int4"), LOSSY),
        (("system=fate",), LOSSY),
        (("system=swapmoe",), LOSSY),
    ):
        assert quality_class(trial((*words, *few)).summary) == expected, words


# Contracts: C131
def test_a_run_that_decodes_nothing_is_no_point() -> None:
    prompts = {**_summary("lru", 1.0), "decode_tokens_per_s": None}
    (point,) = join([prompts, _summary("lru", 3.0)], [])
    assert point.speed == 3.0


def test_what_knows_the_future_or_costs_nothing_is_set_apart_and_beats_nobody(
    tmp_path: Path, capsys: Any
) -> None:
    points = join(
        [
            _summary("lru", 3.0),
            _summary("slow", 2.0),
            _summary("oracle", 9.0, knows_future="knows the future (Belady)"),
            _summary("infinite_link", 99.0, reference="a reference: copies take no time"),
        ],
        [],
    )
    assert mark(points) == [True, False, False, False]
    console = Console(width=118, record=True, file=io.StringIO())
    print_points(points, "divergence", console)
    told = console.export_text()
    assert "On the front: lru, 0.25 resident." in told
    assert "oracle: knows the future (Belady)" in told
    above, below = told.split("bounds, no systems:")
    assert "lru" in above
    assert "oracle" not in above
    assert below.index("oracle") < below.index("On the front")
    assert below.index("infinite_link") < below.index("On the front")


def test_a_summary_or_a_quality_of_an_older_version_is_refused_with_the_way_out() -> None:
    old = _summary("lru", 3.0)
    del old["labels"]
    with pytest.raises(
        ValueError, match=r"summary of lru has no labels: an older version wrote it; run it again"
    ):
        join([old], [])
    quality = _quality("lru", 0.1)
    for name in ("work", "labels"):
        del quality[name]
        with pytest.raises(ValueError, match=rf"quality of lru has no {name}: .* measure it again"):
            join([], [quality])


# Contracts: C131
def test_every_row_of_the_table_shows_its_quality() -> None:
    points = join([_summary("x", 9.0, ("int4",)), _summary("lru", 3.0)], [_quality("hobbit", 0.01)])
    console = Console(width=118, record=True, file=io.StringIO())
    print_points(points, "divergence", console)
    lines = console.export_text().splitlines()
    for system, shown in (("x", UNMEASURED), ("lru", "lossless"), ("hobbit", "0.01")):
        assert any(f" {system} " in line and shown in line for line in lines)
    assert "On the front: lru, 0.25 resident; hobbit, 0.25 resident." in lines


def test_runs_studies_and_qualities_are_read_from_where_they_lie(
    tmp_path: Path, capsys: Any
) -> None:
    for name, content in (
        ("run/summary.json", _summary("lru", 3.0)),
        ("q/quality.json", {"rows": [_quality("f", 0.1)]}),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content))
    # Brackets in a name are no pattern.
    (tmp_path / "study [a]" / "cells").mkdir(parents=True)
    # The first was recorded before its policy was edited: of the same words the last one holds.
    run = json.dumps(_summary("hobbit", 6.0, ("fp16", "int4"), 0.2))
    before = json.dumps(_summary("hobbit", 7.0, ("fp16", "int4"), 0.2))
    cells = pl.DataFrame({"summary": [before, None, run], "overrides": ["a=1", "a=2", "a=1"]})
    cells = cells.with_columns(key=pl.lit("k"), status=pl.Series(["done", "refused", "done"]))
    cell = tmp_path / "study [a]" / "cells" / "part-000001.parquet"
    with cell.open("wb") as file:
        cells.write_parquet(file)
    assert read([cell]) == read([cell.parents[1]])
    assert read([cell])[0] == [json.loads(run)]
    words = [str(tmp_path / name) for name in ("run", "q", "study [a]")]
    assert main([*words, f"output_dir={tmp_path / 'out'}"]) == 0
    out = capsys.readouterr().out
    assert "On the front: lru, 0.25 resident; f, 0.25 resident." in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"pareto.png", "pareto.svg"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing PATH"),
        (["nowhere"], "has no quality.json"),
        (["nowhere.parquet"], "has no quality.json"),
        (["measure=taste", "RUN"], "measure=taste: taste is none of divergence"),
    ],
)
def test_wrong_input_is_one_message(
    words: list[str], told: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(_summary("lru", 3.0)))
    assert main([str(tmp_path) if word == "RUN" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_files_that_are_no_runs_are_one_message_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other, unfinished = (tmp_path / name for name in ("broken", "other", "unfinished"))
    for folder in (broken, other / "cells", unfinished / "cells"):
        folder.mkdir(parents=True)
    (broken / "summary.json").write_text("{")
    pl.DataFrame({"a": [1]}).write_parquet(other / "cells" / "part-000001.parquet")
    texts = {"summary": pl.String, "overrides": pl.String}
    none = pl.DataFrame({"summary": [None], "overrides": ["a=1"]}, schema=texts)
    none = none.with_columns(key=pl.lit("k"), status=pl.lit("failed"))
    none.write_parquet(unfinished / "cells" / "part-000001.parquet")
    for folder, told in (
        (broken, f"{broken}/summary.json cannot be read (Expecting property name"),
        (other, f"{other} has no columns summary and overrides: it is no study's"),
        (unfinished, "there is no finished run that decodes among these paths"),
    ):
        assert main([str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"pareto: {told}")
        assert error.count("\n") == 1


def test_a_run_that_is_named_twice_and_a_part_that_is_broken_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(_summary("lru", 3.0)))
    (tmp_path / "study" / "cells").mkdir(parents=True)
    (tmp_path / "study" / "cells" / "part-000001.parquet").write_bytes(b"PAR1 and no more")
    run, study = str(tmp_path / "run"), str(tmp_path / "study")
    for words, told in (
        ([run, f"{study}/../run"], f"pareto: {study}/../run is named twice; name it once"),
        ([study], f"pareto: {study}/cells/part-000001.parquet cannot be read ("),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith(told)
        assert error.count("\n") == 1


def test_a_figure_is_not_drawn_among_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(_summary("lru", 3.0)))
    assert main([str(tmp_path), f"output_dir={tmp_path}"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("pareto: ")
    assert f"{tmp_path} is not empty" in told.err
    assert "files: " not in told.out
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_an_unknown_measure_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^unknown measure=taste; known: divergence, increase$"):
        join([], [], "taste")


def points_by_hand() -> list[Point]:
    """Two fronts, a beaten point, a bound, one without a loss, and one without intervals."""

    def point(
        system: str,
        speed: float,
        loss: float | None,
        kind: str,
        trace: str = "t",
        share: float = 0.313,
        **labels: str,
    ) -> Point:
        ends = None if loss is None else (0.7 * loss, 1.9 * loss)
        has = system != "lru"
        return Point(
            (system, trace, "m", "h", share),
            speed,
            (0.86 * speed, 1.13 * speed) if has else None,
            loss,
            ends if has else None,
            kind,
            Labels(**labels),
            "closed" if kind == LOSSY else "",
        )

    return [
        point("x a=[b]", 9.04, None, UNMEASURED),
        point("beaten", 4.31, 0.0271, LOSSY),
        point("low", 7.62, 0.0118, LOSSY, share=0.25),
        point("slow", 2.05, 0.0, LOSSLESS),
        point("lru", 3.17, 0.0, LOSSLESS),
        point("seer", 11.4, 0.0, LOSSLESS, knows_future="knows the future (x)"),
        point("lfu", 2.88, 0.0, LOSSLESS, "u [c]", 0.5),
        point("u_low", 5.21, 0.0463, LOSSY, "u [c]", 0.5),
    ]


def test_every_cell_of_the_table_is_its_points_number() -> None:
    points = points_by_hand()
    heard = Heard()
    print_points(points, "increase", heard)
    (table,) = heard.tables
    by_name = {point.key[0]: point for point in points}
    rows = rows_of(table)
    names = [
        "lru",
        "slow",
        "low",
        "beaten",
        "x a=[b]",
        "lfu",
        "u_low",
        "bounds, no systems:",
        "seer",
    ]
    assert [row["system"] for row in rows] == names
    assert [row["front"] for row in rows] == ["*", "", "*", "", "", "*", "*", "", ""]
    assert [row.end_section for row in table.rows] == [at == 6 for at in range(9)]
    for row in rows[:7] + rows[8:]:
        point = by_name[row["system"]]
        shows(row["resident"], point.key[4])
        shows(row["decode tokens/s"], point.speed, *(point.speed_interval or ()))
        if point.loss is None:
            assert row["increase of perplexity"] == "?"
        else:
            shows(row["increase of perplexity"], point.loss, *(point.loss_interval or ()))
        loop = " (closed loop)" if point.loop else ""
        assert row["quality"] == f"{point.quality_class}{loop}"
    assert plain(table.title) == "Speed and quality; t, m, h; u [c], m, h"
    assert heard.lines == [
        "On the front: lru, 0.313 resident; low, 0.25 resident; lfu, 0.5 resident; u_low, 0.5"
        " resident.",
        "seer: knows the future (x)",
    ]


def test_a_quality_without_a_run_has_its_own_speed_loss_and_intervals() -> None:
    quality = _quality("f", 0.1, speed=7.0) | {
        "increase_low": 0.15,
        "increase_high": 0.3,
        "decode_tokens_per_s_low": 6.0,
        "decode_tokens_per_s_high": None,
    }
    (point,) = join([], [quality], "increase")
    assert (point.speed, point.speed_interval) == (7.0, None)
    assert (point.loss, point.loss_interval, point.loop) == (0.2, (0.15, 0.3), "closed")
    one = _summary("one sequence", 1.0) | {"ci95": {"decode_tokens_per_s": None}}
    kept, single = join([_summary("lru", 3.0), one], [])
    assert (kept.speed_interval, kept.loss_interval) == ((2.0, 4.0), (0.0, 0.0))
    assert single.speed_interval is None
    assert [p.quality_class for p in join([], [_quality("a", 0.0), _quality("b", 1.0)])] == [
        LOSSLESS,
        LOSSY,
    ]


def test_the_figure_has_every_point_whose_loss_is_known_and_a_line_through_each_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = drawn.kept(monkeypatch)
    points = points_by_hand()
    files = draw(points, "increase", Path("nowhere"))
    assert files == [Path("nowhere/pareto.png"), Path("nowhere/pareto.svg")]
    (axis,) = figures[0].axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
    marks = {
        (float(x[0]), float(y[0])): (line.get_marker(), line.get_color())
        for (x, y), line in zip(lines, axis.lines, strict=True)
        if line.get_linestyle() == "None"
    }
    on, beaten, bound = ("o", COLOURS[0]), ("x", COLOURS[1]), ("+", NEUTRAL)
    expected = {"beaten": beaten, "slow": beaten, "seer": bound}
    known = [point for point in points if point.loss is not None]
    assert marks == {(p.loss, p.speed): expected.get(p.key[0], on) for p in known}
    fronts = [
        (x, y, line.get_drawstyle())
        for (x, y), line in zip(lines, axis.lines, strict=True)
        if line.get_linestyle() == "-"
    ]
    assert fronts == [
        ([0.0, 0.0118], [3.17, 7.62], "steps-post"),
        ([0.0, 0.0463], [2.88, 5.21], "steps-post"),
    ]
    assert sorted(drawn.notes(axis)) == sorted((p.name, (p.loss, p.speed)) for p in known)
    assert axis.get_xlabel() == "increase of perplexity (0: lossless)"
    assert axis.get_ylabel() == "decode (tokens/s)"
    left = "; ".join(dict.fromkeys(point.name for point in points if point.loss is None))
    assert left
    assert axis.get_title().splitlines()[1] == f"not measured, so not here: {left}"
    assert {"0", "0.001", "0.01"} <= {
        axis.xaxis.get_major_formatter()(place) for place in axis.get_xticks()
    }
    assert axis.get_xscale() == "symlog"
    assert axis.get_xlim()[0] == -2e-5
    assert drawn.is_all_inside(axis)
    many = [replace(points[0], loss=None, own=f"machine {at}") for at in range(9)]
    draw([*points, *many], "increase", Path("nowhere"))
    title = figures[1].axes[0].get_title().splitlines()
    assert max(TextPath((0, 0), line, 7).get_extents().width for line in title) <= 7.5 * 72
    assert figures[0].get_suptitle().splitlines()[0] == "Speed and quality: t, m, h; u [c], m, h"
