"""``moelab leaderboard``: its study goes on, and its page sorts and filters without a network."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import yaml

from helpers.boards import STUDY, small
from helpers.browser import CHROMIUM, Browser
from sim.board.entries import entered
from sim.board.page import page
from sim.certify import main as certify
from sim.leaderboard import main
from sim.study.cells import plan_cells
from sim.study.dataset import Dataset
from sim.study.plan import make_plan

HEADS = "[...document.querySelectorAll('tbody tr')].map(row => row.children[{}].textContent)"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study whose cells are recorded already, all but those of one budget."""
    place = tmp_path / "board.yaml"
    place.write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    rows = [one.row for one in small()[0][1].entries]
    with Dataset(tmp_path / "out", {"cache": pl.String}, lambda _: None) as kept:
        for row in rows:
            kept.add(row)
    return place


def test_it_goes_on_where_it_was_stopped_and_every_row_has_its_command_and_certificate(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [f"name={study}", "workers=1", f"output_dir={out}", "against=fifo"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "4 of 9 cells are recorded already" in told.err
    assert "2 not entered; the page says why." in told.out
    assert "int4: lossy (every expert at int4 or below)" in told.out
    assert "belady: knows the future (Belady)" in told.out
    assert told.out.splitlines()[-1] == (
        f"files: {out / 'leaderboard.html'} {out / 'leaderboard.csv'} {out / 'certificates'}/"
    )
    with (out / "leaderboard.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    fixed = {
        cell.key: cell.words for cell in map(entered, plan_cells(make_plan("board", STUDY, "")))
    }
    for row in rows:
        assert row["command"].split()[2:] in [list(words) for words in fixed.values()]
        assert bool(row["certificate"]) == (row["entrant"] != "fifo")
        assert float(row["can_gain_at_most"]) >= 1
    (place, *_) = [row["certificate"] for row in rows if row["entrant"] == "lru"]
    assert certify([place]) == 0
    assert json.loads(Path(place).read_text(encoding="utf-8"))["claim"]["b"] == "fifo"
    assert main(words) == 0
    assert "9 of 9 cells are recorded already" in capsys.readouterr().err


def test_a_search_is_no_board(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["name=hobbit_weights"]) == 2
    assert "is a search" in capsys.readouterr().err


def test_a_rival_that_is_no_entrant_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["against=sive"]) == 2
    assert capsys.readouterr().err == "error: against=sive is no entrant; did you mean sieve?\n"
    assert main(["against=nobody at all"]) == 2
    assert "moelab list policies has them" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_page_has_all_rows_and_names_no_other_place() -> None:
    boards, left = small()
    text = page(boards, left, "lru", {(boards[0].name, "fifo"): "c.json"}, "moelab leaderboard")
    assert "http" not in text
    assert "set loader.staging_slots &gt;= 1" in text
    assert "TRANSPLANTED" in text
    found = re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [len(board["entries"]) for board in data] == [3, 4]
    fifo = next(one for one in data[0]["entries"] if one["name"] == "fifo")
    assert fifo["certificate"] == "c.json"
    assert fifo["command"].startswith("moelab run ")
    assert all("Intervals cover the truth in 9" in board["said"] for board in data)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    boards, left = small()
    place = tmp_path / "page.html"
    place.write_text(page(boards, left, "fifo", {}, "moelab leaderboard"), encoding="utf-8")
    with Browser(tmp_path / "profile") as opened:
        opened.open(place.as_uri())
        yield opened


def test_in_a_browser_the_page_sorts_filters_and_compares_with_anyone(browser: Browser) -> None:
    def column(number: int) -> list[str]:
        found: list[str] = browser.evaluate(HEADS.format(number))
        return found

    def choose(name: str, value: str) -> None:
        browser.evaluate(
            f"(() => {{ const it = document.getElementById('{name}'); it.value = '{value}';"
            " it.dispatchEvent(new Event('change')); it.dispatchEvent(new Event('input')); })()"
        )

    first, second = small()[0]
    assert "belady" not in column(0), "at first only what is lossless, and a system"
    choose("kind", "all")
    fastest = sorted(first.entries, key=lambda one: -one.tokens_per_s)
    assert column(0) == [one.name for one in fastest]
    browser.evaluate("document.querySelector('[data-key=tokens]').click()")
    assert column(0) == [one.name for one in reversed(fastest)], "a second click turns it round"
    browser.evaluate("document.querySelector('[data-key=name]').click()")
    assert column(0) == sorted(one.name for one in first.entries)

    at = column(0).index("lru")
    lru, fifo = first.entry("lru"), first.entry("fifo")
    assert lru is not None
    assert fifo is not None
    told = first.ahead(lru, fifo)
    assert column(4)[at].startswith(f"{told.speedup:.2f}x [")
    assert column(4)[column(0).index("fifo")] == "-"
    choose("against", "lru")
    assert column(4)[column(0).index("lru")] == "-"
    assert column(4)[column(0).index("fifo")].startswith(f"{first.ahead(fifo, lru).speedup:.3g}x [")

    choose("board", "1")
    assert sorted(column(0)) == sorted(one.name for one in second.entries)
    choose("kind", "lossy")
    assert column(0) == ["int4"]
    assert column(2) == ["lossy (every expert at int4 or below)"]
    choose("kind", "all")
    choose("text", "FIF")
    assert column(0) == ["fifo"]
    assert browser.evaluate("document.getElementById('count').textContent") == "1 of 4 entrants"
    assert browser.problems == []
    assert [one for one in browser.asked if not one.startswith("file:")] == []
