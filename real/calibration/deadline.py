"""A deadline, and figures written as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sim.process.files import write_whole


class Deadline:
    """A point of time ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def has(self, seconds: float) -> bool:
        return self.left_s >= seconds


def write_json(path: Path, data: Any) -> None:
    """Write a file of JSON, whole or not at all."""
    write_whole(path, json.dumps(data, indent=1) + "\n")
