"""Rows of a study are whole, or are refused with the cell, before anything is computed of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sim import pareto, versus
from sim.reporting.runs import read_runs
from sim.study.cells import plan_cells
from sim.study.dataset import CELLS, Dataset
from sim.study.kept_rows import last_cells, whole_rows
from sim.study.plan import make_plan
from sim.study.rows import Row, to_frame
from sim.study.worker import run_cell

READERS: dict[str, Callable[[Path], Any]] = {
    "versus": lambda place: versus.read_rows(place),
    "report": lambda place: read_runs([place]),
    "pareto": lambda place: pareto.read([place]),
}
COMPARED = ("versus",)
AGAIN = "move its part of cells/ away, and the study's words run its cells again"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """The row of a cell that is done."""
    place = tmp_path_factory.mktemp("study")
    words = {"base": ["model=tiny_mixtral", "trace.max_sequences=2"], "list": [["system=lru"]]}
    (cell,) = plan_cells(make_plan("x", words, "x.yaml"))
    return run_cell("x", cell, str(place))


def written(folder: Path, row: Row, *absent: str) -> Path:
    (folder / CELLS).mkdir(parents=True)
    to_frame([row], {}).drop(absent).write_parquet(folder / CELLS / "part-000001.parquet")
    return folder


@pytest.mark.parametrize("name", READERS)
def test_a_whole_row_is_read(name: str, recorded: Row, tmp_path: Path) -> None:
    assert READERS[name](written(tmp_path, recorded))


@pytest.mark.parametrize(
    ("change", "told", "names"),
    [
        ({"summary": None}, "summary is None, must be text", tuple(READERS)),
        ({"summary": "{"}, "Expecting property name", tuple(READERS)),
        ({"summary": "{}"}, "its summary has schema=null, and this", tuple(READERS)),
        ({"decode_ns": [1.0, float("nan")]}, "decode_ns has other values than", tuple(READERS)),
        ({"decode_ns": [1.0, None]}, "decode_ns has other values than numbers", tuple(READERS)),
        ({"decode_ns": [1.0]}, "its lists by sequence have different lengths", COMPARED),
        ({"sequence": None}, "its lists by sequence have different lengths", COMPARED),
        ({"decode_tokens_per_s": None}, "decode_tokens_per_s is None, must be", COMPARED),
        ({"config": None}, "config is None, must be text", COMPARED),
        ({"config": "[1]"}, "its configuration lacks model, hardware, trace", COMPARED),
        ({"config": "{"}, "Expecting property name", COMPARED),
        ({"system": " "}, "system is ' ', must be text", COMPARED),
    ],
)
def test_a_row_that_was_changed_is_refused_with_its_cell_and_the_way_out(
    change: dict[str, Any], told: str, names: tuple[str, ...], recorded: Row, tmp_path: Path
) -> None:
    place = written(tmp_path, recorded | change)
    whole = f"{place}: the row of outputs=summary model=tiny_mixtral"
    for name in names:
        with pytest.raises(ValueError, match=f"^{re.escape(whole)}.*{re.escape(told)}") as refused:
            READERS[name](place)
        assert str(refused.value).endswith(AGAIN)


@pytest.mark.parametrize("column", ["summary", "overrides", "config", "system", "decode_ns"])
def test_a_column_that_is_not_there_is_as_one_of_nulls(
    column: str, recorded: Row, tmp_path: Path
) -> None:
    place = written(tmp_path, recorded, column)
    if column == "decode_ns":
        assert last_cells(pl.read_parquet(place / CELLS / "*.parquet"))[0]["decode_ns"] is None
        return
    with pytest.raises(ValueError, match=f"{column} is None, must be text|no columns summary and"):
        READERS["versus"](place)


def test_a_configuration_whose_budget_is_none_is_refused(recorded: Row, tmp_path: Path) -> None:
    config = json.loads(recorded["config"]) | {"budget": {"resident_share": "x"}}
    place = written(tmp_path, recorded | {"config": json.dumps(config)})
    with pytest.raises(ValueError, match=r"budget\.resident_share='x' must be a number"):
        READERS["versus"](place)


def test_rows_that_are_not_done_need_no_summary(recorded: Row, tmp_path: Path) -> None:
    row = recorded | {"status": "refused", "summary": None, "config": None, "decode_ns": None}
    assert [*whole_rows([row], tmp_path, compared=True)] == [row]


def test_a_study_whose_row_was_changed_ends_in_one_line_and_keeps_its_cells(
    recorded: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, recorded | {"summary": None})
    with Dataset(tmp_path, {}, lambda _: None) as kept:
        assert kept.statuses == {recorded["key"]: "done"}
    from sim.study.__main__ import main

    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "base: [model=tiny_mixtral, trace.max_sequences=2]\nlist: [[system=lru]]\n",
        encoding="utf-8",
    )
    assert main([f"name={plan}", f"output_dir={tmp_path}"]) == 2
    assert "summary is None, must be text" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["versus", "report"])
def test_a_folder_that_is_not_there_is_told_from_one_without_cells(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"nowhere is not there; name"):
        READERS[name](tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no recorded cells; name|holds no run: no summary"):
        READERS[name](tmp_path)
