"""What a trace's files may not be, by whole sentences, and how large they may be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from helpers.traces import EXTRA, edit_rows, make_trace, put
from sim.traces import reading
from sim.traces.forecasts import FORECAST_DTYPES, read_forecasts
from sim.traces.prefill import COUNT_DTYPES
from sim.traces.reading import _load_counts, checked_header, file_sha256
from sim.traces.storage import stored_columns
from sim.traces.trace import TraceError, read_header, read_trace, write_trace

REPAIR = "; capture or synthesise the trace again, or restore the file"
OTHER = "; choose another trace, or capture it with this column"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_trace(tmp_path / "trace", make_trace(), EXTRA)
    return tmp_path / "trace"


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(TraceError) as refused:
        read()
    return str(refused.value)


def test_files_are_told_by_their_sha256(written: Path) -> None:
    header = checked_header(written)
    assert header == read_header(written)
    digest = hashlib.sha256(b"# trace\n").hexdigest()
    assert header.files["README.md"] == file_sha256(written / "README.md") == digest
    (written / "README.md").write_bytes(b"# trace")
    other = hashlib.sha256(b"# trace").hexdigest()
    for read in (checked_header, read_trace):
        assert refusal(lambda read=read: read(written)) == (
            f"README.md: sha256 is '{other}', must be {digest}: the file was altered or"
            f" truncated{REPAIR}"
        )
    (written / "README.md").unlink()
    assert refusal(lambda: checked_header(written)) == (
        f"README.md: file is '{written / 'README.md'}', is missing, or is no plain file inside the"
        f" trace{REPAIR}"
    )


def test_a_header_is_a_file_of_at_most_so_many_bytes(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (written / "header.json").stat().st_size
    monkeypatch.setattr(reading, "LARGEST_HEADER_BYTES", size)
    read_header(written)
    monkeypatch.setattr(reading, "LARGEST_HEADER_BYTES", size - 1)
    assert refusal(lambda: read_header(written)) == (
        f"header.json: size is {size}, must be at most {size - 1} bytes{REPAIR}"
    )
    assert refusal(lambda: read_header(written / "no")) == (
        f"header.json: file is '{written / 'no' / 'header.json'}', is missing, or is no file; name"
        " the directory of a trace"
    )


def test_a_column_that_was_not_recorded_is_named_with_those_that_were(written: Path) -> None:
    for name in ("weight", "lookahead_scaled"):
        assert refusal(lambda name=name: read_trace(written, [name])) == (
            f"header.json: columns is '{name}', was not recorded in this trace (recorded:"
            f" ['logits', 'lookahead', 'expert_norms', 'active_shares']){OTHER}"
        )


def test_rows_take_at_most_so_many_bytes_in_memory(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """36 rows of seven plain columns and two of width 2: 44 bytes a row. Logits are 24 more."""
    assert reading.LARGEST_ROWS_BYTES == 34_359_738_368
    monkeypatch.setattr(reading, "LARGEST_ROWS_BYTES", 36 * 44)
    read_trace(written)
    assert refusal(lambda: read_trace(written, ["logits"])) == (
        "routes.parquet: rows is 36, must be at most 23 with these columns; ask for fewer columns,"
        " or capture less at a time"
    )
    monkeypatch.setattr(reading, "LARGEST_ROWS_BYTES", 36 * 44 - 1)
    assert "rows is 36, must be at most 35 with" in refusal(lambda: read_trace(written))


def rows_of(place: Path, dtypes: dict[str, pl.DataType], number: int) -> None:
    pl.DataFrame({name: [0] * number for name in dtypes}, schema=dtypes).write_parquet(place)


def test_counts_of_prompts_take_at_most_so_many_bytes_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven tokens with weights of 2 at three sites: 168 bytes, and 42 choices."""
    header, place = make_trace().header, tmp_path / "counts"
    stored = stored_columns(header, ())
    rows_of(place, COUNT_DTYPES, 42)
    monkeypatch.setattr(reading, "LARGEST_ROWS_BYTES", 168)
    assert _load_counts(place, header, stored).height == 42
    rows_of(place, COUNT_DTYPES, 43)
    assert refusal(lambda: _load_counts(place, header, stored)) == (
        "prefill_counts.parquet: rows is 43, must be at most 42, the choices of all"
        f" prompts{REPAIR}"
    )
    monkeypatch.setattr(reading, "LARGEST_ROWS_BYTES", 167)
    assert refusal(lambda: _load_counts(place, header, stored)) == (
        "header.json: prompt_tokens is 7, must be at most 6 in all with these columns; ask for"
        " fewer columns, or capture less"
    )
    monkeypatch.setattr(reading, "LARGEST_ROWS_BYTES", 168)
    place.write_bytes(b"none")
    assert refusal(lambda: _load_counts(place, header, stored)).endswith(
        f"must be a parquet file that polars reads{REPAIR}"
    )


def test_forecasts_of_prompts_have_at_most_as_many_rows_as_there_are_choices(
    tmp_path: Path,
) -> None:
    """Seven tokens that choose 2 at three sites, each one and two sites ahead."""
    header, place = make_trace().header, tmp_path / "prefill_forecasts_raw.parquet"
    rows_of(place, FORECAST_DTYPES, 84)
    assert read_forecasts(tmp_path, "raw", header).height == 84
    rows_of(place, FORECAST_DTYPES, 85)
    assert refusal(lambda: read_forecasts(tmp_path, "raw", header)) == (
        "prefill_forecasts_raw.parquet: rows is 85, must be at most 84, the forecasts of all"
        f" prompts{REPAIR}"
    )


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda frame: frame.head(35),
            "site is '35 rows', must be 0..2 in order with equal counts; write every row at every"
            " site, with ids of -1 where it does not visit",
        ),
        (
            put("site", 12, 0),
            "site is '36 rows', must be 0..2 in order with equal counts; write every row at every"
            " site, with ids of -1 where it does not visit",
        ),
        (
            put("token", 24, 49),
            f"token is 'site 2', must have the same token-rows as site 0{REPAIR}",
        ),
        (
            lambda frame: frame.with_columns(b=pl.lit(1), a=pl.lit(1)),
            f"columns is ['a', 'b'], must be listed in header.json{REPAIR}",
        ),
        (
            lambda frame: frame.cast({"step": pl.Int64}),
            f"step is 'Int64', must be Int32{REPAIR}",
        ),
        (
            lambda frame: frame.with_columns(pl.col("weights").cast(pl.Array(pl.Float64, 2))),
            "weights is 'Array(Float64, shape=(2,))', must be Float32, 2 in a row" + REPAIR,
        ),
        (put("ids", 0, [1, None]), f"ids is 'null', must hold no null{REPAIR}"),
        (put("step", 0, None), f"step is 'null', must hold no null{REPAIR}"),
    ],
)
def test_the_table_of_rows_is_refused_by_column(
    edit: Callable[[pl.DataFrame], pl.DataFrame], told: str, written: Path
) -> None:
    edit_rows(written, edit)
    assert refusal(lambda: read_trace(written)) == f"routes.parquet: {told}"


def test_every_array_of_what_is_read_is_read_only(written: Path) -> None:
    trace = read_trace(written, "all")
    assert trace.logits is not None
    assert not any(
        values.flags.writeable
        for values in (trace.step, trace.ids, trace.logits, *trace.lookahead.values())
    )
    some = read_trace(written, ["expert_norms", "lookahead_renormed"])
    assert (some.logits, some.active_shares, set(some.lookahead)) == (None, None, {"renormed"})
    assert some.expert_norms is not None
