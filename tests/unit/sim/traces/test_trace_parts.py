"""A trace written in parts is the trace written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers.cells import with_cells, with_random_scores
from helpers.traces import EXTRA, make_trace
from sim.traces import gate_inputs, residency_log
from sim.traces.checks import check_rows
from sim.traces.forecasts import check_forecasts, prompt_rows
from sim.traces.gate_inputs import read_tensors
from sim.traces.header_text import _column, _norm, _sparsity
from sim.traces.parts import header_of_part, write_trace_parts
from sim.traces.residency_log import _read_table, read_expert_bytes
from sim.traces.storage import recorded_columns
from sim.traces.trace import Trace, TraceError, read_trace, write_trace
from sim.traces.writing import _write_extra, write_findings


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


def test_a_capture_that_is_killed_between_parts_leaves_no_columns(tmp_path: Path) -> None:
    """They lie in files without names, which go with the process."""
    trace, left = apart(None), list[list[Path]]()

    def seen() -> Iterator[Trace]:
        for part in parts(trace):
            yield part
            left.append([path for path in tmp_path.rglob("*") if not path.is_dir()])

    write_trace_parts(tmp_path / "parts", trace.header, seen(), len(trace.step))
    assert left == [[], []]


@pytest.mark.parametrize("step", [None, 1 / 16])
def test_counted_prompts_of_parts_are_those_of_the_whole(
    step: float | None, tmp_path: Path
) -> None:
    """Four rows are decoded: only these are told, and lie in the file of rows."""
    trace = apart(step)
    trace = replace(trace, header=replace(trace.header, prefill="counts"))
    write_trace(tmp_path / "whole", trace)
    header = write_trace_parts(tmp_path / "parts", trace.header, parts(trace), 4)
    assert sorted(header.files) == ["prefill_counts.parquet", "routes.parquet"]
    for name in header.files:
        whole, joined = (pl.read_parquet(tmp_path / at / name) for at in ("whole", "parts"))
        assert whole.schema == joined.schema
        assert whole.equals(joined)


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


def test_a_directory_with_files_is_refused_before_any_part_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    def none() -> Iterator[Trace]:
        pytest.fail("a part was asked for")
        yield

    with pytest.raises(TraceError, match="must be new"):
        write_trace_parts(tmp_path, apart(None).header, none(), 4)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_more_rows_than_were_told_are_refused(tmp_path: Path) -> None:
    trace = apart(None)
    with pytest.raises(ValueError, match=r"^parts have more than the num_rows=11 that were told$"):
        write_trace_parts(tmp_path / "out", trace.header, parts(trace), len(trace.step) - 1)


def test_columns_of_another_shape_or_type_are_refused_by_name() -> None:
    trace = make_trace()
    for wrong in (trace.weights[:, :, :1], trace.weights.astype(np.float64)):
        with pytest.raises(
            TraceError,
            match=rf"weights is '{wrong.dtype} .*', must be float32 \[12, 3, 2\]",
        ):
            check_rows(replace(trace, weights=wrong))


def test_a_file_beside_the_rows_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TraceError, match=r"notes\.txt.*must not name a file twice; rename it"):
        _write_extra(tmp_path, "notes.txt", b"")


def test_findings_that_cannot_be_written_leave_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace(tmp_path / "t", make_trace(), {})
    before = sorted((tmp_path / "t").iterdir())

    def full(draft: str, place: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"^no space$"):
        write_findings(tmp_path / "t", ())
    assert sorted((tmp_path / "t").iterdir()) == before


def test_forecasts_of_other_columns_are_refused() -> None:
    trace = with_cells(with_random_scores(apart(None)))
    norm, frame = next(iter(trace.prompt_forecasts.items()))
    with pytest.raises(TraceError, match=r"columns is .*, must be \{'"):
        check_forecasts(replace(trace, prompt_forecasts={norm: frame.select(frame.columns[:2])}))
    empty = np.zeros(0, np.int64)
    assert prompt_rows(trace.step, trace.sequence, empty) == {}


@pytest.mark.parametrize(
    ("read", "good", "wrong", "rule"),
    [
        (_norm, "raw", "cosine", "must be one of"),
        (_column, "logits", "colour", "must be one of"),
        (_sparsity, 1.0, 1.5, r"must be a share in 0\.\.1"),
        (_sparsity, 0.0, -0.1, r"must be a share in 0\.\.1"),
    ],
)
def test_a_value_of_a_header_is_one_of_those_known(
    read: Callable[[object, str], object], good: object, wrong: object, rule: str
) -> None:
    assert read(good, "x[0]") == good
    with pytest.raises(TraceError, match=rf"x\[0\] is .*, {rule}"):
        read(wrong, "x[0]")


def test_sizes_of_experts_that_are_no_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bytes.json"
    place.write_text("{", encoding="utf-8")
    with pytest.raises(TraceError, match=r"text is .*, must be JSON"):
        read_expert_bytes(place, 1)
    monkeypatch.setattr(residency_log, "LARGEST_JSON_BYTES", 0)
    with pytest.raises(TraceError, match="size is 1, must be at most 0 bytes"):
        read_expert_bytes(place, 1)
    place.write_text("no table", encoding="utf-8")
    with pytest.raises(TraceError, match=r"file is .*, must be parquet"):
        _read_table(place, 1)


def test_a_tensor_file_whose_header_is_no_object_or_that_is_not_there_is_refused(
    tmp_path: Path,
) -> None:
    place = tmp_path / "x.safetensors"
    with pytest.raises(TraceError, match=r"file is .*, cannot be read \("):
        read_tensors(place, ("gate_in",))
    place.write_bytes((3).to_bytes(8, "little") + b"[1]")
    with pytest.raises(TraceError, match=r"header is .*, must be a JSON object"):
        read_tensors(place, ("gate_in",))


def test_a_scale_is_a_number_for_each_row_and_site(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {
        "position": np.arange(2),
        "gate_in": np.ones((2, 3, 4), np.float16),
        "scale": np.full((2, 3), 2.0, np.float32),
    }
    monkeypatch.setattr(gate_inputs, "read_tensors", lambda path, names: tensors)
    inputs, position = gate_inputs.sequence_inputs(Path("x"), 3, 4)
    assert (inputs == 2).all()
    assert position.tolist() == [0, 1]
    tensors["scale"] = np.ones((3, 2), np.float32)
    with pytest.raises(TraceError, match=r"scale is .*, must be \[2, 3\]"):
        gate_inputs.sequence_inputs(Path("x"), 3, 4)


def test_a_deep_value_is_shown_by_its_type() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TraceError, match="x is <list>, must be flat"):
        raise TraceError("file", "x", deep, "must be flat")
