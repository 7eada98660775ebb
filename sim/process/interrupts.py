"""What ends a process from outside, and with which exit status: Ctrl-C, SIGTERM, and a standard
output that takes no more.

This module imports little, because every package imports it before anything else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TextIO

Words = ParamSpec("Words")
STOPS = (signal.SIGINT, signal.SIGTERM)
UNPRINTED = 1
"""The exit status where standard output cannot be written."""
NO_MEMORY = (
    "error: there is not enough memory; ask for less (trace.max_sequences, fewer workers), or raise"
    " the limit of this shell (ulimit -v)"
)


class Unprinted(BaseException):
    """Standard output takes no more. A BaseException, so that no command takes it for an error of a
    file. ``error``: what the operating system said.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Stream:
    """A standard stream whose failures cannot be confused with those of files.

    Standard output raises `Unprinted`. What standard error does not take is lost, and nothing else:
    progress that nobody can read is no reason to give up what is being computed.
    """

    def __init__(self, stream: TextIO, is_output: bool) -> None:
        self.stream, self.is_output = stream, is_output

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self._fail(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.is_output:
            raise Unprinted(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def own_streams() -> None:
    """Let standard output and standard error of this process fail as `Stream` says."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Where a command is started with one of them closed it is None.
        if stream is not None and not isinstance(stream, Stream):
            setattr(sys, name, Stream(stream, is_output=name == "stdout"))


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


def telling(
    kept: str | Callable[[], str],
) -> Callable[[Callable[Words, int]], Callable[Words, int]]:
    """Of a command's ``main``: Ctrl-C and SIGTERM end it with ``interrupted; KEPT`` on stderr.

    The exit status is the signal's. ``kept`` says what the command leaves when it is stopped, and
    how to go on; a function is asked when it happens.
    """

    def decorated(main: Callable[Words, int]) -> Callable[Words, int]:
        @wraps(main)
        def told(*words: Words.args, **options: Words.kwargs) -> int:
            before = signal.signal(signal.SIGTERM, terminate)
            try:
                return main(*words, **options)
            except (KeyboardInterrupt, Terminated) as stop:
                left = kept if isinstance(kept, str) else kept()
                print(f"interrupted; {left}", file=sys.stderr)
                return code_of(stop)
            finally:
                signal.signal(signal.SIGTERM, before)

        return told

    return decorated


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is over, and come then.

    For the few steps between a change and the block that takes it back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is heard here
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {one: signal.signal(one, lambda *told: came.append(told)) for one in STOPS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number, frame in came[:1]:
            _pass_on(number, frame)


def _pass_on(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, frame)
    elif handler is signal.SIG_DFL:
        signal.raise_signal(number)


def end_commands_quietly() -> None:
    """Let an uncaught Ctrl-C, a full standard output or a lack of memory end a command (``python -m
    ..``) with one line and its exit status.

    Each package calls this function before it imports anything else, so that it holds from a
    command's first import on. A command catches Ctrl-C itself only to say more, or to clear away
    what it has begun.
    """
    # While Python still looks for the module, and imports the packages around it, argv[0] is "-m".
    # Later it is the module's path.
    if sys.argv[:1] == ["-m"]:
        own_streams()
        sys.excepthook = _told_in_one_line


def _told_in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, Unprinted):
        raise SystemExit(say_unprinted(error))
    if issubclass(kind, MemoryError):
        print(NO_MEMORY, file=sys.stderr)
        raise SystemExit(1)
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    # A second Ctrl-C would only spoil the line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", file=sys.stderr)
    raise SystemExit(code_of(error))


def say_unprinted(unprinted: Unprinted) -> int:
    """Say that standard output cannot be written, unless its reader has left; return the exit
    status. What is still to be printed goes nowhere: Python would try again when it ends.
    """
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(unprinted.error, BrokenPipeError):
        print(f"error: standard output cannot be written ({unprinted.error})", file=sys.stderr)
    return UNPRINTED


def is_terminal() -> bool:
    """Whether standard output is a terminal. Where a command is started with it closed it is None."""
    return sys.stdout is not None and sys.stdout.isatty()
