"""A trace written in parts is the trace written whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers.cells import with_cells, with_random_scores
from helpers.traces import EXTRA, make_trace
from sim.traces.parts import header_of_part, write_trace_parts
from sim.traces.storage import recorded_columns
from sim.traces.trace import Trace, TraceError, read_trace, write_trace


def apart(step: float | None) -> Trace:
    """The two sequences one after the other, as a capture of one at a time records them."""
    trace = make_trace(step)
    order = np.argsort(trace.sequence, kind="stable")
    trace = pick(trace, order)
    steps = np.unique(trace.sequence * 100 + trace.step, return_inverse=True)[1]
    header = replace(trace.header, columns=recorded_columns(trace))
    return replace(trace, step=steps.astype(np.int32), header=header)


def pick(trace: Trace, rows: np.ndarray) -> Trace:
    values = {
        item.name: getattr(trace, item.name)
        for item in fields(Trace)
        if item.name not in ("header", "lookahead", "prompt_forecasts")
    }
    lookahead = {norm: scores[rows] for norm, scores in trace.lookahead.items()}
    own = pl.col("sequence").is_in(np.unique(trace.sequence[rows]))
    cells = {norm: frame.filter(own) for norm, frame in trace.prompt_forecasts.items()}
    columns = {name: column[rows] for name, column in values.items()}
    return Trace(trace.header, **columns, lookahead=lookahead, prompt_forecasts=cells)


def parts(trace: Trace) -> Iterator[Trace]:
    for item in trace.header.sequences:
        part = pick(trace, np.flatnonzero(trace.sequence == item.sequence))
        yield replace(part, header=header_of_part(trace.header, [item.sequence]))


@pytest.mark.parametrize("step", [None, 1 / 16, 1 / 1024])
def test_parts_make_the_same_file_as_the_whole(step: float | None, tmp_path: Path) -> None:
    trace = apart(step)
    write_trace(tmp_path / "whole", trace, EXTRA)
    header = write_trace_parts(
        tmp_path / "parts", trace.header, parts(trace), len(trace.step), EXTRA
    )
    whole, joined = (
        pl.read_parquet(tmp_path / name / "routes.parquet") for name in ("whole", "parts")
    )
    assert whole.schema == joined.schema
    assert whole.equals(joined)
    read = read_trace(tmp_path / "parts", "all")
    assert read.header == header
    assert set(header.files) == {"routes.parquet", *EXTRA}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


def test_forecasts_of_prompts_are_those_of_all_parts(tmp_path: Path) -> None:
    trace = with_cells(with_random_scores(apart(None)))
    header = write_trace_parts(
        tmp_path / "parts",
        trace.header,
        parts(trace),
        len(trace.step),
        forecast_norms=tuple(trace.prompt_forecasts),
    )
    assert header.forecast_norms == ("raw", "renormed")
    back = read_trace(tmp_path / "parts", "all")
    assert all(
        back.prompt_forecasts[norm].equals(frame) for norm, frame in trace.prompt_forecasts.items()
    )
    assert back.prompt_forecasts["raw"]["sequence"].unique().sort().to_list() == [0, 7]


def test_a_wrong_part_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    trace = apart(None)
    good = list(parts(trace))
    wrong = replace(good[1], weights=-good[1].weights)
    with pytest.raises(TraceError, match="weights"):
        write_trace_parts(tmp_path / "out", trace.header, [good[0], wrong], len(trace.step))
    with pytest.raises(
        TraceError, match=r"step is 0, must not be below the \d+ of the part before"
    ):
        write_trace_parts(tmp_path / "out", trace.header, good[::-1], len(trace.step))
    with pytest.raises(ValueError, match="parts have 7 rows, num_rows=12"):
        write_trace_parts(tmp_path / "out", trace.header, good[:1], len(trace.step))
    assert list(tmp_path.iterdir()) == []
