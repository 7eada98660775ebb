"""A worker ends when its parent is gone, or at Ctrl-C, and keeps no process from ending before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pipe, get_context
from types import SimpleNamespace

import pytest

from sim.process import orphans
from sim.values.places import ROOT

PARENT = """
import os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from sim.process.orphans import leave_with_parent

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), leave_with_parent) as pool:
        number = pool.submit(os.getpid).result()
        waits = pool.submit(time.sleep, 60)
        os.kill(number, signal.SIGINT)
        print(type(waits.exception()).__name__)
"""


def test_a_worker_that_ctrl_c_reaches_ends_at_once_and_silently() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "BrokenProcessPool\n", "")


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_process_ends_with_1_when_its_parent_is_gone_and_runs_on_without_one(
    has_parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Pipe()
    theirs.close()  # so a parent's end of a pipe looks when it has died
    parent = SimpleNamespace(sentinel=ours) if has_parent else None
    statuses: list[int] = []
    monkeypatch.setattr(orphans, "parent_process", lambda: parent)
    monkeypatch.setattr("os._exit", statuses.append)
    handled: list[int] = []  # this process keeps its own handlers
    monkeypatch.setattr(signal, "signal", lambda number, _: handled.append(number))
    before = set(threading.enumerate())
    made: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        made.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    orphans.leave_with_parent()
    (watcher,) = made
    assert watcher.daemon, "a thread that is none would keep the process from ending"
    watcher.join(30)
    assert statuses == [1] * has_parent
    assert handled == [signal.SIGINT]
    assert set(threading.enumerate()) <= before
    ours.close()


def test_a_killed_worker_is_named_with_the_way_on() -> None:
    """reproduce, ask and export ended in a traceback of a broken pool."""
    with (
        pytest.raises(ChildProcessError, match=r"was killed from outside, .*; go on$"),
        orphans.naming_killed_workers("go on"),
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL).result()
