"""The row of a finished cell: what was asked, what came out, and the numbers by sequence that
paired comparisons need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from sim.results.labels import caption, labels_in
from sim.results.overview import Done, Overview, Refused, overview
from sim.setup.configure import last_of_each
from sim.study.cells import Cell
from sim.values.code import project_digest
from sim.values.version import VERSION

DONE, REFUSED, FAILED = "done", "refused", "failed"
NUMBERS = (
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "makespan_s",
    "ttft_s.mean",
    "ttft_s.p95",
    "tpot_s.mean",
    "tpot_s.p95",
    "itl_s.mean",
    "itl_s.p95",
    "itl_s.p99",
    "latency_s.mean",
    "compute_busy_s",
    "stall_s.demand",
    "stall_s.behind_demand",
    "stall_s.behind_prefetch",
    "stall_s.late_prefetch",
    "stall_s.storage",
    "stall_s.no_slot",
    "stall_s.dense",
    "stall_s.cpu_join",
    "stall_s.host",
    "stall_s.predictor",
    "stall_s.no_request",
    "hit_ratio",
    "hit_ratio_prefill",
    "miss_penalty",
    "prefetch.started",
    "prefetch.used",
    "prefetch.wasted_bytes",
    "prediction.top1",
    "prediction.recall_at_issued",
    "prediction.precision",
    "quality_proxy.low_share",
    "quality_proxy.skip_share",
    "quality_proxy.low_mass",
    "quality_proxy.skip_mass",
    "bounds.lower_s",
    "gap",
    "budget.device_bytes",
    "budget.resident_share",
    "peak_bytes.device",
    "load_s",
    "wall_s",
)
"""The numbers of a summary that have columns; column ``summary`` holds the whole summary."""
BOUNDED = ("bounds.lower_s", "gap")
"""Those of them that are null unless ``bounds`` asks for them."""
TEXTS = (
    "model",
    "hardware",
    "preset",
    "workload",
    "trace.name",
    "trace.gates",
    "trace.split",
    "bounds.method",
)
INTERVALS = ("decode_tokens_per_s", "ttft_s", "tpot_s", "hit_ratio")
"""Numbers whose 95 % intervals have columns ``ci95.NAME.low`` and ``ci95.NAME.high``."""
LISTS = {"sequence": pl.Int64, "decode_ns": pl.Float64, "decode_tokens": pl.Float64}
"""Columns of lists by sequence: its number, the time of the steps that decoded it, and its tokens in
these steps. Of sequences that share steps the first has the sums, and the others have 0.
"""
AXIS = "axis."
"""What the column of a varied key begins with."""

SCHEMA: dict[str, Any] = {
    "key": pl.String,
    "study": pl.String,
    "status": pl.String,
    "error": pl.String,
    "system": pl.String,
    "overrides": pl.String,
    "version": pl.String,
    "code": pl.String,
    "trace_sha256": pl.String,
    **dict.fromkeys(TEXTS, pl.String),
    **dict.fromkeys(NUMBERS, pl.Float64),
    **{f"ci95.{name}.{end}": pl.Float64 for name in INTERVALS for end in ("low", "high")},
    **{name: pl.List(kind) for name, kind in LISTS.items()},
    "labels": pl.String,
    "summary": pl.String,
    "config": pl.String,
}

Row = dict[str, Any]


def make_row(
    study: str,
    cell: Cell,
    status: str,
    error: str | None = None,
    summary: Mapping[str, Any] | None = None,
    by_sequence: Mapping[str, Sequence[float]] | None = None,
) -> Row:
    """The row of a cell. ``summary`` and ``by_sequence`` (see `LISTS`) are given if it is done,
    ``error`` if not.
    """
    row: Row = dict.fromkeys(SCHEMA)
    row |= {
        "key": cell.key,
        "study": study,
        "status": status,
        "error": error,
        "system": cell.system,
        "overrides": " ".join(cell.words),
        "version": VERSION,
        "code": project_digest(),
        "trace_sha256": cell.trace_sha256,
        "config": json.dumps(cell.config, sort_keys=True),
    }
    row |= {AXIS + key: value for key, value in cell.axes.items()}
    if summary is not None:
        row |= {name: _at(summary, name) for name in (*TEXTS, *NUMBERS)}
        for name in INTERVALS:
            row[f"ci95.{name}.low"], row[f"ci95.{name}.high"] = summary["ci95"][name] or (
                None,
                None,
            )
        row |= {name: list(values) for name, values in (by_sequence or {}).items()}
        row |= {"labels": caption([("", labels_in(summary))]), "summary": json.dumps(summary)}
    return row


def overview_of(rows: Iterable[Row]) -> Overview:
    """What the cells of a study say together."""
    done, refused = [], []
    for row in rows:
        if row["status"] != DONE:
            failed = "it failed: " if row["status"] == FAILED else ""
            refused.append(Refused(row["overrides"], failed + row["error"]))
            continue
        times = np.array(row["decode_ns"], np.float64) if row["decode_ns"] else None
        # A cell's own word holds against the study's: without it the study's would seem to hold.
        words = tuple(last_of_each(words_of(row["overrides"])).values())
        done.append(Done(json.loads(row["summary"]), words, times))
    return overview(done, refused)


def words_of(overrides: str) -> tuple[str, ...]:
    """The words of a row's overrides: blanks inside of brackets and quotes part none, where all
    are closed.

    >>> words_of("system=lru +a.b={_target_: C, c: [1, 2]} d='e f'")
    ('system=lru', '+a.b={_target_: C, c: [1, 2]}', "d='e f'")
    """
    words, depth, quote = [""], 0, ""
    for one in overrides:
        if quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        else:
            depth += (one in "[{(") - (one in ")}]")
        if one == " " and depth <= 0 and not quote:
            words.append("")
        else:
            words[-1] += one
    return tuple(overrides.split() if depth or quote else filter(None, words))


def _at(summary: Mapping[str, Any], name: str) -> Any:
    found: Any = summary
    for key in name.split("."):
        found = found[key]
    return found


def to_frame(rows: Sequence[Row], axes: Mapping[str, Any]) -> pl.DataFrame:
    """Rows as a table. ``axes``: the type of each varied key's column."""
    columns: dict[str, pl.Series] = {}
    for name, kind in SCHEMA.items():
        columns[name] = pl.Series(name, [row.get(name) for row in rows], dtype=kind, strict=False)
    for key, kind in axes.items():
        values = [_as(row.get(AXIS + key), kind) for row in rows]
        columns[AXIS + key] = pl.Series(AXIS + key, values, dtype=kind)
    return pl.DataFrame(columns)


def axis_types(values_by_key: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The type of each key's column: Float64 for numbers, Boolean for truth values, else String
    (lists and sections as JSON).
    """
    types: dict[str, Any] = {}
    for key, values in values_by_key.items():
        given = [value for value in values if value is not None]
        if given and all(isinstance(value, bool) for value in given):
            types[key] = pl.Boolean
        elif given and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in given
        ):
            types[key] = pl.Float64
        else:
            types[key] = pl.String
    return types


def _as(value: Any, kind: Any) -> Any:
    if value is None or kind == pl.Boolean:
        return value
    if kind == pl.Float64:
        return float(value)
    return value if isinstance(value, str) else json.dumps(value)
