"""``python -m sim.calibrate``: fit a machine's constants to an engine's own log.

    python -m sim.calibrate log=FILE columns=bytes:COLUMN,loads:COLUMN,io_ms:COLUMN
        base=NAME name=NAME [KEY=VALUE ...]

The log has one line for each token. The constants are what the link costs for a load and for a
byte. With ``compute_ms:COLUMN`` among the columns, the efficiency of the device's memory is fitted,
too.

With ``routes=DIR``, the trace of the same run and what was absent, lanes are fitted (contract C165)
to the columns io_ms, compute_ms and load_ms. The rest of the log is then predicted by simulating
the trace on the new machine. Columns stall_ms and wall_ms are never fitted: they say how far off
that is.

| key | meaning |
|---|---|
| base | the machine of ``conf/hardware`` that all else is taken from |
| link | the link that the log is about (default: the one that ends at the device) |
| model, precision, context | a token's work, needed for compute times; context: tokens so far |
| rows | how many rows are fitted (default: half); the others tell how far off the fit is |
| lanes | with routes: how many engines read |
| copy_gb_per_s | with routes: at which rate an engine copies what it read, which no log tells |
| model.KEY, system, .. | with routes: the run's other words |
| output | the file to write (default: ``conf/hardware/NAME.yaml``) |

The file is what ``hardware=NAME`` reads. It has the residuals in it.
Where the project is installed without a checkout, the file is ``mine/hardware/NAME.yaml``, which
``hydra.searchpath=[mine]`` finds.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from sim.answers.engine_lanes import (
    errors_after,
    fit_lanes,
    fit_memory,
    lane_log,
    simulated_ms,
)
from sim.machine.hardware import Hardware
from sim.machine.precision import PRECISIONS
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.traces.residency_log import read_log as read_residency
from sim.values.places import machine_file
from sim.values.units import GB, NS_PER_MS
from sim.verbs.table import verb_of
from sim.verbs.words import read

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
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Request:
    log: Path
    columns: Mapping[str, str]
    base: str
    name: str
    link: str | None
    model: str | None
    precision: str
    context: int
    rows: int | None
    output: Path
    trace: Path | None = None
    lanes: int = 1
    copy_gb_per_s: float | None = None
    words: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class LinkFit:
    """A link's constants in ``io = overhead_ms * loads + bytes / bytes_per_ms``.

    ``error`` is the median relative error on the rows fitted, ``held_out_error`` that on the
    others. ``told_apart`` is False where the log does not say how many loads there were, or where
    all were of one size. The overhead is then the base machine's.
    """

    overhead_ms: float
    bytes_per_ms: float
    told_apart: bool
    error: float
    held_out_error: float

    @property
    def errors(self) -> str:
        return f"median error {self.error:.1%}, held out {self.held_out_error:.1%}"

    def io_ms(self, loads: Floats, moved: Floats) -> Floats:
        return self.overhead_ms * loads + moved / self.bytes_per_ms


def parse(arguments: Sequence[str]) -> Request:
    """The request on the command line; raise ValueError for the first word that is wrong."""
    said = read(verb_of("calibrate"), arguments)
    given = said.own
    columns: dict[str, str] = {}
    for pair in given["columns"].split(","):
        kind, colon, column = pair.partition(":")
        if kind not in UNITS or not colon or not column:
            raise ValueError(
                f"columns: {pair!r} must be KIND:COLUMN with a kind of {', '.join(UNITS)}"
            )
        if any(UNITS[kind][0] == UNITS[other][0] for other in columns):
            raise ValueError(f"columns: {UNITS[kind][0]} is given twice")
        columns[kind] = column
    kinds = {UNITS[kind][0] for kind in columns}
    if "routes" in given:
        if lacks := {"io", "compute", "load"} - kinds:
            raise ValueError(
                f"columns lack {', '.join(sorted(lacks))}; lanes need io_ms, compute_ms and load_ms"
            )
        if "model" not in given:
            raise ValueError("lanes need model=NAME, whose run the trace is")
    elif not {"bytes", "io"} <= kinds:
        raise ValueError(
            f"columns tell {', '.join(sorted(kinds))}; a link needs bytes and io (io_ms:COLUMN)"
        )
    if ("compute" in kinds) != ("model" in given):
        raise ValueError(
            "compute times need model=NAME, whose work they are, and model=NAME a column of them"
        )
    if not re.fullmatch(r"[a-z0-9_]+", given["name"]):
        raise ValueError(f"name={given['name']!r} must be lower-case letters, digits and _")
    output = Path(given["output"]) if given.get("output") else machine_file(given["name"])
    if output.exists():
        raise ValueError(f"output={output} exists; remove it, or choose another name")
    precision = given.get("precision", "fp16")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision} is unknown; known: {', '.join(PRECISIONS)}")
    return Request(
        Path(given["log"]),
        columns,
        given["base"],
        given["name"],
        given.get("link"),
        given.get("model"),
        precision,
        int(given.get("context", "1")),
        int(given["rows"]) if "rows" in given else None,
        output,
        Path(given["routes"]) if given.get("routes") else None,
        int(given.get("lanes", "1")),
        float(given["copy_gb_per_s"]) if "copy_gb_per_s" in given else None,
        said.overrides,
    )


def read_log(path: Path, columns: Mapping[str, str]) -> dict[str, Floats]:
    """The columns of the log, by quantity, in bytes, loads or ms.

    Lines that begin with # are left out. Raise ValueError for a log that is too large or too short,
    lacks a column, or has a value that is no number from 0.
    """
    if not path.is_file() or path.stat().st_size > LARGEST_LOG_BYTES:
        raise ValueError(f"log={path} must be a csv file of at most {LARGEST_LOG_BYTES >> 20} MiB")
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(line for line in lines if not line.startswith("#"))
        names = reader.fieldnames or []
        if absent := [column for column in columns.values() if column not in names]:
            raise ValueError(
                f"{path.name} has no column {', '.join(absent)}; it has {', '.join(names)}"
            )
        found: dict[str, list[float]] = {kind: [] for kind in columns}
        for number, row in enumerate(reader, start=1):
            for kind, column in columns.items():
                found[kind].append(_number(path, number, column, row[column]))
    values = {UNITS[kind][0]: UNITS[kind][1] * np.array(column) for kind, column in found.items()}
    values.setdefault("loads", np.zeros(len(values["io"])))
    if len(values["io"]) < 2 * FEWEST_ROWS:
        raise ValueError(
            f"{path.name} has {len(values['io'])} rows; at least {2 * FEWEST_ROWS} tell a fit from"
            " chance"
        )
    return values


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

    Of the first ``rows`` rows those that moved something count. Raise ValueError if they are too
    few, or if more bytes do not take longer.
    """
    moving = (values["bytes"] > 0) & (values["io"] > 0)
    fitted = moving & (np.arange(len(moving)) < rows)
    if fitted.sum() < FEWEST_ROWS:
        raise ValueError(
            f"of the {rows} rows to fit only {fitted.sum()} moved something in some time; give more"
            " rows"
        )
    loads, moved, io = (values[name][fitted] for name in ("loads", "bytes", "io"))
    mean = moved / np.maximum(loads, 1)
    told_apart = bool(loads.all() and np.ptp(mean) > SAME_SIZE * mean.mean())
    if told_apart:
        design = np.stack([loads, moved], axis=1) / io[:, None]
        overhead, per_byte = np.linalg.lstsq(design, np.ones(len(io)), rcond=None)[0]
        told_apart = bool(overhead >= 0)
    if not told_apart:
        overhead = base_overhead_ms
        left = io - overhead * loads
        per_byte = float((left / io) @ (moved / io) / ((moved / io) @ (moved / io)))
    if per_byte <= 0:
        raise ValueError(
            f"more bytes do not take longer in this log ({per_byte:.3g} ms a byte at {overhead:.3g}"
            " ms a load): its io column is no time of the link; give the time in which the link"
            " was busy"
        )
    fit = LinkFit(float(overhead), float(1 / per_byte), told_apart, 0.0, 0.0)
    off = np.abs(
        fit.io_ms(values["loads"], values["bytes"]) / np.where(moving, values["io"], 1) - 1
    )
    held_out = moving & ~fitted
    return replace(
        fit,
        error=float(np.median(off[fitted])),
        held_out_error=float(np.median(off[held_out])) if held_out.any() else float("nan"),
    )


def config_text(
    request: Request, hardware: Hardware, fit: LinkFit, memory: float | None, rows: int
) -> str:
    """The text of the machine's file."""
    digest = hashlib.sha256(request.log.read_bytes()).hexdigest()[:12]
    link = request.link or hardware.link_names[0]
    apart = (
        "" if fit.told_apart else "; the base machine's: the log does not tell it from the bytes"
    )
    lines = [
        (
            f"# {request.base}, with what {request.log.name} (sha256 {digest}) tells of it: rows 1"
            f" to {rows} are fitted."
        ),
        "defaults:",
        f"  - {request.base}",
        "  - _self_",
        f"name: {request.name}",
        "preset: calibrated",
        "validated: none  # no token was compared",
        "links:",
        f"  {link}:",
        f"    peak_gb_per_s: {fit.bytes_per_ms * 1e3 / GB:.6g}  # {fit.errors}",
        "    efficiency: 1.0  # as measured",
        f"    overhead_us: {fit.overhead_ms * 1e3:.6g}  # a load{apart}",
    ]
    if memory is not None:
        lines += [
            "compute:",
            f"  memory_efficiency: {memory:.6g}  # from the median token of {request.model}",
        ]
    return "\n".join(
        [*lines, f'source: "{request.log.name}, {date.today().isoformat()}, by sim.calibrate"', ""]
    )


def sections(request: Request) -> dict[str, Any]:
    """The sections of a run on the base machine."""
    words = [f"hardware={request.base}", *([f"model={request.model}"] if request.model else [])]
    cfg, _ = configure(*words, *request.words)
    parts = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(parts, dict)
    return {str(name): part for name, part in parts.items()}


def calibrate_lanes(request: Request) -> tuple[str, str]:
    """The text of the machine's file, and how far the tokens after the fitted ones are off.

    Raise ValueError for a log, trace, machine or model that does not fit the request.
    """
    assert request.trace is not None
    values = read_log(request.log, request.columns)
    del values["loads"]
    log = lane_log(read_residency(request.trace), values)
    rows = request.rows or len(values["io"]) // 2
    if not FEWEST_ROWS <= rows < len(values["io"]):
        raise ValueError(
            f"rows={rows}: {request.log.name} has {len(values['io'])}; {FEWEST_ROWS} tell a fit from"
            " chance, and the others how far off it is"
        )
    parts = sections(request)
    hardware, model = make_object(parts["hardware"]), make_object(parts["model"])
    fit = fit_lanes(log, rows, request.lanes, len(model.projection_bytes(request.precision)))
    memory = fit_memory(hardware, model, request.precision, request.context, fit.compute_ms)
    digest = hashlib.sha256(request.log.read_bytes()).hexdigest()[:12]
    what = f"{request.base}, with what {request.log.name} (sha256 {digest}) tells of its lanes"
    text = fit.file(
        [f"{what}: tokens 1 to {rows} are fitted."],
        base=request.base,
        name=request.name,
        link=request.link or hardware.link_names[0],
        memory=f"{memory:.6g}  # from the median token of {request.model}",
        copy_gb_per_s=request.copy_gb_per_s,
        source=f"{request.log.name} and its trace, {date.today().isoformat()}, by sim.calibrate",
    )
    figures = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(figures, dict)
    del figures["defaults"]
    words = [f"hardware={request.base}", f"model={request.model}", *request.words]
    words += [f"trace.path={request.trace}", f"precision={request.precision}"]
    predicted = simulated_ms(words, {str(key): value for key, value in figures.items()})
    told = [
        f"{name} {np.median(np.abs(error)):.1%} ({np.median(error):+.1%})"
        for name, error in errors_after(predicted, values, rows).items()
    ]
    return text, f"tokens after {rows}, median error (with its sign): {', '.join(told)}"


def calibrate(request: Request) -> tuple[str, LinkFit, float | None]:
    """The text of the machine's file, the link's fit, and the memory efficiency (or None).

    Raise ValueError for a log, machine or model that does not fit the request.
    """
    values = read_log(request.log, request.columns)
    rows = request.rows or len(values["io"]) // 2
    if rows > len(values["io"]):
        raise ValueError(f"rows={rows}: {request.log.name} has {len(values['io'])}")
    parts = sections(request)
    hardware: Hardware = make_object(parts["hardware"])
    link = request.link or hardware.link_names[0]
    if link not in hardware.link_names:
        raise ValueError(
            f"link={link} is none of {hardware.name}'s: {', '.join(hardware.link_names)}"
        )
    overhead_ms = hardware.links[hardware.link_names.index(link)].latency_ns / NS_PER_MS
    fit = fit_link(values, rows, overhead_ms)
    memory = None
    if request.model is not None:
        median_ms = float(np.median(values["compute"][:rows]))
        memory = fit_memory(
            hardware, make_object(parts["model"]), request.precision, request.context, median_ms
        )
    return config_text(request, hardware, fit, memory, rows), fit, memory


def main(arguments: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message on stderr, nothing written."""
    try:
        request = parse(arguments)
        if request.trace is not None:
            text, told = calibrate_lanes(request)
            request.output.parent.mkdir(parents=True, exist_ok=True)
            request.output.write_text(text, encoding="utf-8")
            print(f"{request.output}: {told}")
            return 0
        text, fit, memory = calibrate(request)
        request.output.parent.mkdir(parents=True, exist_ok=True)
        request.output.write_text(text, encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rate = (
        f"{fit.bytes_per_ms * 1e3 / GB:.4g} GB/s after {fit.overhead_ms * 1e3:.4g} us a load,"
        f" {fit.errors}"
    )
    print(
        f"{request.output}: {rate}"
        + (f"; memory efficiency {memory:.3g}" if memory is not None else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
