"""Pieces that are done, fail, crash, hang or run out of time; their processes need only Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from real.suite.conduct import STATE, Suite
from real.suite.pieces import REPORT, Piece

DONE = "import pathlib, sys; pathlib.Path('{folder}/{name}.ran').open('a').write('x')"
Make = Callable[..., Suite]


def piece(name: str, seconds: float = 20.0, least_s: float = 0.1) -> Piece:
    return Piece(name, "a test", "nowhere:nothing", seconds, least_s)


@pytest.fixture
def suite(tmp_path: Path) -> Make:
    """Makes a suite whose pieces run a line of Python by name; others write a file and end."""

    def make(
        code: dict[str, str] | None = None, seconds: float = 60.0, archive: Path | None = None
    ) -> Suite:
        folder = tmp_path / "results"
        folder.mkdir(exist_ok=True)

        def command(one: Piece, given: float) -> Sequence[str]:
            text = (code or {}).get(one.name, DONE)
            return (
                sys.executable,
                "-S",
                "-c",
                text.replace("{folder}", str(folder)).replace("{name}", one.name),
            )

        return Suite(folder, "host", "tiny", seconds, archive, lambda text: None, command)

    return make


def state(one: Suite) -> dict[str, str]:
    found = json.loads((one.folder / STATE).read_text())["pieces"]
    return {name: outcome["status"] for name, outcome in found.items()}


def test_a_crash_and_a_failure_leave_the_other_pieces(suite: Make) -> None:
    one = suite(
        {
            "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "fails": "raise SystemExit('no such link')",
        }
    )
    assert one.run([piece("first"), piece("crash"), piece("fails"), piece("last")]) is False
    assert state(one) == {
        "first": "done",
        "crash": "failed",
        "fails": "failed",
        "last": "done",
        "report": "done",
    }
    assert one.outcomes["fails"].reason == "no such link"
    assert "processes have failed" in one.outcomes["crash"].reason


def test_a_piece_that_hangs_is_ended_with_all_that_it_has_started(suite: Make) -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']); "
        "open('{folder}/child', 'w').write(str(child.pid)); time.sleep(60)"
    )
    one = suite({"hangs": code})
    began = time.monotonic()
    assert one.run([piece("hangs", 1.5), piece("next")]) is False
    assert time.monotonic() - began < 30
    assert state(one) == {"hangs": "out of time", "next": "done", "report": "done"}
    child = int((one.folder / "child").read_text())
    ended = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True
    ).stdout.strip()
    # A zombie's state may have more letters, such as one for its priority.
    assert ended[:1] in ("", "Z"), "what it had started is still there"


def test_what_asks_for_another_process_gets_one(suite: Make) -> None:
    """Status 75, as after a GPU's fault."""
    code = (
        DONE + "; sys.exit(75 if pathlib.Path('{folder}/{name}.ran').read_text() != 'xxx' else 0)"
    )
    one = suite({"again": code})
    assert one.run([piece("again")]) is True
    assert (one.folder / "again.ran").read_text() == "xxx"


# Contracts: C128
def test_what_has_been_done_is_not_done_again_unless_asked(suite: Make) -> None:
    broken = suite({"second": "raise SystemExit('broken')"})
    assert broken.run([piece("first"), piece("second")]) is False
    mended = suite()
    assert mended.run([piece("first"), piece("second")]) is True
    assert [(mended.folder / f"{name}.ran").read_text() for name in ("first", "second")] == [
        "x",
        "x",
    ]
    assert suite().run([piece("first"), piece("second")], again=["first"]) is True
    assert [(mended.folder / f"{name}.ran").read_text() for name in ("first", "second")] == [
        "xx",
        "x",
    ]


# Contracts: C128
def test_what_was_done_in_part_goes_on_the_next_time(suite: Make) -> None:
    code = (
        DONE
        + "; print('no time for b'); sys.exit(74 if pathlib.Path('{folder}/{name}.ran').read_text()"
        " == 'x' else 0)"
    )
    one = suite({"runs": code})
    assert one.run([piece("runs")]) is False
    assert (one.outcomes["runs"].status, one.outcomes["runs"].reason) == (
        "in part",
        "no time for b",
    )
    assert suite({"runs": code}).run([piece("runs")]) is True


def test_a_piece_that_is_asked_for_again_forgets_its_results(suite: Make) -> None:
    one = suite()
    assert one.run([piece("first")]) is True
    (one.folder / "first.json").write_text("{}")
    assert suite().run([piece("first")], again=["first"]) is True
    assert not (one.folder / "first.json").exists()


def test_a_rehearsal_gives_a_piece_more_than_its_limit(suite: Make, tmp_path: Path) -> None:
    """A busy computer must not end it: what it shows is that everything runs."""
    given: dict[float, float] = {}
    for patience in (1.0, 8.0):
        one = suite()
        make = one.command
        assert make is not None

        def command(piece: Piece, seconds: float, patience: float = patience) -> Sequence[str]:
            given.setdefault(patience, seconds)
            return make(piece, seconds)  # noqa: B023

        one.command, one.patience = command, patience
        one.run([piece("first", seconds=5.0)], again=["first"])
    assert 0 < given[1.0] < 5.0
    assert 5.0 < given[8.0] < 40.0


def test_without_time_pieces_are_left_out_and_the_report_is_made_all_the_same(suite: Make) -> None:
    one = suite(seconds=10.05)
    assert one.run([piece("first", least_s=5.0)]) is False
    assert state(one) == {"first": "left out", REPORT.name: "done"}


def test_results_of_another_device_are_not_mixed_in(suite: Make) -> None:
    one = suite()
    one.run([piece("first")])
    with pytest.raises(
        ValueError, match="holds results of device=host size=tiny, not of device=cuda size=full"
    ):
        Suite(one.folder, "cuda", "full", 10.0)


def test_the_archive_holds_every_result_so_far(suite: Make, tmp_path: Path) -> None:
    archive = tmp_path / "all.tar.gz"
    seen: list[set[str]] = []

    def say(text: str) -> None:
        if archive.exists():
            with tarfile.open(archive) as packed:
                seen.append({Path(name).name for name in packed.getnames()})

    one = suite({"last": "import time; time.sleep(9)"}, archive=archive)
    one.say = say
    one.run([piece("first"), piece("last", 1.0)])
    assert {"first.ran", "first.log", STATE} <= seen[0], "it is there before the next piece begins"
    with tarfile.open(archive) as packed:
        assert "report.ran" in {Path(name).name for name in packed.getnames()}
    assert not [name for name in os.listdir(tmp_path) if ".part" in name]
