"""A run as objects: everything that a driver and the metrics need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.core.controller import Controller
from sim.machine.devices_costs import Timed
from sim.machine.hardware import Hardware
from sim.machine.ledger import Ledger
from sim.machine.model import Model
from sim.machine.recorded_bytes import RecordedBytes
from sim.policies.base import Policy
from sim.traces.trace import Trace
from sim.workload.kv_room import KvRoom
from sim.workload.steps import Workload


@dataclass(frozen=True)
class Run:
    """One run of one system. It is used once, because its policies keep their state."""

    system: str
    model: Model
    hardware: Hardware
    trace: Trace
    workload: Workload
    controller: Controller
    durations: Timed
    ledger: Ledger
    resident_share: float
    seed: int
    config: dict[str, Any]
    fitted_on: int
    """How many of the run's sequences the predictor was fitted on."""
    changed: tuple[str, ...] = ()
    """The overrides of machine, model, trace and workload (`sim.setup.configure.changes`)."""
    recorded_bytes: RecordedBytes | None = None
    """The recorded sizes of the trace's experts, if it has any."""
    kv_room: KvRoom | None = None
    """The keys and values of each step, where slots shrink as they grow."""
    known: int = 0
    """On how many of the run's sequences that rests which its policies know beforehand, by a fit or
    a profile: the most of any.
    """

    @property
    def policies(self) -> dict[str, Policy]:
        """Everybody who decides in this run, by the section of the configuration."""
        used = self.controller
        return {
            "predictor": used.predictor,
            "cache": used.cache,
            **({} if used.ram is None else {"ram_cache": used.ram.cache}),
            "payload": used.payload,
            "precision": used.selector,
            "placement": used.placement,
        }
