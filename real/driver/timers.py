"""Sleeping until a point of the real clock, as exactly as a thread of Python can."""

from __future__ import annotations

import ctypes
import time
from threading import Event

SPIN_NS = 200_000
"""The last part of a sleep is spent yielding: a thread that the kernel wakes comes late by about
so much.
"""
WAKE_NS = 200_000
"""What is later than it was due by no more than this is so because threads wake late: what
follows catches it up.
"""
PR_SET_TIMERSLACK = 29
FINE_NS, DEFAULT = 1, 0


def sharpen_timers(fine: bool = True) -> None:
    """Ask the kernel to wake the calling thread on time, or, as by default, up to 50 us late.

    Does nothing where there is no such call.
    """
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, FINE_NS if fine else DEFAULT, 0, 0, 0)
    except (AttributeError, OSError, TypeError):
        return


def sleep_until(time_ns: int, stop: Event) -> None:
    """Return at ``time_ns`` of ``time.perf_counter_ns``, or when ``stop`` is set."""
    left_ns = time_ns - time.perf_counter_ns()
    if left_ns > SPIN_NS and stop.wait((left_ns - SPIN_NS) / 1e9):
        return
    while time.perf_counter_ns() < time_ns and not stop.is_set():
        time.sleep(0)
