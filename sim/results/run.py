"""One run as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.core.controller import Controller
from sim.machine.costs import Ledger, Roofline
from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.machine.recorded_bytes import RecordedBytes
from sim.policies.base import Policy
from sim.traces.trace import Trace
from sim.workload.steps import Workload


@dataclass(frozen=True)
class Run:
    """Everything a driver and the metrics need. Used once: policies are fresh and keep their
    state.
    """

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
    """Overrides of machine, model, trace and workload that it was asked with
    (`sim.setup.configure.changes`).
    """
    recorded_bytes: RecordedBytes | None = None
    """What the trace tells of its experts' bytes, if anything."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Everybody who decides in this run."""
        used = self.controller
        caches = (used.cache,) if used.ram is None else (used.cache, used.ram.cache)
        return (used.predictor, *caches, used.payload, used.selector, used.placement)
