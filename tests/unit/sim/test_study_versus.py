"""Cells of a study side by side: only cells of the same conditions are compared.

Their ratios are those of sim.compare.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sim.answers.comparison import compared
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.study.cells import plan_cells
from sim.study.dataset import Dataset
from sim.study.plan import make_plan
from sim.study.rows import Row
from sim.study.trials import trial
from sim.study.worker import run_cell
from sim.versus import Alone, Group, Side, main, read_rows, told_of, versus

BASE = ["model=tiny_mixtral", "trace.max_sequences=3"]
GRID = {"system": ["lru"], "cache": ["lru", "lfu"], "budget.resident_share": [0.25, 0.5]}
OTHERS = [
    ["system=lru", "trace.split=fit"],
    ["system=lru", "hardware=rtx3090_pcie4"],
    ["system=hobbit"],
    ["system=lru", "budget.resident_share=0.01"],
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study")
    cells = plan_cells(make_plan("x", {"base": BASE, "grid": GRID, "list": OTHERS}, "x.yaml"))
    with Dataset(place, {}, lambda _: None) as kept:
        for cell in cells:
            kept.add(run_cell("x", cell, str(place)))
    return place


def rows_with(dataset: Path, *words: str) -> list[Row]:
    return read_rows(dataset, words)


@pytest.mark.thorough
def test_only_cells_of_the_same_trace_machine_and_bytes_are_set_side_by_side(dataset: Path) -> None:
    found = versus(read_rows(dataset), "lru cache=lru")
    # hobbit's default share is a half. lru alone has a cell on another split, and one on another
    # machine.
    assert {
        group.title.rsplit(" ", 2)[1]: {side.system for side in group.sides}
        for group in found.groups
    } == {
        "25.0%": {"lru cache=lru", "lru cache=lfu"},
        "50.0%": {"lru cache=lru", "lru cache=lfu", "hobbit"},
    }
    (fit,) = versus(rows_with(dataset, "trace.split=fit"), "lru").groups
    assert len(fit.sides) == 1


def test_a_cell_beside_no_cell_of_the_system_is_told_with_why(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the seven cells is in a table or named below.

    A cell that is named says which condition differs, or that it was refused.
    """
    found = versus(read_rows(dataset), "lru cache=lru")
    assert sum(len(group.sides) for group in found.groups) + len(found.alone) == len(
        read_rows(dataset)
    )
    why = {one.overrides.split()[-1]: one.why for one in found.alone}
    assert "no cell of lru cache=lru has its conditions" in why["trace.split=fit"]
    assert "trace.split fit, not eval" in why["trace.split=fit"]
    assert "hardware." in why["hardware=rtx3090_pcie4"]
    nearest = why["hardware=rtx3090_pcie4"].partition("the nearest differs: ")[2]
    assert nearest.count(", not ") == 2
    assert re.search(r" and [1-9]\d* more$", nearest)
    assert why["budget.resident_share=0.01"].startswith("it is refused: pool")
    assert main([str(dataset), "lru cache=lru"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for one in found.alone:
        assert f"Beside no lru cache=lru: {one.system} (" in told
    assert "hobbit (lossy)" in told
    assert "hobbit: lossy (experts at low precision" in told


def test_a_cell_that_decodes_nothing_or_failed_is_told_so(dataset: Path) -> None:
    rows = [row for row in read_rows(dataset) if row["system"].startswith("lru cache=lru")]
    empty = [{**rows[0], "decode_ns": times} for times in (None, [], [0, 0, 0])]
    failed = {**rows[0], "status": "failed", "error": "no room"}
    found = versus([*rows, *empty, failed], "lru cache=lru")
    nothing = Alone(rows[0]["system"], rows[0]["overrides"], "it decodes nothing")
    assert [one for one in found.alone if one == nothing] == [nothing] * 3
    assert replace(nothing, why="it is failed: no room") in found.alone


def test_words_that_no_cell_has_are_refused_with_those_that_there_are(dataset: Path) -> None:
    """The default is no word of a cell."""
    with pytest.raises(ValueError, match=r"no cell has trace.split=eval among .*trace.split=fit"):
        read_rows(dataset, ["trace.split=eval"])


def test_all_the_words_of_a_cell_find_it(dataset: Path) -> None:
    row = read_rows(dataset)[0]
    assert row in read_rows(dataset, row["overrides"].split())


def test_ratios_and_intervals_are_those_of_two_compared_runs(dataset: Path) -> None:
    (group,) = versus(rows_with(dataset, "budget.resident_share=0.25"), "lru cache=lru").groups
    common = [*BASE, "system=lru", "budget.resident_share=0.25"]
    oracle = compared(("a", "b"), trial([*common, "cache=lfu"]), trial([*common, "cache=lru"]))
    (other,) = [side for side in group.sides if side.ahead is not None]
    assert other.ahead == oracle.ratios["decode"]
    assert oracle.ratios["decode"].speedup != 1


def test_sentences_read_forwards_and_tell_systems_before_bounds() -> None:
    def side(system: str, speed: float, ahead: Paired | None, **labels: str) -> Side:
        return Side(system, speed, None, None, ahead, Labels(**labels))

    sides = (
        side("oracle", 15, Paired(1.5, (1.4, 1.6), 0.99, 8), knows_future="knows the future (x)"),
        side("hobbit", 12, Paired(1.2, (1.1, 1.3), 0.99, 8), lossy="lossy (experts skipped)"),
        side("lru", 10, None),
        side("fifo", 9, Paired(0.9, (0.8, 1.01), 0.04, 8)),
    )
    assert told_of(Group("t", sides), "lru") == (
        "hobbit is 1.20x [1.10, 1.30] as fast as lru and lossy."
        " fifo is 0.90x [0.80, 1.01] as fast as lru (cannot tell)."
        " oracle, which is no system, is 1.50x [1.40, 1.60] as fast as lru."
    )


def test_fastest_is_first_and_only_the_one_asked_about_has_no_ratio(dataset: Path) -> None:
    for group in versus(read_rows(dataset), "lru cache=lfu").groups:
        speeds = [side.tokens_per_s for side in group.sides]
        assert speeds == sorted(speeds, reverse=True)
        assert [side.system for side in group.sides if side.ahead is None] == ["lru cache=lfu"]
        for side in group.sides:
            own = next(each for each in group.sides if each.ahead is None).tokens_per_s
            assert side.ahead is None or side.ahead.speedup == pytest.approx(
                side.tokens_per_s / own
            ), "as it is read"


def test_what_cannot_be_told_is_refused(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(dataset), "lru", "also=budget.resident_share=0.25"]) == 2
    assert main([str(dataset), "fate"]) == 2
    assert main([str(tmp_path), "lru"]) == 2
    assert main(["lru"]) == 2
    ambiguous, unknown, empty, few = capsys.readouterr().err.splitlines()
    assert "may be each of these: lru cache=l" in ambiguous
    assert "no finished cell is of fate; there are: hobbit, lru" in unknown
    assert "no recorded cells" in empty
    assert "name a study's folder and a system" in few


def test_the_table_is_printed_for_each_budget(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([str(dataset), "lru cache=lru", "also=cache=lru", "also=budget.resident_share=0.5"])
        == 0
    )
    told = capsys.readouterr().out
    assert "50.0% resident" in told
    assert "lfu" not in told
    (row,) = [
        row
        for row in read_rows(dataset, ["cache=lru", "budget.resident_share=0.5"])
        if row["system"] == "lru cache=lru"
    ]
    (line,) = [line.split() for line in told.splitlines() if line.lstrip().startswith("lru ")]
    assert f"{row['hit_ratio']:.3f}" in line
    shutil.rmtree(dataset / "cells")
    assert main([str(dataset), "lru"]) == 2
