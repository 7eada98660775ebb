"""Sleeping until a point of the real clock, as exactly as a Python thread can."""

from __future__ import annotations

import ctypes
import time
from threading import Event

SPIN_NS = 200_000
"""How long before its end a sleep turns into yielding.

A thread that sleeps is woken by the kernel about this much too late.
"""
WAKE_NS = 200_000
"""Lateness up to this much is put down to threads that wake late, and is caught up by what follows.
"""
PR_SET_TIMERSLACK = 29
FINE_NS, DEFAULT = 1, 0


def sharpen_timers(fine: bool = True) -> None:
    """Ask the kernel to wake the calling thread on time, or, by its default, up to 50 us late.

    Do nothing on systems without that call.
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
