"""What a study records, runs again and answers, and with which status its command ends."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.study import __main__ as command
from sim.study import rows
from sim.study.__main__ import OF_LAUNCHERS, main
from sim.study.cells import Cell
from sim.study.conduct import Conducted, answer, axes_of, conduct
from sim.study.dataset import read_cells
from sim.study.plan import Plan
from sim.study.rows import Row, axis_types, make_row
from sim.values.code import project_digest
from sim.verbs.table import verb_of
from sim.verbs.words import read


def cell(number: int) -> Cell:
    return Cell(f"k{number}", "lru", (f"seed={number}",), {"seed": number}, {}, None)


class Launcher:
    """Ends each cell with the status of its key, done by default."""

    def __init__(self, **statuses: str) -> None:
        self.statuses, self.ran = statuses, list[str]()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, study: str, cells: Sequence[Cell], output_dir: Path) -> Iterator[Row]:
        for one in cells:
            self.ran.append(one.key)
            yield make_row(study, one, self.statuses.get(one.key, "done"), "why")


def test_what_is_recorded_is_told_and_only_a_retry_runs_what_went_wrong(tmp_path: Path) -> None:
    def run(launcher: Launcher, *numbers: int, retry: bool = False) -> tuple[Conducted, list[str]]:
        lines: list[str] = []
        asked = [cell(number) for number in numbers]
        return conduct("s", asked, launcher, tmp_path, retry, lines.append), lines

    bad = Launcher(k1="refused", k2="failed")
    assert run(bad, 1, 2, 3) == (Conducted(Counter(done=1, refused=1, failed=1), 3), [])
    again = Launcher()
    assert run(again, 2, 3, 4) == (
        Conducted(Counter(done=2, failed=1), 1),
        ["2 of 3 cells are recorded already"],
    )
    assert run(again, 1, 2, 3, 4, retry=True) == (
        Conducted(Counter(done=4), 2),
        [
            "2 cells run again: refused, failed or of other code",
            "2 of 4 cells are recorded already",
        ],
    )
    assert again.ran == ["k4", "k1", "k2"]
    assert run(again, 4, retry=True) == (
        Conducted(Counter(done=1), 0),
        ["1 of 1 cells are recorded already"],
    )


def test_what_other_code_made_is_told_and_a_retry_runs_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows from before there was a column ``code`` count as other code's."""
    told: list[str] = []

    def run(code: str | None, *numbers: int, retry: bool = False) -> list[str]:
        launcher = Launcher()
        monkeypatch.setattr(rows, "project_digest", lambda: code)
        asked = [cell(number) for number in numbers]
        conduct("s", asked, launcher, tmp_path, retry, told.append, code)
        return launcher.ran

    assert run("old", 1, 2, 3) == ["k1", "k2", "k3"]
    assert run("new", 1, 2) == []
    assert told[0] == "2 cells are of other code (column code); retry=yes runs them again"
    assert run("new", 1, 2, retry=True) == ["k1", "k2"]
    assert (run("new", 1, 2, retry=True), run(None, 1, 2, retry=True)) == ([], [])
    made = dict(read_cells(tmp_path).select("key", "code").iter_rows())
    assert made == {"k1": "new", "k2": "new", "k3": "old"}
    for part in (tmp_path / "cells").iterdir():
        pl.read_parquet(part).drop("code").write_parquet(part)
    assert run("new", 1, 2, retry=True) == ["k1", "k2"]


@pytest.mark.parametrize(
    ("counts", "ran", "told"),
    [
        ({"done": 2}, 2, "2 cells, 2 done."),
        ({"done": 2}, 0, "2 cells, 2 done; 0 ran now, 2 were recorded before."),
        ({"failed": 1}, 1, "1 cells, 0 done (1 failed: column error says why)."),
        (
            {"failed": 2, "done": 3, "refused": 1},
            4,
            "6 cells, 3 done (1 refused, 2 failed: column error says why); 4 ran now, 2 were"
            " recorded before.",
        ),
    ],
)
def test_the_answer_counts_every_cell(counts: dict[str, int], ran: int, told: str) -> None:
    found = answer("s", Conducted(Counter(counts), ran), Path("out"))
    assert found == f's: {told} polars.read_parquet("out/cells/*.parquet") reads them.'


def test_a_column_has_the_values_of_all_cells_that_vary_its_key() -> None:
    others = Cell("k", "lru", (), {"seed": "x", "late": True}, {}, None)
    assert axes_of([cell(1), cell(2)]) == {"seed": pl.Float64}
    assert axes_of([cell(1), others]) == {"seed": pl.String, "late": pl.Boolean}
    given = {"a": [None, 1, 2.5], "b": [True, 2], "c": [None, True], "d": [None], "e": [[1]]}
    assert axis_types(given) == {
        "a": pl.Float64,
        "b": pl.String,
        "c": pl.Boolean,
        "d": pl.String,
        "e": pl.String,
    }


def test_words_are_options_of_the_study_or_overrides_of_every_cell() -> None:
    over = ("seed=1", "cache.scope=site", "+x=1", "~y", "devices=layers_2", "cache=lru")
    words = read(verb_of("study"), ["name=a=b", "workers=2", *over, "retry=yes"])
    assert words.own == {"name": "a=b", "workers": "2", "retry": "yes"}
    assert words.overrides == over
    assert set(OF_LAUNCHERS) <= {one.key for one in verb_of("study").options}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the command asks for; its study ends as ``given[0]`` says."""
    handler = signal.getsignal(signal.SIGTERM)
    asked: list[Any] = [Conducted(Counter(done=2), 2)]

    def run(*words: Any) -> Conducted:
        asked.append((*words[3:5], words[6]))
        return asked[0]

    monkeypatch.setattr(command, "read_plan", lambda name: Plan(name))
    monkeypatch.setattr(command, "plan_cells", lambda plan: [cell(1), cell(2)])
    monkeypatch.setattr(command, "make_launcher", lambda *words: asked.append(words))
    monkeypatch.setattr(command, "conduct", run)
    monkeypatch.setattr(command, "_together", lambda cells, place: (len(cells), place))
    monkeypatch.setattr(command, "write", lambda whole, place: asked.append(whole))
    monkeypatch.setattr(command, "show", lambda whole, console: None)
    yield asked
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("counts", "status"),
    [({"done": 2}, 0), ({"done": 1, "refused": 1}, 3), ({"failed": 2}, 3)],
)
def test_the_command_ends_with_3_where_a_cell_is_not_done(
    counts: dict[str, int],
    status: int,
    given: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given[0] = Conducted(Counter(counts), 2)
    assert main(["name=s", "workers=3", "batch=2", "retry=yes"]) == status
    place = Path("outputs/studies/s")
    assert given[1:] == [
        ("pool", {"workers": "3", "batch": "2"}),
        (place, True, project_digest()),
        (2, place),
    ]
    assert capsys.readouterr().out.startswith("s: 2 cells, ")
    main(["name=s", "launcher=ray", "output_dir=here"])
    assert given[4:] == [("ray", {}), (Path("here"), False, project_digest()), (2, Path("here"))]


def test_a_search_prints_its_answer_and_runs_no_grid(
    given: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched = SimpleNamespace(name="s", search={"trials": 1})
    monkeypatch.setattr(
        command, "read_plan", lambda name: SimpleNamespace(with_last=lambda words: searched)
    )
    monkeypatch.setattr(command, "run_search", lambda plan, launcher, place, say, code: place)
    monkeypatch.setattr(command, "told", lambda name, result: f"{name} in {result}")
    assert main(["name=s"]) == 0
    assert capsys.readouterr().out == "s in outputs/studies/s\n"
    assert given[1:] == [("pool", {})]


def test_what_cannot_be_written_ends_with_2(
    given: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*words: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(command, "conduct", full)
    assert main(["name=s"]) == 2
    assert capsys.readouterr() == ("", "error: no room\n")
