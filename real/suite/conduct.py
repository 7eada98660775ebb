"""Runs the suite's pieces one after another, each in a process that may crash, hang or run late.

``suite.json`` says what has been done; a piece that is done is not done again. Standard library
only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real.calibration.deadline import write_json
from real.suite.context import AGAIN, PART
from real.suite.pieces import REPORT, Piece

STATE = "suite.json"
GRACE_S = 5.0
"""The time between asking a piece to end and ending it."""
RESERVE_S = 10.0
"""The time kept for the report."""
MOST_PROCESSES = 6
"""The most processes that a piece may take: each finishes at least one more cell."""
ARCHIVED_BYTES = 4 << 20
"""The largest file that the archive takes."""


@dataclass
class Outcome:
    """What became of a piece.

    The status is ``done``, ``in part`` (for want of time), ``failed``, ``out of time`` or ``left
    out``.
    """

    status: str
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Suite:
    """A run of the suite. ``seconds`` are for all pieces together.

    Each piece has its own limit ``patience`` times over.
    ``archive``: a file that gets all results after each piece; None: no such file.
    ``command(piece, seconds)`` gives the command of a piece's process.
    """

    folder: Path
    device: str
    size: str
    seconds: float
    archive: Path | None = None
    say: Callable[[str], None] = print
    command: Callable[[Piece, float], Sequence[str]] | None = None
    patience: float = 1.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.folder / STATE
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            if (found["device"], found["size"]) != (self.device, self.size):
                raise ValueError(
                    f"{self.folder} holds results of device={found['device']} size={found['size']},"
                    f" not of device={self.device} size={self.size}; choose another output="
                )
            self.outcomes = {name: Outcome(**outcome) for name, outcome in found["pieces"].items()}

    def run(self, pieces: Sequence[Piece], again: Sequence[str] = ()) -> bool:
        """Run the pieces that are not done, then the report; return whether all are done now."""
        end = time.monotonic() + self.seconds
        for piece in pieces:
            if piece.name not in again and self._is_done(piece):
                self.say(f"{piece.name}: done before")
                continue
            left_s = end - RESERVE_S - time.monotonic()
            if left_s < piece.least_s:
                self._note(
                    piece,
                    Outcome("left out", 0.0, f"{max(0, left_s):.0f} s were left, it needs some"),
                )
                continue
            if piece.name in again:
                # Cells in an old file would count as tried.
                (self.folder / f"{piece.name}.json").unlink(missing_ok=True)
            self._note(piece, self._conduct(piece, min(self.patience * piece.seconds, left_s)))
        self._note(REPORT, self._conduct(REPORT, max(REPORT.seconds, end - time.monotonic())))
        return all(self._is_done(piece) for piece in (*pieces, REPORT))

    def _is_done(self, piece: Piece) -> bool:
        return piece.name in self.outcomes and self.outcomes[piece.name].status == "done"

    def _note(self, piece: Piece, outcome: Outcome) -> None:
        self.outcomes[piece.name] = outcome
        write_json(
            self.folder / STATE,
            {
                "device": self.device,
                "size": self.size,
                "pieces": {name: vars(one) for name, one in self.outcomes.items()},
            },
        )
        why = f": {outcome.reason}" if outcome.reason else ""
        self.say(f"{piece.name}: {outcome.status} in {outcome.seconds:.0f} s{why}")
        if self.archive is not None:
            pack_results(self.folder, self.archive)

    def _conduct(self, piece: Piece, seconds: float) -> Outcome:
        """Start processes of a piece until it is done, has failed, or its time is over."""
        self.say(f"{piece.name}: {piece.what} (at most {seconds:.0f} s)")
        began, log = time.monotonic(), self.folder / f"{piece.name}.log"
        log.unlink(missing_ok=True)
        for _ in range(MOST_PROCESSES):
            left_s = seconds - (time.monotonic() - began)
            if left_s < 1:
                return Outcome("out of time", time.monotonic() - began, last_line(log))
            status = self._process(piece, left_s, log)
            took = time.monotonic() - began
            if status == 0:
                return Outcome("done", took)
            if status is None:
                return Outcome(
                    "out of time", took, f"ended after {seconds:.0f} s; {last_line(log)}"
                )
            if status == PART:
                return Outcome("in part", took, last_line(log))
            # A signal (a fault in native code) leaves cells undone, and so does a GPU's error.
            if status != AGAIN and status > 0:
                return Outcome("failed", took, last_line(log))
            if status < 0:
                self.say(
                    f"{piece.name}: its process was ended by {signal.Signals(-status).name}; going"
                    " on in another"
                )
        return Outcome(
            "failed",
            time.monotonic() - began,
            f"{MOST_PROCESSES} processes have failed; {last_line(log)}",
        )

    def _process(self, piece: Piece, seconds: float, log: Path) -> int | None:
        """Run a process of a piece; return its exit status, negative for a signal.

        None: its time was over. Everything that it has started is ended.
        """
        make = self.command or self._command
        # The piece is told of less time than it has, so that it can end by itself.
        command = [str(word) for word in make(piece, max(1.0, seconds - GRACE_S))]
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_group(process)

    def _command(self, piece: Piece, seconds: float) -> Sequence[str]:
        words = (piece.name, str(self.folder), self.device, self.size, f"{seconds:.1f}")
        return (sys.executable, "-u", "-X", "faulthandler", "-m", "real.suite.piece", *words)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Ask a process and all that it has started to end; then kill what has not."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def last_line(log: Path) -> str:
    """The last line that a process has written."""
    if not log.is_file():
        return ""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1][:400] if lines else "it said nothing"


def pack_results(folder: Path, archive: Path) -> None:
    """Write all results so far to one file, whole or not at all; files too large are left out."""
    part = archive.with_name(f"{archive.name}.part{os.getpid()}")
    with tarfile.open(part, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            is_result = path.is_file() and path != archive and ".part" not in path.name
            if is_result and path.stat().st_size <= ARCHIVED_BYTES:
                packed.add(path, str(Path(folder.name) / path.relative_to(folder)))
    os.replace(part, archive)
