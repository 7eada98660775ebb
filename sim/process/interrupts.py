"""What ends a process from outside: Ctrl-C, SIGTERM, and the exit statuses that tell of it.
Imports next to nothing.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


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


def end_commands_quietly() -> None:
    """Have a Ctrl-C that nobody catches end this process with one line and 130, if it is ``python
    -m`` of a command.

    Each package calls it before it imports anything else, so that it holds from a command's first
    import on. A command catches Ctrl-C itself only to say more, or to clear away what it has begun.
    """
    # Python puts the module's path here once it has found the module, for which it imports the
    # packages around it.
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _told_in_one_line


def _told_in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    # A second Ctrl-C, from here on, would only spoil the line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", file=sys.stderr)
    raise SystemExit(code_of(error))
