"""Signals that end a process from outside, Ctrl-C and SIGTERM, and their exit statuses.

This module imports next to nothing, because every package imports it before anything else.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


class Terminated(BaseException):
    """SIGTERM was received; a BaseException, as KeyboardInterrupt is."""


def terminate(number: int, frame: FrameType | None) -> None:
    """A handler for SIGTERM that raises `Terminated`, so that open blocks are closed."""
    raise Terminated


def code_of(stop: BaseException) -> int:
    """The exit status for ``stop``: 128 plus the signal's number, 1 for anything but a signal."""
    if isinstance(stop, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return 128 + signal.SIGTERM if isinstance(stop, Terminated) else 1


def end_commands_quietly() -> None:
    """Let an uncaught Ctrl-C end a command (``python -m ..``) with one line and exit status 130.

    Each package calls this function before it imports anything else, so that it holds from a
    command's first import on. A command catches Ctrl-C itself only to say more, or to clear away
    what it has begun.
    """
    # While Python still looks for the module, and imports the packages around it, argv[0] is "-m".
    # Later it is the module's path.
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _told_in_one_line


def _told_in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    # A second Ctrl-C would only spoil the line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", file=sys.stderr)
    raise SystemExit(code_of(error))
