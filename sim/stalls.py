"""Why the compute stream was idle: one rule, for both drivers (docs/design.md section 8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.record import Record

STALL_PARTS = ("demand", "behind_demand", "behind_prefetch", "late_prefetch", "storage", "no_slot", "dense", "cpu_join",
               "host", "predictor", "no_request")  # fmt: skip
"""Every part a summary reports; a machine without the cause reports 0."""

Ns = NDArray[np.int64]


def split_stalls(record: Record, prefetch: Sequence[bool], queued_ns: Sequence[int]) -> dict[str, Ns]:
    """Each idle interval of ``record`` split into parts, [I] each, in ns; they sum to the intervals' lengths.

    ``prefetch`` and ``queued_ns`` are by transfer number. Raise RuntimeError if an interval is not closed by the end
    of its transfer or begins before that transfer was queued: there is no residual.
    """
    idle_start, idle_end = np.array(record.idle_start_ns, np.int64), np.array(record.idle_end_ns, np.int64)
    cause = np.array(record.idle_cause, np.int64)
    start, end = np.array(record.start_ns, np.int64), np.array(record.service_end_ns, np.int64)
    is_prefetch = np.array(prefetch, np.bool_)
    queued = np.array(queued_ns, np.int64)
    broken = np.flatnonzero((end[cause] != idle_end) | (queued[cause] > idle_start))
    if len(broken):
        i = int(broken[0])
        raise RuntimeError(
            f"idle interval {idle_start[i]}..{idle_end[i]} ns is not explained by transfer {cause[i]} "
            f"(queued {queued[cause[i]]}, served {start[cause[i]]}..{end[cause[i]]} ns)"
        )
    parts = {part: np.zeros(len(cause), np.int64) for part in STALL_PARTS}
    served_from = np.maximum(idle_start, start[cause])
    served = idle_end - served_from
    parts["demand"] = np.where(is_prefetch[cause], 0, served)
    parts["late_prefetch"] = np.where(is_prefetch[cause], served, 0)
    for i in np.flatnonzero(served_from > idle_start).tolist():
        waited = _behind(int(idle_start[i]), int(served_from[i]), int(cause[i]), start, end, is_prefetch)
        for part, time_ns in waited.items():
            parts[part][i] += time_ns
    return parts


def _behind(from_ns: int, to_ns: int, number: int, start: Ns, end: Ns, prefetch: NDArray[np.bool_]) -> dict[str, int]:
    """What the link served while transfer ``number`` was queued: the transfers before it, in order of service."""
    parts = {"behind_demand": 0, "behind_prefetch": 0, "no_slot": to_ns - from_ns}
    for other in range(number - 1, -1, -1):
        shared = min(to_ns, int(end[other])) - max(from_ns, int(start[other]))
        if shared > 0:
            parts["behind_prefetch" if prefetch[other] else "behind_demand"] += shared
            parts["no_slot"] -= shared
        if start[other] <= from_ns:
            break
    return parts
