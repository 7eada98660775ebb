"""Reads an engine's own log, one line a token, and fits what a link costs to it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.machine.hardware import Hardware
from sim.values.units import GB, MIB, NS_PER_MS

UNITS = {
    "bytes": ("bytes", 1.0),
    "mb": ("bytes", 1e6),
    "mib": ("bytes", float(1 << 20)),
    "loads": ("loads", 1.0),
    "io_us": ("io", 1e-3),
    "io_ms": ("io", 1.0),
    "io_s": ("io", 1e3),
    "compute_us": ("compute", 1e-3),
    "compute_ms": ("compute", 1.0),
    "compute_s": ("compute", 1e3),
    "load_ms": ("load", 1.0),
    "stall_ms": ("stall", 1.0),
    "wall_ms": ("wall", 1.0),
}
"""The kinds of columns: the quantity, and one of its units in bytes, loads or milliseconds."""
LARGEST_LOG_BYTES = 1 << 28
FEWEST_ROWS = 8
SAME_SIZE = 1e-3
"""Loads whose mean size varies less than this from row to row count as loads of one size.

Then the log cannot tell the cost of a load from the cost of its bytes.
"""
APART = 0.1
"""Nor can it where the standard error of a load's cost is more than this share of a load's time."""
FARTHEST = 30.0
"""So many times a rate, or its inverse, is a mistaken unit: units differ by 1000."""
SAME_TIME = 1e-3
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinkFit:
    """A link's constants in ``io = overhead_ms * loads + bytes / bytes_per_ms``.

    ``error`` is the median relative error on the rows fitted, ``held_out_error`` that on the
    others, NaN where there is none. ``told_apart`` is False where loads were of one size, or times
    too noisy for how sizes differ: the overhead is then the base machine's. Where the log tells no
    loads it is 0, for the rate has it.
    """

    overhead_ms: float
    bytes_per_ms: float
    told_apart: bool
    error: float
    held_out_error: float

    @property
    def errors(self) -> str:
        held_out = "no row" if isnan(self.held_out_error) else f"{self.held_out_error:.1%}"
        return f"median error {self.error:.1%}, held out {held_out}"


def read_log(path: Path, columns: Mapping[str, str]) -> dict[str, Floats]:
    """The columns of the log, by quantity, in bytes, loads or ms.

    Lines that begin with # are left out. Raise ValueError for a log that is too large or too short,
    lacks a column, or has a value that is no number from 0.
    """
    if not path.is_file() or path.stat().st_size > LARGEST_LOG_BYTES:
        raise ValueError(f"log={path} must be a csv file of at most {LARGEST_LOG_BYTES >> 20} MiB")
    # Some systems begin a file of UTF-8 with a mark, which is no part of the first name.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        read = count()
        kept = (line for line, _ in zip(lines, read, strict=False) if not line.startswith("#"))
        try:
            found = _columns(path, csv.DictReader(kept), columns)
        except csv.Error as error:
            raise ValueError(f"{path.name} line {next(read)} is no csv: {error}") from error
    values = {UNITS[kind][0]: UNITS[kind][1] * np.array(column) for kind, column in found.items()}
    values.setdefault("loads", np.zeros(len(values["io"])))
    if len(values["io"]) < 2 * FEWEST_ROWS:
        raise ValueError(
            f"{path.name} has {len(values['io'])} rows; at least {2 * FEWEST_ROWS} tell a fit from"
            " chance"
        )
    return values


def _columns(
    path: Path, reader: csv.DictReader[str], columns: Mapping[str, str]
) -> dict[str, list[float]]:
    names = reader.fieldnames or []
    if absent := [column for column in columns.values() if column not in names]:
        raise ValueError(
            f"{path.name} has no column {', '.join(absent)}; it has {', '.join(names)}"
        )
    found: dict[str, list[float]] = {kind: [] for kind in columns}
    for number, row in enumerate(reader, start=1):
        if reader.restkey in row:
            many = len(names) + len(row[reader.restkey])
            raise ValueError(
                f"{path.name} row {number} has {many} values, and the first line {len(names)} names:"
                " nobody can tell which column is which; decimals have a point, not a comma"
            )
        for kind, column in columns.items():
            found[kind].append(_number(path, number, column, row[column]))
    return found


def _number(path: Path, row: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(
            f"{path.name} row {row}, column {column}: {text!r} must be a number from 0"
        )
    return value


def fit_link(values: Mapping[str, Floats], rows: int, base_overhead_ms: float) -> LinkFit:
    """Fit the link by least squares of relative errors.

    Of the first ``rows`` rows those that moved something in some time count. What moved `FARTHEST`
    times as fast as the median row moved in no time: a clock that stood still, or a cache. Raise
    ValueError if they are too few, or if more bytes do not take longer.
    """
    moving = (values["bytes"] > 0) & (values["io"] > 0)
    if moving.any():
        rate = values["bytes"] / np.where(moving, values["io"], np.inf)
        moving &= rate < FARTHEST * np.median(rate[moving])
    fitted = moving & (np.arange(len(moving)) < rows)
    if fitted.sum() < FEWEST_ROWS:
        raise ValueError(
            f"of the {rows} rows to fit only {fitted.sum()} moved something in some time; give more"
            " rows"
        )
    loads, moved, io = (values[name][fitted] for name in ("loads", "bytes", "io"))
    counted = loads > 0
    size = moved[counted] / loads[counted]
    told_apart = bool(counted.any() and np.ptp(size) > SAME_SIZE * size.mean())
    if told_apart:
        overhead, per_byte, error = _load_and_byte(loads, moved, io)
        load_ms = np.median(io[counted] / loads[counted])
        told_apart = bool(overhead >= 0 and error <= APART * load_ms)
    if not told_apart:
        # What nobody counted cannot be taken off, and a machine must not take it twice.
        overhead = base_overhead_ms if loads.any() else 0.0
        left = io - overhead * loads
        per_byte = float((left / io) @ (moved / io) / ((moved / io) @ (moved / io)))
    if per_byte <= 0:
        raise ValueError(
            f"more bytes do not take longer in this log ({per_byte:.3g} ms a byte at {overhead:.3g}"
            " ms a load): its io column is no time of the link; give the time in which the link"
            " was busy"
        )
    predicted = overhead * values["loads"] + per_byte * values["bytes"]
    off = np.abs(predicted / np.where(moving, values["io"], 1) - 1)
    held_out = moving & ~fitted
    return LinkFit(
        float(overhead),
        float(1 / per_byte),
        told_apart,
        error=float(np.median(off[fitted])),
        held_out_error=float(np.median(off[held_out])) if held_out.any() else float("nan"),
    )


def _load_and_byte(loads: Floats, moved: Floats, io: Floats) -> tuple[float, float, float]:
    """What a load and a byte take by least squares of relative errors, and the standard error of
    the former.
    """
    design = np.stack([loads, moved], axis=1) / io[:, None]
    overhead, per_byte = np.linalg.lstsq(design, np.ones(len(io)), rcond=None)[0]
    off = design @ (overhead, per_byte) - 1
    of_loads, of_bytes = design.T
    # Of a load's cost only what no cost of bytes explains as well tells anything.
    alone = of_loads - of_bytes * (of_loads @ of_bytes) / (of_bytes @ of_bytes)
    error = np.sqrt(off @ off / (len(io) - 2) / (alone @ alone))
    return float(overhead), float(per_byte), float(error)


def check_units(
    hardware: Hardware, link: str, bytes_per_s: float, columns: Mapping[str, str]
) -> None:
    """Raise ValueError for a rate that the base machine's link is nowhere near: a column has
    another unit than it is said to have.
    """
    base = hardware.links[hardware.link_names.index(link)].bytes_per_s
    if not base / FARTHEST <= bytes_per_s <= base * FARTHEST:
        told = ",".join(f"{kind}:{column}" for kind, column in columns.items())
        raise ValueError(
            f"columns={told} say {bytes_per_s / GB:.4g} GB/s, and {link} of base={hardware.name} has"
            f" {base / GB:.4g}: a unit is wrong; look at the kinds of bytes (bytes, mb, mib) and io"
            " (io_us, io_ms, io_s). Where the link is so, choose a nearer base"
        )


def check_base(
    hardware: Hardware, link: str, bytes_per_ms: float, overhead_ms: float | None = None
) -> None:
    """Raise ValueError where a link of the base has more than a log says anew, such as a table of
    measured times: then the machine would not take what the log says.

    ``overhead_ms``: what the log says of a load; None where the base's counts.
    """
    number = hardware.link_names.index(link)
    base = hardware.links[number]
    latency_ms = base.latency_ns / NS_PER_MS if overhead_ms is None else overhead_ms
    anew = replace(
        base,
        peak_gb_per_s=bytes_per_ms * 1e3 / GB,
        efficiency=1.0,
        overhead_us=base.overhead_us if overhead_ms is None else overhead_ms * 1e3,
    )
    links = (*hardware.links[:number], anew, *hardware.links[number + 1 :])
    told_ms = latency_ms + MIB / bytes_per_ms
    made_ms = replace(hardware, links=links).hop_ns(number, MIB) / NS_PER_MS
    if abs(made_ms / told_ms - 1) > SAME_TIME:
        raise ValueError(
            f"base={hardware.name}: a load of 1 MiB takes {told_ms:.4g} ms by the log, and would take"
            f" {made_ms:.4g} on the machine: its link {link} has times of its own (measured.copy_us,"
            " per_call_us, reads or gather); choose a base without them"
        )
