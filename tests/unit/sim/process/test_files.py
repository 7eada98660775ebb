"""Files that people read, and tables on a full disk."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.exceptions import ColumnNotFoundError

from sim.process.files import write_json, writing_table
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
    with pytest.raises(ColumnNotFoundError), writing_table(FULL):
        pl.DataFrame({"a": [1]}).select("b")
