"""Signals that end a run, and the exit codes they end it with."""

from __future__ import annotations

import signal
from types import FrameType


class Terminated(BaseException):
    """SIGTERM."""


def terminate(number: int, frame: FrameType | None) -> None:
    """A handler for SIGTERM: raise it, so that what was begun is closed."""
    raise Terminated


def code_of(stop: BaseException) -> int:
    """128 and the signal's number; 1 for what is none."""
    if isinstance(stop, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return 128 + signal.SIGTERM if isinstance(stop, Terminated) else 1
