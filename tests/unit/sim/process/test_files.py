"""Files that people read, and tables on a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.exceptions import ColumnNotFoundError, ComputeError

from helpers.listed import names
from sim.process.files import NotWrittenError, draft_of, write_json, write_whole, writing
from sim.results.outputs import _write_table
from sim.values.places import ROOT

FULL = Path("/dev/full")
"""A file on a disk without room."""


def test_a_json_file_has_a_value_a_line_and_ends_with_a_line(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None], "b": "c"})
    told = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert told == '{\n "a": [\n  1,\n  null\n ],\n "b": "c"\n}\n'


@pytest.mark.parametrize("parts", [1, 3])
def test_a_table_on_a_full_disk_is_an_error_of_the_disk_with_its_place(parts: int) -> None:
    """Polars raises one of its own, which commands do not expect: they ended in a traceback."""
    frames = [pl.DataFrame({"a": [1, 2]})] * parts
    with pytest.raises(OSError, match=r"^/dev/full cannot be written .*No space left"):
        _write_table(iter(frames), FULL)


def test_other_errors_of_a_table_stay_what_they_are() -> None:
    with pytest.raises(ColumnNotFoundError), writing(FULL):
        pl.DataFrame({"a": [1]}).select("b")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.ENOSPC, "No space"),
            r"^/dev/full cannot be written \(\[Errno 28\] No space",
        ),
        (OSError(errno.EFBIG, "too large"), r"^/dev/full cannot be written .*too large"),
        (OSError("No space left on device (os error 28)"), "^/dev/full cannot be written"),
        (ComputeError("parquet: Invalid thrift: transport error"), "^/dev/full cannot be written"),
        (NotWrittenError("x cannot be written (os error 28)"), "^x cannot be written"),
        (OSError(errno.ENOSPC, "No space", "a"), r"^\[Errno 28\] No space: 'a'$"),
        (OSError(errno.EIO, "broken"), r"^\[Errno 5\] broken$"),
    ],
)
def test_an_error_of_a_full_disk_names_what_is_written(error: Exception, told: str) -> None:
    """Neither Python nor polars names a file then: commands ended with no more than "No space"."""
    with pytest.raises(OSError, match=told), writing(FULL):
        raise error


def test_a_file_is_written_whole_with_the_folders_around_it(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b.yaml"
    write_whole(place, "ü: 1\n")
    assert place.read_text(encoding="utf-8") == "ü: 1\n"
    place.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to(place)
    write_whole(tmp_path / "link.yaml", b"new")
    assert (tmp_path / "link.yaml").is_symlink()
    assert place.read_bytes() == b"new"
    assert place.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["a", "a/b.yaml", "link.yaml"]
    write_whole(Path("/dev/null"), "gone")


def test_a_file_stays_where_the_disk_has_no_room_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's file that somebody had was cut off in the middle."""
    place = tmp_path / "mine.yaml"
    place.write_text("whole")

    def half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(NotWrittenError, match=r"mine.yaml cannot be written .*No space"):
        write_whole(place, "another")
    assert place.read_text() == "whole"
    assert names(tmp_path) == ["mine.yaml"]


KILLED = """
import os, signal, sys
from pathlib import Path
from sim.process.files import draft_of

with draft_of(Path(sys.argv[1]), sys.argv[2] == "folder") as draft:
    (draft / "part" if draft.is_dir() else draft).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_goes_when_the_next_one_writes_and_what_another_writes_stays(
    tmp_path: Path, kind: str
) -> None:
    """A trace of gigabytes stayed beside its place for good, under a hidden name."""
    place = tmp_path / "mine [1]"
    (tmp_path / ".mine [1].other").touch()
    command = [sys.executable, "-c", KILLED, str(place), kind]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("*.draft.*")
    with (
        draft_of(place, kind == "folder") as first,
        draft_of(place, kind == "folder") as second,
    ):
        assert {*tmp_path.glob("*.draft.*")} == {first, second}
        assert left not in (first, second)
    assert names(tmp_path) == [".mine [1].other"]
