"""The folder of a run's files is never another run's, whatever the clock says."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra

from sim.results import folders
from sim.results.folders import forget, locked, own_folder
from sim.setup.command import compose_once, fresh_folder
from sim.values.places import ROOT

FROZEN = """
import datetime, runpy, sys

class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2030, 1, 2, 3, 4, 5)

datetime.datetime = Frozen
sys.argv[0] = "sim"
runpy.run_module("sim", run_name="__main__", alter_sys=True)
"""
"""Runs ``python -m sim`` with a clock that stands still at five seconds past 03:04."""
SMALL = ("system=lru", "model=tiny_mixtral", "trace.max_sequences=1", "outputs=summary")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), {"2030-01-02/03-04-05", "2030-01-02/03-04-05-2"}, id="runs"),
        pytest.param(
            ("-m",),
            {"multirun/2030-01-02/03-04-05/0", "multirun/2030-01-02/03-04-05-2/0"},
            id="multiruns",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_two_runs_of_one_second_have_two_folders(
    tmp_path: Path, words: tuple[str, ...], expected: set[str]
) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", FROZEN, *words, *SMALL],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(2)
    ]
    told = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    found = [
        path.parent.relative_to(tmp_path / "outputs").as_posix()
        for path in tmp_path.rglob("summary.json")
    ]
    assert set(found) == expected
    # A multirun names the folder of all its runs.
    folders = {place.removesuffix("/0") for place in expected}
    assert {out.split("files: ")[1].split("outputs/")[1].strip() for out, _ in told} == folders


# Contracts: C132
def test_every_folder_that_is_named_by_the_clock_is_a_fresh_one() -> None:
    named = [
        line
        for path in (ROOT / "conf").rglob("*.yaml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "${now:" in line
    ]
    assert len(named) == 2
    assert all(": ${fresh:outputs/" in line for line in named)


def test_as_many_as_ask_for_one_name_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "name"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fresh_folder(str(path)), range(40)))
    assert sorted(map(Path, found)) == sorted(
        [path, *(path.with_name(f"name-{n}") for n in range(2, 41))]
    )
    assert all(Path(one).is_dir() for one in found)


def test_one_who_clears_away_takes_no_folder_from_one_who_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has made the folder of the day, but not its own yet.

    Then another run removes the day's, since it is empty.
    """
    real, made = Path.mkdir, list[Path]()

    def mkdir(self: Path, *given: object, **named: object) -> None:
        if self.name == "run" and len(made) == 1:
            forget(self.parent)
        made.append(self)
        real(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.chdir(tmp_path)
    assert fresh_folder(str(tmp_path / "day" / "run")) == str(tmp_path / "day" / "run")
    assert (tmp_path / "day" / "run").is_dir()
    assert len(made) > 2


def test_where_no_folder_can_be_made_the_way_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "outputs").touch()
    with pytest.raises(
        OSError, match=r"no folder for a run can be made in .*; choose another one: output_dir=DIR"
    ):
        fresh_folder(str(tmp_path / "outputs" / "day" / "run"))


HOLDS = """
import sys
from pathlib import Path
from sim.results.folders import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


# Contracts: C132
@pytest.mark.thorough
def test_a_folder_that_another_process_writes_into_is_refused_until_that_has_ended(
    tmp_path: Path,
) -> None:
    place = tmp_path / "out"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with (
        pytest.raises(OSError, match=r"output_dir=.*out is being written by another process"),
        own_folder(place),
    ):
        pass
    assert place.is_dir()
    other.kill()
    other.communicate(timeout=60)
    with own_folder(place):
        (place / "file").touch()
    with pytest.raises(OSError, match="it is not empty"), own_folder(place):
        pass
    assert (place / "file").exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_what_ends_early_leaves_nothing_in_its_folder(tmp_path: Path, was_there: bool) -> None:
    place = tmp_path / "out"
    if was_there:
        place.mkdir()

    def write() -> None:
        (place / "folder").mkdir()
        (place / "folder" / "file").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), own_folder(place):
        write()
    assert place.exists() == was_there
    with own_folder(place), pytest.raises(OSError, match="another process"), locked(place):
        pass


def test_a_folder_that_was_taken_or_refused_leaves_no_open_descriptor(tmp_path: Path) -> None:
    place = tmp_path / "out"
    before = os.listdir("/proc/self/fd")
    with locked(place), pytest.raises(OSError, match="another process"), locked(place):
        pass
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (fcntl, "flock"), (os, "fstat")])
def test_a_signal_while_a_folder_is_taken_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """The folder is made, but the block that would remove it has not begun."""
    monkeypatch.setattr(module, name, pressed(getattr(module, name)))
    with pytest.raises(KeyboardInterrupt), own_folder(tmp_path / "out"):
        pytest.fail("the block ran")
    assert not (tmp_path / "out").exists()


def test_a_signal_while_a_folder_is_emptied_brings_back_what_was_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "answer").write_text("42", encoding="utf-8")
    monkeypatch.setattr(folders, "_move_all", pressed(folders._move_all))
    with pytest.raises(KeyboardInterrupt), own_folder(place, overwrite=True):
        pytest.fail("the block ran")
    assert (place / "answer").read_text(encoding="utf-8") == "42"
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_that_is_more_than_results_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    (place / "inside").mkdir(parents=True)
    (place / ".git").touch()
    with (
        pytest.raises(
            OSError,
            match=rf"^output_dir={place} has \.git, which no command here leaves; empty it yourself,"
            r" or choose another one$",
        ),
        own_folder(place, overwrite=True),
    ):
        pytest.fail("the block ran")
    (place / ".git").unlink()
    monkeypatch.chdir(place / "inside")
    with (
        pytest.raises(
            OSError,
            match=f"^output_dir={place} has the working directory in it; choose another one$",
        ),
        own_folder(place, overwrite=True),
    ):
        pytest.fail("the block ran")
    assert list(place.iterdir()) == [place / "inside"]


def test_a_default_folder_is_written_over_where_that_is_said(tmp_path: Path) -> None:
    default = tmp_path / "out"
    default.mkdir()
    (default / "file").touch()
    assert folders.folder_for({"overwrite": "yes"}, default) == default
    assert folders.folder_for({"overwrite": "no"}, default) == tmp_path / "out-2"
    assert folders.folder_for({"output_dir": "mine"}, default) == Path("mine")


def test_a_folder_is_taken_where_there_are_no_locks_and_taken_again_where_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError("no locks")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with locked(tmp_path / "a"):
            assert (tmp_path / "a").is_dir()
    take, asked = folders._take, iter([True, False])
    monkeypatch.setattr(folders, "_take", lambda place: None if next(asked) else take(place))
    with locked(tmp_path / "b"):
        assert list(asked) == []


def pressed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a Ctrl-C at its first call."""
    calls: list[int] = []

    def call(*words: Any) -> Any:
        found = function(*words)
        if not calls:
            calls.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return call


ONCE = """
import atexit, runpy, sys
from hydra._internal.hydra import Hydra

compose, times = Hydra.compose_config, []

def counted(*args, **named):
    times.append(1)
    return compose(*args, **named)

Hydra.compose_config = counted
atexit.register(lambda: print("composed", len(times)))
sys.argv[0] = "sim"
runpy.run_module("sim", run_name="__main__", alter_sys=True)
"""


def test_a_run_composes_its_configuration_once(tmp_path: Path) -> None:
    """Hydra would do so twice: it asks a configuration first whether it sets ``hydra.mode``."""
    words = (*SMALL, f"output_dir={tmp_path}/run")
    told = subprocess.run(
        [sys.executable, "-c", ONCE, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout.splitlines()[-1] == "composed 1", told.stderr


@pytest.mark.parametrize(
    ("words", "options", "is_asked"),
    [
        pytest.param(["system=lru", "trace.max_sequences=1"], [], False, id="a run"),
        pytest.param(["hydra.mode=MULTIRUN"], [], True, id="hydra's own words"),
        pytest.param(["hydra.searchpath=[mine]"], [], True, id="another search path"),
        pytest.param(["system=lru"], ["--config-dir=mine"], True, id="another folder"),
    ],
)
def test_hydra_asks_for_its_mode_where_the_words_may_set_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], options: list[str], is_asked: bool
) -> None:
    asked: list[list[str]] = []
    told: Any = lambda hydra, config_name, overrides: asked.append(overrides)  # noqa: E731
    monkeypatch.setattr(Hydra, "get_mode", told)
    monkeypatch.setattr(sys, "argv", ["sim", *options, *words])
    compose_once()
    unused: Any = None
    assert Hydra.get_mode(unused, "config", words) is None
    assert asked == ([words] if is_asked else [])
