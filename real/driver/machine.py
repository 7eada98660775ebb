"""Facts about the computer that a run was made on: its processor and its memory.

Standard library only: this module must work where no other package is installed.
"""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name; "unknown" where neither the kernel nor Python tells it."""
    return _first("/proc/cpuinfo", "model name") or platform.processor() or "unknown"


def memory_bytes() -> int | None:
    """The size of main memory in bytes; None where the kernel does not tell it."""
    found = _first("/proc/meminfo", "MemTotal")
    return None if found is None else int(found.split()[0]) << 10


def available_bytes() -> int | None:
    """How much main memory programs may still take, in bytes; None where that is not told."""
    found = _first("/proc/meminfo", "MemAvailable")
    return None if found is None else int(found.split()[0]) << 10


def _first(path: str, label: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(label)), None)
