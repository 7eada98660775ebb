"""Columns as the parquet file has them: site by site, in float32 or in steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from helpers.traces import make_trace
from sim.traces.storage import (
    Stored,
    by_site,
    column_of,
    fixed_point,
    floats_of,
    lookahead_columns,
    recorded_columns,
    stored_columns,
    trace_frame,
)
from sim.traces.trace import TraceError

NAN = np.float32(np.nan)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("values", "step", "dtype", "stored"),
    [
        ((0.0, 0.5, -0.25), 0.25, np.int8, (0, 2, -1)),
        # Halves go to the even neighbour.
        ((0.125, 0.375, -0.125), 0.25, np.int8, (0, 2, 0)),
        ((127.0, -127.0), 1.0, np.int8, (127, -127)),
        ((128.0, 0.0), 1.0, np.int16, (128, 0)),
        ((0.0, -128.0), 1.0, np.int16, (0, -128)),
        ((32767.0, -32767.0), 1.0, np.int16, (32767, -32767)),
        ((NAN, 1.0), 1.0, np.int8, (-128, 1)),
        ((NAN, 200.0), 1.0, np.int16, (-32768, 200)),
        ((), 1.0, np.int8, ()),
    ],
)
def test_floats_are_whole_numbers_of_steps_in_the_narrowest_type_that_holds_them(
    values: tuple[float, ...], step: float, dtype: type, stored: tuple[int, ...]
) -> None:
    found = fixed_point("logits", floats(*values), step)
    assert (found.dtype, found.tolist()) == (dtype, list(stored))
    back = floats_of(Stored(2, step), found)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, floats(*values), rtol=0, atol=step / 2)


def test_floats_without_a_step_are_given_back_as_they_are() -> None:
    values = floats(0.1, NAN)
    assert floats_of(Stored(1, None), values) is values


@pytest.mark.parametrize("value", [8192.0, -8192.0])
def test_a_value_too_large_for_its_step_is_refused(value: float) -> None:
    with pytest.raises(TraceError) as refused:
        fixed_point("logits", floats(value), 0.25)
    assert str(refused.value) == (
        "routes.parquet: logits is 8192.0, does not fit 16 bits in steps of 0.25; use a larger step"
    )


def test_columns_are_those_that_the_trace_has_with_their_widths_and_steps() -> None:
    trace = make_trace(1 / 16)
    header = replace(trace.header, steps={**trace.header.steps, "weights": 0.5})
    assert recorded_columns(trace) == ("logits", "lookahead", "expert_norms", "active_shares")
    assert recorded_columns(replace(trace, logits=None, lookahead={})) == (
        "expert_norms",
        "active_shares",
    )
    scores = {"lookahead_raw": Stored(12, 1 / 16), "lookahead_renormed": Stored(12, 1 / 16)}
    weights = {"weights": Stored(2, 0.5)}
    assert stored_columns(header, recorded_columns(trace)) == {
        **weights,
        "logits": Stored(6, 1 / 16),
        **scores,
        "expert_norms": Stored(2, None),
        "active_shares": Stored(4, 1 / 32),
    }
    assert stored_columns(header, ()) == weights
    assert stored_columns(header, ("lookahead_renormed",)) == {
        **weights,
        "lookahead_renormed": Stored(12, 1 / 16),
    }
    assert lookahead_columns(header) == ("lookahead_raw", "lookahead_renormed")
    alone = replace(header, lookahead=None)
    assert lookahead_columns(alone) == ()
    assert stored_columns(alone, ("lookahead",)) == weights


def test_rows_of_a_site_stand_together() -> None:
    values = np.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2)
    assert by_site(values).tolist() == [
        [0, 1, 2, 3],
        [12, 13, 14, 15],
        [4, 5, 6, 7],
        [16, 17, 18, 19],
        [8, 9, 10, 11],
        [20, 21, 22, 23],
    ]
    trace = make_trace(1 / 16)
    trace = replace(trace, header=replace(trace.header, columns=recorded_columns(trace)))
    assert column_of(trace, "lookahead_renormed") is trace.lookahead["renormed"]
    assert column_of(trace, "logits") is trace.logits
    frame = trace_frame(trace)
    assert frame["site"].to_list() == [0] * 12 + [1] * 12 + [2] * 12
    assert frame["token"].to_list() == trace.token.tolist() * 3
    assert frame["ids"].to_numpy()[12:24].tolist() == trace.ids[:, 1].tolist()
    assert {name: dtype for name, dtype in frame.schema.items() if dtype.is_nested()} == {
        "ids": pl.Array(pl.Int16, 2),
        "weights": pl.Array(pl.Float32, 2),
        "logits": pl.Array(pl.Int8, 6),
        "lookahead_raw": pl.Array(pl.Int8, 12),
        "lookahead_renormed": pl.Array(pl.Int8, 12),
        "expert_norms": pl.Array(pl.Float32, 2),
        "active_shares": pl.Array(pl.Int8, 4),
    }
