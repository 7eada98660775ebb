"""Splits idle time of the compute stream by cause, for both drivers (contracts C71, C72).

An idle interval that a transfer ended is walked back from its end to its start, along the
transfer's hops and services. Where a transfer has one hop and one service, this is plain arithmetic
over all such intervals at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.core.issued import Issued
from sim.machine.durations import Durations
from sim.values.record import CPU_RESULT, HOST_TIME, NO_REQUEST, Record

NOTHING_TO_DO = "no_request"
"""The part in which no request was there."""
STALL_PARTS = (
    "demand",
    "behind_demand",
    "behind_prefetch",
    "late_prefetch",
    "storage",
    "no_slot",
    "dense",
    "cpu_join",
    "host",
    "predictor",
    NOTHING_TO_DO,
)
"""Every part that a summary reports; where a cause cannot occur its part is 0."""
OTHER_CAUSES = {CPU_RESULT: "cpu_join", HOST_TIME: "host", NO_REQUEST: NOTHING_TO_DO}
NOT_YET = 1 << 62
"""Stands for the end of a service that the end of the run cut."""

Ns = NDArray[np.int64]
Bools = NDArray[np.bool_]


def split_stalls(
    record: Record, issued: Issued, durations: Durations, key_bytes: Sequence[int]
) -> dict[str, Ns]:
    """Split each of the I idle intervals of ``record`` into parts, in ns: arrays [I] by part.

    The parts of an interval sum to its length: there is no residual. ``issued`` are the
    controller's transfers by number; ``key_bytes`` the bytes of each key, for write-backs. Raise
    RuntimeError if an interval does not end with its transfer, or if walking back from there does
    not reach its start.
    """
    start, end = record.array("idle_start_ns"), record.array("idle_end_ns")
    cause = record.array("idle_cause")
    parts = {part: np.zeros(len(cause), np.int64) for part in STALL_PARTS}
    for code, part in OTHER_CAUSES.items():
        parts[part] = np.where(cause == code, end - start, 0)
    is_dense = issued.column("dense").astype(np.bool_)
    waits = np.flatnonzero(cause >= 0)
    dense = waits[is_dense[cause[waits]]]
    parts["dense"][dense] = end[dense] - start[dense]
    services = Services(record)
    walk = Walk(record, issued, services, durations, key_bytes)
    plain = services.served_once(len(issued)) & walk.is_plain & ~is_dense
    is_plain = plain[cause[waits]]
    _split_plain(waits[is_plain], start, end, cause, services, walk, parts)
    for i in waits[~is_plain & ~is_dense[cause[waits]]].tolist():
        for part, time_ns in walk.back(int(cause[i]), int(start[i]), int(end[i])).items():
            parts[part][i] = time_ns
    return parts


def _split_plain(
    which: Ns, start: Ns, end: Ns, cause: Ns, services: Services, walk: Walk, parts: dict[str, Ns]
) -> None:
    """Split the intervals ``which``, whose transfers have one hop and one service.

    These transfers complete no prefetch and write nothing back.
    """
    number, idle_start, idle_end = cause[which], start[which], end[which]
    row_of = np.zeros(len(walk.queued_ns), np.int64)
    row_of[services.number] = np.arange(len(services.number))
    row = row_of[number]
    service_start, service_end = services.starts_ns[row], services.ends_ns[row]
    broken = (service_end != idle_end) | (walk.queued_ns[number] > idle_start)
    if broken.any():
        at = int(np.flatnonzero(broken)[0])
        raise walk.unexplained(int(number[at]), int(idle_start[at]), int(idle_end[at]))
    served_from = np.maximum(idle_start, service_start)
    is_urgent = services.are_urgent[row]
    parts["demand"][which] = np.where(is_urgent, idle_end - served_from, 0)
    parts["late_prefetch"][which] = np.where(is_urgent, 0, idle_end - served_from)
    late = np.flatnonzero(served_from > idle_start)
    parts["no_slot"][which] = served_from - idle_start
    intervals = services.all_before(row[late], idle_start[late], served_from[late])
    for some, are_urgent, shared_ns in intervals:
        places = which[late[some]]
        parts["behind_demand"][places] += np.where(are_urgent, shared_ns, 0)
        parts["behind_prefetch"][places] += np.where(are_urgent, 0, shared_ns)
        parts["no_slot"][places] -= shared_ns


class Services:
    """The services of a run, by row, and their order on each engine."""

    def __init__(self, record: Record) -> None:
        self.number, self.start = record.service_number, record.service_start_ns
        self.is_urgent = record.service_urgent
        self.starts_ns, ends_ns = record.array("service_start_ns"), record.array("service_end_ns")
        self.ends_ns = np.where(ends_ns < 0, NOT_YET, ends_ns)
        self.are_urgent = record.array("service_urgent").astype(np.bool_)
        rows = len(self.number)
        link, engine = record.array("service_link"), record.array("service_engine")
        # Rows stand in the order in which services began; the sort keeps it inside each engine.
        order = np.lexsort((np.arange(rows), engine, link))
        follows = (np.diff(link[order], prepend=-1) == 0) & (
            np.diff(engine[order], prepend=-1) == 0
        )
        previous = np.full(rows, -1, np.int64)
        previous[order[1:]] = np.where(follows[1:], order[:-1], -1)
        self._previous_row = previous
        self._link, self._engine = record.service_link, record.service_engine

    # Lists, which are read faster one by one; a run of plain intervals asks for none.

    @cached_property
    def end(self) -> list[int]:
        return self.ends_ns.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _previous(self) -> list[int]:
        return self._previous_row.tolist()

    def served_once(self, transfers: int) -> NDArray[np.bool_]:
        """Whether each of so many transfers had exactly one service."""
        once: NDArray[np.bool_] = (
            np.bincount(np.array(self.number, np.int64), minlength=transfers) == 1
        )
        return once

    def rows_of(self) -> dict[tuple[int, int], list[int]]:
        """The rows of each (transfer, link), in order."""
        rows: dict[tuple[int, int], list[int]] = {}
        for row, at in enumerate(zip(self.number, self._link, strict=True)):
            rows.setdefault(at, []).append(row)
        return rows

    def with_engine_of(self, row: int, rows: Sequence[int]) -> list[int]:
        """Those of ``rows`` that the engine of ``row`` served, up to ``row``."""
        return [one for one in rows if one <= row and self._engine[one] == self._engine[row]]

    def before(self, row: int, from_ns: int, to_ns: int) -> Counter[str]:
        """How long the engine of ``row`` served other transfers before it, by stall part.

        The time from ``from_ns`` to ``to_ns`` counts.
        """
        parts: Counter[str] = Counter()
        number, other = self.number[row], self._previous[row]
        while other >= 0 and self.end[other] > from_ns:
            shared = min(to_ns, self.end[other]) - max(from_ns, self.start[other])
            if self.number[other] != number:
                parts["behind_demand" if self.is_urgent[other] else "behind_prefetch"] += shared
            other = self._previous[other]
        return parts

    def all_before(self, rows: Ns, from_ns: Ns, to_ns: Ns) -> Iterator[tuple[Ns, Bools, Ns]]:
        """``before`` for many intervals at once, one service further back with each answer.

        An answer has the intervals that shared their time with another transfer, whether that one
        was urgent, and for how long.
        """
        number = np.array(self.number, np.int64)
        some, other = np.arange(len(rows)), self._previous_row[rows]
        while len(some):
            goes_on = (other >= 0) & (self.ends_ns[other] > from_ns[some])
            some, other = some[goes_on], other[goes_on]
            is_other = number[other] != number[rows[some]]
            at, by = some[is_other], other[is_other]
            until_ns = np.minimum(to_ns[at], self.ends_ns[by])
            shared_ns = until_ns - np.maximum(from_ns[at], self.starts_ns[by])
            yield at, self.are_urgent[by], shared_ns
            other = self._previous_row[other]


class Walk:
    """Walks back through idle intervals along the transfers that ended them."""

    def __init__(
        self,
        record: Record,
        issued: Issued,
        services: Services,
        durations: Durations,
        key_bytes: Sequence[int],
    ) -> None:
        self._calls, self._issued, self._services = record.array("call_ns"), issued, services
        self._durations, self._key_bytes = durations, key_bytes
        self._rows: dict[tuple[int, int], list[int]] | None = None
        self.queued_ns = self._calls[issued.column("call") - 1]
        """The time at which each transfer was queued on its first link."""
        self.is_plain = np.ones(len(issued), np.bool_)
        for number, t in issued.objects():
            self.is_plain[number] = not (t.later_hops or t.parent >= 0 or t.write_back)

    def back(self, number: int, start_ns: int, end_ns: int) -> Counter[str]:
        """The parts of the interval that transfer ``number`` ended.

        After a transfer's own hops the walk goes on with the prefetch that it completed, if any.
        """
        parts: Counter[str] = Counter()
        until_ns, at = end_ns, number
        while at >= 0:
            hops = self._issued[at].hops
            rows = self._rows_of(at, hops[-1][0])
            if not any(self._services.end[row] == until_ns for row in rows):
                break
            for link, call in reversed(hops):
                from_ns = max(start_ns, int(self._calls[call - 1]))
                parts += self._hop(at, link, from_ns, until_ns, is_last=(link, call) == hops[-1])
                until_ns = from_ns
                if until_ns == start_ns and parts.total() == end_ns - start_ns:
                    return parts
            at = self._issued[at].parent
        raise self.unexplained(number, start_ns, end_ns)

    def _rows_of(self, number: int, link: int) -> list[int]:
        if self._rows is None:
            self._rows = self._services.rows_of()
        return self._rows.get((number, link), [])

    def _hop(self, number: int, link: int, from_ns: int, to_ns: int, is_last: bool) -> Counter[str]:
        """The parts of the time between a transfer's queueing on a link and its end there.

        The end is its arrival (``is_last``) or its hand-over to the next link.
        """
        services = self._services
        rows = [row for row in self._rows_of(number, link) if services.start[row] <= to_ns]
        # Of projections that are read beside each other, the one that ended then, and its engine.
        at_end = [row for row in rows if services.end[row] == to_ns]
        rows = services.with_engine_of((at_end or rows)[-1], rows) if rows else []
        parts = services.before(rows[-1], from_ns, to_ns) if rows else Counter()
        for row in rows:
            began = max(from_ns, services.start[row])
            ended = max(began, min(to_ns, services.end[row]))
            if is_last and not services.is_urgent[row]:
                written = min(ended, max(began, services.start[row] + self._write_back_ns(number)))
                parts["late_prefetch"] += ended - written
                ended = written
            parts["demand" if is_last else "storage"] += ended - began
        parts["no_slot"] = to_ns - from_ns - parts.total()
        return parts

    def _write_back_ns(self, number: int) -> int:
        """How long a transfer's service on link 0 writes back victims before its own bytes."""
        victims = self._issued[number].write_back
        return sum(self._durations.hop_ns(0, self._key_bytes[victim]) for victim in victims)

    def unexplained(self, number: int, start_ns: int, end_ns: int) -> RuntimeError:
        """The error for an interval whose walk back did not reach its start."""
        transfer, calls, services = self._issued[number], self._calls, self._services
        queued = ", ".join(f"on link {link} at {calls[call - 1]}" for link, call in transfer.hops)
        of = [row for row, served in enumerate(services.number) if served == number]
        times = (
            (services.start[row], "cut" if services.end[row] == NOT_YET else services.end[row])
            for row in of
        )
        served = ", ".join(f"{began}..{ended}" for began, ended in times)
        return RuntimeError(
            f"idle interval {start_ns}..{end_ns} ns is not explained by transfer {number} "
            f"(queued {queued}; served {served or 'never'} ns)"
        )
