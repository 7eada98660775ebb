"""Reads and writes traces: what a model's routers saw and chose, as a directory.

A *token-row* is one token of one forward step; a *site* is one MoE block. In memory a trace is a
set of numpy arrays over token-rows and sites (`sim.traces.rows`). On disk it is:

- ``header.json``;
- ``routes.parquet``, with a row for each site and token-row, ordered by site, then step, then row
  in the step;
- other files that the header lists.

Prompts may be kept as counts of tokens (`sim.traces.prefill`). Weights and wide columns (logits,
lookahead, norms, activation shares) may be stored as small integers times a step that the header
states. They always come back as float32. Wide columns are read only when asked for. In an
encoder-decoder model a row visits the sites of one stack only; at the other sites it has ids of -1,
weights of 0, and NaN.

Reading checks every byte against the header's sha256, and every column against the header, before
anything is used. Nothing is ever evaluated. One limit: whoever forges a parquet file *and* its
sha256 can make the parquet parser itself run out of memory.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.checks import check_rows
from sim.traces.forecasts import read_forecasts
from sim.traces.header import (
    COUNTS_FILE,
    ROUTES_FILE,
    Finding,
    Header,
    Lookahead,
    ModelShape,
    Site,
    TraceSequence,
    check_header,
    check_path,
    forecasts_file,
    parse_header,
    trace_sha256,
)
from sim.traces.prefill import COUNT_DTYPES, count_prompts, deal_prompts, decoded_part
from sim.traces.rows import CHUNK, DECODE, PREFILL, ROW_DTYPES, Trace
from sim.traces.storage import (
    Stored,
    floats_of,
    lookahead_columns,
    recorded_columns,
    stored_columns,
    trace_frame,
)
from sim.values.fields import HEADER_FILE, TraceError

__all__ = [
    "CHUNK",
    "DECODE",
    "PREFILL",
    "Finding",
    "Header",
    "Lookahead",
    "ModelShape",
    "Site",
    "Trace",
    "TraceError",
    "TraceSequence",
    "read_header",
    "read_trace",
    "trace_sha256",
    "write_findings",
    "write_trace",
]

LARGEST_HEADER_BYTES = 1 << 28
LARGEST_ROWS_BYTES = 1 << 35
"""The most bytes that a trace's columns may take in memory.

The limit is needed because a parquet file of a few bytes can claim any number of rows.
"""
VALUE_BYTES = 4

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
        frame.write_parquet(place, compression=compression, compression_level=compression_level)

    return publish(directory, trace.header, write_routes, files)


def table_file(path: str, frames: Sequence[pl.DataFrame]) -> dict[str, Content]:
    """An extra file for `publish` with the rows of ``frames``, in order.

    The frames are read only when the file is written, so they may be added until then.
    """
    return {path: lambda place: pl.concat(frames).write_parquet(place, compression="zstd")}


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
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write_routes(building / ROUTES_FILE)
        for path, content in extra_files.items():
            _write_extra(building, path, content)
        files = sorted(path for path in building.rglob("*") if path.is_file())
        digests = {path.relative_to(building).as_posix(): _sha256(path) for path in files}
        header = replace(header, files=digests)
        text = header.to_json()
        parse_header(text)
        (building / HEADER_FILE).write_text(text, encoding="utf-8")
        building.chmod(0o755)
        os.rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return header


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
    with tempfile.NamedTemporaryFile(
        "w", dir=root, prefix=f".{HEADER_FILE}.", encoding="utf-8", delete=False
    ) as draft:
        try:
            draft.write(text)
            draft.close()
            shutil.copymode(place, draft.name)
            os.replace(draft.name, place)
        except BaseException:
            os.unlink(draft.name)
            raise
    return header


# Storage

Expected = Mapping[str, tuple[tuple[Any, ...], int]]
"""By column: the dtypes that it may have, and its width (0 for a column of plain values)."""


def _expected(header: Header, stored: Mapping[str, Stored]) -> Expected:
    """The row columns, the ids and the ``stored`` columns, with the types the file must have."""
    expected: dict[str, tuple[tuple[Any, ...], int]] = {"site": ((pl.Int16,), 0)}
    expected |= {name: ((dtype,), 0) for name, dtype in ROW_DTYPES.items()}
    expected["ids"] = ((pl.Int16,), header.model.top_k)
    for name, how in stored.items():
        expected[name] = ((pl.Float32,) if how.step is None else (pl.Int8, pl.Int16), how.width)
    return expected


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


# Reading


def _sha256(path: Path) -> str:
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
        found = _sha256(place) if inside else None
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
        found = pl.read_parquet_schema(path)
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
        if (found := dict(pl.read_parquet_schema(path))) != COUNT_DTYPES:
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
