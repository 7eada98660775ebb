"""``moelab capture repack`` writes the same trace in fewer bytes, or changes nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from capture.repack import main, repack
from helpers.cells import with_cells, with_random_scores
from helpers.traces import EXTRA, assert_equal, make_trace
from sim.traces.trace import read_header, read_trace, write_trace

pytest.importorskip("pyarrow")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trace = with_cells(with_random_scores(make_trace(1 / 16)))
    write_trace(tmp_path / "trace", trace, EXTRA)
    return tmp_path / "trace"


def test_a_packed_trace_says_the_same_in_fewer_bytes(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, names = read_trace(directory, "all"), sorted(path.name for path in directory.iterdir())
    sizes = {path: (directory / path).stat().st_size for path in before.header.files}
    schema = pl.read_parquet_schema(directory / "routes.parquet")
    assert main([str(directory)]) == 0
    told = capsys.readouterr().out
    after = read_trace(directory, "all")
    assert_equal(replace(before, header=replace(before.header, files=after.header.files)), after)
    assert pl.read_parquet_schema(directory / "routes.parquet") == schema
    assert sorted(path.name for path in directory.iterdir()) == names
    for path in ("routes.parquet", "prefill_forecasts_raw.parquet"):
        now = (directory / path).stat().st_size
        assert now < sizes[path]
        assert f"{path}: {sizes[path]:,} -> {now:,} bytes" in told
    assert repack(directory) == {}, "it is as small as it gets"


def test_what_is_no_trace_is_refused_and_left(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_header(directory).files
    assert main([]) == 2
    assert "name one trace: moelab capture repack DIR" in capsys.readouterr().err
    content = (directory / "routes.parquet").read_bytes()
    (directory / "routes.parquet").write_bytes(content[:-9])
    assert main([str(directory)]) == 2
    assert "repack: routes.parquet: sha256" in capsys.readouterr().err
    (directory / "routes.parquet").write_bytes(content)
    monkeypatch.setattr("capture.repack._written", lambda frame, *_: _less(frame))
    assert main([str(directory)]) == 2
    assert "not read back the same; the trace is as it was" in capsys.readouterr().err
    assert read_trace(directory).header.files == files


def _less(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame[1:].write_parquet(buffer)
    return buffer.getvalue()
