"""One run as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.controller import Controller
from sim.costs import Ledger, Roofline
from sim.hardware import Hardware
from sim.model import Model
from sim.recorded_bytes import RecordedBytes
from sim.trace import Trace
from sim.workload import Workload


@dataclass(frozen=True)
class Run:
    """Everything a driver and the metrics need. Used once: policies are fresh and keep their state."""

    system: str
    model: Model
    hardware: Hardware
    trace: Trace
    workload: Workload
    controller: Controller
    durations: Roofline
    ledger: Ledger
    resident_share: float
    seed: int
    config: dict[str, Any]
    fitted_on: int = 0
    """How many of the run's sequences the predictor was fitted on."""
    changed: tuple[str, ...] = ()
    """Overrides of machine, model, trace and workload that it was asked with (`sim.configure.changes`)."""
    recorded_bytes: RecordedBytes | None = None
    """What the trace tells of its experts' bytes, if anything."""
