"""A foreign engine's residency log, made by hand: what is read of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.traces import make_trace
from sim.traces import residency_log
from sim.traces.residency_log import (
    COLUMNS,
    EXPERT_BYTES_FILE,
    RESIDENCY_FILE,
    ResidencyLog,
    read_expert_bytes,
    read_log,
)
from sim.traces.trace import DECODE, PREFILL, Trace, TraceError, TraceSequence, write_trace

AGAIN = "; import the engine's log again (moelab import format=bigmoe ...)"
Row = dict[str, Any]
Edit = Callable[[list[Row]], list[Row]]

# site, step, sequence, position, slot, expert, resident, prefetched, loaded_bytes, dropped
LINES = [
    (0, 0, 5, 0, 0, 1, False, False, 1, False),
    (0, 0, 5, 0, 1, 2, False, False, 100, False),
    (0, 0, 5, 1, 0, 2, False, False, 0, False),
    (0, 0, 5, 1, 1, 1, False, False, 0, False),
    # Absent, yet nothing is read for it: neither here nor two lines below.
    (1, 0, 5, 0, 0, 3, False, False, 0, False),
    (1, 0, 5, 0, 1, 0, True, True, 0, False),
    (1, 0, 5, 1, 0, 3, False, False, 0, False),
    (1, 0, 5, 1, 1, 2, False, True, 0, True),
    (0, 1, 5, 2, 0, 0, False, False, 100, False),
    (0, 1, 5, 2, 1, 2, True, True, 0, False),
    # There, yet it is read. The token's first choice was dropped, and the log does not know of it.
    (1, 1, 5, 2, 1, 1, True, False, 200, False),
]
BYTES = [
    {"site": 0, "layer": 0, "expert_bytes": 100, "dense_bytes": 7},
    {"site": 1, "layer": 2, "expert_bytes": 200, "dense_bytes": 0},
]


def hand_trace() -> Trace:
    """Two prompt tokens and a decoded one: two sites, four experts, top 2."""
    header = make_trace().header
    ids = [[[1, 2], [3, 0]], [[2, 1], [3, -1]], [[0, 2], [-1, 1]]]
    return Trace(
        header=replace(
            header,
            model=replace(header.model, sites=2, experts=4, top_k=2),
            sites=tuple(replace(site, rule=None) for site in header.sites[:2]),
            sequences=(TraceSequence(5, "eval", "prose", 2, 1),),
            lookahead=None,
            sparsities=(),
        ),
        step=np.array([0, 0, 1], np.int32),
        phase=np.array([PREFILL, PREFILL, DECODE], np.uint8),
        sequence=np.full(3, 5, np.int32),
        position=np.arange(3, dtype=np.int32),
        token=np.full(3, -1, np.int32),
        valid=np.ones(3, np.bool_),
        ids=np.array(ids, np.int16),
        weights=np.where(np.array(ids) < 0, 0, 0.5).astype(np.float32),
    )


def table(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(COLUMNS))


def good() -> list[Row]:
    return [dict(zip(COLUMNS, line, strict=True)) for line in LINES]


def write(place: Path, frame: pl.DataFrame, sizes: object = BYTES) -> Path:
    files: Mapping[str, Any] = {
        RESIDENCY_FILE: lambda path: frame.write_parquet(path),
        EXPERT_BYTES_FILE: json.dumps(sizes).encode(),
    }
    write_trace(place / "log", hand_trace(), files)
    return place / "log"


def read(place: Path, edit: Edit = lambda rows: rows, sizes: object = BYTES) -> ResidencyLog:
    return read_log(write(place, table(edit(good())), sizes))


def test_a_log_has_a_lookup_for_each_choice_that_was_applied_in_the_files_order(
    tmp_path: Path,
) -> None:
    log = read(tmp_path)
    assert len(log) == 10
    assert log.line.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert log.row.tolist() == [0, 0, 1, 1, 0, 0, 1, 2, 2, 2]
    assert log.step.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert log.site.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1]
    assert log.slot.tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1, 1]
    assert log.expert.tolist() == [1, 2, 2, 1, 3, 0, 3, 0, 2, 1]
    assert np.flatnonzero(log.resident).tolist() == [5, 8, 9]
    assert log.loaded_bytes.tolist() == [1, 100, 0, 0, 0, 0, 0, 100, 0, 200]
    assert (log.num_prefetched, log.layers, log.expert_bytes) == (2, (0, 2), (100, 200))


def test_a_flag_is_at_odds_with_what_its_batch_read_for_the_expert_where_bytes_are_told(
    tmp_path: Path,
) -> None:
    log = read(tmp_path)
    assert log.tells_bytes
    assert np.flatnonzero(log.at_odds).tolist() == [4, 6, 9]
    silent = replace(log, loaded_bytes=np.zeros_like(log.loaded_bytes))
    assert not silent.tells_bytes
    assert not silent.at_odds.any()


def at(line: int, **change: Any) -> Edit:
    return lambda rows: [
        {**row, **change} if index == line else row for index, row in enumerate(rows)
    ]


COLUMN_NAMES = (
    "site, step, sequence, position, slot, expert, resident, prefetched, loaded_bytes, dropped"
)
FORGED: list[tuple[Edit, str]] = [
    (
        at(3, position=9),
        "row 3 is (5, 9), must be a (sequence, position) of the trace",
    ),
    # The row after the dropped one is line 8 of the file, and the seventh that counts.
    (
        at(8, sequence=6),
        "row 8 is (6, 2), must be a (sequence, position) of the trace",
    ),
    (at(8, step=0), "row 8, step is 0, must be 1, the trace's step of that token"),
    (at(0, site=-1), "row 0, site is -1, must be 0 to 1"),
    (at(8, site=2), "row 8, site is 2, must be 0 to 1"),
    (at(8, slot=-1), "row 8, slot is -1, must be 0 to 1"),
    (at(1, slot=2), "row 1, slot is 2, must be 0 to 1"),
    (
        at(9, expert=3),
        "row 9, expert is 3, must be 2, what routes.parquet has for that token, site and slot",
    ),
    (
        at(10, slot=0, expert=-1),
        "row 10, expert is -1, must be -1, what routes.parquet has for that token, site and slot",
    ),
    (
        lambda rows: [*rows, rows[0]],
        "rows is '11, 10 of them different', must be the 10 choices of the trace, each once",
    ),
    (
        lambda rows: rows[1:],
        "rows is '9, 9 of them different', must be the 10 choices of the trace, each once",
    ),
    (
        lambda rows: rows[:1],
        "rows is '1, 1 of them different', must be the 10 choices of the trace, each once",
    ),
    (lambda rows: [], "rows is 0, must be 1 to 12, the choices of the trace"),
    (
        lambda rows: [*rows, *rows[:2]],
        "rows is 13, must be 1 to 12, the choices of the trace",
    ),
    (at(2, slot=None), "slot is 'missing in 1 rows', must be there in every row"),
]


@pytest.mark.parametrize(("edit", "told"), FORGED, ids=[told for _, told in FORGED])
def test_lookups_that_are_not_the_choices_of_the_trace_are_refused_by_row(
    edit: Edit, told: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as refused:
        read(tmp_path, edit)
    assert str(refused.value) == f"residency.parquet: {told}{AGAIN}"


def test_columns_of_other_names_or_types_are_refused(tmp_path: Path) -> None:
    wrong = table(good()).cast({"slot": pl.Int32})
    with pytest.raises(TraceError) as refused:
        read_log(write(tmp_path, wrong))
    shown = str(COLUMN_NAMES.split(", "))[:200]
    assert str(refused.value) == (
        f"residency.parquet: columns is {shown}, must be {COLUMN_NAMES}, of their types{AGAIN}"
    )


@pytest.mark.parametrize(
    ("lacking", "other"),
    [(RESIDENCY_FILE, EXPERT_BYTES_FILE), (EXPERT_BYTES_FILE, RESIDENCY_FILE)],
)
def test_a_trace_without_a_log_is_refused_by_the_file_that_it_lacks(
    lacking: str, other: str, tmp_path: Path
) -> None:
    write_trace(tmp_path / "log", hand_trace(), {other: b"[]"})
    with pytest.raises(TraceError) as refused:
        read_log(tmp_path / "log")
    assert str(refused.value) == (
        f"{lacking}: file is 'absent', must be one of the trace's files: it says what a cache held;"
        " name a trace imported from an engine that logs residency (format=bigmoe)"
    )


def sized(site: int, **change: object) -> list[dict[str, Any]]:
    return [{**row, **change} if row["site"] == site else dict(row) for row in BYTES]


WRONG_SIZES: list[tuple[object, str]] = [
    ({"a": 1}, "rows is {'a': 1}, must be a list of 2 sites"),
    (BYTES[:1], "rows is 1, must be a list of 2 sites"),
    ([BYTES[0], 3], "[1] is 3, must have site, layer, expert_bytes, dense_bytes"),
    ([{"site": 0}, 3], "[0] is {'site': 0}, must have site, layer, expert_bytes, dense_bytes"),
    (
        sized(1, expert_bytes=0),
        "[1].expert_bytes is 0, must be a whole number, 1 to 1000000000000000",
    ),
    (
        sized(0, dense_bytes=-1),
        "[0].dense_bytes is -1, must be a whole number, 0 to 1000000000000000",
    ),
    (
        sized(1, layer=10**15 + 1),
        "[1].layer is 1000000000000001, must be a whole number, 0 to 1000000000000000",
    ),
    (
        sized(0, expert_bytes=True),
        "[0].expert_bytes is True, must be a whole number, 1 to 1000000000000000",
    ),
    (BYTES[::-1], "[0].site is 1, must be 0: sites in order"),
]


@pytest.mark.parametrize(("sizes", "told"), WRONG_SIZES, ids=[told for _, told in WRONG_SIZES])
def test_sizes_that_are_none_are_refused_by_site_and_key(
    sizes: object, told: str, tmp_path: Path
) -> None:
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    with pytest.raises(TraceError) as refused:
        read_expert_bytes(tmp_path / "sizes.json", 2)
    assert str(refused.value) == f"sizes.json: {told}{AGAIN}"


def test_sizes_may_lie_on_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, most = tmp_path / "sizes.json", 10**15
    rows = [dict.fromkeys(BYTES[0], most) | {"site": 0}, sized(1, expert_bytes=1)[1]]
    place.write_text(json.dumps(rows))
    assert residency_log.LARGEST_JSON_BYTES == 16_777_216
    monkeypatch.setattr(residency_log, "LARGEST_JSON_BYTES", place.stat().st_size)
    assert read_expert_bytes(place, 2) == ((most, 2), (most, 1))


def test_a_text_too_deep_for_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text("[" * 100_000)
    with pytest.raises(TraceError, match=r"^sizes\.json: text is '.*', must be JSON; import the"):
        read_expert_bytes(tmp_path / "sizes.json", 2)
