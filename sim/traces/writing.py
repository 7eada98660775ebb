"""Writes a trace into a new directory, which appears complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import polars as pl

from sim.process.files import draft_of, write_whole, writing
from sim.traces.checks import check_rows
from sim.traces.header import COUNTS_FILE, ROUTES_FILE, Finding, Header, forecasts_file
from sim.traces.header_text import check_header, check_path, parse_header
from sim.traces.prefill import count_prompts, decoded_part
from sim.traces.reading import file_sha256, read_header
from sim.traces.rows import Trace
from sim.traces.storage import (
    recorded_columns,
    trace_frame,
)
from sim.values.fields import HEADER_FILE, TraceError

Content = bytes | Callable[[Path], None]


def write_trace(
    directory: str | Path,
    trace: Trace,
    extra_files: Mapping[str, Content] | None = None,
    *,
    compression: Literal["zstd", "brotli"] = "zstd",
    compression_level: int = 9,
) -> Header:
    """Write ``trace`` to the new ``directory`` and return its header, with every file's sha256.

    ``extra_files`` maps relative paths to bytes, or to a function that writes the file at the path
    that it is called with. Fixed-point columns are rounded to the steps in the header.
    ``compression_level`` is 1..22 for zstd, 0..11 for brotli, which is slower and tighter.

    The directory appears complete or not at all: it is built beside its destination and renamed.
    Raise `TraceError` if the trace is inconsistent or ``directory`` is not empty.
    """
    check_new(directory)
    trace = replace(trace, header=replace(trace.header, columns=recorded_columns(trace)))
    check_header(trace.header)
    check_rows(trace)
    files = dict(extra_files or {})
    for norm, frame in trace.prompt_forecasts.items():
        files |= table_file(forecasts_file(norm), [frame])
    if trace.header.prefill == "counts":
        files |= table_file(COUNTS_FILE, [count_prompts(trace)])
        trace = decoded_part(trace)
    frame = trace_frame(trace)

    def write_routes(place: Path) -> None:
        with writing(place):
            frame.write_parquet(place, compression=compression, compression_level=compression_level)

    return publish(directory, trace.header, write_routes, files)


def table_file(path: str, frames: Sequence[pl.DataFrame]) -> dict[str, Content]:
    """An extra file for `publish` with the rows of ``frames``, in order.

    The frames are read only when the file is written, so they may be added until then.
    """

    def write(place: Path) -> None:
        with writing(place):
            pl.concat(frames).write_parquet(place, compression="zstd")

    return {path: write}


def check_new(directory: str | Path) -> None:
    """Raise `TraceError` unless ``directory`` does not exist or is empty."""
    target = Path(directory)
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise TraceError(
            str(target), "directory", "not empty", "must be new", "choose another one, or remove it"
        )


def publish(
    directory: str | Path,
    header: Header,
    write_routes: Callable[[Path], None],
    extra_files: Mapping[str, Content],
) -> Header:
    """Build a trace's directory beside its destination, then rename it; return its header.

    ``write_routes`` writes the parquet file at the path that it is called with.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(target, is_folder=True) as building:
        write_routes(building / ROUTES_FILE)
        for path, content in extra_files.items():
            _write_extra(building, path, content)
        files = sorted(path for path in building.rglob("*") if path.is_file())
        digests = {path.relative_to(building).as_posix(): file_sha256(path) for path in files}
        header = replace(header, files=digests)
        text = header.to_json()
        parse_header(text)
        (building / HEADER_FILE).write_text(text, encoding="utf-8")
        os.rename(building, target)
    return header


def write_findings(directory: str | Path, findings: Sequence[Finding]) -> Header:
    """Replace the findings in the header of the trace in ``directory``; return the new header.

    Everything else stays as it is, `trace_sha256` too. Raise `TraceError` if there is no valid
    header, or if a finding names a sequence or site that the trace does not have. Raise OSError
    where the header cannot be written.
    """
    root = Path(directory)
    header = replace(read_header(root), findings=tuple(findings))
    text = header.to_json()
    parse_header(text)
    place = root / HEADER_FILE
    write_whole(place, text)
    return header


def _write_extra(building: Path, path: str, content: Content) -> None:
    check_path(path)
    place = building / path
    if place.exists():
        raise TraceError(path, "extra_files", path, "must not name a file twice", "rename it")
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        place.write_bytes(content)
    else:
        content(place)
