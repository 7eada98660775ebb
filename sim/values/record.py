"""The record that a driver makes of a run: columns of ints, the same for every driver."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.values.packing import Column

CPU_RESULT, HOST_TIME, NO_REQUEST = -1, -2, -3
"""Causes of idle intervals other than transfers (which have numbers of 0 or more)."""


def require_equal_lengths(columns: Mapping[str, Sized]) -> int:
    """The length of ``columns``; raise RuntimeError, naming each, unless all are equally long.

    Columns of several owners belong together by position, so one that is too long or too short
    would shift rows against each other without a sign.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise RuntimeError(f"columns that belong together must have equally many rows: {told}")
    return next(iter(lengths.values()))


@dataclass
class Notes:
    """The notes from which the simulator's columns by call and by need are made afterwards.

    Noting less than whole columns saves time while the run goes on.

    - ``gate_calls``: the numbers, from 1 on, of the calls that are gates.
    - ``other_ns``: the times of all other calls, in order.
    - ``first_rows``: by gate, its first lookup. ``lookups``: the number of all lookups.
    - ``later``: (from, to, time) of lookups that were made after their gate's time.
    - ``arrivals``: lookup, time, lookup, time .. where a need's expert was ready later than its
      lookup.
    """

    gate_calls: Column = field(default_factory=list)
    other_ns: Column = field(default_factory=list)
    first_rows: Column = field(default_factory=list)
    lookups: int = 0
    later: list[tuple[int, int, int]] = field(default_factory=list)
    arrivals: Column = field(default_factory=list)


@dataclass(eq=False)
class Record:
    """The times of one run, in ns. Both drivers append to its columns in the order of events.

    Two records are equal if all their columns are.

    | rows | columns |
    |---|---|
    | gates | ``gate_ns``, ``end_ns`` (the site's end) |
    | needs, in order of lookup | ``lookup_ns``, ``ready_ns`` |
    | controller calls | ``call_ns`` |
    | steps | ``step_start_ns``, ``step_end_ns`` |
    | idle intervals | ``idle_start_ns``, ``idle_end_ns``, ``idle_cause`` |
    | services, in order of beginning | the columns ``service_*`` |

    - ``ready_ns``: the time at which the need's expert, or its CPU result, was there; for a skip
      the time of its lookup.
    - ``idle_cause``: the number of the transfer whose end closed the interval of the compute
      stream, or one of CPU_RESULT (of another device, too: contract C171), HOST_TIME, NO_REQUEST.
    - ``service_number``: the number of the transfer that a link served.
    - ``service_urgent``: as it was when the service began, 1 for a demand, an urgent prefetch or a
      dense block, 0 for another prefetch.
    - ``service_end_ns``: -1 if the service had not ended.
    - ``service_bytes``: what the service moved, or was to move.

    Where parties of the machine slow each other down (`sim.engine.contest`), ``slowed_ns`` is, by
    party, how much longer its work took than alone. ``work_end_ns`` is, by operation of the compute
    stream, its end, which no duration tells then. ``service_left_ns`` is, by service that the run's
    end cut, how much work was left at the link's own pace.

    Where devices own experts (contract C170), the columns ``owner_*`` have a row for each need that a
    device other than home computed: whose, which and when.

    ``paged``: of a run whose weights are swapped, the pages that came back and those that went, as
    far as they were paid for.
    """

    gate_ns: Column = field(default_factory=list)
    end_ns: Column = field(default_factory=list)
    lookup_ns: Column = field(default_factory=list)
    ready_ns: Column = field(default_factory=list)
    call_ns: Column = field(default_factory=list)
    idle_start_ns: Column = field(default_factory=list)
    idle_end_ns: Column = field(default_factory=list)
    idle_cause: Column = field(default_factory=list)
    step_start_ns: Column = field(default_factory=list)
    step_end_ns: Column = field(default_factory=list)
    service_number: Column = field(default_factory=list)
    service_link: Column = field(default_factory=list)
    service_engine: Column = field(default_factory=list)
    service_urgent: Column = field(default_factory=list)
    service_start_ns: Column = field(default_factory=list)
    service_end_ns: Column = field(default_factory=list)
    service_bytes: Column = field(default_factory=list)
    makespan_ns: int = 0
    slowed_ns: list[int] = field(default_factory=list)
    work_end_ns: Column = field(default_factory=list)
    owner_device: Column = field(default_factory=list)
    owner_key: Column = field(default_factory=list)
    owner_start_ns: Column = field(default_factory=list)
    owner_end_ns: Column = field(default_factory=list)
    paged: tuple[int, int] = (0, 0)
    service_left_ns: dict[int, int] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and all(
            getattr(self, name) == getattr(other, name) for name in COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]  # it grows

    def array(self, name: str) -> NDArray[np.int64]:
        """Column ``name`` of a run that has ended, as an array that nobody may write to."""
        # What is kept as an array already is not copied.
        found = np.asarray(getattr(self, name), np.int64)
        found.flags.writeable = False
        return found


COLUMNS = tuple(item.name for item in fields(Record))
NOTED = ("call_ns", "lookup_ns", "ready_ns")
"""The columns that a `NotedRecord` makes from its notes."""


class NotedRecord(Record):
    """A record that makes its columns by call and by need from ``notes`` when first read.

    They are made as arrays, 8 B an entry. Lists of them, 40 B an entry, are made only for who asks
    for the column itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes = Notes()
        # The fields that the dataclass has set would hide the cached properties of these names.
        for name in NOTED:
            delattr(self, name)

    def array(self, name: str) -> NDArray[np.int64]:
        # Who has asked for the list, or set one, has that.
        if name not in NOTED or name in vars(self):
            return super().array(name)
        made: NDArray[np.int64] = getattr(self, f"_{name}")
        return made

    @cached_property
    def call_ns(self) -> list[int]:  # type: ignore[override]
        return self._call_ns.tolist()  # type: ignore[no-any-return]

    @cached_property
    def lookup_ns(self) -> list[int]:  # type: ignore[override]
        return self._lookup_ns.tolist()  # type: ignore[no-any-return]

    @cached_property
    def ready_ns(self) -> list[int]:  # type: ignore[override]
        return self._ready_ns.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _call_ns(self) -> NDArray[np.int64]:
        gate_calls, other_ns = self.notes.gate_calls, self.notes.other_ns
        require_equal_lengths({"gate_ns": self.gate_ns, "notes.gate_calls": gate_calls})
        found = np.empty(len(gate_calls) + len(other_ns), np.int64)
        is_gate = np.zeros(len(found), np.bool_)
        is_gate[np.array(gate_calls, np.int64) - 1] = True
        found[is_gate], found[~is_gate] = self.gate_ns, other_ns
        return found

    @cached_property
    def _lookup_ns(self) -> NDArray[np.int64]:
        notes = self.notes
        require_equal_lengths({"gate_ns": self.gate_ns, "notes.first_rows": notes.first_rows})
        rows = np.append(np.array(notes.first_rows, np.int64), notes.lookups)
        found = np.repeat(np.array(self.gate_ns, np.int64), np.diff(rows))
        for first, last, at_ns in notes.later:
            found[first:last] = at_ns
        require_equal_lengths({"lookup_ns": found, "notes.lookups": range(notes.lookups)})
        return found

    @cached_property
    def _ready_ns(self) -> NDArray[np.int64]:
        ready = self._lookup_ns.copy()
        arrivals = np.array(self.notes.arrivals, np.int64)
        ready[arrivals[::2]] = arrivals[1::2]
        return ready
