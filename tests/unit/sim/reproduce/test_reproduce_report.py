"""What is told of a paper: published and simulated values in one unit, and a dot over each other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.drawn import curves, kept, legend, notes, ticks, upright
from helpers.printed import Heard, rows_of
from sim.reproduce import report
from sim.reproduce.roles import Claim, Paper
from sim.reproduce.rules import Value
from sim.reproduce.verdicts import Verdict
from sim.results.labels import Labels

LABELS = (("lru", Labels(lossy="lossy (x)")),)


def claim(name: str, role: str = "predicted", **others: Any) -> Claim:
    return Claim(id=name, where=f"Fig. {name} / left", says=f"says | {name}", role=role, **others)


FASTER = Verdict(
    claim("A", value=2.31, unit="x", rule="speedup"),
    "holds",
    1.87,
    Value(1.87, (1.7, 2.0), ((1.5, 1.9),)),
    (1.42, 2.53),
    labels=LABELS,
)
SHARE = Verdict(
    claim("B", "transferred", value=(31.0, 37.0), unit="% of needs", rule="share"),
    "reachable",
    0.286,
    Value(0.286),
    (0.25, 0.33),
    spreads=((0.25, 0.33),),
    met_at=("cache=lfu", "cache=fifo"),
)
MILLISECONDS = Verdict(
    claim("C", value=4.5, unit="ms", bound="above", rule="time", scale=0.001, why="no clock"),
    "misses",
    0.00317,
    Value(0.00317),
    (0.00317, 0.00317),
)
RANGE = Verdict(
    claim("D", value=(1.2, 1.6), unit="x", bound="range", rule="speedup_range"),
    "misses",
    1.31,
    Value(1.31, (1.13, 1.52)),
    (1.1, 1.7),
)
WRONG_SIGN = Verdict(
    claim("E", value=1.4, rule="speedup"), "misses", -0.2, Value(-0.2), (-0.4, 0.1)
)
MISPRINT = Verdict(
    claim("F", "identity", value=73.0, unit="%", misprint="7 of 9 is 78 %"), "misprint", 77.8
)
ORDER = Verdict(
    claim("G", rule="order", bound="below", value=5.0, note="as [ordered] here"),
    "holds",
    1.2,
    Value(1.2, (), (), True),
    (1.1, 1.3),
)
FAILED = Verdict(claim("H", value=9.0, rule="speedup"), "misses", failures={"lru": "no room"})
INPUT = Verdict(claim("I", "input", value=16.0, unit="GB"), "")
ALL = (FASTER, SHARE, MILLISECONDS, RANGE, WRONG_SIGN, MISPRINT, ORDER, FAILED, INPUT)
PAPER: Any = Paper("p", "Title", "arXiv", tuple(v.claim for v in ALL), {}, {}, {}, {}, {}, {})
SAID = {
    # claim: published, simulated with its ends over the grid, remark
    "A": ("2.31 x", "1.87 [1.42, 2.53]", ""),
    "B": ("31, 37 % of needs", "28.6 [25, 33]", "met at cache=lfu; cache=fifo, interval 1.3x wide"),
    "C": ("> 4.5 ms", "3.17", "no clock"),
    "D": ("1.2, 1.6 x", "1.13 to 1.52 [1.1, 1.7]", ""),
    "E": ("1.4", "-0.2 [-0.4, 0.1]", ""),
    "F": ("73 %", "77.8", "7 of 9 is 78 %"),
    "G": ("< 5", "1.2", "as [ordered] here"),
    "H": ("9", "cannot run", "no room"),
    "I": ("16 GB", "", ""),
}


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.claim.id)
def test_a_claim_has_its_value_and_what_was_simulated_in_its_unit(verdict: Verdict) -> None:
    told = report.said(verdict.claim), report.found(verdict), report.remark(verdict)
    assert told == SAID[verdict.claim.id]


def test_the_printed_table_has_the_scored_claims_and_the_written_ones_have_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(monkeypatch)
    heard = Heard()
    report.show(heard, PAPER, ALL, ["a check"])
    report.write(tmp_path / "new", PAPER, ALL)
    (table,) = heard.tables
    rows = rows_of(table)
    assert table.title == "Title, arXiv"
    by_id = {v.claim.id: v for v in ALL}
    assert [row["claim"] for row in rows] == list("ABCDEFGH")
    for row in rows:
        published, simulated, remark = SAID[row["claim"]]
        assert (row["published"], row["simulated [grid]"]) == (published, simulated)
        assert row["remark"] == remark
        assert row["where"] == f"Fig. {row['claim']}"
        of = by_id[row["claim"]]
        assert (row["role"], row["verdict"]) == (of.claim.role, of.verdict)
    counted = (
        "predicted: 2 holds, 4 misses. transferred: 1 reachable. identity: 1 misprint. input: 1."
    )
    assert heard.lines == ["a check", f"Title: {counted}", "lossy (x)"]
    text = (tmp_path / "new" / "p.md").read_text(encoding="utf-8").splitlines()
    assert text[:3] == ["# Title (arXiv)", "", counted]
    cells = [line.strip("| ").split(" | ") for line in text if line.startswith("| ")][1:]
    assert [line[0] for line in cells] == list("ABCDEFGHI")
    for name, where, says, published, simulated, *_ in cells:
        assert (where, says) == (f"Fig. {name} / left", f"says / {name}")
        assert (published, simulated.strip()) == SAID[name][:2]
    assert text[-1] == "- lossy (x)"
    for row in json.loads((tmp_path / "new" / "p.json").read_text(encoding="utf-8")):
        of = by_id[row["id"]]
        assert row["simulated"] == of.simulated
        assert row["verdict"] == of.verdict
        assert row["ends"] == (list(of.ends) if of.ends else None)
        assert row["width"] == of.width
        assert row["points"] == (list(of.value.points) if of.value else [])
        assert row["intervals"] == ([list(one) for one in of.value.intervals] if of.value else [])
        assert row["met_at"] == list(of.met_at)
        assert row["failures"] == of.failures
        assert row["labels"] == (["lossy (x)"] if of.labels else [])


def test_a_mark_is_the_default_over_the_published_value_and_a_bar_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = kept(monkeypatch)
    report.draw(Path("nowhere.png"), PAPER, ALL)
    (axis,) = figures[0].axes
    drawn = [FASTER, SHARE, MILLISECONDS, RANGE, WRONG_SIGN]
    places = {v.claim.id: len(drawn) - 1 - at for at, v in enumerate(drawn)}
    assert list(ticks(axis, "y").values())[::-1] == [
        f"{v.claim.id} Fig. {v.claim.id} / left" for v in drawn
    ]
    labels = [tick.get_text() for tick in axis.get_xticklabels()]
    assert labels
    assert all(re.fullmatch(r"[\d.]+", label) for label in labels), "1, 2 and 5, not 10^0"
    middle = {"A": 2.31, "B": 0.34, "C": 0.0045, "D": 1.4}
    marks, bars = {}, {}
    for line in axis.lines:
        x, y = list(line.get_xdata()), list(line.get_ydata())
        if line.get_marker() != "None" and x:
            marks[y[0]] = (x[0], (line.get_color(), line.get_marker()))
        elif x and y != [0, 1]:
            assert y[0] == y[1]
            bars[y[0]] = x
    for v in drawn[:4]:
        name = v.claim.id
        assert v.value is not None
        assert marks[places[name]] == (
            pytest.approx(v.value.point / middle[name]),
            report.LOOKS[v.verdict],
        )
        assert bars[places[name]] == pytest.approx([end / middle[name] for end in v.ends or ()])
    assert set(marks) == set(bars) == {places[name] for name in middle}
    assert notes(axis) == [("the other sign", (0.01, places["E"]))]
    assert len({marker for _, marker in report.LOOKS.values()}) == len(report.LOOKS)
    assert upright(axis) == [1]
    assert list(curves(axis)) == list(report.LOOKS) == legend(axis)
    assert (axis.get_xlabel(), axis.get_xscale()) == ("simulated / published", "log")
    assert figures[0].get_suptitle() == "lossy (x)"
    assert axis.get_title().startswith("Title: mark at the documented default")


def test_a_claim_that_never_ran_and_a_long_reason_are_short() -> None:
    waiting = replace(FAILED, failures={})
    assert (report.found(waiting), report.remark(waiting)) == ("", "")
    long = replace(FAILED, failures={"lru": "x" * 200})
    assert report.remark(long) == "x" * 160


def test_a_remark_that_is_cut_in_the_printed_table_says_so() -> None:
    reason = f"{'as long as this ' * 4}sentence is"
    printed = report.table(
        PAPER, [replace(MISPRINT, claim=replace(MISPRINT.claim, misprint=reason))]
    )
    assert list(rows_of(printed)[0].values())[-1] == f"{'as long as this ' * 4}..."
    assert report.said(claim("K", unit="x")) == "x", "no value is no word"
