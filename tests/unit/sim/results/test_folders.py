"""The folders of results: locked, empty at first, and never half of old and new."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.listed import names
from sim.results.folders import (
    check_can_be_made,
    check_writable,
    folder_for,
    forget,
    locked,
    own_folder,
)
from sim.values.places import ASSETS, ROOT, is_free, is_unfinished


def test_a_folder_of_results_is_the_one_named_or_the_first_that_is_free(tmp_path: Path) -> None:
    default = tmp_path / "runs"
    assert folder_for({"output_dir": "x/y", "overwrite": "yes"}, default) == Path("x/y")
    assert folder_for({}, default) == default
    default.mkdir()
    assert folder_for({}, default) == default
    (default / "a").touch()
    (tmp_path / "runs-2").touch()
    assert folder_for({"overwrite": "no"}, default) == tmp_path / "runs-3"
    assert folder_for({"overwrite": "yes"}, default) == default
    (tmp_path / "runs-3").mkdir()
    assert folder_for({}, default) == tmp_path / "runs-3"
    (default / ".unfinished").touch()
    assert folder_for({}, default) == default, "what is there was left by a killed command"
    with locked(default):
        assert folder_for({}, default) == tmp_path / "runs-3"


def test_a_folder_that_is_not_empty_or_no_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    check_writable(place)
    assert list(place.iterdir()) == []
    (place / "file").touch()
    way_out = "choose another one"
    with pytest.raises(OSError, match="not empty") as refused:
        check_writable(place)
    assert (
        str(refused.value) == f"output_dir={place} cannot be written (it is not empty); {way_out}"
    )
    with (
        pytest.raises(OSError, match="cannot be written") as refused,
        locked(place / "file" / "c"),
    ):
        pass
    assert str(refused.value).startswith(f"output_dir={place}/file/c cannot be written ([Errno ")
    assert str(refused.value).endswith(f"); {way_out}")


def test_empty_folders_are_removed_up_to_one_that_is_used_or_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    forget(tmp_path / "a" / "b" / "c")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    (tmp_path / "here" / "d" / "e").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    forget(Path("d/e"))
    assert [path.name for path in tmp_path.iterdir() if path.name != "a"] == ["here"]
    assert list((tmp_path / "here").iterdir()) == []
    forget(Path("absent"))


def filled(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "old").write_text("old")
    (folder / "link").symlink_to(folder / "deep")
    return folder


def write(folder: Path) -> None:
    filled(folder / "new")
    (folder / "file").touch()


def stopped(place: Path, overwrite: bool = False) -> None:
    """Write into a folder of results, and be stopped; what is in it has gone aside."""
    try:
        with own_folder(place, overwrite):
            assert names(place) == [".unfinished"]
            aside = [path.name for path in place.parent.iterdir() if path != place]
            assert aside == ["place.before-overwrite"] * overwrite
            write(place)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return
    raise AssertionError("it was swallowed")


@pytest.mark.parametrize("was_there", [True, False])
def test_a_block_that_raises_leaves_an_empty_folder_or_none(
    tmp_path: Path, was_there: bool
) -> None:
    place = tmp_path / "place"
    if was_there:
        place.mkdir()
    stopped(place)
    assert names(tmp_path) == (["place"] if was_there else [])
    with own_folder(place):
        write(place)
    assert names(place) == ["file", "new", "new/deep", "new/deep/old", "new/link"]
    with pytest.raises(OSError, match="it is not empty"), own_folder(place):
        pass
    assert names(place) == ["file", "new", "new/deep", "new/deep/old", "new/link"]


def test_what_is_written_over_goes_when_the_block_ends_and_comes_back_when_it_raises(
    tmp_path: Path,
) -> None:
    place = filled(tmp_path / "place")
    stopped(place, overwrite=True)
    assert names(tmp_path) == ["place", "place/deep", "place/deep/old", "place/link"]
    with own_folder(place, overwrite=True):
        (place / "file").touch()
    assert names(tmp_path) == ["place", "place/file"]


def test_a_folder_with_what_no_command_leaves_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = filled(tmp_path / "place")
    (place / ".git").mkdir()
    with pytest.raises(OSError, match="git") as refused, own_folder(place, overwrite=True):
        pass
    assert str(refused.value) == (
        f"output_dir={place} has .git, which no command here leaves; empty it yourself, or choose"
        " another one"
    )
    monkeypatch.chdir(place / "deep")
    with pytest.raises(OSError, match="working") as refused, own_folder(place, overwrite=True):
        pass
    assert str(refused.value) == (
        f"output_dir={place} has the working directory in it; choose another one"
    )
    assert names(tmp_path) == ["place", "place/.git", "place/deep", "place/deep/old", "place/link"]


def test_a_run_that_was_killed_while_it_wrote_is_written_over(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / ".building.ab12").mkdir(parents=True)
    with own_folder(place, overwrite=True):
        (place / "file").touch()
    assert names(tmp_path) == ["place", "place/file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from sim.results import folders

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

place, moment = Path(sys.argv[1]), sys.argv[2]
moves = []

def some(source, target, all_of=folders._move_all):
    moves.append(1)
    if len(moves) == int(moment[-1]):
        first = sorted(source.iterdir())[0]
        first.rename(target / first.name)
        kill()
    all_of(source, target)

if moment.startswith("move"):
    folders._move_all = some
with folders.own_folder(place, overwrite=True):
    (place / "file").touch()
    if moment == "block":
        kill()
    if moment == "move 2":
        raise ValueError
    folders.shutil.rmtree = kill
"""
"""Writes into a folder and is killed in the block, while files are moved to and fro, or behind it."""


# Contracts: C132
@pytest.mark.parametrize("moment", ["block", "move 1", "move 2"])
def test_older_results_survive_a_process_that_is_killed_while_it_writes_over_them(
    moment: str, tmp_path: Path
) -> None:
    place = filled(tmp_path / "place")
    older = names(place)
    command = [sys.executable, "-c", KILLED, str(place), moment]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    if moment == "block":
        assert names(tmp_path / "place.before-overwrite") == older
    with pytest.raises(OSError, match="has its results again, which a killed"), own_folder(place):
        pass
    assert names(place) == older
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    with own_folder(place, overwrite=True):
        (place / "new").touch()
    assert names(tmp_path) == ["place", "place/new"]


# Contracts: C132
def test_a_process_that_is_killed_behind_its_work_leaves_the_new_results(tmp_path: Path) -> None:
    place = filled(tmp_path / "place")
    command = [sys.executable, "-c", KILLED, str(place), "end"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    with pytest.raises(OSError, match="it is not empty"), own_folder(place):
        pass
    assert names(place) == ["file"]


KILLED_WITHOUT = """
import os, signal, sys
from pathlib import Path
from sim.results.folders import own_folder

with own_folder(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


# Contracts: C132
@pytest.mark.parametrize("overwrite", [True, False])
def test_the_half_that_a_killed_process_left_is_known_and_makes_room_for_the_same_command(
    overwrite: bool, tmp_path: Path
) -> None:
    """frontier, export, report and others left a part of their files, which stood for all of them."""
    place = tmp_path / "place"
    command = [sys.executable, "-c", KILLED_WITHOUT, str(place)]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert names(place) == [".unfinished", "half"]
    assert is_unfinished(place)
    assert is_free(place)
    with own_folder(place, overwrite):
        assert names(place) == [".unfinished"]
        (place / "whole").touch()
    assert names(tmp_path) == ["place", "place/whole"]
    assert not is_unfinished(place)


def test_a_block_that_puts_its_folder_there_at_once_finds_it_empty(tmp_path: Path) -> None:
    place, draft = tmp_path / "place", tmp_path / "draft"
    filled(draft)
    with own_folder(place, at_once=True):
        draft.rename(place)
    assert names(tmp_path) == ["place", "place/deep", "place/deep/old", "place/link"]


def test_a_folder_that_cannot_be_made_is_refused_before_any_work_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    check_can_be_made(tmp_path / "new" / "below")
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "new", Path("/proc/new"), Path("/proc/a/b")):
        with pytest.raises(
            OSError, match=rf"output_dir={place} cannot be written .*choose another"
        ):
            check_can_be_made(place)


def test_commands_that_write_one_file_ask_first_whether_it_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from real.calibrate import main as measure
    from sim.calibrate import main as calibrate
    from sim.fit import main as fit
    from sim.models import main as models

    log = tmp_path / "log.csv"
    log.write_text("b,n,t\n1,1,1\n", encoding="utf-8")
    of_log = ("columns=bytes:b,loads:n,io_ms:t", "base=rtx4090_pcie4", "name=mine")
    for main, words, place in (
        (models, [f"from={ASSETS / 'tiny_mixtral'}"], "output=/proc/model/mine.yaml"),
        (calibrate, [f"log={log}", *of_log], "output=/proc/hardware/mine.yaml"),
        (measure, ["name=mine"], "facts=/proc/new/facts.json"),
        (fit, ["predictor=next_site", "trace=tiny_mixtral"], "output_dir=/proc/new"),
    ):
        assert main([*words, place]) == 2
        told = capsys.readouterr()
        assert not told.out
        assert re.search(rf"{place}.* cannot be written .*choose another one", told.err), told.err


def test_commands_whose_folder_appears_whole_ask_first_whether_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capture.__main__ import main as capture
    from capture.import_trace import main as import_trace
    from capture.synthesize import main as synthesize

    (tmp_path / "a.csv").write_text("no columns\n", encoding="utf-8")
    facts = ("model=m", "experts=4", "hidden=8", "expert_intermediate=8", "licence=own")
    imported = ["format=csv", f"path={tmp_path / 'a.csv'}", *facts]
    for main, words in (
        (import_trace, imported),
        (synthesize, ["like=mixtral_8x7b", "tokens=2", "sequences=1"]),
        (capture, ["model=nowhere/x", "prompts=heldout"]),
    ):
        assert main([*words, "output_dir=/proc/new"]) == 2
        assert "output_dir=/proc/new cannot be written" in capsys.readouterr().err
