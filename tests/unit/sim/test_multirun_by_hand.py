"""What a multirun tells of each run, what it leaves, and how it ends; with hand-made runs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.types import RunMode

import sim.__main__ as command
from sim.results.overview import Done, Refused
from sim.setup.execute import Result


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
    assert capsys.readouterr().err == "1: a=3: refused\n2: a=1 b=2: decodes at 12.3 tokens/s\n"
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
            ["cache=lru", "-m", "flags=-c 64"],
            ["-c 64", "made=1", "cache=lru", "-m"],
        ),
    ],
)
def test_flags_are_put_before_the_other_words(
    words: list[str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.answers.engine_flags.read_flags", lambda text: text)
    monkeypatch.setattr(
        "sim.answers.engine_flags.words_of", lambda flags, words: [flags, "made=1", *words]
    )
    monkeypatch.setattr("sys.argv", ["sim", *words])
    command._take_flags()
    assert sys.argv == ["sim", *made]


def asked_of_hydra(mode: RunMode, launcher: str, folder: Path) -> Any:
    return SimpleNamespace(
        get=lambda: SimpleNamespace(
            mode=mode,
            launcher=SimpleNamespace(_target_=launcher),
            overrides=SimpleNamespace(task=["a=1", "b=2"]),
            sweep=SimpleNamespace(dir=str(folder)),
        )
    )


BASIC, OTHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher", "ray.RayLauncher"


def test_a_run_that_cannot_be_or_is_stopped_ends_with_its_status_and_what_hydra_made_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    removed: list[str] = []
    ends: list[BaseException] = [ValueError("no room")]

    def stops(cfg: Any, place: Any) -> None:
        assert (cfg, place) == ("cfg", Path("out"))
        raise ends[0]

    monkeypatch.setattr(command, "_run", stops)
    monkeypatch.setattr(command, "output_folder", lambda cfg: Path("out"))
    monkeypatch.setattr(command, "forget_made", lambda: removed.append("made"))
    monkeypatch.setattr(command, "_forget_all", lambda: removed.append("all"))
    main = command.main.__wrapped__  # type: ignore[attr-defined]

    def ended(error: BaseException, mode: RunMode, launcher: str = BASIC) -> tuple[Any, str]:
        ends[:] = [error]
        removed.clear()
        monkeypatch.setattr(command, "HydraConfig", asked_of_hydra(mode, launcher, folder))
        code = None
        try:
            main("cfg")
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    run, many = RunMode.RUN, RunMode.MULTIRUN
    for error in (ValueError("no room"), OSError("no room")):
        assert ended(error, run) == (2, "error: no room\n")
        assert removed == ["made"]
    told = "interrupted; nothing was written"
    assert ended(KeyboardInterrupt(), run) == (130, f"{told}\n")
    assert removed == ["made"]
    assert ended(KeyboardInterrupt(), many) == (130, f"{told}\n")
    assert removed == ["made", "all"]
    with pytest.raises(ValueError, match="no room"):
        ended(ValueError("no room"), many, OTHER)
    assert (removed, command.REFUSED) == (["made"], [])
    assert ended(ValueError("no room"), many) == (None, "1: a=1 b=2: refused\n")
    assert [Refused("a=1 b=2", "no room")] == command.REFUSED
    assert ended(KeyboardInterrupt(), many) == (130, f"{told}\n")
    assert removed == ["made"], "a run was refused: its table is to come"
    command.DONE.append(Done({}, ()))
    assert ended(KeyboardInterrupt(), many) == (
        130,
        f"{told} of this run; 1 are kept in {folder}\n",
    )
    assert removed == ["made"]


@pytest.mark.parametrize("outputs", ["all", "summary"])
def test_a_run_writes_its_files_with_its_time_without_that_of_the_bounds_and_is_told(
    outputs: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    clock = iter((1.0, 4.56789) * 2)
    run = SimpleNamespace(
        config="resolved", controller=SimpleNamespace(loader=SimpleNamespace(wait="wait_all"))
    )
    made = Result({"decode_tokens_per_s": 12.5}, "frames", 0.5)  # type: ignore[arg-type]
    for name, answer in (
        ("build", lambda *given, changed: seen.append((given, changed)) or run),
        ("system_name", lambda: "lru"),
        ("changed", lambda: ["trace.x=1"]),
        ("execute", lambda one, progress: seen.append((one, progress.stderr)) or made),
        ("write_outputs", lambda *given: seen.append(given)),
        ("print_summary", lambda summary, console: print(summary)),
        ("decode_time_and_tokens", lambda frames: (f"times of {frames}", "tokens")),
        ("time", SimpleNamespace(perf_counter=lambda: next(clock))),
    ):
        monkeypatch.setattr(command, name, answer)
    cfg: Any = SimpleNamespace(outputs=outputs, timeline_steps=7)
    monkeypatch.setattr(command, "HydraConfig", asked_of_hydra(RunMode.RUN, BASIC, folder))
    out = folder / "out"
    command._run(cfg, out)
    summary = {"decode_tokens_per_s": 12.5, "wall_s": 3.068}
    assert seen == [
        ((cfg, "lru"), ["trace.x=1"]),
        (run, True),
        (out, summary, "resolved", "frames" if outputs == "all" else None, "wait_all", 7),
    ]
    assert capsys.readouterr().out == f"{summary}\nfiles: {out}\n"
    (out / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(OSError, match="is not empty"):
        command._run(cfg, out)
    command.OVERWRITE.append(True)
    clock = iter((1.0, 4.56789))
    monkeypatch.setattr(command, "HydraConfig", asked_of_hydra(RunMode.MULTIRUN, BASIC, folder))
    command._run(cfg, out)
    assert [Done(summary, ("a=1", "b=2"), "times of frames")] == command.DONE  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""


def test_the_command_takes_its_own_words_before_hydra_reads_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(command, "compose_once", lambda: seen.append("once"))
    monkeypatch.setattr(command, "main", lambda: seen.append(" ".join(sys.argv)))
    monkeypatch.setattr(command, "_tell_all", lambda: 3)
    whole = command._command.__wrapped__  # type: ignore[attr-defined]
    for words, overwrite in (
        (["overwrite=no", "overwrite=yes"], True),
        (["overwrite=yes", "overwrite=no"], False),
        ([], False),
    ):
        seen.clear()
        command.OVERWRITE.clear()
        monkeypatch.setattr("sys.argv", ["sim", *words, "a=1"])
        assert whole() == 3
        assert (seen, command.OVERWRITE) == (["once", "sim a=1"], [overwrite])
    assert logging.getLogger("hydra").level == logging.WARNING
    monkeypatch.setattr("sys.argv", ["sim", "flags=--nothing-of-it"])
    seen.clear()
    assert whole() == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert seen == []
