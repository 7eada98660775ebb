"""Cells of a study side by side: only cells of the same conditions are compared.

Their ratios are those of sim.compare.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.printed import Heard, plain, rows_of
from sim.answers.comparison import compared
from sim.results.intervals import OVER
from sim.results.labels import Labels
from sim.results.paired import Paired, paired
from sim.study.cells import plan_cells
from sim.study.dataset import Dataset
from sim.study.plan import make_plan
from sim.study.rows import Row
from sim.study.trials import trial
from sim.study.worker import run_cell
from sim.versus import (
    Alone,
    Group,
    Side,
    Versus,
    main,
    print_versus,
    read_rows,
    told_of,
    versus,
)

BASE = ["model=tiny_mixtral", "trace.max_sequences=3"]
GRID = {"system": ["lru"], "cache": ["lru", "lfu"], "budget.resident_share": [0.25, 0.5]}
MORE = {"base": [*BASE, "bounds=max"], "grid": {**GRID, "cache": ["lru"]}}
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


def test_a_study_that_went_on_with_another_word_names_the_word_that_tells_its_cells_apart(
    dataset: Path, tmp_path: Path
) -> None:
    """``bounds`` is no condition: both cells stand in one group, and have one name."""
    shutil.copytree(dataset, tmp_path / "x")
    cells = [cell for cell in plan_cells(make_plan("x", MORE, "x.yaml")) if cell.axes]
    with Dataset(tmp_path / "x", {}, lambda _: None) as kept:
        for cell in cells:
            kept.add(run_cell("x", cell, ""))
    with pytest.raises(ValueError, match=r"lru cache=lru; lru cache=lru bounds=max; .*also=WORD"):
        versus(rows_with(tmp_path / "x", "budget.resident_share=0.25"), "lru cache=lru")
    words = "bounds=max", "budget.resident_share=0.25"
    (group,) = versus(rows_with(tmp_path / "x", *words), "lru cache=lru").groups
    assert len(group.sides) == 1


def test_of_cells_of_the_same_words_the_last_recorded_holds(dataset: Path, tmp_path: Path) -> None:
    """Its key is another one where a policy of one's own was edited."""
    shutil.copytree(dataset, tmp_path / "x")
    first = read_rows(dataset)[0]
    with Dataset(tmp_path / "x", {}, lambda _: None) as kept:
        kept.add({**first, "key": "of the edited policy", "hit_ratio": 0.5})
    rows = read_rows(tmp_path / "x")
    assert len(rows) == len(read_rows(dataset))
    assert [row["hit_ratio"] for row in rows if row["overrides"] == first["overrides"]] == [0.5]


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


def row_by_hand(system: str, speed: float, times: list[int] | None, **config: Any) -> Row:
    """A finished cell of two sequences; ``config`` replaces values of the sections compared."""
    summary = {
        "budget": {"allowed_bytes": config.pop("allowed", 700), "resident_share": 0.1234},
        "trace": {"name": "t [1]", "split": "fit"},
        "hardware": "h",
        "model": "m",
        "labels": {"lossy": "lossy (experts skipped)" if system == "hobbit" else None},
        "overrides": [],
    }
    sections = {name: {"a": 1, "b": 2, "c": 3} for name in ("model", "hardware", "workload")}
    whole = {**sections, "trace": {"path": speed}, "budget": {}}
    for key, value in config.items():
        whole[key] = {**whole[key], **value}
    return {
        "status": "done",
        "error": None,
        "system": system,
        "overrides": f"system={system.split()[0]} x",
        "summary": json.dumps(summary),
        "config": json.dumps(whole),
        "trace_sha256": "abc",
        "sequence": [4, 7],
        "decode_ns": times,
        "decode_tokens_per_s": speed,
        "hit_ratio": speed / 20,
        "ci95.decode_tokens_per_s.low": None if system == "hobbit" else speed - 1,
        "ci95.decode_tokens_per_s.high": speed + 1,
    }


def test_a_study_by_hand_is_grouped_and_what_differs_is_told() -> None:
    one, two = {"a": 9}, {"a": 9, "b": "y"}
    rows = [
        row_by_hand("lru x", 4.0, [20, 40]),
        row_by_hand("hobbit", 8.0, [10, 20]),
        row_by_hand("fate", 4.0, [40, 20]),
        row_by_hand("lru x", 3.0, [20, 40], hardware=two, model=two, workload=one),
        row_by_hand("near", 2.0, [20, 40], hardware=two, model=two),
        row_by_hand("far", 2.0, [20, 40], hardware={"a": 0, "b": 0}, model={"b": 0}, allowed=9),
        row_by_hand("two", 2.0, [20, 40], hardware={"a": 0}, model={"b": 0}),
        row_by_hand("lru2", 1.0, [0, 0]),
        row_by_hand("lru3", 1.0, None),
        row_by_hand("lru4", 1.0, [5, 0]) | {"status": "failed", "error": "no room"},
    ]
    both = versus(rows, "lru")
    against = paired(np.array([10, 20]), np.array([20, 40]))
    assert against.speedup == 2
    lossy = Labels(lossy="lossy (experts skipped)")
    title = "t [1], split fit, 2 sequences; h, m, 6.52e-07 GiB for experts, 12.3% resident"
    assert both.groups == (
        Group(
            title,
            (
                Side("hobbit", 8.0, None, 0.4, against, lossy),
                Side(
                    "fate",
                    4.0,
                    (3.0, 5.0),
                    0.2,
                    paired(np.array([40, 20]), np.array([20, 40])),
                    Labels(),
                ),
                Side("lru x", 4.0, (3.0, 5.0), 0.2, None, Labels()),
            ),
        ),
        Group(title, (Side("lru x", 3.0, (2.0, 4.0), 0.15, None, Labels()),)),
    )
    differs = "no cell of lru has its conditions; the nearest differs: "
    assert both.alone == (
        Alone("lru2", "system=lru2 x", "it decodes nothing"),
        Alone("lru3", "system=lru3 x", "it decodes nothing"),
        Alone("lru4", "system=lru4 x", "it is failed: no room"),
        Alone("near", "system=near x", f"{differs}workload.a 1, not 9"),
        Alone(
            "far",
            "system=far x",
            f"{differs}bytes for experts 9, not 700; hardware.a 0, not 1 and 2 more",
        ),
        Alone("two", "system=two x", f"{differs}hardware.a 0, not 1; model.b 0, not 2"),
    )
    with pytest.raises(
        ValueError,
        match=r"^no finished cell is of x; there are: none at all \(lru3: it decodes nothing\)$",
    ):
        versus(rows[-2:], "x")
    with pytest.raises(ValueError, match=r"^no finished cell is of x; there are: fate, hobbit$"):
        versus([rows[1], rows[2], rows[1]], "x")


def test_groups_of_other_work_have_other_titles() -> None:
    """One at a time and four at once are two tables, which their titles must tell apart."""
    one, four = {"a": 1}, {"a": 4}
    words = "system=lru trace.split=fit workload.decode_tokens=8"
    rows = [
        row_by_hand("lru", 4.0, [20, 40], workload=one) | {"overrides": words},
        row_by_hand("lru", 9.0, [10, 20], workload=four)
        | {"overrides": f"{words} workload=static_4"},
    ]
    told = "t [1], split fit, 2 sequences; h, m, 6.52e-07 GiB for experts, 12.3% resident"
    assert [group.title for group in versus(rows, "lru").groups] == [
        told,
        f"{told}; workload=static_4",
    ]


def test_at_one_share_of_other_bytes_each_table_names_its_bytes_and_its_own_system() -> None:
    """The name ``lru`` stands for ``lru precision=int4`` where that alone has the bytes."""
    rows = [
        row_by_hand("lru", 4.0, [20, 40], allowed=3 * 2**30),
        row_by_hand("fate", 8.0, [10, 20], allowed=3 * 2**30),
        row_by_hand("lru precision=int4", 9.0, [10, 20], allowed=2**30),
        row_by_hand("fate precision=int4", 18.0, [5, 10], allowed=2**30),
    ]
    whole, quarter = versus(rows, "lru").groups
    assert "3 GiB for experts, 12.3% resident" in whole.title
    assert "1 GiB for experts, 12.3% resident" in quarter.title
    assert told_of(whole).startswith("fate is 2.00x [2.00, 2.00] as fast as lru (")
    of_quarter = "fate precision=int4 is 2.00x [2.00, 2.00] as fast as lru precision=int4 ("
    assert told_of(quarter).startswith(of_quarter)


def test_every_cell_of_the_table_and_every_line_below_is_of_its_group() -> None:
    bound = Labels(lossy="lossy (x)", knows_future="knows the future (x)")
    sides = (
        Side("seer", 15.0, None, None, Paired(1.5, (1.4, 1.6), 0.99, 8), bound),
        Side("lru [a]", 10.0, (9.87654, 10.1), 0.2509, None, Labels()),
        Side("fifo", 9.0, (8.0, 9.5), 0.1, Paired(0.9, (0.8, 1.01), 0.04, 8), Labels()),
        Side("slow", 5.0, (4.0, 6.0), 0.0, Paired(0.5, (0.4, 0.6), 0.0, 8), Labels()),
    )
    heard = Heard()
    found = Versus((Group("t [1]", sides),), (Alone("x", "system=x seed=1", "it is refused: y"),))
    print_versus(found, "lru", heard)  # type: ignore[arg-type]
    (table,) = heard.tables
    assert plain(table.title) == "t [1]"
    assert [list(row.values()) for row in rows_of(table)] == [
        ["seer (lossy, a bound)", "15", "", "1.50x [1.40, 1.60]", "faster"],
        ["lru [a]", "10 [9.877, 10.1]", "0.251", "", ""],
        ["fifo", "9 [8, 9.5]", "0.100", "0.90x [0.80, 1.01]", "?"],
        ["slow", "5 [4, 6]", "0.000", "0.50x [0.40, 0.60]", "slower"],
    ]
    heads = ["system", "tokens/s [95 %]", "hits", "as fast as lru [a]", ""]
    assert list(rows_of(table)[0]) == heads
    assert heard.lines == [
        "fifo is 0.90x [0.80, 1.01] as fast as lru [a] (cannot tell). slow is 0.50x [0.40, 0.60] as"
        " fast as lru [a]. seer, which is no system, is 1.50x [1.40, 1.60] as fast as lru [a] and"
        " lossy.",
        "seer: lossy (x)",
        "seer: knows the future (x)",
        f"In brackets: 95 % intervals, paired where they are of how many times. {OVER}",
        "Beside no lru: x (system=x seed=1): it is refused: y.",
    ]
