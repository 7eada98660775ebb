"""Reads the residency log of a foreign engine: what its cache held at each lookup of a trace.

The log is two files beside the trace's routes. In ``RESIDENCY_FILE`` a row is a lookup: an expert
that a token's router chose at a site. Rows stand in the order of the engine's own log, batch by
batch. Its columns:

| column | meaning |
|---|---|
| site, step, sequence, position | as in the trace |
| slot | the expert's rank among the token's choices |
| expert | its id |
| resident | whether it was there when the site's batch of that step began |
| prefetched | whether it was resident because of a prefetch, and not looked up since |
| loaded_bytes | what was read for this lookup; repeats of an expert in a batch have 0 |
| dropped | whether it was absent, not read and not applied; the trace then has -1 |

``EXPERT_BYTES_FILE`` has, by site, the layer's number in the model and the bytes of one expert and
of the dense part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.header import ROUTES_FILE
from sim.traces.trace import Trace, TraceError, read_trace

RESIDENCY_FILE = "residency.parquet"
EXPERT_BYTES_FILE = "expert_bytes.json"
COLUMNS: Mapping[str, Any] = {
    "site": pl.Int16,
    "step": pl.Int32,
    "sequence": pl.Int32,
    "position": pl.Int32,
    "slot": pl.Int16,
    "expert": pl.Int16,
    "resident": pl.Boolean,
    "prefetched": pl.Boolean,
    "loaded_bytes": pl.Int64,
    "dropped": pl.Boolean,
}
BYTES_KEYS = ("site", "layer", "expert_bytes", "dense_bytes")
LARGEST_BYTES = 10**15
LARGEST_JSON_BYTES = 1 << 24
IMPORT_AGAIN = "import the engine's log again (moelab import format=bigmoe ...)"


@dataclass(frozen=True)
class ResidencyLog:
    """A trace and what the engine's cache held at each of its N lookups, in the log's order.

    Dropped lookups are left out. ``line`` [N] is the lookup's row in ``RESIDENCY_FILE``, ``row``
    [N] its token-row in the trace; the other arrays [N] are columns of the file.
    ``num_prefetched`` counts the prefetched lookups. ``layers`` and ``expert_bytes`` are by site.
    """

    trace: Trace
    line: NDArray[np.int64]
    row: NDArray[np.int64]
    site: NDArray[np.int64]
    slot: NDArray[np.int64]
    expert: NDArray[np.int64]
    resident: NDArray[np.bool_]
    loaded_bytes: NDArray[np.int64]
    num_prefetched: int
    layers: tuple[int, ...]
    expert_bytes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.line)

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """The trace's step of each lookup."""
        return self.trace.step[self.row].astype(np.int64)

    @cached_property
    def tells_bytes(self) -> bool:
        """Whether the engine logs what it reads: whether any lookup has bytes."""
        return bool(self.loaded_bytes.any())

    @cached_property
    def at_odds(self) -> NDArray[np.bool_]:
        """[N] whether a lookup's ``resident`` contradicts what its batch read for its expert.

        The expert was there, yet was read; or it was absent, yet nothing was read.
        """
        sites, experts = len(self.layers), self.trace.header.model.experts
        cell = (self.step * sites + self.site) * experts + self.expert
        _, group = np.unique(cell, return_inverse=True)
        read: NDArray[np.bool_] = np.bincount(group, self.loaded_bytes)[group] > 0
        against: NDArray[np.bool_] = (read == self.resident) & self.tells_bytes
        return against


def read_log(directory: str | Path) -> ResidencyLog:
    """The trace at ``directory`` and its log.

    Raise `TraceError` unless the lookups are the choices of the trace, each once.
    """
    root = Path(directory)
    trace = read_trace(root)
    for name in (RESIDENCY_FILE, EXPERT_BYTES_FILE):
        if name not in trace.header.files:
            raise TraceError(
                name,
                "file",
                "absent",
                "must be one of the trace's files: it says what a cache held",
                "name a trace imported from an engine that logs residency (format=bigmoe)",
            )
    layers, expert_bytes = read_expert_bytes(root / EXPERT_BYTES_FILE, trace.header.model.sites)
    table = _read_table(root / RESIDENCY_FILE, trace.ids.size)
    applied = table.filter(~pl.col("dropped"))
    site, slot, expert = (
        applied[name].to_numpy().astype(np.int64) for name in ("site", "slot", "expert")
    )
    line = np.flatnonzero(~table["dropped"].to_numpy())
    row = _rows(trace, applied, line)
    _check_choices(trace, line, row, site, slot, expert)
    resident, loaded_bytes = applied["resident"].to_numpy(), applied["loaded_bytes"].to_numpy()
    return ResidencyLog(
        trace,
        line,
        row,
        site,
        slot,
        expert,
        resident,
        loaded_bytes,
        int(applied["prefetched"].sum()),
        layers,
        expert_bytes,
    )


def _refuse(file: str, name: str, value: object, rule: str) -> NoReturn:
    raise TraceError(file, name, value, rule, IMPORT_AGAIN)


def read_expert_bytes(path: Path, sites: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The layer numbers and the expert bytes in an ``EXPERT_BYTES_FILE``, each by site.

    Raise `TraceError` for a file that cannot be one.
    """
    if (size := path.stat().st_size) > LARGEST_JSON_BYTES:
        _refuse(path.name, "size", size, f"must be at most {LARGEST_JSON_BYTES} bytes")
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceError(path.name, "text", str(error), "must be JSON", IMPORT_AGAIN) from None
    if not isinstance(rows, list) or len(rows) != sites:
        _refuse(
            path.name,
            "rows",
            len(rows) if isinstance(rows, list) else rows,
            f"must be a list of {sites} sites",
        )
    for site, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(BYTES_KEYS):
            _refuse(path.name, f"[{site}]", row, f"must have {', '.join(BYTES_KEYS)}")
        for key in BYTES_KEYS:
            least = 1 if key == "expert_bytes" else 0
            if type(row[key]) is not int or not least <= row[key] <= LARGEST_BYTES:
                _refuse(
                    path.name,
                    f"[{site}].{key}",
                    row[key],
                    f"must be a whole number, {least} to {LARGEST_BYTES}",
                )
        if row["site"] != site:
            _refuse(path.name, f"[{site}].site", row["site"], f"must be {site}: sites in order")
    return tuple(row["layer"] for row in rows), tuple(row["expert_bytes"] for row in rows)


def _read_table(path: Path, cells: int) -> pl.DataFrame:
    """The rows of the file; refuse more of them than the trace has choices (``cells``)."""
    try:
        schema = pl.scan_parquet(path, glob=False).collect_schema()
        if dict(schema) != dict(COLUMNS):
            _refuse(
                path.name, "columns", list(schema), f"must be {', '.join(COLUMNS)}, of their types"
            )
        rows = pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()
        if not 0 < rows <= cells:
            _refuse(path.name, "rows", rows, f"must be 1 to {cells}, the choices of the trace")
        table = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceError(path.name, "file", str(error), "must be parquet", IMPORT_AGAIN) from None
    for name in COLUMNS:
        if nulls := table[name].null_count():
            _refuse(path.name, name, f"missing in {nulls} rows", "must be there in every row")
    return table


def _rows(trace: Trace, table: pl.DataFrame, line: NDArray[np.int64]) -> NDArray[np.int64]:
    """The trace's token-row of each lookup, found by sequence and position."""
    places = pl.DataFrame(
        {
            "sequence": trace.sequence,
            "position": trace.position,
            "row": np.arange(len(trace.step)),
        }
    ).filter(trace.valid)
    found = table.select("sequence", "position").join(
        places, on=["sequence", "position"], how="left", maintain_order="left"
    )
    if (missing := found["row"].is_null()).any():
        first = int(missing.arg_max() or 0)
        _refuse(
            RESIDENCY_FILE,
            f"row {line[first]}",
            found.row(first)[:2],
            "must be a (sequence, position) of the trace",
        )
    row = found["row"].to_numpy().astype(np.int64)
    wrong = np.flatnonzero(trace.step[row] != table["step"].to_numpy())
    if len(wrong):
        first = int(wrong[0])
        _refuse(
            RESIDENCY_FILE,
            f"row {line[first]}, step",
            table["step"][first],
            f"must be {trace.step[row[first]]}, the trace's step of that token",
        )
    return row


def _check_choices(
    trace: Trace,
    line: NDArray[np.int64],
    row: NDArray[np.int64],
    site: NDArray[np.int64],
    slot: NDArray[np.int64],
    expert: NDArray[np.int64],
) -> None:
    """Raise unless the lookups are the trace's choices, each once."""
    sites, top_k = trace.ids.shape[1:]
    for name, values, count in (("site", site, sites), ("slot", slot, top_k)):
        if len(wrong := np.flatnonzero((values < 0) | (values >= count))):
            _refuse(
                RESIDENCY_FILE,
                f"row {line[wrong[0]]}, {name}",
                int(values[wrong[0]]),
                f"must be 0 to {count - 1}",
            )
    chosen = trace.ids[row, site, slot]
    if len(wrong := np.flatnonzero((chosen != expert) | (expert < 0))):
        first = int(wrong[0])
        _refuse(
            RESIDENCY_FILE,
            f"row {line[first]}, expert",
            int(expert[first]),
            f"must be {chosen[first]}, what {ROUTES_FILE} has for that token, site and slot",
        )
    cell = (row * sites + site) * top_k + slot
    whole = int((trace.ids >= 0).sum())
    if (count := len(np.unique(cell))) != len(cell) or count != whole:
        _refuse(
            RESIDENCY_FILE,
            "rows",
            f"{len(cell)}, {count} of them different",
            f"must be the {whole} choices of the trace, each once",
        )
