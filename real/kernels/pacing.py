"""Kernels that let time pass on a stream, so that this GPU and its link stand for slower ones.

The device waits by itself, without the host's jitter. The clock is ``globaltimer``, in ns; its
steps can be as long as a microsecond.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from real.kernels.jit import jit, tl

try:
    globaltimer: Any = import_module("triton.language.extra.cuda").globaltimer
except ImportError:
    globaltimer = None


@jit
def _stamp_kernel(clock_ptr):
    tl.store(clock_ptr, globaltimer())


@jit
def _spin_kernel(clock_ptr, due_ns):
    due = tl.load(clock_ptr) + due_ns
    now = globaltimer()
    while now < due:
        now = globaltimer()


def stamp(clock: Tensor) -> None:
    """Write the time in ns into ``clock``, int64 [1]."""
    _stamp_kernel[(1,)](clock, num_warps=1)


def spin_until(clock: Tensor, due_ns: int) -> None:
    """Hold the stream until ``due_ns`` after the time in ``clock``."""
    _spin_kernel[(1,)](clock, due_ns, num_warps=1)
