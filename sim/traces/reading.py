"""Reads a trace from its directory, and checks every byte and column before anything is used."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.checks import check_rows
from sim.traces.forecasts import read_forecasts
from sim.traces.header import COUNTS_FILE, ROUTES_FILE, Header
from sim.traces.header_text import parse_header
from sim.traces.prefill import COUNT_DTYPES, deal_prompts
from sim.traces.rows import ROW_DTYPES, Trace
from sim.traces.storage import (
    Stored,
    floats_of,
    lookahead_columns,
    stored_columns,
)
from sim.values.fields import HEADER_FILE, TraceError

LARGEST_HEADER_BYTES = 1 << 28
LARGEST_ROWS_BYTES = 1 << 35
"""The most bytes that a trace's columns may take in memory.

The limit is needed because a parquet file of a few bytes can claim any number of rows.
"""
VALUE_BYTES = 4
Expected = Mapping[str, tuple[tuple[Any, ...], int]]
"""By column: the dtypes that it may have, and its width (0 for a column of plain values)."""


def read_trace(directory: str | Path, columns: Collection[str] | Literal["all"] = ()) -> Trace:
    """The trace in ``directory``, validated; its arrays are read-only.

    ``columns`` names the optional columns to load: `logits`, `lookahead` or one norm of it
    (`lookahead_raw`, `lookahead_renormed`), `expert_norms`, `active_shares`. "all" loads every one
    that was recorded. Raise `TraceError` when a file or value breaks a rule, or a named column was
    not recorded.
    """
    root = Path(directory)
    header = read_header(root)
    for path, digest in sorted(header.files.items()):
        _check_file(root, path, digest)
    asked = header.columns if columns == "all" else tuple(columns)
    for name in asked:
        if name not in (*header.columns, *lookahead_columns(header)):
            rule = f"was not recorded in this trace (recorded: {list(header.columns)})"
            raise TraceError(
                HEADER_FILE,
                "columns",
                name,
                rule,
                "choose another trace, or capture it with this column",
            )
    stored = stored_columns(header, asked)
    recorded = _expected(header, stored_columns(header, header.columns))
    trace = _build(
        header, _load_arrays(root / ROUTES_FILE, recorded, _expected(header, stored)), stored
    )
    if header.prefill == "counts":
        trace = deal_prompts(trace, _load_counts(root / COUNTS_FILE, header, stored))
    norms = [norm for norm in header.forecast_norms if f"lookahead_{norm}" in stored]
    trace = replace(
        trace, prompt_forecasts={norm: read_forecasts(root, norm, header) for norm in norms}
    )
    check_rows(trace)
    return _freeze(trace)


def _expected(header: Header, stored: Mapping[str, Stored]) -> Expected:
    """The row columns, the ids and the ``stored`` columns, with the types the file must have."""
    expected: dict[str, tuple[tuple[Any, ...], int]] = {"site": ((pl.Int16,), 0)}
    expected |= {name: ((dtype,), 0) for name, dtype in ROW_DTYPES.items()}
    expected["ids"] = ((pl.Int16,), header.model.top_k)
    for name, how in stored.items():
        expected[name] = ((pl.Float32,) if how.step is None else (pl.Int8, pl.Int16), how.width)
    return expected


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_header(directory: str | Path) -> Header:
    """The header of the trace in ``directory``; raise `TraceError` if there is no valid one."""
    place = Path(directory) / HEADER_FILE
    try:
        # Reading a pipe would block, and a device has no end.
        if not place.is_file():
            rule = "is missing, or is no file"
            raise TraceError(HEADER_FILE, "file", str(place), rule, "name the directory of a trace")
        size = place.stat().st_size
        if size > LARGEST_HEADER_BYTES:
            raise TraceError(
                HEADER_FILE, "size", size, f"must be at most {LARGEST_HEADER_BYTES} bytes"
            )
        text = place.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        rule = f"cannot be read ({error})"
        raise TraceError(
            HEADER_FILE, "file", str(place), rule, "name the directory of a trace"
        ) from None
    return parse_header(text)


def checked_header(directory: str | Path) -> Header:
    """The header of a trace, each of whose files has the sha256 that it says.

    Raise `TraceError` for a file that does not.
    """
    header = read_header(directory)
    for path, digest in header.files.items():
        _check_file(Path(directory), path, digest)
    return header


def _check_file(root: Path, path: str, digest: str) -> None:
    place = root / path
    try:
        # A link could lead out of the trace, and reading a pipe would block.
        inside = place.resolve().is_relative_to(root.resolve()) and place.is_file()
        found = file_sha256(place) if inside else None
    except (OSError, RuntimeError, ValueError) as error:
        raise TraceError(path, "file", str(place), f"cannot be read ({error})") from None
    if found is None:
        raise TraceError(
            path, "file", str(place), "is missing, or is no plain file inside the trace"
        )
    if found != digest:
        raise TraceError(
            path, "sha256", found, f"must be {digest}: the file was altered or truncated"
        )


def _load_arrays(path: Path, recorded: Expected, wanted: Expected) -> dict[str, NDArray[Any]]:
    """The ``wanted`` columns of the file as arrays.

    Raise `TraceError` unless the file has exactly the ``recorded`` columns, in their types.
    """
    try:
        found = pl.scan_parquet(path, glob=False).collect_schema()
        for name, (dtypes, width) in recorded.items():
            if name not in found:
                raise TraceError(
                    ROUTES_FILE, name, "absent", f"must be a column (found {sorted(found)})"
                )
            _check_dtype(name, found[name], dtypes, width)
        if unknown := sorted(set(found) - set(recorded)):
            raise TraceError(ROUTES_FILE, "columns", unknown, f"must be listed in {HEADER_FILE}")
        row_bytes = sum(max(width, 1) * VALUE_BYTES for dtypes, width in wanted.values())
        num_rows = pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()
        if num_rows * row_bytes > LARGEST_ROWS_BYTES:
            rule = f"must be at most {LARGEST_ROWS_BYTES // row_bytes} with these columns"
            raise TraceError(
                ROUTES_FILE,
                "rows",
                num_rows,
                rule,
                "ask for fewer columns, or capture less at a time",
            )
        frame = pl.read_parquet(path, columns=list(wanted), glob=False)
        return {name: _array(frame[name]) for name in wanted}
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(
            ROUTES_FILE, "content", str(error), "must be a parquet file that polars reads"
        ) from None


def _load_counts(path: Path, header: Header, stored: Mapping[str, Stored]) -> pl.DataFrame:
    row_bytes = sum(max(how.width, 1) * VALUE_BYTES for how in stored.values()) * header.model.sites
    num_rows = sum(item.prompt_tokens for item in header.sequences)
    if num_rows * row_bytes > LARGEST_ROWS_BYTES:
        rule = f"must be at most {LARGEST_ROWS_BYTES // row_bytes} in all with these columns"
        raise TraceError(
            HEADER_FILE, "prompt_tokens", num_rows, rule, "ask for fewer columns, or capture less"
        )
    try:
        if (found := dict(pl.scan_parquet(path, glob=False).collect_schema())) != COUNT_DTYPES:
            raise TraceError(COUNTS_FILE, "columns", str(found), f"must be {COUNT_DTYPES}")
        cells = num_rows * header.model.sites * header.model.top_k
        if (rows := pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()) > cells:
            raise TraceError(
                COUNTS_FILE, "rows", rows, f"must be at most {cells}, the choices of all prompts"
            )
        frame = pl.read_parquet(path, glob=False)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(
            COUNTS_FILE, "content", str(error), "must be a parquet file that polars reads"
        ) from None
    if any(frame[name].null_count() for name in COUNT_DTYPES):
        raise TraceError(COUNTS_FILE, "content", "null", "must hold no null")
    return frame


def _check_dtype(name: str, dtype: Any, dtypes: tuple[Any, ...], width: int) -> None:
    inner, shape = (dtype.inner, dtype.shape) if isinstance(dtype, pl.Array) else (dtype, ())
    if inner not in dtypes or shape != ((width,) if width else ()):
        rule = f"must be {' or '.join(map(str, dtypes))}" + (f", {width} in a row" if width else "")
        raise TraceError(ROUTES_FILE, name, str(dtype), rule)


def _array(column: pl.Series) -> NDArray[Any]:
    dtype = column.dtype
    inner = dtype.inner if isinstance(dtype, pl.Array) else dtype
    values = column.to_numpy()
    # Nulls inside a row do not count as nulls; they show only as another dtype.
    if column.null_count() or values.dtype != pl.Series([], dtype=inner).to_numpy().dtype:
        raise TraceError(ROUTES_FILE, column.name, "null", "must hold no null")
    return values


def _build(
    header: Header, loaded: Mapping[str, NDArray[Any]], stored: Mapping[str, Stored]
) -> Trace:
    """The trace from the file's columns [S * N].

    Refuse a file that does not have the same token-rows, in the same order, at every site.
    """
    model = header.model
    num_rows, rest = divmod(len(loaded["site"]), model.sites)
    sites = np.repeat(np.arange(model.sites), num_rows)
    if rest or not np.array_equal(loaded["site"], sites):
        rule = f"must be 0..{model.sites - 1} in order with equal counts"
        remedy = "write every row at every site, with ids of -1 where it does not visit"
        raise TraceError(ROUTES_FILE, "site", f"{len(loaded['site'])} rows", rule, remedy)
    rows = {}
    for name in ROW_DTYPES:
        by_site = loaded[name].reshape(model.sites, num_rows)
        if not (by_site == by_site[0]).all():
            site = int((by_site != by_site[0]).any(1).argmax())
            raise TraceError(
                ROUTES_FILE, name, f"site {site}", "must have the same token-rows as site 0"
            )
        rows[name] = by_site[0].copy()

    def by_row(values: NDArray[Any], *shape: int) -> NDArray[Any]:
        return np.ascontiguousarray(values.reshape(model.sites, num_rows, *shape).swapaxes(0, 1))

    wide = {name: floats_of(how, loaded[name]) for name, how in stored.items()}
    shares = wide.get("active_shares")
    ahead = (
        {}
        if header.lookahead is None
        else {
            norm: by_row(wide[f"lookahead_{norm}"], header.lookahead.depth, model.experts)
            for norm in header.lookahead.norms
            if f"lookahead_{norm}" in wide
        }
    )
    return Trace(
        header=header,
        **rows,
        ids=by_row(loaded["ids"], model.top_k),
        weights=by_row(wide["weights"], model.top_k),
        logits=by_row(wide["logits"], model.experts) if "logits" in wide else None,
        lookahead=ahead,
        expert_norms=by_row(wide["expert_norms"], model.top_k) if "expert_norms" in wide else None,
        active_shares=None
        if shares is None
        else by_row(shares, model.top_k, len(header.sparsities)),
    )


def _freeze(trace: Trace) -> Trace:
    for value in (*vars(trace).values(), *trace.lookahead.values()):
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return trace
