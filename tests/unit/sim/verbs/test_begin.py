"""Names of files that no command can take, told before any work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.values.places import ROOT
from sim.verbs.begin import check_names_of_files

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}


def _moelab(here: Path, *words: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sim.moelab", *words],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("where", ["a word", "the working directory"])
def test_a_name_that_the_locale_does_not_read_as_utf8_is_one_line_with_the_way_out(
    where: str, tmp_path: Path
) -> None:
    here = tmp_path / "größe"
    here.mkdir()
    words = ["run", "system=lru", "trace.max_sequences=1"]
    if where == "a word":
        words.append(f"output_dir={here}")
    code, told = _moelab(tmp_path if where == "a word" else here, *words, **ASCII)
    assert code == 2
    (line,) = told.splitlines()
    assert line.startswith("error: ")
    assert "is not read as UTF-8, which names of files must be: set PYTHONUTF8=1" in line
    assert list(here.iterdir()) == []


def test_a_working_directory_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="the working directory has been removed; go to another"):
        check_names_of_files(["system=lru"])


@pytest.mark.parametrize("verb", ["run", "real"])
def test_where_no_folder_can_be_made_the_default_is_one_line_and_a_named_one_is_taken(
    verb: str, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "outputs").touch()
    words = [verb, "system=lru", "trace.max_sequences=1"]
    code, told = _moelab(here, *words)
    assert code == 2
    (line,) = told.splitlines()
    assert line.startswith("error: no folder for a run can be made in outputs/")
    assert line.endswith("choose another one: output_dir=DIR")
    if verb == "run":
        assert _moelab(here, *words, f"output_dir={tmp_path}/named")[0] == 0
        assert (tmp_path / "named" / "summary.json").is_file()
    else:
        told = _moelab(here, *words, f"output_dir={tmp_path}/named")[1]
        assert "outputs/stores" in told
        assert told.strip().endswith("make room, or name another folder with engine.store_dir")
    assert [path.name for path in here.iterdir()] == ["outputs"]
