"""Files that people read, and tables on a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

import polars as pl
import pytest
from polars.exceptions import ColumnNotFoundError, ComputeError

from sim.process.files import NotWrittenError, write_json, writing
from sim.results.outputs import _write_table

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
