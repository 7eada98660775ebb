"""Records of runs written by hand: transfers, and the services of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.core.issued import Issued
from sim.core.transfer import Transfer
from sim.values.record import Record
from sim.values.types import PrefetchOutcome

DEMAND, PREFETCH, DENSE = "demand", "prefetch", "dense"


@dataclass(frozen=True)
class Service:
    """One service of a link: its start, its end (None: cut by the run's end) and its bytes.

    ``urgent`` None means: as the transfer's kind says.
    """

    start: int
    end: int | None
    link: int = 0
    engine: int = 0
    urgent: bool | None = None
    moved: int = 3


@dataclass(frozen=True)
class Sent:
    """A transfer: its kind, the (link, time) of each queue that it joined, and its services."""

    kind: str
    queued: tuple[tuple[int, int], ...]
    services: tuple[Service, ...] = ()
    parent: int = -1
    write_back: tuple[int, ...] = ()
    outcome: int = int(PrefetchOutcome.UNUSED_AT_END)


def one(kind: str, queued: int, start: int, end: int | None, **changes: object) -> Sent:
    """A transfer of one hop with one service."""
    return Sent(kind, ((0, queued),), (Service(start, end),), **changes)  # type: ignore[arg-type]


def recorded(idle: Sequence[tuple[int, int, int]], sent: Sequence[Sent]) -> tuple[Record, Issued]:
    record = Record(
        idle_start_ns=[i[0] for i in idle],
        idle_end_ns=[i[1] for i in idle],
        idle_cause=[i[2] for i in idle],
    )
    issued = Issued()
    for number, told in enumerate(sent):
        calls = []
        for link, time_ns in told.queued:
            record.call_ns.append(time_ns)
            calls.append((link, len(record.call_ns)))
        transfer = Transfer(number, told.kind == PREFETCH, 3, calls[0][1], calls[0][0])
        transfer.number, transfer.later_hops, transfer.parent = (
            number,
            tuple(calls[1:]),
            told.parent,
        )
        transfer.dense, transfer.write_back = told.kind == DENSE, told.write_back
        transfer.victims, transfer.outcome = told.write_back, told.outcome
        issued.append(transfer)
    rows = sorted((s.start, number, s) for number, told in enumerate(sent) for s in told.services)
    for start, number, service in rows:
        record.service_number.append(number)
        record.service_link.append(service.link)
        record.service_engine.append(service.engine)
        record.service_urgent.append(
            int(sent[number].kind != PREFETCH if service.urgent is None else service.urgent)
        )
        record.service_start_ns.append(start)
        record.service_end_ns.append(-1 if service.end is None else service.end)
        record.service_bytes.append(service.moved)
    return record, issued
