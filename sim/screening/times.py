"""The second pass of screening: it times what the first pass kept, on many machines at once.

How long a site takes after its gate depends only on what the gate moves and computes. So each
distinct work is timed once for all machines, and a run is a sum, exact in integer ns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.machine.durations import Durations
from sim.screening.moves import GateWork, Moves
from sim.values.types import Step

Ints = NDArray[np.int64]
BLOCK_GATES = 1 << 15


@dataclass(frozen=True)
class Times:
    """When steps end: ``step_end_ns`` [steps, machines]. The first step begins at 0, each other
    one when the step before it ends.
    """

    step_end_ns: Ints

    @property
    def makespan_ns(self) -> Ints:
        """When the last step ends, [machines]."""
        last: Ints = self.step_end_ns[-1]
        return last

    @property
    def step_start_ns(self) -> Ints:
        return np.concatenate([np.zeros_like(self.step_end_ns[:1]), self.step_end_ns[:-1]])


def roofline_kind(step: Step) -> Hashable:
    """What a `Roofline` times a step by: steps of equal kind take equally long."""
    return step.shares, step.decode, step.sites, step.drafters


class Machines:
    """The durations of M machines as arrays [M]. Each machine is asked once for each duration."""

    def __init__(self, durations: Sequence[Durations], kind_of: Callable[[Step], Hashable]) -> None:
        self._durations, self._kind_of = durations, kind_of
        self._hop: dict[int, Ints] = {}
        self._expert: dict[tuple[int, int, int, int], Ints] = {}
        self._step: dict[Hashable, Ints] = {}
        self._hosts = [each.host for each in durations]
        self.sync_ns, self.issue_ns, self._wake_ns, self.post_ns = (
            np.array([getattr(host, name) for host in self._hosts], np.int64)
            for name in ("sync_ns", "issue_ns", "wake_ns", "post_ns")
        )

    def until(self, free: Ints, arrived: Ints) -> Ints:
        """When streams that are free at ``free`` go on with what arrives at ``arrived``
        (contract C67).
        """
        wake_ns = self._wake_ns
        if any(host.wakes for host in self._hosts):
            idle = (arrived - free).tolist()
            times = zip(self._hosts, idle, strict=True)
            wake_ns = np.array([host.waking_ns(ns) for host, ns in times], np.int64)
        found: Ints = np.where(arrived > free, arrived + wake_ns, free)
        return found

    def service_ns(self, parts: tuple[int, ...]) -> Ints:
        total = np.zeros_like(self.issue_ns)
        for size in parts:
            if size not in self._hop:
                self._hop[size] = np.array(
                    [each.hop_ns(0, size) for each in self._durations], np.int64
                )
            total = total + self._hop[size]
        return total

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> Ints:
        at = (precision, site, tokens, rows)
        if at not in self._expert:
            self._expert[at] = np.array([each.expert_ns(*at) for each in self._durations], np.int64)
        return self._expert[at]

    def step_ns(self, step: Step) -> Ints:
        """The time of a step without the works of its gates: dense work, tail, and host time before
        gates and after sites.
        """
        at = self._kind_of(step)
        if at not in self._step:
            fixed = [
                sum(dense[site] for site in step.sites) + each.tail_ns(step)
                for each in self._durations
                for dense in (each.dense_ns(step),)
            ]
            self._step[at] = np.array(fixed, np.int64) + len(step.sites) * (
                self.sync_ns + self.post_ns
            )
        return self._step[at]


def second_pass(
    moves: Moves,
    durations: Sequence[Durations],
    kind_of: Callable[[Step], Hashable] = roofline_kind,
) -> Times:
    """When every step ends, on every machine.

    ``kind_of`` gives equal values for steps whose dense work takes equally long.
    """
    machines = Machines(durations, kind_of)
    wait = moves.controller.loader.wait
    by_kind = np.stack([_work_ns(work, machines, wait) for work in moves.kinds])
    spent = np.stack([machines.step_ns(step) for step in moves.steps])
    bounds = np.append(moves.first_gate, len(moves.kind))
    first = 0
    while first < len(moves.steps):
        # A block of steps at a time, so that the gathered array stays small.
        last = max(
            first + 1, int(np.searchsorted(bounds, bounds[first] + BLOCK_GATES, side="right")) - 1
        )
        last = min(last, len(moves.steps))
        gathered = by_kind[moves.kind[bounds[first] : bounds[last]]]
        spent[first:last] += np.add.reduceat(gathered, bounds[first:last] - bounds[first], axis=0)
        first = last
    return Times(np.cumsum(spent, axis=0))


def _work_ns(work: GateWork, machines: Machines, wait: str) -> Ints:
    """From a gate to the last of its needs (contract C68)."""
    free = machines.issue_ns
    arrived: list[Ints] = []
    for parts in work.transfers:
        service = machines.service_ns(parts)
        arrived.append(arrived[-1] + service if arrived else service)
    times = [
        (machines.expert_ns(precision, site, tokens, work.rows), transfer)
        for precision, site, tokens, transfer in work.needs
    ]
    if wait == "wait_all":
        last = max((transfer for _, transfer in times), default=-1)
        if last >= 0:
            free = machines.until(free, arrived[last])
        for expert_ns, _ in times:
            free = free + expert_ns
        return free
    if wait == "as_ready":
        times.sort(
            key=lambda item: item[1]
        )  # stable: needs that are resident come first, in need order
    for expert_ns, transfer in times:
        if transfer >= 0:
            free = machines.until(free, arrived[transfer])
        free = free + expert_ns
    return free
