"""Splits the time of a run's decode steps into parts, from the tables that every run writes.

A recorded run and a simulated one are split in the same way, so that parts can be subtracted. A
gate's interval goes from the gate to the next one; a step's last interval ends with the step, and
its first one begins with it. In an interval the stream waits for loads, or for the CPU, or does
work of its own: dense layers, experts and the host's time. Tables tell a step's computing as one
sum, so how long one expert took in a step is taken as its share of that sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

LOADED = ("late", "promoted", "miss")
NOT_COMPUTED = ("cpu", "skip")
Need = tuple[int, str]
"""A need's key and its outcome."""


@dataclass(frozen=True)
class Tables:
    """What is read of a run: its tables, the loader's ``wait``, and experts' share of computing.

    The share counts only where experts are computed while others are waited for.
    """

    lookups: pl.DataFrame
    transfers: pl.DataFrame
    tokens: pl.DataFrame
    wait: str
    expert_share: float = 0.0


@dataclass
class Interval:
    """One gate's interval of a decode step. Times are in ns.

    - ``needs``: what was looked up, in order.
    - ``served_ns``: how much of the wait for loads was the service of the last one to arrive;
      ``queued_ns``: the rest of that wait. ``is_prefetch``: that service was a prefetch's.
      ``is_first``: the link stood idle before it; ``moved_bytes``: what it moved.
    - ``cpu_ns``: the wait for the CPU. ``own_ns``: the stream's own work.
    - ``compute_ns``: the part of ``own_ns`` in which it computed; the rest is the host's.
    - ``beside``: whether a copy was under way during its own work.
    """

    step: int
    site: int
    needs: tuple[Need, ...]
    served_ns: int = 0
    queued_ns: int = 0
    is_prefetch: bool = False
    is_first: bool = False
    moved_bytes: int = 0
    cpu_ns: int = 0
    own_ns: int = 0
    compute_ns: float = 0.0
    beside: bool = False

    @property
    def has_waited(self) -> bool:
        return self.served_ns + self.queued_ns + self.cpu_ns > 0


@dataclass(frozen=True)
class Service:
    """The last hop of a transfer, which brought ``key``."""

    key: int
    start_ns: int
    end_ns: int
    moved_bytes: int
    is_prefetch: bool
    is_first: bool

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


def services_of(transfers: pl.DataFrame) -> list[Service]:
    """The services of the link to the device that have ended, in the order in which they began.

    A service is the first one where the link had not just ended another.
    """
    is_last = pl.col("hop") == pl.col("hop").max().over("number")
    hops = transfers.filter(is_last & (pl.col("end_ns") >= 0)).sort("start_ns")
    found, before_ns = [], -1
    columns = ("key", "start_ns", "end_ns", "moved_bytes", "class")
    for key, start_ns, end_ns, moved_bytes, kind in hops.select(columns).rows():
        is_first = start_ns > before_ns + TOGETHER_NS
        found.append(Service(key, start_ns, end_ns, moved_bytes, kind == "prefetch", is_first))
        before_ns = end_ns
    return found


TOGETHER_NS = 2000
"""Two services with at most this between them follow each other at once."""


def intervals_of(tables: Tables) -> list[Interval]:
    """The intervals of all decode steps, in order; their parts sum to the steps' time."""
    services = services_of(tables.transfers)
    came: dict[tuple[int, int], Service] = {(one.key, one.end_ns): one for one in services}
    steps = {
        step: (start_ns, end_ns, compute_ns)
        for step, start_ns, end_ns, compute_ns in tables.tokens.filter(pl.col("phase") == "decode")
        .select("step", "start_ns", "end_ns", "compute_ns")
        .unique("step")
        .rows()
    }
    rows: Mapping[int, list[tuple[int, int, int, str, int, int]]] = defaultdict(list)
    columns = ("tick", "step", "site", "key", "outcome", "gate_ns", "ready_ns")
    for tick, *row in tables.lookups.select(columns).rows():
        if row[0] in steps:
            rows[tick].append((row[0], row[1], row[2], row[3], row[4], row[5]))
    by_step: Mapping[int, list[int]] = defaultdict(list)
    for tick, of in sorted(rows.items()):
        by_step[of[0][0]].append(tick)
    found: list[Interval] = []
    for step, ticks in sorted(by_step.items()):
        start_ns, end_ns, compute_ns = steps[step]
        computed = sum(row[3] not in NOT_COMPUTED for tick in ticks for row in rows[tick])
        expert_ns = round(compute_ns * tables.expert_share / max(1, computed))
        gates = [min(row[4] for row in rows[tick]) for tick in ticks]
        begins, ends = [start_ns, *gates[1:]], [*gates[1:], end_ns]
        of_step = [
            _interval(rows[tick], gate, begin, end, expert_ns, tables.wait, came)
            for tick, gate, begin, end in zip(ticks, gates, begins, ends, strict=True)
        ]
        own_ns = sum(one.own_ns for one in of_step)
        for one, gate, begin, end in zip(of_step, gates, begins, ends, strict=True):
            one.compute_ns = compute_ns * one.own_ns / own_ns if own_ns else 0.0
            after_ns = max(gate, end - one.own_ns + (gate - begin))
            one.beside = any(
                (service.start_ns < end and service.end_ns > after_ns)
                or (service.start_ns < gate and service.end_ns > begin)
                for service in services
            )
        found += of_step
    return found


def _interval(
    rows: Sequence[tuple[int, int, int, str, int, int]],
    gate_ns: int,
    begin_ns: int,
    end_ns: int,
    expert_ns: int,
    wait: str,
    came: Mapping[tuple[int, int], Service],
) -> Interval:
    step, site = rows[0][0], rows[0][1]
    found = Interval(step, site, tuple((key, outcome) for _, _, key, outcome, _, _ in rows))
    loads = sorted((ready, key) for _, _, key, outcome, _, ready in rows if outcome in LOADED)
    on_cpu = [ready for _, _, _, outcome, _, ready in rows if outcome == "cpu"]
    there = sum(outcome not in (*LOADED, *NOT_COMPUTED) for _, _, _, outcome, _, _ in rows)
    idle_ns, free_ns = 0, gate_ns
    if wait == "wait_all" and loads:
        idle_ns, free_ns = max(0, loads[-1][0] - gate_ns), max(gate_ns, loads[-1][0])
        free_ns += (there + len(loads)) * expert_ns
    else:
        free_ns += there * expert_ns
        for ready_ns, _ in loads:
            idle_ns += max(0, ready_ns - free_ns)
            free_ns = max(free_ns, ready_ns) + expert_ns
    if on_cpu:
        found.cpu_ns = max(0, max(on_cpu) - free_ns)
    if idle_ns:
        last = came.get((loads[-1][1], loads[-1][0]))
        if last is not None:
            found.served_ns = min(idle_ns, last.end_ns - max(last.start_ns, gate_ns))
            found.is_prefetch, found.is_first = last.is_prefetch, last.is_first
            found.moved_bytes = last.moved_bytes
        found.queued_ns = idle_ns - found.served_ns
    found.own_ns = end_ns - begin_ns - idle_ns - found.cpu_ns
    return found
