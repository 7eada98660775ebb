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

With ``columns=strata`` the log is that of Strata's engine (`sim.answers.strata_log`). The constants
are then the rates that the engine measured itself, and the file has its hits as comments.

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

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from sim.answers.engine_lanes import (
    errors_after,
    fit_lanes,
    fit_memory,
    lane_log,
    simulated_ms,
)
from sim.answers.engine_log import (
    FEWEST_ROWS,
    UNITS,
    LinkFit,
    check_base,
    check_units,
    fit_link,
    read_log,
)
from sim.answers.strata_log import machine_text, rates_of, read_report
from sim.machine.hardware import Hardware
from sim.machine.precision import PRECISIONS
from sim.process.files import write_whole
from sim.results.folders import check_can_be_made
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.traces.residency_log import read_log as read_residency
from sim.values.places import machine_file, quoted
from sim.values.units import GB, NS_PER_MS
from sim.verbs.table import verb_of
from sim.verbs.words import read

STRATA = "strata"
FIGURES = ("peak_gb_per_s", "efficiency", "overhead_us")
"""What a file says of its link anew."""
MEMORY = ("hardware.memory_gib", "hardware.reserved_gib")
OF_LANES = ("load", "stall", "wall")
"""Quantities that only a fit of lanes reads."""
OF_COLUMNS = ("link", "model", "context", "rows", "routes", "lanes", "copy_gb_per_s")


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
    trace: Path | None
    lanes: int
    copy_gb_per_s: float | None
    words: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Request:
    """The request on the command line. Raise ValueError for the first word that is wrong, and OSError
    for a file that cannot be written.
    """
    said = read(verb_of("calibrate"), arguments)
    given = said.own
    columns = {} if given["columns"] == STRATA else _columns(given)
    if not columns and (wrong := [f"{key}=" for key in OF_COLUMNS if key in given]):
        raise ValueError(f"{wrong[0]} does not go with columns={STRATA}, whose log tells rates")
    output = Path(given["output"]) if given.get("output") else machine_file(given["name"])
    if output.exists():
        raise ValueError(f"output={output} exists; remove it, or choose another name")
    check_can_be_made(output, "output")
    precision = given.get("precision", "fp16")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision} is unknown; known: {', '.join(PRECISIONS)}")
    _check_used(given, columns, said.overrides)
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
        _rate("copy_gb_per_s", given["copy_gb_per_s"]) if "copy_gb_per_s" in given else None,
        said.overrides,
    )


def _check_used(
    given: Mapping[str, str], columns: Mapping[str, str], overrides: Sequence[str]
) -> None:
    """Raise ValueError for a word that would change nothing, or not the file."""
    _check_machine(given, overrides)
    if "routes" in given:
        return
    for key in ("lanes", "copy_gb_per_s"):
        if key in given:
            raise ValueError(f"{key}={given[key]} is of lanes, and needs routes=TRACE")
    for kind, column in columns.items():
        if UNITS[kind][0] in OF_LANES:
            raise ValueError(f"columns: {kind}:{column} is of lanes, and needs routes=TRACE")
    for key in ("precision", "context") if "model" not in given else ():
        if key in given:
            raise ValueError(
                f"{key}={given[key]} is of a token's computing, and needs model=NAME and a column"
                " compute_ms"
            )
    used = ("hydra", "hardware", *(["model"] if "model" in given else []))
    for word in overrides:
        if word.lstrip("+~").partition("=")[0].partition(".")[0] not in used:
            raise ValueError(
                f"{word} changes nothing that is fitted here; leave it out, or give routes=TRACE,"
                " whose run it is of"
            )


def _check_machine(given: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Raise ValueError for a word about the machine: the file has all but the link from its base."""
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        of_link = key.startswith("hardware.links.") and key.rpartition(".")[2] in FIGURES
        kept = key in MEMORY if "routes" in given else of_link
        if key.partition(".")[0] == "hardware" and not kept:
            raise ValueError(
                f"{word} would not stand in the file, which has what is not fitted from"
                f" base={given['base']}; write it into a machine of your own, and name that as base"
            )


def _rate(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key}={text} must be a number (GB/s)") from None


def _columns(given: Mapping[str, str]) -> dict[str, str]:
    """The columns that a command line names, by kind; raise ValueError for those that are wrong."""
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
        if idle := [kind for kind in columns if UNITS[kind][0] in ("bytes", "loads")]:
            raise ValueError(
                f"columns: {idle[0]}:{columns[idle[0]]} changes nothing with routes=, whose trace"
                " tells bytes and loads"
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
    return columns


def config_text(
    request: Request, hardware: Hardware, fit: LinkFit, memory: float | None, rows: int
) -> str:
    """The text of the machine's file."""
    digest = hashlib.sha256(request.log.read_bytes()).hexdigest()[:12]
    link = request.link or hardware.link_names[0]
    apart = "; the base machine's: the log does not tell it from the bytes"
    if UNITS["loads"][0] not in {UNITS[kind][0] for kind in request.columns}:
        apart = "; a part of the rate: the log tells no loads"
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
        f"    overhead_us: {fit.overhead_ms * 1e3:.6g}  # a load{'' if fit.told_apart else apart}",
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


def _link(request: Request, hardware: Hardware) -> str:
    """The link that the log is about. Raise ValueError for one that the machine has not."""
    link = request.link or hardware.link_names[0]
    if link not in hardware.link_names:
        raise ValueError(
            f"link={link} is none of {hardware.name}'s: {', '.join(hardware.link_names)}"
        )
    return link


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
    link = _link(request, hardware)
    fit = fit_lanes(log, rows, request.lanes, len(model.projection_bytes(request.precision)))
    check_units(hardware, link, request.lanes * fit.engine_gb_per_s * GB, request.columns)
    memory = fit_memory(hardware, model, request.precision, request.context, fit.compute_ms)
    digest = hashlib.sha256(request.log.read_bytes()).hexdigest()[:12]
    what = f"{request.base}, with what {request.log.name} (sha256 {digest}) tells of its lanes"
    text = fit.file(
        [f"{what}: tokens 1 to {rows} are fitted."],
        base=request.base,
        name=request.name,
        link=link,
        memory=f"{memory:.6g}  # from the median token of {request.model}",
        copy_gb_per_s=request.copy_gb_per_s,
        source=f"{request.log.name} and its trace, {date.today().isoformat()}, by sim.calibrate",
    )
    figures = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(figures, dict)
    del figures["defaults"]
    words = [f"hardware={request.base}", f"model={request.model}", *request.words]
    words += [f"trace.path={quoted(str(request.trace))}", f"precision={request.precision}"]
    predicted = simulated_ms(words, {str(key): value for key, value in figures.items()})
    told = [
        f"{name} {np.median(np.abs(error)):.1%} ({np.median(error):+.1%})"
        for name, error in errors_after(predicted, values, rows).items()
    ]
    return text, f"tokens after {rows}, median error (with its sign): {', '.join(told)}"


def from_report(request: Request) -> tuple[str, str]:
    """The text of the machine's file, and what a log of Strata's tells."""
    report = read_report(request.log)
    hardware: Hardware = make_object(sections(request)["hardware"])
    for link, (rate, _) in rates_of(report, hardware).items():
        check_base(hardware, link, rate * GB / 1e3)
    digest = hashlib.sha256(request.log.read_bytes()).hexdigest()[:12]
    text = machine_text(
        report,
        hardware,
        request.base,
        request.name,
        f"{request.log.name} (sha256 {digest})",
        f"{request.log.name}, {date.today().isoformat()}, by sim.calibrate",
    )
    return text, "; ".join(report.facts()) or "rates alone"


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
    link = _link(request, hardware)
    overhead_ms = hardware.links[hardware.link_names.index(link)].latency_ns / NS_PER_MS
    fit = fit_link(values, rows, overhead_ms)
    check_units(hardware, link, fit.bytes_per_ms * 1e3, request.columns)
    check_base(hardware, link, fit.bytes_per_ms, fit.overhead_ms)
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
        if request.trace is not None or not request.columns:
            text, told = (calibrate_lanes if request.trace is not None else from_report)(request)
            write_whole(request.output, text)
            print(f"{request.output}: {told}")
            return 0
        text, fit, memory = calibrate(request)
        write_whole(request.output, text)
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
