"""A small trace with every column, and ways to alter its written files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sim.traces.routing import RoutingRule
from sim.traces.trace import (
    CHUNK,
    DECODE,
    PREFILL,
    Header,
    Lookahead,
    ModelShape,
    Site,
    Trace,
    TraceSequence,
)

SITES, EXPERTS, TOP_K, DEPTH = 3, 6, 2, 2
RULE = RoutingRule(weight="norm")
EXTRA = {"hidden/part.bin": b"gate inputs", "README.md": b"# trace\n"}


def make_trace(step: float | None = None) -> Trace:
    """Two sequences that are prefilled together and then both decode.

    Sequence 0 reads its prompt in two parts; sequence 7 has a padded row.
    """
    rng = np.random.default_rng(3)
    phase = [PREFILL] * 6 + [CHUNK] * 2 + [DECODE] * 4
    steps = [1] * 6 + [2] * 2 + [3, 3, 4, 4]
    sequence = [0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 0, 7]
    position = [0, 1, 2, -1, 0, 1, 3, 4, 5, 2, 6, 3]
    valid = np.array(position) >= 0
    num_rows = len(phase)
    logits = rng.integers(-64, 64, (num_rows, SITES, EXPERTS)).astype(np.float32) / 16
    ids, weights = RULE.route(logits, TOP_K)
    ids[2, 1, 1], weights[2, 1, 1] = -1, 0.0
    lookahead = {}
    for norm in ("raw", "renormed"):
        scores = np.full((num_rows, SITES, DEPTH, EXPERTS), np.nan, np.float32)
        for ahead in range(1, DEPTH + 1):
            shape = (4, SITES - ahead, EXPERTS)
            scores[8:, : SITES - ahead, ahead - 1] = rng.integers(-99, 99, shape) / 16
        lookahead[norm] = scores
    shares = np.full((num_rows, SITES, TOP_K, 2), np.nan, np.float32)
    shares[8:] = rng.integers(0, 32, (4, SITES, TOP_K, 2)) / 32
    return Trace(
        header=Header(
            name="two sequences",
            created="2025-01-02T03:04:05+00:00",
            source="synthetic",
            model=ModelShape("tiny", "Tiny", SITES, EXPERTS, TOP_K, 16, 32),
            dtype="float32",
            experts_implementation="eager",
            sites=tuple(
                Site(site, f"layers.{site}", site, "ffn", RULE, 1.0, 1e-7) for site in range(SITES)
            ),
            sequences=(
                TraceSequence(0, "fit", "prose", 5, 2, {"has_repetition": False}),
                TraceSequence(7, "eval", "code", 2, 2),
            ),
            licence="CC0-1.0",
            lookahead=Lookahead("gate_in", ("raw", "renormed"), DEPTH, step),
            steps={} if step is None else {"logits": step, "active_shares": 1 / 32},
            sparsities=(0.5, 0.9),
            versions={"numpy": np.__version__},
            provenance={"seed": 3, "text": "none", "share": 0.5, "pads": True},
        ),
        step=np.array(steps, np.int32),
        phase=np.array(phase, np.uint8),
        sequence=np.array(sequence, np.int32),
        position=np.array(position, np.int32),
        token=rng.integers(-1, 50, num_rows).astype(np.int32),
        valid=valid,
        ids=ids,
        weights=weights,
        logits=logits,
        lookahead=lookahead,
        expert_norms=rng.random((num_rows, SITES, TOP_K), np.float32),
        active_shares=shares,
    )


def assert_equal(one: Trace, other: Trace) -> None:
    for column in fields(Trace):
        left, right = getattr(one, column.name), getattr(other, column.name)
        if column.name == "header":
            assert left == right
        elif column.name == "prompt_forecasts":
            assert left.keys() == right.keys()
            assert all(left[norm].equals(right[norm]) for norm in left)
        elif column.name == "lookahead":
            assert left.keys() == right.keys()
            for norm in left:
                np.testing.assert_array_equal(left[norm], right[norm])
        else:
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype


def rehash(directory: Path) -> None:
    """Make the header agree with altered files, as a forger would."""
    header = json.loads((directory / "header.json").read_text())
    header["files"] = {
        path: hashlib.sha256((directory / path).read_bytes()).hexdigest()
        for path in header["files"]
    }
    (directory / "header.json").write_text(json.dumps(header))


def edit_header(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    header = json.loads((directory / "header.json").read_text())
    edit(header)
    (directory / "header.json").write_text(json.dumps(header))


def edit_rows(directory: Path, edit: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    edit(pl.read_parquet(directory / "routes.parquet")).write_parquet(directory / "routes.parquet")
    rehash(directory)


def a_finding(**other: object) -> dict[str, object]:
    """A finding as a header's JSON has it."""
    return {
        "check": "padding",
        "serious": True,
        "text": "much",
        "sequences": [7],
        "sites": [0],
        **other,
    }


def put(name: str, row: int, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Replace one row's value in one column, keeping the column's dtype."""

    def edit(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[name].to_list()
        values[row] = value
        return frame.with_columns(pl.Series(name, values, dtype=frame.schema[name]))

    return edit


def with_step(trace: Trace, **steps: float) -> Trace:
    return replace(trace, header=replace(trace.header, steps={**trace.header.steps, **steps}))
