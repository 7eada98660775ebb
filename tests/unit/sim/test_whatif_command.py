"""What ``moelab whatif`` asks for, prints, writes and leaves, where nothing is simulated."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.trying import SPAWNED, noted
from sim import whatif
from sim.answers.whatif import Answer, BreakEven, Row
from sim.results.labels import Labels

EVEN = BreakEven("even", 3.0, 1.0, 4.0, None, "it turns at 3")
FOUND = Answer(
    "link",
    "GB/s",
    (
        Row(1.0, "decode", 2.0, (1.0, 3.0), 0.5, 0.25, None, None, 7.0),
        Row(2.0, "decode", 4.0, None, 0.5, 0.25, None, None, 7.0),
    ),
    EVEN,
    None,
    ("8: no [room]",),
    (("decode", Labels(lossy="lossy [x]")),),
    True,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The words of the run that names the system, then those of the answer."""
    seen: list[Any] = []

    def prepared(words: list[str]) -> Any:
        seen.append(words)
        return SimpleNamespace(system="lru [s]")

    def found(name: str, words: Any, values: Any, place: Path, target: float | None) -> Answer:
        seen.append((name, list(words), values, target))
        assert place.name == whatif.KEPT
        assert place.is_dir()
        (place / "run").write_text("kept", encoding="utf-8")
        if "seed=1" in words:
            raise ValueError("interrupted")
        if "seed=2" in words:
            (place / "run").unlink()
            raise ValueError("nothing can run")
        return FOUND

    monkeypatch.setattr(whatif, "prepared", prepared)
    monkeypatch.setattr(whatif, "_with_progress", found)
    monkeypatch.setattr(whatif, "draw", lambda place, found, system: seen.append(system))
    return seen


@pytest.mark.parametrize(
    ("words", "base", "question"),
    [
        (
            ["link", "system=lru", "values=4,2", "target=3.5"],
            ["system=lru"],
            ("link", ["system=lru"], (2.0, 4.0), 3.5),
        ),
        (
            ["predictor", "system=lru", "predictor.recall=0.5", "values=1"],
            ["system=lru"],
            ("predictor", ["system=lru", "predictor.recall=0.5"], (1.0,), None),
        ),
        (
            ["link", "predictor.recall=0.5", "values=1"],
            ["predictor.recall=0.5"],
            ("link", ["predictor.recall=0.5"], (1.0,), None),
        ),
        (
            ["kv", "system=lru", "values=2048"],
            ["budget=fit", "system=lru"],
            ("kv", ["system=lru"], (2048.0,), None),
        ),
    ],
)
def test_a_question_is_asked_with_its_words_values_and_target(
    words: list[str], base: list[str], question: Any, asked: list[Any], tmp_path: Path
) -> None:
    assert whatif.main([*words, f"output_dir={tmp_path / 'out'}"]) == 0
    assert asked == [base, question, "lru [s]"]


def test_an_answer_is_told_and_written_and_no_run_is_kept(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    words = ["link", f"output_dir={place}"]
    assert whatif.main(words) == 0
    text = "lru [s]: it turns at 3. [lossy [x]]"
    lines = capsys.readouterr().out.splitlines()
    assert ["GB/s", "tokens/s", "(95%)"] in [line.split() for line in lines]
    assert lines[-3:] == [
        "left out 8: no [room]",
        text,
        f"files: {place}",
    ]
    assert sorted(path.name for path in place.iterdir()) == ["answer.json", "table.csv"]
    content = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    assert (content["system"], content["answer"]) == ("lru [s]", text)
    assert (content["labels"], content["break_even"]["value"]) == (["lossy [x]"], 3.0)
    with (place / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["value"], row["tokens_per_s"], row["interval"]) for row in rows] == [
        ("1.0", "2.0", "(1.0, 3.0)"),
        ("2.0", "4.0", ""),
    ]
    assert whatif.main(words) == 2
    assert capsys.readouterr().err == (
        f"error: output_dir={place} cannot be written (it is not empty); choose another one\n"
    )
    assert whatif.main([*words, "overwrite=yes"]) == 0
    (place / "other").write_text("mine", encoding="utf-8")
    assert whatif.main([*words, "overwrite=yes"]) == 2


def test_what_was_run_is_kept_for_the_same_words_and_goes_on(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    assert whatif.main(["link", "seed=1", f"output_dir={place}"]) == 2
    assert capsys.readouterr().err == "error: interrupted\n"
    assert [path.name for path in place.iterdir()] == [whatif.KEPT]
    assert whatif.main(["link", f"output_dir={place}"]) == 0
    assert not (place / whatif.KEPT).exists()


def test_where_nothing_was_run_nothing_is_left(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert whatif.main(["link", "seed=2"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_question_is_asked_in_two_processes_and_each_run_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = noted(whatif, monkeypatch)

    def answer(*given: Any) -> Any:
        tell = given[4]
        tell()
        if given[1] == ["stop"]:
            raise KeyboardInterrupt
        return (*given[:3], *given[5:])

    monkeypatch.setattr(whatif, "answer", answer)
    asked = "link", ["a"], (1.0, 2.0)
    assert whatif._with_progress(*asked, tmp_path, 5.0) == (*asked, tmp_path, 5.0)
    made = (2, SPAWNED, whatif.leave_with_parent)
    told = "what if: link (2 points, then a search): one more"
    assert seen == [made, told, "ended"]
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        whatif._with_progress("link", ["stop"], (1.0, 2.0), tmp_path, None)
    assert seen == [made, told, {"wait": False, "cancel_futures": True}, "ended"]
