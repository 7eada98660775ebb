"""A study's rows on disk: each finished cell is in a part or in the journal, whatever happens."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from sim.study.dataset import Dataset, DatasetError, read_cells
from sim.study.rows import SCHEMA, Row, axis_types

AXES = axis_types({"seed": [1], "cache": ["lru"]})


def row(number: int, status: str = "done", size: int = 0) -> Row:
    return {
        **dict.fromkeys(SCHEMA),
        "key": f"k{number:03d}",
        "status": status,
        "axis.seed": number,
        "axis.cache": "lru",
        "decode_ns": [1.5, number],
        "summary": "x" * size,
    }


def dataset(
    place: Path, told: list[str] | None = None, axes: dict[str, Any] | None = None
) -> Dataset:
    return Dataset(place, axes or AXES, (told if told is not None else []).append)


def with_status(data: Dataset, *statuses: str) -> list[str]:
    return [key for key, status in data.statuses.items() if status in statuses]


def fill(place: Path, *numbers: int) -> None:
    with dataset(place) as data:
        for number in numbers:
            data.add(row(number))


def keys(place: Path) -> list[str]:
    return sorted(read_cells(place)["key"])


def test_a_name_in_brackets_is_no_pattern(tmp_path: Path) -> None:
    place = tmp_path / "a [b]"
    fill(place, 1, 2)
    with dataset(place) as data:
        data.add(row(3, "failed"))
    with dataset(place) as data:
        assert set(data.statuses) == {"k001", "k002", "k003"}
        assert data.forget(with_status(data, "failed")) == 1
        assert sorted(data.read()["key"]) == ["k001", "k002"]
    assert keys(place) == ["k001", "k002"]


def test_parts_and_the_tables_of_three_libraries_agree(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    fill(tmp_path, 3)
    ours = read_cells(tmp_path).sort("key")
    assert ours["key"].to_list() == ["k001", "k002", "k003"]
    assert pl.read_parquet(tmp_path / "cells" / "*.parquet").sort("key").equals(ours)
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow

    theirs = pd.read_parquet(tmp_path / "cells").sort_values("key")
    assert theirs["axis.seed"].to_list() == [1.0, 2.0, 3.0]
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select sum(\"axis.seed\") from '{tmp_path}/cells/*.parquet'").fetchall()
    assert found == [(6.0,)]


def test_what_a_killed_study_has_only_in_its_journal_is_found_again(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    lines = [json.dumps(row(n)) for n in (1, 2, 3)]
    (tmp_path / "journal.jsonl").write_text(
        "\n".join(lines) + '\n{"key": "k004", "sta', encoding="utf-8"
    )
    (tmp_path / "cells" / ".part-000002.parquet").write_bytes(b"half of a part")
    told: list[str] = []
    with dataset(tmp_path, told) as data:
        assert sorted(data.statuses) == ["k001", "k002", "k003"]
        data.add(row(4))
    assert keys(tmp_path) == ["k001", "k002", "k003", "k004"], "each once"
    assert "1 line that cannot be read; those cells run again" in told[0]
    assert [path.name for path in (tmp_path / "cells").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("parts", [(), (1,), (1, 2)])
def test_who_reads_a_killed_study_finds_what_is_in_its_journal_alone(
    parts: tuple[int, ...], tmp_path: Path
) -> None:
    """As the study itself would: each cell once, and no torn line."""
    fill(tmp_path, *parts)
    (tmp_path / "cells").mkdir(exist_ok=True, parents=True)
    rows = [row(2), row(3) | {"axis.seed": "x", "axis.system": "fate"}]
    (tmp_path / "journal.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in rows) + '{"key": "k004", "sta',
        encoding="utf-8",
    )
    found = read_cells(tmp_path).sort("key")
    assert found["key"].to_list() == [f"k{number:03d}" for number in sorted({*parts, 2, 3})]
    assert found["decode_ns"].to_list()[-1] == [1.5, 3.0]
    assert found["axis.system"].to_list()[-2:] == [None, "fate"]
    assert found["axis.seed"].to_list()[-1] == "x"


def test_who_reads_a_broken_part_is_told_what_sets_it_aside(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    part = tmp_path / "cells" / "part-000002.parquet"
    part.write_bytes(b"PAR1 and no more")
    with pytest.raises(
        ValueError, match=r"part-000002\.parquet cannot be read \(.*again set it as"
    ):
        read_cells(tmp_path)


# Contracts: C134
def test_a_finished_cell_is_in_the_journal_before_the_next_begins(tmp_path: Path) -> None:
    with dataset(tmp_path) as data:
        data.add(row(7))
        (line,) = (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(line)["key"] == "k007"
        data.flush()
        assert (tmp_path / "journal.jsonl").read_bytes() == b""
        assert keys(tmp_path) == ["k007"]


# Contracts: C134
def test_a_corrupt_part_is_kept_aside_and_told_and_the_rest_stays_readable(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    fill(tmp_path, 3)
    broken = tmp_path / "cells" / "part-000001.parquet"
    broken.write_bytes(broken.read_bytes()[:-20])
    told: list[str] = []
    with dataset(tmp_path, told) as data:
        assert sorted(data.statuses) == ["k003"]
        data.add(row(1))
    assert "part-000001.parquet cannot be read" in told[0]
    assert "kept as part-000001.parquet.corrupt, and the cells that it held run again" in told[0]
    assert (tmp_path / "part-000001.parquet.corrupt").is_file()
    assert pl.read_parquet(tmp_path / "cells" / "*.parquet")["key"].sort().to_list() == [
        "k001",
        "k003",
    ]
    assert sorted(pd.read_parquet(tmp_path / "cells")["key"]) == ["k001", "k003"]


# Contracts: C134
def test_two_studies_cannot_write_one_dataset(tmp_path: Path) -> None:
    with dataset(tmp_path) as data:
        data.add(row(1))
        with pytest.raises(
            DatasetError,
            match=r"is being written by process \d+ on .*; wait for it, or choose another",
        ):
            dataset(tmp_path).__enter__()
        data.add(row(2))
    assert keys(tmp_path) == ["k001", "k002"]
    fill(tmp_path, 3)


def test_a_place_that_cannot_be_written_is_refused_and_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(
        DatasetError, match=r"cannot be written .*choose another place, and start again"
    ):
        dataset(tmp_path / "file" / "study").__enter__()
    with pytest.raises(RuntimeError), dataset(tmp_path / "new"):
        raise RuntimeError
    assert not (tmp_path / "new").exists(), "nothing was recorded"


@pytest.mark.parametrize("when", ["journal", "part"])
def test_a_full_disk_stops_the_study_and_loses_nothing_that_was_recorded(
    tmp_path: Path, when: str
) -> None:
    """A limit on the size of files stands in for a full disk."""
    fill(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 4_000 if when == "part" else 60_000

    def fill_the_disk() -> None:
        with dataset(tmp_path) as data:
            data.add(row(2))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            if when == "journal":
                data.add(row(3, size=80_000))
            data.flush()

    try:
        with pytest.raises(
            DatasetError, match=r"cannot be written .*; \d+ cells are recorded and stay: make room"
        ):
            fill_the_disk()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told: list[str] = []
    with dataset(tmp_path, told) as data:
        assert sorted(data.statuses) == ["k001", "k002"]
        data.add(row(4))
    assert keys(tmp_path) == ["k001", "k002", "k004"]
    assert len(told) == (when == "journal")


def test_other_axes_give_all_parts_the_same_columns(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    axes = axis_types({"seed": ["low"], "loader.cancel_stale": [True]})
    with dataset(tmp_path, axes=axes) as data:
        data.add({**row(2), "axis.seed": "low", "axis.loader.cancel_stale": True})
    found = pl.read_parquet(tmp_path / "cells" / "*.parquet").sort("key")
    assert found["axis.seed"].to_list() == ["1.0", "low"]
    assert found["axis.loader.cancel_stale"].to_list() == [None, True]
    assert found["axis.cache"].to_list() == ["lru", "lru"]


def test_the_same_axes_in_another_order_are_put_below_each_other(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with dataset(tmp_path, axes=dict(reversed(AXES.items()))) as data:
        data.add(row(2))
    assert keys(tmp_path) == ["k001", "k002"]
    assert pl.read_parquet(tmp_path / "cells" / "*.parquet")["axis.seed"].sum() == 3


def test_what_was_refused_or_failed_can_be_run_again(tmp_path: Path) -> None:
    with dataset(tmp_path) as data:
        for number, status in enumerate(("done", "refused", "failed")):
            data.add(row(number, status))
        data.flush()
        assert data.forget(with_status(data, "refused", "failed")) == 2
        assert data.statuses == {"k000": "done"}
        data.add(row(1))
    assert read_cells(tmp_path).sort("key").select("key", "status").rows() == [
        ("k000", "done"),
        ("k001", "done"),
    ]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5, None], pl.Float64),
        ([True], pl.Boolean),
        ([True, 1], pl.String),
        (["a", 1], pl.String),
        ([None], pl.String),
    ],
)
def test_a_column_takes_the_type_of_all_its_values(values: list[Any], kind: Any) -> None:
    assert axis_types({"x": values}) == {"x": kind}


def test_lines_of_a_journal_that_are_no_rows_are_lost_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    lines = [json.dumps(row(2)), "no json", '{"key": "k003"}', "[1]", '{"key": "k0']
    (tmp_path / "journal.jsonl").write_text("\n".join(lines), encoding="utf-8")
    told: list[str] = []
    with dataset(tmp_path, told):
        pass
    assert told == [
        f"{tmp_path / 'journal.jsonl'} has 4 lines that cannot be read; those cells run again"
    ]
    assert keys(tmp_path) == ["k001", "k002"]


def test_a_part_of_which_every_cell_runs_again_is_gone(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with dataset(tmp_path) as data:
        data.add(row(2, "failed"))
    with dataset(tmp_path) as data:
        assert data.forget(with_status(data, "failed")) == 1
    assert [part.name for part in (tmp_path / "cells").iterdir()] == ["part-000001.parquet"]


@pytest.mark.parametrize("limit", ["ROWS_A_PART", "SECONDS_A_PART"])
def test_a_part_is_written_after_so_many_rows_or_seconds(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dataset(tmp_path) as data:
        data.add(row(1))
        assert not list((tmp_path / "cells").glob("*.parquet"))
        monkeypatch.setattr(f"sim.study.dataset.{limit}", 2 if limit == "ROWS_A_PART" else -1)
        data.add(row(2))
        assert len(list((tmp_path / "cells").glob("*.parquet"))) == 1
