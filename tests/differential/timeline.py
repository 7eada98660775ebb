"""What a run's timeline consists of, how its idle time splits, and what must hold of any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from differential.scenario import SKIP, Scenario

Kind = Literal["demand", "prefetch"]
OUTCOMES = ("hit", "high_for_low", "low_for_high", "late", "promoted", "miss", "skip")
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
STALL_PARTS = ("demand", "late_prefetch", "behind_demand", "behind_prefetch", "no_slot")


@dataclass(frozen=True)
class GateRow:
    tick: int
    gate_ns: int
    end_ns: int


@dataclass(frozen=True)
class LookupRow:
    tick: int
    key: int
    wanted: int
    outcome: str
    lookup_ns: int
    ready_ns: int


@dataclass(frozen=True)
class TransferRow:
    number: int
    key: int
    kind: Kind
    queued_ns: int
    start_ns: int
    end_ns: int
    victims: tuple[int, ...]


@dataclass(frozen=True)
class IdleRow:
    """An idle interval of the compute stream and the number of the transfer whose end closed it."""

    start_ns: int
    end_ns: int
    transfer: int


@dataclass(frozen=True)
class Timeline:
    """What happened, in plain numbers. `calls` and `idle` help to find a difference; they need not be compared."""

    gates: tuple[GateRow, ...]
    lookups: tuple[LookupRow, ...]
    transfers: tuple[TransferRow, ...]
    prefetch: dict[str, int]
    makespan_ns: int
    busy_ns: int
    stall: dict[str, int]
    sequence_ends: tuple[tuple[int, int], ...]
    idle: tuple[IdleRow, ...] = ()
    calls: tuple[tuple[int, str, int], ...] = ()


def split_stall(idle: Iterable[IdleRow], transfers: tuple[TransferRow, ...]) -> dict[str, int]:
    """Section 8: walk back from the end of each idle interval, along the transfer that closed it, to its start."""
    parts = dict.fromkeys(STALL_PARTS, 0)
    for gap in idle:
        closing = transfers[gap.transfer]
        assert closing.end_ns == gap.end_ns
        assert closing.queued_ns <= gap.start_ns, "the chain must reach the start of the interval"
        parts["demand" if closing.kind == "demand" else "late_prefetch"] += _overlap(closing, gap.start_ns, gap.end_ns)
        before = max(gap.start_ns, closing.start_ns)
        served = 0
        for other in transfers:
            if other.number != closing.number:
                shared = _overlap(other, gap.start_ns, before)
                parts["behind_demand" if other.kind == "demand" else "behind_prefetch"] += shared
                served += shared
        parts["no_slot"] += before - gap.start_ns - served
    return parts


def _overlap(transfer: TransferRow, start_ns: int, end_ns: int) -> int:
    return max(0, min(transfer.end_ns, end_ns) - max(transfer.start_ns, start_ns))


def check(scenario: Scenario, timeline: Timeline) -> None:
    """What must hold of every timeline, whoever wrote it; needs nothing but the scenario and the timeline's rows."""
    _check_transfers(scenario, timeline)
    _check_slots(scenario, timeline)
    _check_gates(scenario, timeline)
    _check_counts(timeline)
    assert sum(timeline.stall.values()) == timeline.makespan_ns - timeline.busy_ns
    assert min(timeline.stall.values()) >= 0


def _check_transfers(scenario: Scenario, timeline: Timeline) -> None:
    """Served one at a time, in order of number, never idle while something waits, for exactly their service time."""
    free_ns = 0
    for number, transfer in enumerate(timeline.transfers):
        assert transfer.number == number
        assert 0 <= transfer.queued_ns <= transfer.start_ns <= transfer.end_ns <= timeline.makespan_ns
        assert transfer.start_ns == max(free_ns, transfer.queued_ns) or transfer.start_ns == timeline.makespan_ns
        precision, _, _ = scenario.unpack(transfer.key)
        served = transfer.end_ns - transfer.start_ns
        assert served == scenario.service_ns[precision] or (
            transfer.end_ns == timeline.makespan_ns and served < scenario.service_ns[precision]
        )
        free_ns = transfer.end_ns


def _check_slots(scenario: Scenario, timeline: Timeline) -> None:
    """After each claim what is resident or on its way fits every pool; victims were there and had arrived."""
    held = {key: 0 for pool in scenario.pools for key in pool.initial}
    for transfer in timeline.transfers:
        for packed in transfer.victims:
            victim = scenario.unpack(packed)
            assert held.pop(victim) <= transfer.start_ns
        key = scenario.unpack(transfer.key)
        assert key not in held
        held[key] = transfer.end_ns
        for pool in scenario.pools:
            assert sum(scenario.variant_bytes[k[0]] for k in held if pool.covers(k)) <= pool.capacity_bytes
            if not pool.covers(key):
                assert not any(pool.covers(scenario.unpack(victim)) for victim in transfer.victims)


def _check_gates(scenario: Scenario, timeline: Timeline) -> None:
    """Gates follow each other; lookups fall inside theirs, in need order; what was waited for has arrived."""
    needs = [(step, site) for step in scenario.steps for site in range(scenario.sites)]
    assert [row.tick for row in timeline.gates] == list(range(len(needs)))
    arrivals = {(transfer.key, transfer.end_ns) for transfer in timeline.transfers}
    clock, rows = 0, list(timeline.lookups)
    for gate, (step, site) in zip(timeline.gates, needs, strict=True):
        assert clock + step.dense_ns[site] <= gate.gate_ns <= gate.end_ns
        clock = gate.end_ns
        for need in step.needs[site]:
            row = rows.pop(0)
            assert row.tick == gate.tick
            assert row.outcome in OUTCOMES
            assert gate.gate_ns <= row.lookup_ns <= row.ready_ns <= gate.end_ns
            if row.outcome == "skip":
                assert (row.key, row.wanted) == (SKIP, SKIP)
            else:
                assert scenario.unpack(row.key)[1:] == (site, need.expert)
            if row.outcome in ("late", "promoted", "miss"):
                assert (row.key, row.ready_ns) in arrivals
            else:
                assert row.ready_ns == row.lookup_ns
    assert not rows
    ends = [step.sequence for step in scenario.steps if step.ends]
    assert [sequence for sequence, _ in timeline.sequence_ends] == ends
    assert timeline.makespan_ns == timeline.sequence_ends[-1][1]


def _check_counts(timeline: Timeline) -> None:
    """Every count that can be had in two ways agrees."""
    fetched = timeline.prefetch
    kinds = Counter(transfer.kind for transfer in timeline.transfers)
    outcomes = Counter(row.outcome for row in timeline.lookups)
    issued = ("used", "late", "evicted_unused", "unused_at_end", "dropped")
    never_issued = ("promoted", "cancelled", "dropped_no_slot")
    assert fetched["started"] == sum(fetched[name] for name in issued)
    assert fetched["queued"] == fetched["started"] + sum(fetched[name] for name in never_issued)
    assert fetched["started"] == kinds["prefetch"]
    assert fetched["late"] == outcomes["late"]
    assert fetched["promoted"] == outcomes["promoted"]
    assert kinds["demand"] == outcomes["miss"] + outcomes["promoted"]
