"""``python -m real.suite``: all that a machine with a GPU can show in eight minutes.

    python -m real.suite [device=cuda|host] [size=full|small|tiny] [output=DIR] [archive=FILE]
                         [pieces=A,B] [again=A,B] [minutes=8, 60 for device=host]

Its pieces are probe, kernels, calibration, copies, replays, live runs, validation and one page.
Each piece has a process and a time limit of its own, and one that fails leaves the others. The same
command goes on where it was stopped. ``device=host`` rehearses all of it without a GPU.

    python -m real.suite missing [device=cuda|host] [size=full|small|tiny]
        what cannot be imported or run here, and the ways out
    python -m real.suite pack modules=polars,simpy output=FILE
        installed modules as one file, for a machine without a package index
    python -m real.suite bundle output=FILE [modules=A,B] [most_mib=64]
        the project, without bundled models and results that the suite does not read, and modules, as one
        file
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from real.suite.conduct import Suite
from real.suite.needs import NEEDED, absent, advice, missing, pack
from real.suite.pieces import PIECES, Piece, piece_of
from sim.process.interrupts import telling
from sim.values.units import MIB
from sim.verbs.table import verb_of
from sim.verbs.words import read

DEVICES, SIZE_NAMES = ("cuda", "host"), ("full", "small", "tiny")
RESULTS = Path("real/results")
MOST_MINUTES = 120.0
MOST_MIB = "64"
NOT_WRITTEN = "no file was written"
MINUTES = {"cuda": "8", "host": "60"}
PATIENCE = {"cuda": 1.0, "host": 8.0}
"""By device: how long all may take, and how often over each piece's limit.

A rehearsal is to show that everything runs, on whatever computer, however busy.
"""


@dataclass(frozen=True)
class Asked:
    device: str
    size: str
    output: Path | None
    archive: Path | None
    pieces: tuple[Piece, ...]
    again: tuple[str, ...]
    minutes: float


def parse(arguments: Sequence[str]) -> Asked:
    """What the words ask for. Raise ValueError for the first word that is wrong."""
    given = _words_of(
        arguments, "device", "size", "output", "archive", "pieces", "again", "minutes"
    )
    device = _device_of(given)
    size = _size_of(given, device)
    try:
        minutes = float(given.get("minutes", MINUTES[device]))
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= MOST_MINUTES:
        raise ValueError(
            f"minutes={given['minutes']} must be a number above 0, at most {MOST_MINUTES:g}"
        )
    again = tuple(piece_of(name).name for name in given.get("again", "").split(",") if name)
    pieces = tuple(piece_of(name) for name in given.get("pieces", "").split(",") if name) or PIECES
    archive = Path(given["archive"]) if "archive" in given else None
    if archive is not None and not archive.parent.is_dir():
        raise ValueError(f"archive={archive}: {archive.parent} is no folder")
    return Asked(
        device,
        size,
        Path(given["output"]) if "output" in given else None,
        archive,
        pieces,
        again,
        minutes,
    )


def _device_of(given: Mapping[str, str]) -> str:
    device = given.get("device", "cuda")
    if device not in DEVICES:
        raise ValueError(f"device={device}; allowed: {', '.join(DEVICES)}")
    return device


def _size_of(given: Mapping[str, str], device: str) -> str:
    size = given.get("size", "full" if device == "cuda" else "small")
    if size not in SIZE_NAMES:
        raise ValueError(f"size={size}; allowed: {', '.join(SIZE_NAMES)}")
    return size


def _words_of(arguments: Sequence[str], *known: str) -> dict[str, str]:
    """The options given. Raise ValueError for one that this piece of the suite does not have."""
    given = dict(read(verb_of("suite"), arguments).own)
    if foreign := [key for key in given if key not in known]:
        raise ValueError(
            f"{foreign[0]}={given[foreign[0]]!r} is no KEY=VALUE of {', '.join(known)}"
        )
    return given


def folder_of(device: str) -> Path:
    """The folder for the results of today's runs on this machine.

    Raise ValueError where there is no such device.
    """
    from real.cuda.runtime import runtime_of

    name = re.sub(r"[^a-z0-9]+", "_", runtime_of(device).name.lower()).strip("_")
    return RESULTS / name / datetime.now(UTC).date().isoformat()


def lacking_here(device: str, size: str) -> str | None:
    """What the pieces would lack here, and the ways out; None if they lack nothing.

    Packages are looked for first, then tried, then the project itself is.
    """
    if packages := absent(device) or missing(device):
        return advice(packages)
    # This module needs those packages itself.
    from real.suite.trial import told, trial

    faults = trial(size)
    return told(faults) if faults else None


def suite(asked: Asked) -> int:
    """Run the suite. Raise ValueError, before anything is run, for what cannot run here."""
    if lacking := lacking_here(asked.device, asked.size):
        raise ValueError(lacking)
    folder = asked.output or folder_of(asked.device)
    # Imported late: `missing` must tell of absent packages, such as omegaconf, without importing
    # them.
    from sim.results.folders import locked

    with locked(folder):
        print(f"results: {folder}", flush=True)
        conductor = Suite(
            folder,
            asked.device,
            asked.size,
            60 * asked.minutes,
            asked.archive,
            lambda text: print(text, flush=True),
            patience=PATIENCE[asked.device],
        )
        is_whole = conductor.run(asked.pieces, asked.again)
    page = folder / "report.md"
    print(
        page.read_text(encoding="utf-8")
        if page.is_file()
        else f"no report; see {folder}/report.log"
    )
    return 0 if is_whole else 1


@telling("what has been done is kept, and the same command goes on")
def main(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status.

    It is 0; 1 where a piece failed or was left out; 2, with one message, where nothing could run.
    """
    try:
        if arguments[:1] == ["missing"]:
            return _tell_missing(arguments[1:])
        if arguments[:1] == ["pack"]:
            return _pack(arguments[1:])
        if arguments[:1] == ["bundle"]:
            return _bundle(arguments[1:])
        return suite(parse(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _tell_missing(arguments: Sequence[str]) -> int:
    given = _words_of(arguments, "device", "size")
    device = _device_of(given)
    size = _size_of(given, device)
    found = lacking_here(device, size)
    print(
        found
        or f"nothing is missing for device={device} size={size}: {', '.join(NEEDED)};"
        " what the pieces import is there, and their systems run on device=null"
    )
    return 1 if found else 0


@telling(NOT_WRITTEN)
def _pack(arguments: Sequence[str]) -> int:
    given = _words_of(arguments, "modules", "output")
    if set(given) != {"modules", "output"}:
        raise ValueError("pack needs modules=A,B and output=FILE")
    size = pack([name for name in given["modules"].split(",") if name], Path(given["output"]))
    print(
        f"{given['output']}: {size / MIB:.1f} MiB; there: tar xJf FILE -C FOLDER, and FOLDER into"
        " PYTHONPATH"
    )
    return 0


@telling(NOT_WRITTEN)
def _bundle(arguments: Sequence[str]) -> int:
    from real.suite.bundle import CARRIED, bundle

    given = _words_of(arguments, "modules", "output", "most_mib")
    if "output" not in given:
        raise ValueError("bundle needs output=FILE, and may have modules=A,B and most_mib=N")
    most_mib = given.get("most_mib", MOST_MIB)
    if not most_mib.isdigit():
        raise ValueError(f"most_mib={most_mib} must be a whole number")
    modules = [name for name in given.get("modules", "").split(",") if name]
    found = bundle(modules, Path(given["output"]), int(most_mib) << 20)
    print(
        f"{given['output']}: {found.packed_bytes / MIB:.1f} MiB, of {found.tree_bytes / MIB:.1f} MiB"
        f" of the project ({found.left_out_bytes / MIB:.1f} MiB of other bundled models and of"
        f" results are left out) and {found.package_bytes / MIB:.1f} MiB of packages; there, in an empty folder: tar"
        f" xJf FILE && export PYTHONPATH=$PWD/{CARRIED}:$PYTHONPATH && python -m real.suite missing"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
