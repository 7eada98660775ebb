"""What tokens spend on reads where a link has lanes (contract C165): reading, and waiting for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.machine.durations import Durations
from sim.machine.lanes import LanedDurations
from sim.values.record import Record

Ns = NDArray[np.int64]


def lane_times(record: Record, durations: Durations, links: int) -> dict[str, Ns]:
    """By step, in ns; empty where no link has lanes.

    - ``reading_ns``: the services that began in the step, summed over engines, less their copies.
    - ``waiting_ns``: how long the compute stream stood idle for transfers.
    """
    if not isinstance(durations, LanedDurations):
        return {}
    lanes = [durations.lanes(link) for link in range(links)]
    if not any(lanes):
        return {}
    begins = record.array("step_start_ns")

    def by_step(start: Ns, time: Ns) -> Ns:
        step = np.searchsorted(begins, start, side="right") - 1
        found = np.zeros(len(begins), np.int64)
        np.add.at(found, step, time)
        return found

    start, end = record.array("service_start_ns"), record.array("service_end_ns")
    rows = zip(record.service_link, record.service_bytes, strict=True)
    copies = [of.copy_ns(size) if (of := lanes[link]) is not None else 0 for link, size in rows]
    ended = end >= 0
    waits = record.array("idle_cause") >= 0
    idle_start, idle_end = record.array("idle_start_ns")[waits], record.array("idle_end_ns")[waits]
    return {
        "reading_ns": by_step(start[ended], (end - start - np.array(copies, np.int64))[ended]),
        "waiting_ns": by_step(idle_start, idle_end - idle_start),
    }
