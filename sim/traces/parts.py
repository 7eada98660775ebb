"""Writes a trace that is larger than memory, part by part.

A part holds some of the trace's sequences with all their rows, and is checked like a whole trace.
The parts come sequence by sequence, but the file is ordered by site. So every column is collected
in a scratch file of its own, ordered by site, and the parquet file is made of these site by site.
"""

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.checks import check_rows
from sim.traces.header import COUNTS_FILE, ROUTES_FILE, Header, forecasts_file
from sim.traces.header_text import check_header
from sim.traces.prefill import count_prompts, decoded_part
from sim.traces.rows import ROW_DTYPES, Trace
from sim.traces.storage import Stored, column_of, fixed_point, stored_columns
from sim.traces.writing import Content, check_new, publish, table_file
from sim.values.fields import TraceError

Array = NDArray[Any]


def write_trace_parts(
    directory: str | Path,
    header: Header,
    parts: Iterable[Trace],
    num_rows: int,
    extra_files: Mapping[str, Content] | None = None,
    *,
    forecast_norms: Collection[str] = (),
    compression: Literal["zstd", "brotli"] = "zstd",
    compression_level: int = 9,
) -> Header:
    """Write ``parts``, in order, as one trace to the new ``directory``; return its header.

    - ``header`` is that of the whole trace, with ``columns`` filled. A part's header lists only the
      sequences that the part holds (`header_of_part`).
    - ``num_rows`` is how many token-rows the file gets from all parts. With ``prefill: counts``
      these are the decoded ones only.
    - ``forecast_norms`` are the norms of which every part brings its prompts' forecasts.

    All else, errors too, is as in `sim.traces.trace.write_trace`. Memory is taken by one part at a
    time, and then by one site of the whole.
    """
    check_new(directory)
    check_header(header)
    tables: dict[str, list[pl.DataFrame]] = {COUNTS_FILE: []} if header.prefill == "counts" else {}
    for norm in forecast_norms:
        tables[forecasts_file(norm)] = []

    def write_routes(place: Path) -> None:
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            columns = _Columns(Path(scratch), header, num_rows)
            for part in parts:
                columns.add(part)
                if header.prefill == "counts":
                    tables[COUNTS_FILE].append(count_prompts(part))
                for norm, frame in part.prompt_forecasts.items():
                    tables[forecasts_file(norm)].append(frame)
            frames = columns.site_files()
            pl.scan_ipc(frames).sink_parquet(
                place,
                compression=compression,
                compression_level=compression_level,
                maintain_order=True,
            )

    files = dict(extra_files or {})
    for path, frames in tables.items():
        files |= table_file(path, frames)
    return publish(directory, header, write_routes, files)


class _Columns:
    """Collects the columns of the parts in scratch files, each [S, N, width]."""

    def __init__(self, scratch: Path, header: Header, num_rows: int) -> None:
        self._scratch = scratch
        self._header = header
        self._stored = stored_columns(header, header.columns)
        self._sites, self._num_rows, self._filled = header.model.sites, num_rows, 0
        self._last_step = -1
        self._rows = {
            name: np.empty(num_rows, pl.Series([], dtype=dtype).to_numpy().dtype)
            for name, dtype in ROW_DTYPES.items()
        }
        self._wide = {"ids": self._file(np.int16, header.model.top_k)}
        self._largest: dict[str, int] = {}
        for name, stored in self._stored.items():
            self._wide[name] = self._file(
                np.float32 if stored.step is None else np.int16, stored.width
            )

    def _file(self, dtype: type, width: int) -> Array:
        """An array on the disk, in a file without a name: it goes even if the process is killed."""
        shape = (self._sites, max(self._num_rows, 1), width)
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)

    def add(self, part: Trace) -> None:
        """Check ``part`` and append its rows."""
        check_rows(part)
        if self._header.prefill == "counts":
            part = decoded_part(part)
        begin, end = self._filled, self._filled + len(part.step)
        if end > self._num_rows:
            raise ValueError(f"parts have more than the num_rows={self._num_rows} that were told")
        if len(part.step) and part.step[0] < self._last_step:
            rule = f"must not be below the {self._last_step} of the part before"
            raise TraceError(
                ROUTES_FILE,
                "step",
                int(part.step[0]),
                rule,
                "give the parts in order of their steps",
            )
        self._last_step = int(part.step[-1]) if len(part.step) else self._last_step
        for name, values in self._rows.items():
            values[begin:end] = getattr(part, name)
        self._wide["ids"][:, begin:end] = part.ids.swapaxes(0, 1)
        for name, stored in self._stored.items():
            values = column_of(part, name).reshape(len(part.step), self._sites, stored.width)
            self._wide[name][:, begin:end] = self._storable(name, stored, values).swapaxes(0, 1)
        self._filled = end

    def _storable(self, name: str, stored: Stored, values: Array) -> Array:
        if stored.step is None:
            return values
        fixed = fixed_point(name, values, stored.step)
        lowest = np.iinfo(fixed.dtype).min
        recorded = np.where(fixed == lowest, 0, fixed.astype(np.int32))
        self._largest[name] = max(self._largest.get(name, 0), int(np.abs(recorded).max(initial=0)))
        return np.where(fixed == lowest, np.iinfo(np.int16).min, recorded).astype(np.int16)

    def site_files(self) -> list[Path]:
        """Write a scratch file for each site, in order, with the columns of ``routes.parquet``."""
        if self._filled != self._num_rows:
            raise ValueError(f"parts have {self._filled} rows, num_rows={self._num_rows} were told")
        files = []
        for site in range(self._sites):
            columns = {"site": pl.Series(np.full(self._num_rows, site, np.int16))}
            columns |= {name: pl.Series(values) for name, values in self._rows.items()}
            columns |= {
                name: pl.Series(self._narrow(name, values[site]))
                for name, values in self._wide.items()
            }
            files.append(self._scratch / f"{site:05d}.arrow")
            pl.DataFrame(columns).write_ipc(files[-1])
        return files

    def _narrow(self, name: str, values: Array) -> Array:
        """``values`` of one site in eight bits, if eight suffice for this column at every site."""
        if (
            name == "ids"
            or self._stored[name].step is None
            or self._largest.get(name, 0) > np.iinfo(np.int8).max
        ):
            return np.array(values)
        return np.where(values == np.iinfo(np.int16).min, np.iinfo(np.int8).min, values).astype(
            np.int8
        )


def header_of_part(header: Header, sequences: Iterable[int]) -> Header:
    """A copy of ``header`` for a part that holds only these ``sequences``."""
    kept = set(sequences)
    return replace(
        header, sequences=tuple(item for item in header.sequences if item.sequence in kept)
    )
