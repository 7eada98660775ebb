"""What a leaderboard prints and writes, whole, of a board that is made by hand."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from helpers.boards import BOARD, LOSSY, A, B, C
from sim import leaderboard
from sim.board.entries import Board, Left
from sim.leaderboard import _shown, show, table, write
from sim.results.intervals import OVER

ONE = replace(A, name="d", row={**A.row, "hit_ratio": None}, summary={**A.summary, "gap": None})
ALL = Board("2_t_h", "two", {}, (A, ONE, B, C), None)


def cells(board: Board, against: str, top: int) -> list[list[str]]:
    found = _shown(board, against, top)
    return [list(row) for row in zip(*(column.cells for column in found.columns), strict=True)]


def test_the_fastest_of_each_kind_and_the_rival_are_shown_with_how_far_they_are_ahead() -> None:
    """A and its like are lossless, B is lossy and takes twice their time, C is a bound."""
    ahead = [str(ALL.ahead(one, A)) for one in (ONE, B, C)]
    first = ["1", "a", "cache", "12.35", "", "", "0.877", "1.26x"]
    second = ["2", "d", "cache", "12.35", ahead[0], "?", "-", "-"]
    lossy = ["lossy", "b", "cache", "6", ahead[1], "slower", "0.877", "-"]
    bound = ["a bound", "c x=<1>", "cache", "5", ahead[2], "?", "0.877", "1.00x"]
    assert cells(ALL, "a", 2) == [first, second, lossy, bound]
    assert cells(ALL, "a", 1) == [first, lossy, bound]
    other = cells(ALL, "d", 1)
    assert [row[:2] for row in other] == [["1", "a"], ["2", "d"], *(x[:2] for x in (lossy, bound))]
    assert (other[0][4] != "", other[1][4]) == (True, "")
    assert [row[4] for row in cells(ALL, "nobody", 2)] == [""] * 4
    shown = _shown(ALL, "a", 2)
    heads = ["", "entrant", "of", "tokens/s", "x a [95 %]", "", "hits", "can gain at most"]
    assert [column.header for column in shown.columns] == heads
    assert _shown(ALL, "nobody", 2).columns[4].header == "x nobody [95 %]"
    assert [row.end_section for row in shown.rows] == [False, True, True, False]
    assert [column.no_wrap for column in shown.columns].index(True) == 4
    more = replace(ALL, entries=(A, B, replace(B, name="e"), replace(B, name="f")))
    assert [row[1] for row in cells(more, "a", 2)] == ["a", "b", "e"]


@pytest.mark.parametrize("left", [[], [Left("x", "y")] * 3])
def test_below_the_boards_stands_what_all_must_know(left: list[Left]) -> None:
    out = io.StringIO()
    show([BOARD], left, "a", 5, Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert lines[0] == "t on h"
    said = "Intervals cover the truth in 94.1% to 95.6% of simulated pairs with sequences of these"
    assert lines[lines.index(f"{said} lengths.") + 1 :] == [
        "",
        "SYNTHETIC <t>",
        f"b: {LOSSY}",
        "c x=<1>: knows the future",
        f"In brackets: 95 % intervals. {OVER}",
        *(["3 not entered; the page says why."] if left else []),
    ]


def test_of_boards_without_intervals_no_brackets_are_explained() -> None:
    out = io.StringIO()
    show([replace(BOARD, coverage=None)], [], "a", 5, Console(file=out, width=200))
    assert "One sequence, or one batch: no intervals." in out.getvalue()
    assert "In brackets" not in out.getvalue()


def test_a_row_of_the_table_has_all_of_its_entry() -> None:
    first, second, third = table([BOARD], "b", {("1_t_h", "a"): "a.json"})
    ahead = BOARD.ahead(A, B)
    assert ahead.interval is not None
    assert first == {
        "board": "t on h",
        "place": 1,
        "entrant": "a",
        "part": "cache",
        "kind": "lossless",
        "decode_tokens_per_s": 12.34567,
        "low": 0.912345 * 12.34567,
        "high": 1.112345 * 12.34567,
        "against": "b",
        "times_as_fast": 2.0,
        "times_low": ahead.interval[0],
        "times_high": ahead.interval[1],
        "verdict": "faster",
        "hit_ratio": 0.876543,
        "can_gain_at_most": 1.25678,
        "labels": "SYNTHETIC <t>",
        "command": A.command,
        "certificate": "a.json",
    }
    none = ("low", "high", "times_as_fast", "times_low", "times_high", "verdict", "certificate")
    assert {key: second[key] for key in (*none, "place", "against")} == {
        **dict.fromkeys(none),
        "place": 2,
        "against": "b",
    }
    assert (third["place"], third["verdict"], third["certificate"]) == (
        3,
        BOARD.ahead(C, B).verdict,
        None,
    )
    for row in table([BOARD], "nobody", {}):
        assert (row["against"], row["times_as_fast"], row["verdict"]) == (None, None, None)


@pytest.mark.parametrize("against", ["b", "nobody"])
def test_each_entrant_has_a_certificate_against_the_rival_and_old_ones_go(
    against: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(leaderboard, "certificate", lambda board, one, base: [one.name, base.name])
    monkeypatch.setattr(leaderboard, "page", lambda *given: told.append(given) or "page")
    folder = tmp_path / "new" / "certificates"
    folder.mkdir(parents=True)
    (folder / "old.json").touch()
    (folder / "mine.txt").touch()
    left = [Left("x", "y")]
    write([BOARD], left, against, "moelab leaderboard", tmp_path / "new")
    places = {
        "a": folder / "1_t_h_a_against_b.json",
        "c x=<1>": folder / "1_t_h_c_x_1_against_b.json",
    }
    files = {("1_t_h", name): str(place) for name, place in places.items()}
    if against == "nobody":
        places, files = {}, {}
    assert set(folder.iterdir()) == {*places.values(), folder / "mine.txt"}
    for name, place in places.items():
        assert json.loads(place.read_text(encoding="utf-8")) == [name, "b"]
    assert told == [([BOARD], left, against, files, "moelab leaderboard")]
    assert (tmp_path / "new" / "leaderboard.html").read_text(encoding="utf-8") == "page"
    rows = pl.read_csv(tmp_path / "new" / "leaderboard.csv")
    assert rows["entrant"].to_list() == ["a", "b", "c x=<1>"]
    assert rows["certificate"].to_list() == [files.get(("1_t_h", one.name)) for one in (A, B, C)]


@pytest.mark.parametrize(
    ("words", "name", "rival", "top", "options", "place"),
    [
        ([], "leaderboard", "lru", 5, {}, "outputs/leaderboard"),
        (
            ["name=n", "against=a", "top=2", "workers=3", "output_dir=o", "seed=4"],
            "n",
            "a",
            2,
            {"workers": "3"},
            "o",
        ),
    ],
)
def test_the_command_runs_the_cells_of_its_plan_and_shows_and_writes_their_boards(
    words: list[str],
    name: str,
    rival: str,
    top: int,
    options: dict[str, str],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[Any] = []

    class Planned(SimpleNamespace):
        def with_last(self, words: Any) -> Planned:
            told.append(("words", list(words)))
            return self

    rows = pl.DataFrame({"key": ["k3", "kx", "k2"], "n": [3, 9, 2]})
    monkeypatch.setattr(leaderboard, "read_plan", lambda name: Planned(name=name, search=None))
    monkeypatch.setattr(leaderboard, "plan_cells", lambda plan: [2, 3])
    monkeypatch.setattr(leaderboard, "check_entrant", lambda *of: told.append(("entrant", *of)))
    monkeypatch.setattr(leaderboard, "entered", lambda cell: SimpleNamespace(key=f"k{cell}"))
    monkeypatch.setattr(leaderboard, "make_launcher", lambda *of: ("launcher", *of))
    monkeypatch.setattr(leaderboard, "conduct", lambda *of: told.append(("conduct", *of)))
    monkeypatch.setattr(leaderboard, "read_cells", lambda place: rows)
    monkeypatch.setattr(leaderboard, "whole_rows", lambda rows, place, compared: rows)
    monkeypatch.setattr(leaderboard, "boards_of", lambda rows: ([r["n"] for r in rows], ["left"]))
    monkeypatch.setattr(leaderboard, "write", lambda *of: told.append(("write", *of)))
    monkeypatch.setattr(
        leaderboard, "show", lambda *of: told.append(("show", *of[:-1], of[-1].width))
    )
    assert leaderboard.main(words) == 0
    cells = [SimpleNamespace(key="k2"), SimpleNamespace(key="k3")]
    launcher = ("launcher", "pool", options)
    assert told == [
        ("words", words[5:]),
        ("entrant", rival, [2, 3]),
        ("conduct", name, cells, launcher, Path(place), False, leaderboard.say),
        ("write", [2, 3], ["left"], rival, " ".join(["moelab leaderboard", *words]), Path(place)),
        ("show", [2, 3], ["left"], rival, top, 118),
    ]
    assert capsys.readouterr().out == (
        f"files: {place}/leaderboard.html {place}/leaderboard.csv {place}/certificates/\n"
    )
