"""The layout of a trace's columns in its parquet file.

Rows lie site by site. Floats are stored as float32, or as integer multiples of a fixed-point step.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.header import COLUMNS, ROUTES_FILE, Header
from sim.traces.rows import ROW_DTYPES, Float32s, Trace
from sim.values.fields import TraceError


@dataclass(frozen=True)
class Stored:
    """A column of floats in the file.

    ``width`` is the number of values for each row and site; ``step`` is their fixed-point step,
    None for float32.
    """

    width: int
    step: float | None


def recorded_columns(trace: Trace) -> tuple[str, ...]:
    """The optional columns that ``trace`` holds."""
    columns = {name: getattr(trace, name) for name in COLUMNS}
    return tuple(name for name, values in columns.items() if values is not None and len(values))


def stored_columns(header: Header, columns: Collection[str]) -> dict[str, Stored]:
    """How the weights and the optional ``columns`` are stored, by the name of the file's column."""
    model, ahead, steps = header.model, header.lookahead, header.steps
    stored = {"weights": Stored(model.top_k, steps.get("weights"))}
    if "logits" in columns:
        stored["logits"] = Stored(model.experts, steps.get("logits"))
    if ahead is not None:
        asked = [
            name for name in lookahead_columns(header) if "lookahead" in columns or name in columns
        ]
        stored |= {name: Stored(ahead.depth * model.experts, ahead.step) for name in asked}
    if "expert_norms" in columns:
        stored["expert_norms"] = Stored(model.top_k, steps.get("expert_norms"))
    if "active_shares" in columns:
        stored["active_shares"] = Stored(
            model.top_k * len(header.sparsities), steps.get("active_shares")
        )
    return stored


def lookahead_columns(header: Header) -> tuple[str, ...]:
    """The file's columns of lookahead scores, one for each norm."""
    return (
        ()
        if header.lookahead is None
        else tuple(f"lookahead_{norm}" for norm in header.lookahead.norms)
    )


def trace_frame(trace: Trace) -> pl.DataFrame:
    num_rows, num_sites = trace.ids.shape[:2]
    columns = {"site": pl.Series(np.repeat(np.arange(num_sites, dtype=np.int16), num_rows))}
    columns |= {name: pl.Series(np.tile(getattr(trace, name), num_sites)) for name in ROW_DTYPES}
    columns["ids"] = pl.Series(by_site(trace.ids))
    for name, stored in stored_columns(trace.header, trace.header.columns).items():
        values = by_site(column_of(trace, name))
        columns[name] = pl.Series(
            values if stored.step is None else fixed_point(name, values, stored.step)
        )
    return pl.DataFrame(columns)


def column_of(trace: Trace, name: str) -> NDArray[Any]:
    """The values [N, S, ..] of the file's column ``name``."""
    norm = name.removeprefix("lookahead_")
    values: NDArray[Any] = trace.lookahead[norm] if norm != name else getattr(trace, name)
    return values


def by_site(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` [N, S, ...] as [S * N, width].

    Neighbours in a column of the file then belong to one router, and compress better.
    """
    num_rows, num_sites = values.shape[:2]
    return values.reshape(num_rows, num_sites, -1).swapaxes(0, 1).reshape(num_sites * num_rows, -1)


def fixed_point(name: str, values: Float32s, step: float) -> NDArray[Any]:
    """``round(values / step)`` as int8, or as int16 where int8 is too small.

    The type's lowest value stands for NaN. Raise `TraceError` where int16 is too small.
    """
    recorded = np.isfinite(values)
    multiples = np.rint(np.where(recorded, values, 0.0) / np.float64(step))
    largest = float(np.abs(multiples).max(initial=0.0))
    dtype: type[np.signedinteger[Any]] = np.int8 if largest <= np.iinfo(np.int8).max else np.int16
    if largest > np.iinfo(dtype).max:
        rule = f"does not fit 16 bits in steps of {step}"
        raise TraceError(ROUTES_FILE, name, largest * step, rule, "use a larger step")
    return np.where(recorded, multiples, np.iinfo(dtype).min).astype(dtype)


def floats_of(stored: Stored, values: NDArray[Any]) -> Float32s:
    """The floats that `fixed_point` was given; without a step values are floats already."""
    if stored.step is None:
        return values
    floats: Float32s = (values * np.float64(stored.step)).astype(np.float32)
    floats[values == np.iinfo(values.dtype).min] = np.nan
    return floats
