"""Parts of a study that somebody changed: told by file and column, set aside by the study itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from sim.study.dataset import CELLS, Dataset, read_cells
from sim.study.rows import SCHEMA, to_frame

CHANGES: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], str]] = {
    "a number for a text": (
        lambda rows: rows.with_columns(summary=pl.lit(3)),
        "column summary is Int32, must be String",
    ),
    "a text for a number": (
        lambda rows: rows.with_columns(pl.col("decode_tokens_per_s").cast(pl.String)),
        "column decode_tokens_per_s is String, must be Float64",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_part_that_was_changed_is_told_to_readers_and_set_aside_by_its_study(
    name: str, tmp_path: Path
) -> None:
    change, reason = CHANGES[name]
    row = dict.fromkeys(SCHEMA) | {"key": "k", "status": "done", "summary": "{}", "overrides": "a"}
    part = tmp_path / CELLS / "part-000001.parquet"
    part.parent.mkdir()
    to_frame([row], {}).write_parquet(part)
    assert read_cells(tmp_path)["key"].to_list() == ["k"]
    change(pl.read_parquet(part)).write_parquet(part)
    with pytest.raises(ValueError, match=rf"part-000001\.parquet cannot be read \({reason}\); the"):
        read_cells(tmp_path)
    told: list[str] = []
    with Dataset(tmp_path, {}, told.append) as dataset:
        assert dataset.statuses == {}
    (line,) = told
    assert f"cannot be read ({reason}); it is kept as part-000001.parquet.corrupt" in line
