"""What a piece of the suite is given: a device, a size, a folder, and how long it may take."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real.calibration.deadline import Deadline, write_json

AGAIN = 75
"""The exit status of a piece that is to go on in a fresh process.

After a fault a GPU's context is of no use.
"""
REFUSED = (ValueError,)
PART = 74
"""The exit status of a piece that has left something out for time."""


class LeftOut(Exception):
    """There was no time for all of a piece; the message says what is left out."""


class GoOnAfresh(Exception):
    """A cell has failed on a GPU: another process must do what is left."""


@dataclass(frozen=True)
class Context:
    """The surroundings of a piece.

    ``size`` names how much of each piece is run (`real.calibration.sizes`). ``folder`` is where all
    results go.
    """

    device: str
    size: str
    folder: Path
    deadline: Deadline = field(default_factory=lambda: Deadline(3600))

    def save(self, name: str, data: Any) -> None:
        """Write a result, whole or not at all."""
        write_json(self.folder / f"{name}.json", data)

    def load(self, name: str) -> Any:
        """A result that an earlier piece has left; None where there is none."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


class Cells:
    """Many runs in one file, each saved as soon as it has ended.

    A row is ``{"cell", "status": done | refused | failed | begun, "seconds", "result" or
    "reason"}``. A cell that was begun in a process that is gone counts as failed.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context, self._name = context, name
        found = context.load(name) or {"rows": [], "left_out": []}
        self.rows: list[dict[str, Any]] = found["rows"]
        self.left_out: list[str] = []
        for row in self.rows:
            if row["status"] == "begun":
                row |= {
                    "status": "failed",
                    "reason": "the process ended, or was ended, while it ran",
                }

    def run(self, cell: str, work: Callable[[], Any], needs_s: float) -> None:
        """Do a cell, unless it has been tried, or there is no time.

        Raise GoOnAfresh where it failed on a GPU.
        """
        if any(row["cell"] == cell for row in self.rows):
            return
        if not self._context.deadline.has(needs_s):
            self.left_out.append(cell)
            self._save()
            return
        began = time.monotonic()
        row: dict[str, Any] = {"cell": cell, "status": "begun"}
        self.rows.append(row)
        self._save()
        try:
            row |= {"result": work(), "status": "done"}
        except REFUSED as error:
            row |= {"status": "refused", "reason": str(error)}
        except Exception as error:
            row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        row["seconds"] = round(time.monotonic() - began, 3)
        self._save()
        if row["status"] == "failed" and self._context.device == "cuda":
            raise GoOnAfresh

    def done(self) -> dict[str, Any]:
        """The results of the cells that are done, by cell."""
        return {row["cell"]: row["result"] for row in self.rows if row["status"] == "done"}

    def check_whole(self) -> None:
        """Raise RuntimeError if all cells have failed, LeftOut if there was no time for some."""
        failed = [row for row in self.rows if row["status"] == "failed"]
        if failed and len(failed) == len(self.rows):
            raise RuntimeError(
                f"all {len(failed)} cells have failed, first {failed[0]['cell']}:"
                f" {failed[0]['reason']}"
            )
        if self.left_out:
            raise LeftOut(f"no time for {', '.join(self.left_out)}")

    @property
    def longest_s(self) -> float:
        """How long the longest cell so far took."""
        return max((row.get("seconds", 0.0) for row in self.rows), default=0.0)

    def _save(self) -> None:
        self._context.save(self._name, {"rows": self.rows, "left_out": self.left_out})
