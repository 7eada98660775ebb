"""Tables of a run are read in their types, and what was changed is told by file and column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sim.results import kept_tables
from sim.results.kept_tables import check_together, columns_in, read_table

LOOKUPS: dict[str, Any] = {
    "step": [0, 1],
    "phase": ["decode", None],
    "weight": [0.5, 0.25],
    "victim": [None, 3],
    "more": [[1], [2]],
}


def written(folder: Path, **changes: pl.Series | None) -> Path:
    frame = pl.DataFrame(LOOKUPS)
    for name, column in changes.items():
        frame = frame.drop(name) if column is None else frame.with_columns(column.alias(name))
    frame.write_parquet(folder / "lookups.parquet")
    return folder / "lookups.parquet"


def test_the_columns_that_are_wanted_are_read_as_they_are(tmp_path: Path) -> None:
    place = written(tmp_path)
    found = read_table(place, ("victim", "phase", "step", "weight"))
    assert found.to_dict(as_series=False) == {
        name: LOOKUPS[name] for name in ("victim", "phase", "step", "weight")
    }
    assert columns_in(place) == {*LOOKUPS}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step": None, "weight": None}, "{place} lacks the columns step, weight; AGAIN"),
        ({"step": pl.Series(["0", "1"])}, "{place}: column step is String, must be numbers; AGAIN"),
        ({"phase": pl.Series([0, 1])}, "{place}: column phase is Int64, must be text; AGAIN"),
        ({"step": pl.Series([0, None])}, "{place}: column step has 1 nulls, must have none; AGAIN"),
        (
            {"weight": pl.Series([True, False])},
            "{place}: column weight is Boolean, must be numbers",
        ),
    ],
)
def test_a_column_that_was_changed_is_told_with_its_file(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    place = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"^{re.escape(told.format(place=place))}"):
        read_table(place, ("step", "phase", "weight", "victim"), "AGAIN")


def test_what_a_caller_can_do_without_may_be_null(tmp_path: Path) -> None:
    place = written(tmp_path, step=pl.Series([0, None]))
    assert read_table(place, ["step"], may_be_null=["step"])["step"].to_list() == [0, None]
    with pytest.raises(ValueError, match="column victim has 1 nulls"):
        read_table(place, ["victim"], may_be_null=["step"])


@pytest.mark.parametrize("content", [b"", b"PAR1", None, "cut"])
def test_a_file_that_cannot_be_read_is_told_in_one_line(
    content: bytes | str | None, tmp_path: Path
) -> None:
    place = written(tmp_path)
    whole = place.read_bytes()
    place.unlink()
    if isinstance(content, bytes):
        place.write_bytes(content)
    elif content == "cut":
        place.write_bytes(whole[:-9])
    else:
        place.mkdir()
    with pytest.raises(ValueError, match=r"cannot be read \(|has no lookups\.parquet") as refused:
        read_table(place, ["step"])
    assert "\n" not in str(refused.value)


def test_a_table_of_too_many_rows_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_tables, "LARGEST_ROWS", 1)
    with pytest.raises(ValueError, match=r"lookups\.parquet has 2 rows, must have at most 1"):
        read_table(written(tmp_path), ["step"])


def test_tokens_are_of_sequences_that_are_there_once(tmp_path: Path) -> None:
    tokens = pl.DataFrame({"sequence": [3, 3, 5, 4]})
    check_together(tokens, pl.DataFrame({"sequence": [5, 4, 3, 9]}), tmp_path)
    with pytest.raises(ValueError, match=r"sequences\.parquet lacks sequence 4, which tokens"):
        check_together(tokens, pl.DataFrame({"sequence": [3]}), tmp_path)
    with pytest.raises(ValueError, match=r"sequences\.parquet has a sequence twice"):
        check_together(tokens, pl.DataFrame({"sequence": [3, 4, 5, 5]}), tmp_path)
