"""What a driver writes down while it runs: columns of ints, the same for every driver."""

from __future__ import annotations

from dataclasses import dataclass, field

CPU_RESULT, HOST_TIME, NO_REQUEST = -1, -2, -3
"""Causes of idle intervals that are no transfer."""


@dataclass
class Record:
    """Times of one run, in ns. Both drivers append in the order of events.

    By gate: ``gate_ns``, ``end_ns`` (the site's end). By need, in order of lookup: ``lookup_ns``, ``ready_ns`` (when
    its expert was there, or its CPU result; the lookup's time for a skip). By controller call: ``call_ns``. By step:
    ``step_start_ns``, ``step_end_ns``. By idle interval of the compute stream: ``idle_start_ns``, ``idle_end_ns``,
    ``idle_cause`` (the number of the transfer whose end closed it, or one of CPU_RESULT, HOST_TIME, NO_REQUEST).

    By service of a link, in the order in which they began: ``service_number`` (the transfer's), ``service_link``,
    ``service_engine``, ``service_urgent`` (1 for a demand, an urgent prefetch or a dense block, 0 for a prefetch, as it
    was then), ``service_start_ns``, ``service_end_ns`` (-1 if it had not ended) and ``service_bytes`` (what it moved,
    or was to move).
    """

    gate_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    lookup_ns: list[int] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)
    call_ns: list[int] = field(default_factory=list)
    idle_start_ns: list[int] = field(default_factory=list)
    idle_end_ns: list[int] = field(default_factory=list)
    idle_cause: list[int] = field(default_factory=list)
    step_start_ns: list[int] = field(default_factory=list)
    step_end_ns: list[int] = field(default_factory=list)
    service_number: list[int] = field(default_factory=list)
    service_link: list[int] = field(default_factory=list)
    service_engine: list[int] = field(default_factory=list)
    service_urgent: list[int] = field(default_factory=list)
    service_start_ns: list[int] = field(default_factory=list)
    service_end_ns: list[int] = field(default_factory=list)
    service_bytes: list[int] = field(default_factory=list)
    makespan_ns: int = 0
