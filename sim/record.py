"""What a driver writes down while it runs: columns of ints, the same for every driver."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Record:
    """Times of one run, in ns. Both drivers append in the order of events.

    By gate: ``gate_ns``, ``end_ns`` (the site's last computation). By need, in order of lookup: ``lookup_ns``,
    ``ready_ns`` (when its expert was there). By transfer number: ``start_ns`` (service, -1 if it never began) and
    ``service_end_ns`` (-1 if it had not ended). By controller call: ``call_ns``. By idle interval of the compute
    stream: ``idle_start_ns``, ``idle_end_ns``, ``idle_cause`` (the number of the transfer whose end closed it). By
    step: ``step_start_ns``, ``step_end_ns``.
    """

    gate_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    lookup_ns: list[int] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    service_end_ns: list[int] = field(default_factory=list)
    call_ns: list[int] = field(default_factory=list)
    idle_start_ns: list[int] = field(default_factory=list)
    idle_end_ns: list[int] = field(default_factory=list)
    idle_cause: list[int] = field(default_factory=list)
    step_start_ns: list[int] = field(default_factory=list)
    step_end_ns: list[int] = field(default_factory=list)
    makespan_ns: int = 0
