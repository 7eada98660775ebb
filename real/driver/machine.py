"""What the computer is that something ran on. Standard library only: it must work where nothing
else is installed.
"""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name, where the kernel tells it."""
    return _first("/proc/cpuinfo", "model name") or platform.processor() or "unknown"


def memory_bytes() -> int | None:
    """Of main memory, where the kernel tells it."""
    found = _first("/proc/meminfo", "MemTotal")
    return None if found is None else int(found.split()[0]) << 10


def available_bytes() -> int | None:
    """Of main memory, what programs may still take, where the kernel tells it."""
    found = _first("/proc/meminfo", "MemAvailable")
    return None if found is None else int(found.split()[0]) << 10


def _first(path: str, label: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(label)), None)
