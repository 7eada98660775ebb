"""What a driver writes down while it runs: columns of ints, the same for every driver."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

CPU_RESULT, HOST_TIME, NO_REQUEST = -1, -2, -3
"""Causes of idle intervals that are no transfer."""


@dataclass
class Notes:
    """What the simulator writes down in place of columns by call and by need, which follow from it.

    ``gate_calls`` are the numbers of the calls that are gates; ``other_ns`` the times of all the
    others, in order. ``first_rows``: by gate, its first lookup; ``later``: lookups (from, to) that
    were made at a time after their gate; ``arrivals``: a lookup, and when its expert was there, if
    that was later.
    """

    gate_calls: list[int] = field(default_factory=list)
    other_ns: list[int] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)
    lookups: int = 0
    later: list[tuple[int, int, int]] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Record:
    """Times of one run, in ns. Both drivers append in the order of events; equal if all columns
    are.

    By gate: ``gate_ns``, ``end_ns`` (the site's end). By need, in order of lookup: ``lookup_ns``,
    ``ready_ns`` (when its expert was there, or its CPU result; the lookup's time for a skip). By
    controller call: ``call_ns``. By step: ``step_start_ns``, ``step_end_ns``. By idle interval of
    the compute stream: ``idle_start_ns``, ``idle_end_ns``, ``idle_cause`` (the number of the
    transfer whose end closed it, or one of CPU_RESULT, HOST_TIME, NO_REQUEST).

    By service of a link, in the order in which they began: ``service_number`` (the transfer's),
    ``service_link``, ``service_engine``, ``service_urgent`` (1 for a demand, an urgent prefetch or
    a dense block, 0 for a prefetch, as it was then), ``service_start_ns``, ``service_end_ns`` (-1
    if it had not ended) and ``service_bytes`` (what it moved, or was to move).

    Where parties of the machine hold each other up (`sim.engine.contest`): ``slowed_ns``, by party,
    how much longer its work took than alone; ``service_left_ns``, by service that the run's end
    cut, what it had still to do at its own pace.
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
    slowed_ns: list[int] = field(default_factory=list)
    service_left_ns: dict[int, int] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and all(
            getattr(self, name) == getattr(other, name) for name in COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]  # it grows


COLUMNS = tuple(item.name for item in fields(Record))


class NotedRecord(Record):
    """A record whose columns by call and by need are made of ``notes`` when they are first read."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = Notes()
        for name in ("call_ns", "lookup_ns", "ready_ns"):
            delattr(self, name)

    @cached_property
    def call_ns(self) -> list[int]:  # type: ignore[override]
        gate_calls, other_ns = self.notes.gate_calls, self.notes.other_ns
        found = np.empty(len(gate_calls) + len(other_ns), np.int64)
        is_gate = np.zeros(len(found), np.bool_)
        is_gate[np.array(gate_calls, np.int64) - 1] = True
        found[is_gate], found[~is_gate] = self.gate_ns, other_ns
        calls: list[int] = found.tolist()
        return calls

    @cached_property
    def lookup_ns(self) -> list[int]:  # type: ignore[override]
        notes = self.notes
        found = np.repeat(
            np.array(self.gate_ns, np.int64), np.diff([*notes.first_rows, notes.lookups])
        )
        for first, last, at_ns in notes.later:
            found[first:last] = at_ns
        lookups: list[int] = found.tolist()
        return lookups

    @cached_property
    def ready_ns(self) -> list[int]:  # type: ignore[override]
        ready = list(self.lookup_ns)
        for lookup, at_ns in self.notes.arrivals:
            ready[lookup] = at_ns
        return ready
