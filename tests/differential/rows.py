"""The rows of a run's timeline: plain numbers that reference and production engine both return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["demand", "prefetch", "dense"]
Cause = Literal["transfer", "dense", "cpu_join", "no_request", "host"]

OUTCOMES = (
    "hit",
    "high_for_low",
    "low_for_high",
    "late",
    "promoted",
    "miss",
    "cpu",
    "skip",
    "reroute",
)
PREFETCH_OUTCOMES = (
    "queued",
    "started",
    "used",
    "late",
    "evicted_unused",
    "unused_at_end",
    "dropped",
    "promoted",
    "cancelled",
    "dropped_no_slot",
)
"""`queued` counts every forecast key that was to be queued, `started` the prefetches that were
issued while they were prefetches; the others are the outcomes of contract C51."""
STALL_PARTS = (
    "demand",
    "late_prefetch",
    "behind_demand",
    "behind_prefetch",
    "storage",
    "no_slot",
    "dense",
    "cpu_join",
    "host",
    "no_request",
)


@dataclass(frozen=True)
class GateRow:
    """`end_ns`: the site's end, after `post_ns`."""

    tick: int
    step: int
    site: int
    gate_ns: int
    end_ns: int


@dataclass(frozen=True)
class LookupRow:
    """A need; the key is the serving expert's, of one that joins another need what was wanted. The
    selector's skip has key and wanted -1, the placement's has its own. `ready_ns`: when its
    transfer (or the rest of a partial move) had arrived, the CPU's result was back, or else
    `lookup_ns`."""

    tick: int
    key: int
    wanted: int
    outcome: str
    lookup_ns: int
    ready_ns: int


@dataclass(frozen=True)
class ServiceRow:
    """A transfer, or after a cut what was left of it, on an engine of a link; in the order in which
    they began.

    `urgent`: whether it was a started prefetch that a need waited for when this service began.
    `end_ns`: -1 where the run's end cut it. `bytes`: what was to be moved, or what a cut
    (`chunk_done`) let it move; without what is written back.
    """

    number: int
    link: int
    engine: int
    urgent: bool
    start_ns: int
    end_ns: int
    bytes: int


@dataclass(frozen=True)
class TransferRow:
    """An issued transfer, by number. `kind`: when it first started; `moved_bytes`: at link 0;
    `victims`: of its claim on the device. `hops`: (link, queued_ns) of every link that it was
    queued on, outermost first; where a transfer that was handed on early left the queue again
    (cut-through) the later time counts."""

    number: int
    key: int
    kind: Kind
    moved_bytes: int
    victims: tuple[int, ...]
    hops: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StepRow:
    """`sequences`: of its rows, in their order."""

    start_ns: int
    end_ns: int
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class IdleRow:
    """An idle interval of the compute stream and what ended it; `transfer`: the number of that, or
    -1.

    A waited rest of a partial move is the transfer. Host time has rows of its own.
    """

    start_ns: int
    end_ns: int
    cause: Cause
    transfer: int = -1


@dataclass(frozen=True)
class Timeline:
    """What happened, in plain numbers. `idle`, `calls`, `trimmed` and `exchanged` help to find a
    difference; they need not be compared.

    `ram_lookups`: (key, found) of every transfer when it was queued on its first link, dense blocks
    and promotions aside. `ram_evictions`: keys, in order. `trimmed`: (time, key) that `retention:
    after_batch`, or a pool that shrinks, let go. `exchanged`: (time, key, victims) that entered the pool from staging.
    """

    gates: tuple[GateRow, ...]
    lookups: tuple[LookupRow, ...]
    services: tuple[ServiceRow, ...]
    transfers: tuple[TransferRow, ...]
    steps: tuple[StepRow, ...]
    prefetch: dict[str, int]
    makespan_ns: int
    busy_ns: int
    stall: dict[str, int]
    sequence_ends: tuple[tuple[int, int], ...]
    ram_lookups: tuple[tuple[int, bool], ...] = ()
    ram_evictions: tuple[int, ...] = ()
    trimmed: tuple[tuple[int, int], ...] = ()
    exchanged: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    idle: tuple[IdleRow, ...] = ()
    calls: tuple[tuple[int, str, int], ...] = ()
