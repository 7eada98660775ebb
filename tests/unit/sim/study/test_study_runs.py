"""Studies when they run: stopped and resumed, with refused cells and dying processes.

All launchers are tested.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Self

import polars as pl
import pytest

from sim.study import launchers
from sim.study.cells import Cell, plan_cells
from sim.study.conduct import answer, conduct
from sim.study.dataset import read_cells
from sim.study.launchers import Launcher, Pool, make_launcher
from sim.study.plan import make_plan, read_plan
from sim.study.rows import Row, make_row
from sim.study.worker import run_cell

GRID = {"system": ["lru", "load_on_demand"], "budget.resident_share": [0.01, 0.25, 0.375, 0.5]}
BASE = ["model=tiny_mixtral", "trace.max_sequences=1"]


def cells_of(grid: dict[str, list[object]] | None = None) -> list[Cell]:
    return plan_cells(make_plan("x", {"base": BASE, "grid": grid or GRID}, "x.yaml"))


class Here:
    """A launcher that runs cells in this process and counts them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to stop: no process was started."""

    def run(self, study: str, cells: Sequence[Cell], output_dir: Path) -> list[Row]:
        for cell in cells:
            self.ran.append(cell.key)
            yield run_cell(study, cell, str(output_dir))


def comparable(place: Path) -> pl.DataFrame:
    """The dataset without what depends on time."""
    summary = pl.col("summary").str.replace(r'"wall_s": [0-9.e-]+', "")
    return read_cells(place).sort("key").drop("wall_s").with_columns(summary)


def quiet(text: str) -> None:
    """Ignore what a study tells."""


# Contracts: C134
def test_a_refused_cell_is_recorded_with_its_reason_and_the_others_run(tmp_path: Path) -> None:
    counts = conduct("x", cells_of(), Here(), tmp_path, tell=quiet).counts
    assert counts == {"done": 6, "refused": 2}
    refused, other = (
        read_cells(tmp_path).filter(pl.col("status") == "refused").sort("system").to_dicts()[::-1]
    )
    assert (refused["axis.system"], other["axis.system"]) == ("lru", "load_on_demand")
    assert refused["axis.budget.resident_share"] == other["axis.budget.resident_share"] == 0.01
    assert "the smallest budget.resident_share that works is" in refused["error"]
    assert refused["makespan_s"] is None


def test_what_is_recorded_never_runs_twice_but_for_a_retry_of_what_went_wrong(
    tmp_path: Path,
) -> None:
    first, second, third = Here(), Here(), Here()
    conduct("x", cells_of({**GRID, "system": ["lru"]}), first, tmp_path, tell=quiet)
    conduct("x", cells_of(), second, tmp_path, tell=quiet)
    assert len(first.ran) == len(second.ran) == 4
    assert not set(first.ran) & set(second.ran)
    before = comparable(tmp_path)
    again = conduct("x", cells_of(), third, tmp_path, retry=True, tell=quiet)
    assert len(third.ran) == again.ran == 2
    assert "8 cells, 6 done (2 refused: column error says why); 2 ran now, 6 were" in answer(
        "x", again, tmp_path
    )
    assert comparable(tmp_path).equals(before)


def run_study(study: Path, place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sim.study", f"name={study}", f"output_dir={place}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_study(folder: Path, cells: int) -> Path:
    shares = [round(0.2 + 0.5 * i / cells, 4) for i in range(cells)]
    study = folder / "study.yaml"
    study.write_text(
        f"base: {BASE}\ngrid:\n  budget.resident_share: {shares}\n  system: [lru]\n",
        encoding="utf-8",
    )
    return study


def recorded(place: Path) -> int:
    """How many cells are in parts and in the journal at this moment.

    While a part appears, its cells are in both.
    """
    journal = place / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    keys = {json.loads(line)["key"] for line in lines}
    return len(
        keys.union(
            *(pl.read_parquet(part)["key"].to_list() for part in place.glob("cells/part-*.parquet"))
        )
    )


def kill_and_resume(
    folder: Path, cells: int, how: signal.Signals, moments: Sequence[int], workers: int = 1
) -> None:
    """Stop a study each time that so many cells are recorded, resume it, and compare.

    It is compared with a study that was not stopped.
    """
    study, whole, broken = write_study(folder, cells), folder / "whole", folder / "broken"
    before = 0
    for moment in sorted(moments):
        process = run_study(study, broken, f"workers={workers}")
        while process.poll() is None and recorded(broken) < moment:
            time.sleep(0.01)
        process.send_signal(how)
        process.communicate(timeout=30)
        assert before <= recorded(broken), "what is recorded stays"
        before = recorded(broken)
    assert moment <= before < cells, "it was to be stopped in the middle"
    resumed = run_study(study, broken, f"workers={workers}")
    out, told = resumed.communicate(timeout=200)
    assert resumed.returncode == 0, told
    assert f"{before} of {cells} cells are recorded already" in told
    ran = f"{cells - before} ran now, {before} were recorded before"
    assert f"{cells} cells, {cells} done; {ran}. " in out
    conduct("study", plan_cells(read_plan(str(study))), Here(), whole, tell=quiet)
    assert comparable(broken).equals(comparable(whole))


@pytest.mark.thorough
def test_a_study_killed_at_a_random_moment_goes_on_to_the_dataset_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    kill_and_resume(tmp_path, 12, signal.SIGKILL, [random.randint(1, 6)])


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] * 3)
def test_a_study_stopped_in_any_way_at_any_moment_goes_on(
    tmp_path: Path, how: signal.Signals
) -> None:
    kill_and_resume(tmp_path, 24, how, [random.randint(1, 16)])


@pytest.mark.thorough
def test_five_hundred_configurations_killed_three_times_are_the_dataset_of_those_that_were_not(
    tmp_path: Path,
) -> None:
    kill_and_resume(tmp_path, 500, signal.SIGKILL, random.sample(range(1, 440), 3), workers=2)


def die_at_a_quarter(study: str, cell: Cell, output_dir: str) -> Row:
    """Stands in for a cell that needs more memory than the machine has."""
    if cell.axes["budget.resident_share"] == 0.25:
        os.kill(os.getpid(), signal.SIGKILL)
    return make_row(study, cell, "done")


def test_a_cell_whose_process_dies_is_recorded_and_its_neighbours_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "run_cell", die_at_a_quarter)
    cells = cells_of({"system": ["lru"], "budget.resident_share": [0.1, 0.2, 0.25, 0.3, 0.4]})
    counts = conduct("x", cells, Pool(1), tmp_path, tell=quiet).counts
    assert counts == {"done": 4, "failed": 1}
    (failed,) = read_cells(tmp_path).filter(pl.col("status") == "failed").to_dicts()
    assert failed["axis.budget.resident_share"] == 0.25
    assert failed["error"] == "the process that ran it died (killed, or out of memory)"


def do_nothing(study: str, cell: Cell, output_dir: str) -> Row:
    """Stands in for a cell that ends before anybody looks."""
    return make_row(study, cell, "done")


def test_cells_that_wait_follow_even_where_all_that_ran_have_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "run_cell", do_nothing)
    monkeypatch.setattr(launchers, "wait", lambda running, return_when: wait(running))
    cells = cells_of()
    assert len(cells) > 2 * launchers.ON_THE_WAY
    assert conduct("x", cells, Pool(1), tmp_path, tell=quiet).counts == {"done": len(cells)}


# Contracts: C135
@pytest.mark.thorough
@pytest.mark.skipif(not launchers.THREADS.is_dir(), reason="threads are told on Linux only")
def test_a_process_is_copied_only_while_polars_has_not_been_used() -> None:
    code = (
        "from sim.study.launchers import _context, has_no_threads_of_work as idle; import polars as"
        " pl\nprint(idle(), _context().get_start_method())\npl.DataFrame({'a':"
        " range(9)}).lazy().filter(pl.col('a') > 1).collect()\nprint(idle(),"
        " _context().get_start_method())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.splitlines() == ["True fork", "False forkserver"]


def break_down(*_: object, **__: object) -> None:
    raise ZeroDivisionError("no such luck")


def test_an_error_of_the_program_is_recorded_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sim.study.worker.execute", break_down)
    row = run_cell("x", cells_of()[1], "unused")
    assert row["status"] == "failed"
    assert row["error"].startswith("ZeroDivisionError: no such luck (test_study_runs.py:")


def test_every_file_of_a_cell_is_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    plan = make_plan("x", {"base": [*BASE, "outputs=all"], "list": ["system=lru"]}, "x.yaml")
    cells = plan_cells(plan)
    conduct("x", cells, Here(), tmp_path, tell=quiet)
    assert {"summary.json", "tokens.parquet", "timeline.json"} <= {
        path.name for path in (tmp_path / "runs" / cells[0].key).iterdir()
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ray", {"workers": "2", "batch": "3"}),
        ("submitit", {"cluster": "local", "workers": "2", "batch": "5"}),
        ("pool", {"workers": "2"}),
    ],
)
def test_every_launcher_gives_the_same_rows(
    tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    if name != "pool":
        pytest.importorskip(name)
    launcher: Launcher = make_launcher(name, options)
    assert conduct("x", cells_of(), launcher, tmp_path / name, tell=quiet).counts == {
        "done": 6,
        "refused": 2,
    }
    conduct("x", cells_of(), Here(), tmp_path / "here", tell=quiet)
    assert comparable(tmp_path / name).equals(comparable(tmp_path / "here"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dask", {}, "unknown launcher=dask; choose pool, ray, submitit"),
        ("pool", {"address": "auto"}, "launcher=pool has no option address; it has workers"),
        ("pool", {"workers": "none"}, "workers=none must be a whole number of at least 1"),
    ],
)
def test_what_is_no_launcher_is_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_launcher(name, options)


def test_a_launcher_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError,
        match=r"ray is not installed; pip install -e '\.\[ray\]' \(or choose launcher=pool",
    ):
        make_launcher("ray", {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["luncher=ray", "name=budgets"], r"luncher is no option; did you mean launcher\?"),
        (["name=hobbit_weights", "retry=yes"], "retry=yes is of a grid or a list: .* starts anew$"),
        (["name=budgets", "budget.residentshare=1"], r"did you mean resident_share"),
    ],
)
def test_a_word_that_cannot_be_is_refused_with_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    from sim.study.__main__ import main

    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(words) == 2
    finally:
        signal.signal(signal.SIGTERM, handler)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
