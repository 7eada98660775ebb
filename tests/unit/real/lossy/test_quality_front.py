"""A study's front with measured quality: how its cells are measured, compared and ordered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from real.closed_loop import draw as draw_shifts
from real.closed_loop import print_shifts
from real.lossy.assess import sequence_frame
from real.lossy.loops import Shift
from real.lossy.loss import Estimate, TokenLoss, divergence_difference, quality_of
from real.quality import main as quality_main
from real.quality import print_quality
from real.quality_front import (
    cells_of,
    draw,
    main,
    points_of,
    print_points,
    rank_correlation,
    sentences,
    surroundings,
    told,
)
from real.validation.closed import as_lines
from sim.pareto import read
from sim.results.labels import Labels
from sim.results.paired import paired
from sim.study.cells import plan_cells
from sim.study.conduct import axes_of
from sim.study.dataset import Dataset
from sim.study.plan import make_plan
from sim.study.worker import run_cell

BASE = ["system=hobbit", "model=tiny_mixtral", "trace.max_sequences=1"]
MADE_UP = "SYNTHETIC gates: a_trace"
POINTS = [
    ["precision.low_above=0.05", "precision.skip_above=0.1"],
    ["precision.low_above=1", "precision.skip_above=1"],
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three cells on eval sequences.

    They are hobbit as it stands, a point that skips most second experts, and one that serves all at
    high precision.
    """
    place = tmp_path_factory.mktemp("study")
    listed = [[*words, "trace.split=eval"] for words in [*POINTS, []]]
    refused = ["precision.low_above=1", "precision.skip_above=0.5", "trace.split=eval"]
    cells = plan_cells(
        make_plan("x", {"base": BASE, "list": [*listed, refused, ["trace.split=fit"]]}, "x.yaml")
    )
    with Dataset(place, axes_of(cells), lambda _: None) as kept:
        for cell in cells:
            kept.add(run_cell("x", cell, str(place)))
    return place


def losses_of(rng: np.random.Generator, scale: float) -> tuple[TokenLoss, ...]:
    full = [rng.uniform(1, 5, rows) for rows in (7, 5, 9)]
    return tuple(
        TokenLoss(
            nats,
            nats + scale,
            np.full(len(nats), scale) * rng.uniform(0.5, 1, len(nats)),
            np.ones(len(nats), np.bool_),
        )
        for nats in full
    )


def loop_of(
    rng: np.random.Generator, tokens_per_s: float, scale: float, proxy: tuple[float, float]
) -> Any:
    """Stands in for a measured loop, with made-up losses."""
    decoded = losses_of(rng, scale)
    decode = quality_of(decoded)
    steps = rng.integers(1, 1000, 6)
    ends = np.cumsum(steps)
    tokens = pl.DataFrame(
        {
            "step": range(6),
            "sequence": [0, 0, 1, 1, 2, 2],
            "phase": ["decode"] * 6,
            "start_ns": ends - steps,
            "end_ns": ends,
        }
    )
    frames = SimpleNamespace(tokens=tokens, sequences=pl.DataFrame({"sequence": [0, 1, 2]}))
    summary = {
        "system": "any",
        "labels": {"synthetic": MADE_UP},
        "overrides": ["trace.split=fit"],
        "seed": 0,
        "decode_tokens_per_s": tokens_per_s,
        "hardware": "a_machine",
        "trace": {"name": "a_trace"},
        "quality_proxy": dict(zip(("low_mass", "skip_mass"), proxy, strict=True)),
        "budget": {"resident_share": 0.5},
    }
    return SimpleNamespace(
        replayed=SimpleNamespace(result=SimpleNamespace(summary=summary, frames=frames)),
        decode=decode,
        decoded=decoded,
        name="closed",
    )


def made(count: int) -> tuple[list[dict[str, Any]], list[Any]]:
    rng = np.random.default_rng(count)
    loops = [
        loop_of(rng, rng.uniform(1, 9), rng.uniform(0.001, 1), tuple(rng.uniform(0, 0.5, 2)))
        for _ in range(count)
    ]
    return [{} if not i else {"precision.low_above": 0.1234567 * i} for i in range(count)], loops


def test_a_point_is_on_the_front_unless_another_is_as_fast_and_loses_less() -> None:
    varied, loops = made(12)
    points = points_of(varied, loops)
    for one in points:
        beaten = any(other.speed > one.speed and other.loss < one.loss for other in points)
        assert one.on_front is not beaten
    assert 1 < sum(point.on_front for point in points) < 12
    assert [point.loss for point in points] == sorted(point.loss for point in points)
    assert [point.number for point in points] == list(range(1, 13))


def test_points_are_compared_with_the_system_as_it_stands_pair_by_pair() -> None:
    varied, loops = made(4)
    points = {str(point.varied): point for point in points_of(varied, loops)}
    assert points["{}"].faster is None
    assert points["{}"].worse is None
    base = times_of(loops[0])
    for values, loop in zip(varied[1:], loops[1:], strict=True):
        point = points[str(values)]
        assert point.faster == paired(times_of(loop), base)
        assert point.worse == divergence_difference(loop.decoded, loops[0].decoded)
        assert point.worse.value == pytest.approx(point.loss - points["{}"].loss)
    assert all(point.faster is None for point in points_of([{"x": 1}] * 4, loops)), (
        "nothing stands as it is"
    )


def times_of(loop: Any) -> Any:
    """Nanoseconds of each sequence's tokens after its first."""
    tokens = loop.replayed.result.frames.tokens
    spent = (tokens["end_ns"] - tokens["start_ns"]).to_numpy()
    return np.array(
        [spent[tokens["sequence"].to_numpy() == number][1:].sum() for number in range(3)],
        np.float64,
    )


@pytest.mark.parametrize(
    "values", [[3, 1, 2, 2, 5, 5, 5, 0], [0.1, 0.1, 0.2, 0.3, 0.3, 0.4, 0.9, 0.8]]
)
def test_the_correlation_is_that_of_ranks_with_ties_at_their_mean(values: Sequence[float]) -> None:
    other = [4, 4, 1, 9, 7, 7, 2, 8]
    ranks = [
        [np.mean([place for place, w in enumerate(sorted(x)) if w == v]) for v in x]
        for x in (values, other)
    ]
    assert rank_correlation(values, other) == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert np.isnan(rank_correlation([1] * 8, other))


def test_the_table_and_the_figure_name_each_point_and_what_the_proxies_are_worth(
    tmp_path: Path,
) -> None:
    points = points_of(*made(7))
    console = Console(width=170, record=True, file=StringIO())
    print_points(points, console)
    text = console.export_text()
    on = [str(point.number) for point in points if point.on_front]
    lines = {line.partition(":")[0]: line for line in text.splitlines()}
    for point in points:
        is_told = point.on_front or not point.varied
        assert (str(point.number) in lines) is is_told, "the front and the system as it stands"
        if is_told:
            above = point.varied.get("precision.low_above")
            assert ("as it stands" if above is None else f"low_above={above:.3g}") in lines[
                str(point.number)
            ]
    assert (
        f"{len(on)} of 7 points are on the front of speed and measured KL: {', '.join(on)}." in text
    )
    assert "Rank correlation" in sentences(points)[-1]
    assert "Rank correlation" not in " ".join(sentences(points[:2])), "two are always in an order"
    assert MADE_UP in text
    files = draw(points, tmp_path)
    assert all(place.stat().st_size > 1000 for place in files)
    assert MADE_UP in next(place for place in files if place.suffix == ".svg").read_text(
        encoding="utf-8"
    )


def test_another_machine_or_budget_has_a_front_of_its_own_and_no_title_of_one_of_them(
    tmp_path: Path,
) -> None:
    """All were on one front, headed by the machine and the budget of the point that lost least."""
    rng = np.random.default_rng(2)
    made_up = ((9.0, 0.001), (8.0, 0.2), (7.0, 0.2), (2.0, 0.3), (1.0, 0.2))
    loops = [loop_of(rng, speed, 2 * loss, (0.1, 0.0)) for speed, loss in made_up]
    summaries = [loop.replayed.result.summary for loop in loops]
    summaries[3] |= {"hardware": "other"}
    summaries[4] |= {"budget": {"resident_share": 0.25}}
    varied = [{"hardware": "other"}, {"budget.resident_share": 0.25}]
    points = points_of([*({"cache": name} for name in "abc"), *varied], loops)
    on = {told(point.varied) for point in points if point.on_front}
    assert on == {"cache=a", "hardware=other", "budget.resident_share=0.25"}
    assert surroundings(points) == "a_trace"
    assert surroundings(points_of([{}], loops[:1])) == "a_trace, a_machine, 50% resident"
    assert any("3 of 5 points are on their own front of" in line for line in sentences(points))
    assert all(place.stat().st_size > 1000 for place in draw(points, tmp_path))


def test_a_proxy_that_is_the_same_everywhere_orders_nothing() -> None:
    """Nothing is skipped: its correlation was printed as nan."""
    rng = np.random.default_rng(3)
    loops = [loop_of(rng, 1.0 + i, 0.1 * (1 + i), (0.1 * i, 0.0)) for i in range(3)]
    *_, last = sentences(points_of([{}, {"x": 1}, {"x": 2}], loops))
    assert last.endswith("of what is low or skipped: 1.00, what is low: 1.00.")


def test_what_knows_the_future_is_on_no_front_and_beats_nobody() -> None:
    rng = np.random.default_rng(0)
    slow, fast = loop_of(rng, 1.0, 0.1, (0.1, 0.0)), loop_of(rng, 9.0, 0.01, (0.1, 0.0))
    assert [point.on_front for point in points_of([{}, {"x": 1}], [slow, fast])] == [True, False], (
        "least lost first"
    )
    fast.replayed.result.summary["labels"]["knows_future"] = "knows the future (Belady)"
    assert [point.on_front for point in points_of([{}, {"x": 1}], [slow, fast])] == [False, True]


def test_the_rows_of_sequences_add_up_to_the_decoded_quality_that_is_told() -> None:
    """They had the prompts' rows, too."""
    loop = loop_of(np.random.default_rng(0), 1.0, 0.1, (0.1, 0.0))
    prompts = losses_of(np.random.default_rng(1), 5.0)
    loop.replayed.losses = [*prompts]
    found = sequence_frame([loop], [4, 5, 6]).sum().row(0, named=True)
    assert found["tokens"] == loop.decode.tokens == 21
    assert found["divergence_nats"] / found["rows"] == pytest.approx(loop.decode.divergence.value)
    lost = (found["lossy_nats"] - found["full_nats"]) / found["tokens"]
    assert np.expm1(lost) == pytest.approx(loop.decode.increase.value)
    assert found["same_top_token"] / found["rows"] == loop.decode.agreement.value


def test_one_systems_quality_and_the_shifts_between_loops_say_whose_gates_they_are(
    tmp_path: Path,
) -> None:
    loop = loop_of(np.random.default_rng(0), 1.0, 0.1, (0.1, 0.0))
    loop.prefill = None
    loop.replayed.result.summary |= {"hit_ratio": 0.5, "ci95": {}}
    loop.replayed.result.summary["quality_proxy"] |= {"low_share": 0.1, "skip_share": 0.0}
    console = Console(width=170, record=True, file=StringIO())
    print_quality([loop], console)
    one = Estimate(0.5, 0.4, 0.6)
    labels = Labels(
        transplanted="TRANSPLANTED: gates of a, sizes of b, 1 of its 2 layers", synthetic=MADE_UP
    )
    shift = Shift(
        "hobbit",
        "teacher-forced",
        False,
        one,
        (0.5,),
        (("0", one),),
        (0.1, 0.2, one),
        (1, 2, one),
        (1, 2, one),
        one,
        one,
        labels,
    )
    print_shifts([shift], console)
    lines = console.export_text().splitlines()
    assert lines.count(MADE_UP) == 2
    assert "with trace.split=fit" in lines
    assert labels.transplanted in lines
    svg = next(
        place for place in draw_shifts([shift], tmp_path) if place.suffix == ".svg"
    ).read_text(encoding="utf-8")
    assert MADE_UP in svg
    assert "TRANSPLANTED" in svg
    assert "TRANSPLANTED" in shift.row()["labels"]
    assert f"- {MADE_UP}" in as_lines([shift], 0.5)


def test_the_cells_that_were_done_on_eval_are_measured_as_it_stands_first(study: Path) -> None:
    found = cells_of(study, ["budget.resident_share=0.4"])
    assert len(found) == 3, "neither those on fit sequences nor those that were refused"
    assert found[0][0] == {}
    assert sorted(str(varied) for varied, _ in found[1:]) == [
        "{'precision.low_above': 0.05, 'precision.skip_above': 0.1}",
        "{'precision.low_above': 1.0, 'precision.skip_above': 1.0}",
    ]
    assert found[0][1] == (*BASE, "trace.split=eval", "budget.resident_share=0.4")


def test_what_cannot_be_measured_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    for words in ([], [str(tmp_path)], [str(study), "loop=both"]):
        assert main([*words, f"output_dir={place}"]) == 2
        assert not place.exists()
    none, empty, both = capsys.readouterr().err.splitlines()
    assert "missing STUDY" in none
    assert "no finished cell on eval sequences" in empty
    assert "one loop, open or closed" in both


@pytest.mark.thorough
def test_each_point_has_the_quality_that_the_command_for_one_system_measures(
    study: Path, tmp_path: Path
) -> None:
    assert main([str(study), "threads=1", f"output_dir={tmp_path}/front"]) == 0
    summaries, rows = read([tmp_path / "front"])
    assert (summaries, len(rows)) == ([], 3), "what sim.pareto reads"
    for index, words in enumerate([[], *POINTS]):
        place = tmp_path / f"alone_{index}"
        assert quality_main([*BASE, *words, "loop=closed", "threads=1", f"output_dir={place}"]) == 0
        (alone,) = json.loads((place / "quality.json").read_text(encoding="utf-8"))["rows"]
        assert any(row.items() >= alone.items() for row in rows), (
            "the same numbers, and more beside them"
        )
    lossless = [row for row in rows if row["divergence"] == 0]
    assert [row["low_mass"] + row["skip_mass"] for row in lossless] == [0]
