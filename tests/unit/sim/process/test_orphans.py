"""A worker that Ctrl-C reaches ends without a word; its parent says what was stopped."""

from __future__ import annotations

import subprocess
import sys

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
