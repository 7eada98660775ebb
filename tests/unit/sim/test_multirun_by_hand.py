"""What a multirun tells of each run, what it leaves, and how it ends; with hand-made runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sim.__main__ as command
from sim.results.overview import Done, Refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the multirun; before it nothing has run."""
    for name in ("DONE", "REFUSED", "FOLDER", "OVERWRITE"):
        monkeypatch.setattr(command, name, [])
    told = SimpleNamespace(sweep=SimpleNamespace(dir=str(tmp_path / "many")))
    monkeypatch.setattr(command, "HydraConfig", SimpleNamespace(get=lambda: told))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "many"


def test_each_run_is_told_by_its_number_and_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command._left() == "nothing was written"
    done, refused = Done({"decode_tokens_per_s": 12.345}, ("a=1", "b=2")), Refused("a=3", "no room")
    command._note(refused)
    assert command._left() == "nothing was written"
    command._note(done)
    assert capsys.readouterr().err == "1: a=3: refused\n2: a=1 b=2: 12.3 tokens/s\n"
    assert ([done], [refused], [folder]) == (command.DONE, command.REFUSED, command.FOLDER)
    assert command._left() == f"nothing was written of this run; 1 are kept in {folder}"


@pytest.mark.parametrize(("refused", "status"), [(0, 0), (1, 3)])
def test_a_multirun_ends_with_its_answer_in_its_folder(
    refused: int,
    status: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(command, "overview", lambda done, refused: (len(done), len(refused)))
    monkeypatch.setattr(command, "write", lambda found, place: seen.append((found, place.is_dir())))
    monkeypatch.setattr(command, "show", lambda found, console: seen.append(found))
    command._note(Done({"decode_tokens_per_s": 1.0}))
    for _ in range(refused):
        command._note(Refused("a=3", "no room"))
    assert command._tell_all() == status
    assert seen == [((1, refused), True), (1, refused)]
    assert capsys.readouterr().out == f"files: {folder}\n"


def test_where_nothing_ran_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command._tell_all() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("has_file", [True, False])
def test_what_hydra_wrote_is_removed_with_its_folder(has_file: bool, folder: Path) -> None:
    folder.mkdir()
    if has_file:
        (folder / "multirun.yaml").write_text(json.dumps({}), encoding="utf-8")
    command._forget_all()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["cache=lru", "-m"], ["cache=lru", "-m"]),
        (
            ["cache=lru", "flags=-ngl all", "-m", "flags=-c 64"],
            ["-c 64", "made=1", "cache=lru", "-m"],
        ),
    ],
)
def test_flags_are_put_before_the_other_words_and_the_last_ones_count(
    words: list[str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.answers.engine_flags.read_flags", lambda text: text)
    monkeypatch.setattr(
        "sim.answers.engine_flags.words_of", lambda flags, words: [flags, "made=1", *words]
    )
    monkeypatch.setattr("sys.argv", ["sim", *words])
    command._take_flags()
    assert sys.argv == ["sim", *made]
