"""Ends worker processes whose parent is gone, or that somebody's Ctrl-C reaches."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import wait


def leave_with_parent() -> None:
    """End this process once its parent is gone; a parent that was killed cannot tell its workers.

    A thread watches the parent. Ctrl-C in a terminal reaches all processes: the parent says that it
    was stopped, and a worker just ends, without a traceback of what it was importing.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def naming_killed_workers(way_on: str) -> Iterator[None]:
    """Raise ChildProcessError, with ``way_on``, where a process of the block's pool was killed."""
    try:
        yield
    except BrokenProcessPool:
        raise ChildProcessError(
            "a process at work for this command was killed from outside, or by the system for want of"
            f" memory; {way_on}"
        ) from None
