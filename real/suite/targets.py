"""What the kernels were to reach, and how a measurement (``kernels.json``) compares.

Targets are of an H100's class: shares of a device-to-device copy measured beside them, ratios of
two kernels, and for gates a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = tuple[str, str, str, bool]
"""What, its target, what was measured, whether it holds."""
EXPERT_SHARES = {"int4": 0.8, "int8": 0.95, "bf16": 1.0, "int2": 0.7}
"""The least shares of a copy that a whole large expert of one row reaches."""
CURVE_SHARE, NEEDS_SHARE, SPARSE_SHARE = 0.8, 0.7, 0.85
LARGE_BYTES = 40 << 20
"""Experts from here on are large: bytes, and not launches, are what they take."""
LARGE_MATRIX_BYTES = 64 << 20
FEW_ROWS, FEW_RATIO, MANY_ROWS = (2, 8), 1.5, 32
PREFILL_RATIOS = {16: 0.5, 64: 1.0, 256: 1.5}
"""The most of torch's time in bf16, by the rows of each of 8 experts."""
GATE_NS = 6000


def kernel_targets(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Judge every measured row that has a target, in a fixed order."""
    took = {(row["operator"], row["shape"]): row for row in rows}
    yield from _shares(rows)
    yield from _sparse(rows, took)
    yield from _several_rows(rows, took)
    for row in rows:
        if row["operator"] == "routed gate":
            yield (
                f"routed gate {row['shape']}, in one launch",
                f"<= {GATE_NS / 1e3:.0f} us",
                f"{row['median_ns'] / 1e3:.1f} us",
                row["median_ns"] <= GATE_NS,
            )


def _shares(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for row in rows:
        operator, size = row["operator"], row["read_bytes"]
        least = None
        if operator.removeprefix("expert ") in EXPERT_SHARES and size >= LARGE_BYTES:
            least = EXPERT_SHARES[operator.removeprefix("expert ")]
        elif operator == "8 experts int4":
            least = NEEDS_SHARE
        elif operator == "gemv int4 by size" and size >= LARGE_MATRIX_BYTES:
            least = CURVE_SHARE
        if least is not None:
            yield (
                f"{operator} {row['shape']} ({size >> 20} MiB), of a measured copy",
                f">= {least:.0%}",
                f"{row['share']:.1%}",
                row["share"] >= least,
            )


def _sparse(
    rows: Sequence[Mapping[str, Any]], took: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[Row]:
    """FloE beside a whole bf16 expert: at most 1 / (1/3 + 2/3 kept) times as fast."""
    for row in rows:
        dense = took.get(("expert bf16", row["shape"]))
        if (
            row["operator"].startswith("up and sparse_expert")
            and dense is not None
            and dense["read_bytes"] >= LARGE_BYTES
        ):
            kept = float(row["operator"].split()[3].rstrip("%")) / 100
            share = dense["median_ns"] / row["median_ns"] * (1 / 3 + 2 / 3 * kept)
            yield (
                f"{row['operator']}, {row['shape']}, of its byte ceiling beside a bf16 expert",
                f">= {SPARSE_SHARE:.0%}",
                f"{share:.1%}",
                share >= SPARSE_SHARE,
            )


def _several_rows(
    rows: Sequence[Mapping[str, Any]], took: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[Row]:
    """Few rows beside one, many beside torch, and prefill beside torch."""
    for row in rows:
        operator, shape = row["operator"], row["shape"]
        beside, most = "", 0.0
        kind, _, told = operator.partition(", ")
        if kind in ("expert int8", "expert int4", "expert int2"):
            if told in [f"{count} rows" for count in FEW_ROWS]:
                beside, most = kind, FEW_RATIO
            elif told == f"{MANY_ROWS} rows, as bf16":
                beside, most = f"torch expert bf16, {MANY_ROWS} rows", 1.0
        elif kind == "grouped_gemm int4":
            count = int(told.split()[2])
            beside, most = f"torch bmm bf16, {told}", PREFILL_RATIOS.get(count, 0.0)
        other = took.get((beside, shape))
        if most and other is not None:
            ratio = row["median_ns"] / other["median_ns"]
            yield (
                f"{operator}, {shape}, beside {beside}",
                f"<= {most:.2g} times",
                f"{ratio:.2f} times",
                ratio <= most,
            )
