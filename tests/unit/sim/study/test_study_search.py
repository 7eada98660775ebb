"""Searches: trials see fit sequences only, never run twice, and are judged on eval, paired."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from sqlite3 import dbapi2
from typing import Any, Self

import numpy as np
import polars as pl
import pytest

from sim.results.paired import paired
from sim.study.cells import Cell
from sim.study.dataset import read_cells
from sim.study.plan import Plan, make_plan
from sim.study.rows import REFUSED, Row
from sim.study.search import _compare, make_search, run_search, told
from sim.study.worker import run_cell
from sim.values.code import project_digest

BASE = ["system=lru", "model=tiny_mixtral", "trace.max_sequences=2"]
PARAMETERS: dict[str, Any] = {
    "budget.resident_share": {"low": 0.1, "high": 0.9},
    "cache": ["lru", "fifo"],
}


def plan(**search: Any) -> Plan:
    return make_plan("x", {"base": BASE, "search": {"parameters": PARAMETERS, **search}}, "x.yaml")


class Here:
    """A launcher that runs cells in this process and counts them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to stop: no process was started."""

    def run(self, study: str, cells: Sequence[Cell], output_dir: Path) -> list[Row]:
        self.ran += [cell.key for cell in cells]
        return [run_cell(study, cell, str(output_dir)) for cell in cells]


def quiet(text: str) -> None:
    """Ignore what a search tells."""


@pytest.fixture(autouse=True)
def _optuna_warns_of_itself() -> Any:
    pytest.importorskip("optuna")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_best_on_fit_is_judged_on_eval_against_the_system_as_it_stands(tmp_path: Path) -> None:
    first, second = Here(), Here()
    run_search(plan(trials=3, sampler="random"), first, tmp_path, quiet)
    result = run_search(plan(trials=6, sampler="random"), second, tmp_path, quiet)
    assert not set(first.ran) & set(second.ran), "what is recorded never runs again"
    assert result.trials == 6
    cells = read_cells(tmp_path)
    trials = cells.filter((pl.col("trace.split") == "fit") & pl.col("axis.cache").is_not_null())
    assert len(trials) == 6
    (found,) = result.found
    assert found.fit == (trials["decode_tokens_per_s"].max(),), (
        "the best is the best of the trials on fit"
    )
    judged = cells.filter(pl.col("trace.split") == "eval")
    at = pl.col("axis.budget.resident_share")
    ours = judged.filter(at == found.values["budget.resident_share"]).to_dicts()[0]
    theirs = judged.filter(at.is_null()).to_dicts()[0]
    assert found.eval == (ours["decode_tokens_per_s"],)
    assert found.speedup == paired(np.array(ours["decode_ns"]), np.array(theirs["decode_ns"]))
    assert result.baseline[1] == (theirs["decode_tokens_per_s"],)
    assert f"on eval it decodes {found.speedup} as fast" in told("x", result)


@pytest.mark.thorough
def test_of_two_objectives_the_front_comes_back(tmp_path: Path) -> None:
    objectives = {"decode_tokens_per_s": "maximize", "budget.device_bytes": "minimize"}
    result = run_search(
        plan(trials=8, objectives=objectives, sampler="nsga2"), Here(), tmp_path, quiet
    )
    cells = read_cells(tmp_path)
    trials = cells.filter((pl.col("trace.split") == "fit") & pl.col("axis.cache").is_not_null())
    points = list(zip(trials["decode_tokens_per_s"], trials["budget.device_bytes"], strict=True))
    best = {p for p in points if not any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in points)}
    assert {found.fit for found in result.found} == best
    assert len(best) > 1


def test_a_refused_trial_is_a_failed_one_and_the_search_goes_on(tmp_path: Path) -> None:
    parameters = {"budget.resident_share": [0.001, 0.5]}
    asked = make_plan(
        "x",
        {"base": BASE, "search": {"parameters": parameters, "trials": 4, "sampler": "random"}},
        "x",
    )
    result = run_search(asked, Here(), tmp_path, quiet)
    assert 0 < result.failed < 4
    assert result.found[0].values == {"budget.resident_share": 0.5}


def test_a_best_trial_that_is_refused_on_eval_is_told_with_the_reason(tmp_path: Path) -> None:
    class RefusedOnEval(Here):
        def run(self, study: str, cells: Sequence[Cell], output_dir: Path) -> list[Row]:
            rows = super().run(study, cells, output_dir)
            for row in rows:
                if row.get("axis.cache") is not None and row["trace.split"] == "eval":
                    row |= {"status": REFUSED, "error": "no room"}
            return rows

    result = run_search(plan(trials=2, sampler="random"), RefusedOnEval(), tmp_path, quiet)
    assert not result.found
    ((values, why),) = result.refused
    assert why == "no room"
    assert (
        f"cache={values['cache']}\n  is among the best on fit, and is refused on eval: no room"
        in (told("x", result))
    )


@pytest.mark.parametrize("launcher", [Here, lambda: Stopped(0)])
def test_a_search_leaves_no_connection_to_its_file_open(
    launcher: Callable[[], Here], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[sqlite3.Connection] = []
    connect = dbapi2.connect

    def noted(*given: Any, **named: Any) -> sqlite3.Connection:
        connections.append(connect(*given, **named))
        return connections[-1]

    monkeypatch.setattr(dbapi2, "connect", noted)
    with suppress(KeyboardInterrupt):
        run_search(plan(trials=1, sampler="random"), launcher(), tmp_path, quiet)
    assert connections
    for one in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            one.execute("select 1")


class Stopped(Here):
    """Runs ``cells`` cells and is then killed while others run."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.left = cells

    def run(self, study: str, cells: Sequence[Cell], output_dir: Path) -> list[Row]:
        if self.left < len(cells):
            raise KeyboardInterrupt
        self.left -= len(cells)
        return super().run(study, cells, output_dir)


def test_a_search_that_was_stopped_twice_has_its_trials_all_and_none_was_refused(
    tmp_path: Path,
) -> None:
    asked = plan(trials=6, together=2, sampler="random")
    for cells in (4, 2):  # as it stands on both splits, and two trials; two more
        with pytest.raises(KeyboardInterrupt):
            run_search(asked, Stopped(cells), tmp_path, quiet)
    told: list[str] = []
    result = run_search(asked, Here(), tmp_path, told.append)
    assert told == ["4 of 6 trials are through already"]
    assert (result.trials, result.failed) == (6, 0)
    trials = read_cells(tmp_path).filter(
        (pl.col("trace.split") == "fit") & pl.col("axis.cache").is_not_null()
    )
    assert len(trials) == 6


def test_another_search_in_the_same_place_is_refused(tmp_path: Path) -> None:
    run_search(plan(trials=1), Here(), tmp_path, quiet)
    with pytest.raises(ValueError, match=r"holds a search of .*choose another output_dir"):
        run_search(plan(trials=1, objectives={"hit_ratio": "maximize"}), Here(), tmp_path, quiet)


def test_a_search_of_other_work_in_the_same_place_is_refused_with_both(tmp_path: Path) -> None:
    """Its trials' objectives are of that work: the best of them is not the best of this."""
    run_search(plan(trials=1), Here(), tmp_path, quiet)
    here = Here()
    with pytest.raises(
        ValueError, match=r"\(.*max_sequences=2 .*\), this one is of .*=1 .*; choose another output"
    ):
        run_search(plan(trials=2).with_last(["trace.max_sequences=1"]), here, tmp_path, quiet)
    assert here.ran == []


def test_a_search_without_trials_goes_on_with_other_words(tmp_path: Path) -> None:
    cannot = plan(trials=1).with_last(["budget.slots_gib=0.0000001"])
    with pytest.raises(ValueError, match=r"^the study without its parameters cannot run"):
        run_search(cannot, Here(), tmp_path, quiet)
    assert run_search(plan(trials=1), Here(), tmp_path, quiet).trials == 1


def test_a_search_that_goes_on_tells_which_rows_are_of_other_code(tmp_path: Path) -> None:
    """They stay: its proposals follow from the trials that were (contract C134)."""
    lines: list[str] = []
    run_search(plan(trials=1), Here(), tmp_path, lines.append, project_digest())
    run_search(plan(trials=2), Here(), tmp_path, lines.append, project_digest())
    assert lines == ["1 of 2 trials are through already"]
    rows = len(read_cells(tmp_path))
    run_search(plan(trials=2), Here(), tmp_path, lines.append, "new")
    assert (
        lines[1] == f"{rows} cells are of other code (column code); another output_dir starts anew"
    )


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"parameters": {}}, r"search\.parameters must hold values or a range"),
        ({"parameters": {"seed": [1]}}, r"must be at least two values"),
        ({"parameters": {"seed": {"low": 2, "high": 1}}}, r"low=2 must be below high=1"),
        (
            {"parameters": {"seed": {"low": 2, "hihg": 1}}},
            r"knows no key hihg \(did you mean high\?\)",
        ),
        (
            {"objectives": {"speed": "maximize"}},
            r"objectives\.speed=maximize: choose maximize or minimize of decode_",
        ),
        ({"objectives": {"hit_ratio": "more"}}, r"objectives\.hit_ratio=more"),
        ({"objectives": {"gap": "minimize"}}, r"objectives\.gap: bounds=none .* add bounds=max"),
        ({"sampler": "best"}, r"sampler=best is unknown; choose tpe, random, nsga2"),
        ({"trials": 0}, r"trials=0 must be a whole number >= 1"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_its_key(
    search: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_search(plan(**search))


def test_a_split_and_a_misspelt_parameter_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"trace\.split=all: a search runs on trace\.split=fit and is judged on eval",
    ):
        make_search(plan().with_last(["trace.split=all"]))
    here = Here()
    with pytest.raises(ValueError, match="did you mean resident_share"):
        run_search(plan(parameters={"budget.residentshare": [0.1, 0.2]}), here, tmp_path, quiet)
    assert here.ran == []


@pytest.mark.thorough
def test_lists_are_searched_without_a_warning_and_come_back_as_they_went(tmp_path: Path) -> None:
    parameters = {
        "cache.weights": [{"lru": 1.0}, {"lru": 0.5, "lfu": 0.5}],
        "cache.shares": [[0.9, 0.1], [0.8, 0.2]],
    }
    base = ["system=hobbit", "model=tiny_mixtral", "trace.max_sequences=2"]
    asked = make_plan(
        "x", {"base": base, "search": {"parameters": parameters, "trials": 2}}, "x.yaml"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Choices for a categorical distribution")
        run_search(asked, Here(), tmp_path, quiet)
        again = make_plan(
            "x", {"base": base, "search": {"parameters": parameters, "trials": 3}}, "x.yaml"
        )
        result = run_search(again, Here(), tmp_path, quiet)
    (found,) = result.found
    assert found.values["cache.shares"] in parameters["cache.shares"]


def test_runs_of_other_sequences_are_not_paired() -> None:
    ours = {"sequence": [0, 1], "decode_ns": [1.0, 2.0]}
    with pytest.raises(
        ValueError, match=r"^the two runs decoded different sequences, which cannot be paired$"
    ):
        _compare(ours, ours | {"sequence": [0, 2]})


@pytest.mark.parametrize("objectives", [{}, ["decode_tokens_per_s"]])
def test_a_search_has_directions_by_column(objectives: Any) -> None:
    asked = {"parameters": {"cache": ["lru", "lfu"]}, "objectives": objectives}
    with pytest.raises(
        ValueError, match=r"^study s: search\.objectives must hold a direction by"
    ) as no:
        make_search(Plan("s", search=asked))
    assert str(no.value).endswith(f" column, got {objectives!r}")
