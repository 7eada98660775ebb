"""Fronts of speed and quality, against brute force; nothing is ranked without its quality."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sim.pareto import (
    LOSSLESS,
    LOSSY,
    UNMEASURED,
    draw,
    join,
    main,
    mark,
    print_points,
    quality_class,
)
from sim.results.fronts import front
from sim.study.trials import trial

COARSE = st.integers(0, 4).map(float)


def _summary(
    system: str, speed: float, slots: tuple[str, ...] = ("fp16",), low: float = 0.0, **labels: str
) -> dict[str, Any]:
    lossy = "lossy (somehow)" if low or slots[0] != "fp16" else None
    return {
        "system": system,
        "trace": {"name": "t"},
        "labels": {"lossy": lossy, **labels},
        "overrides": [],
        "model": "m",
        "hardware": "h",
        "budget": {"resident_share": 0.25, "slots": dict.fromkeys(slots, 1)},
        "decode_tokens_per_s": speed,
        "ci95": {"decode_tokens_per_s": [speed - 1, speed + 1]},
        "quality_proxy": {"low_share": low, "skip_share": 0.0},
    }


def _quality(system: str, loss: float, loop: str = "closed", speed: float = 5.0) -> dict[str, Any]:
    row: dict[str, Any] = {
        "system": system,
        "trace": "t",
        "model": "m",
        "hardware": "h",
        "resident_share": 0.25,
        "loop": loop,
        "labels": {"synthetic": "SYNTHETIC gates: t"},
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
    assert (points["x"].loss, points["x"].quality_class) == (None, UNMEASURED)
    assert (points["fate"].speed, points["fate"].quality_class) == (7.0, LOSSY)
    assert {name for name, on in zip(points, mark(list(points.values())), strict=True) if on} == {
        "lru",
        "hobbit",
        "fate",
    }
    assert join(summaries, qualities, "increase")[1].loss == 0.02


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
    del quality["labels"]
    with pytest.raises(ValueError, match=r"quality of lru has no labels: .* measure it again"):
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
    (tmp_path / "study" / "cells").mkdir(parents=True)
    cells = pl.DataFrame(
        {"summary": [json.dumps(_summary("hobbit", 6.0, ("fp16", "int4"), 0.2)), None]}
    )
    cells.write_parquet(tmp_path / "study" / "cells" / "part-000001.parquet")
    words = [str(tmp_path / name) for name in ("run", "q", "study")]
    assert main([*words, f"output_dir={tmp_path / 'out'}"]) == 0
    out = capsys.readouterr().out
    assert "On the front: lru, 0.25 resident; f, 0.25 resident." in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"pareto.png", "pareto.svg"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing PATH"),
        (["nowhere"], "has no quality.json"),
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


def test_a_figure_is_drawn_of_points_without_a_known_loss_too(tmp_path: Path) -> None:
    points = join([_summary("x", 9.0, ("int4",)), _summary("lru", 3.0)], [])
    assert all(file.stat().st_size > 1000 for file in draw(points, "divergence", tmp_path))
