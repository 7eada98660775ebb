"""The simulator: a SimPy driver around the controller.

SimPy is the clock and the event heap; the link and the compute stream are callback state machines, each with one
event that is armed again and again. One heap event a gate, one a transfer, one a need of a union served in waves, one
where a sequence ends or begins; everything else is arithmetic. Equal times are ordered by the contract (docs/design.md
section 3) through the priority of ``Environment.schedule``.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import simpy

from sim.controller import Controller
from sim.costs import Durations
from sim.loader import Transfer
from sim.record import Record
from sim.types import SKIP
from sim.workload import Workload

LINK = 0
TRANSFER_END, NEED_DONE, SEQUENCE_END, GATE = (rank << 48 for rank in range(2, 6))
"""Priorities above SimPy's own (0 and 1); a transfer's number is added to its class."""


class Alarm(simpy.Event):  # type: ignore[misc]  # simpy ships no types
    """An event that rings ``callback`` and can then be set again."""

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self._ring = [callback]

    def set(self, delay_ns: int, priority: int) -> None:
        self.callbacks = self._ring
        self.env.schedule(self, priority, delay_ns)


class Group:
    """wait_all: what one call admitted, computed together once nothing of it is awaited any more."""

    __slots__ = ("admitted", "awaited", "row")

    def __init__(self, admitted: Sequence[int], awaited: set[int], row: int) -> None:
        self.admitted = admitted
        self.awaited = awaited
        self.row = row  # of the first one's lookup


def simulate(controller: Controller, workload: Workload, durations: Durations,
             progress: Callable[[int], None] | None = None) -> Record:  # fmt: skip
    """Run the workload to its end. ``progress`` is told the number of steps done, about every hundredth."""
    env = simpy.Environment()
    engine = Engine(env, controller, workload, durations, progress)
    # The run makes no reference cycles, and its growing columns would be scanned again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        env.run(until=engine.done)
    finally:
        if collecting:
            gc.enable()
    controller.finish()
    return engine.record


class Engine:
    """One link and one compute stream around one controller."""

    def __init__(self, env: simpy.Environment, controller: Controller, workload: Workload, durations: Durations,
                 progress: Callable[[int], None] | None = None) -> None:  # fmt: skip
        self.env, self.controller, self.workload, self.durations = env, controller, workload, durations
        self.record = Record()
        self.done = env.event()
        self._progress, self._stride = progress, max(1, len(workload.steps) // 100)
        self._wait_all = controller.loader.wait == "wait_all"
        self._plane = controller.geometry.plane
        self._one_token_ns = [durations.expert_ns(p, 1) for p in range(len(controller.geometry.precisions))]
        # A constant selector never skips: what waits for nothing is all there.
        self._is_simple = len(self._one_token_ns) == 1 and controller.selector.constant is not None
        self._prepare_link()
        self._prepare_stream()

    def _prepare_link(self) -> None:
        self._in_flight = self.controller.loader.in_flight
        self._issued: deque[Transfer] = deque()
        self._transfer_alarm = Alarm(self.env, self._on_transfer_end)
        self._transfer_ns = {
            size: self.durations.transfer_ns(size) for size in set(self.controller.geometry.variant_bytes)
        }

    def _prepare_stream(self) -> None:
        self._gate = self.workload.gate()
        self._gate_alarm = Alarm(self.env, self._on_gate)
        self._end_alarm = Alarm(self.env, self._on_step_end)
        self._release_alarm = Alarm(self.env, self._on_need_done)
        self._awaited: dict[int, int] = {}  # key -> row of its lookup
        self._groups: deque[Group] = deque()  # wait_all: in the order of the calls
        self._releases: deque[tuple[int, int]] = deque()  # waves: (end of a need's computation, key)
        self._release_is_set = False
        self._free_ns = 0  # when the compute stream is through with what it was given
        self._row = 0  # lookups so far
        self._first_rows: list[int] = []  # by gate
        self._later_lookups: list[tuple[int, int, int]] = []  # waves: rows from .. to were looked up at
        self._arrivals: list[tuple[int, int]] = []  # row, when its expert arrived
        self._begin_step(0, 0)

    # ---- steps and sequences

    def _begin_step(self, index: int, now: int) -> None:
        """Called when the stream is free; the first gate of the step follows after its dense work."""
        step = self._step = self.workload.steps[index]
        self.record.step_start_ns.append(self._free_ns)
        for sequence in step.begins:
            self.controller.begin_sequence(sequence)
            self.record.call_ns.append(now)
            self._fill_link(now)
        self._gate.open(step)
        self._is_simple_step = self._is_simple and step.rows == 1
        self._dense_ns = self.durations.dense_ns(step)
        self._site = 0
        self._gate_alarm.set(self._free_ns + self._dense_ns[0] - now, GATE)

    def _end_site(self, now: int) -> None:
        """Every need of the site is computed or its end is known."""
        free = self._free_ns
        self.record.end_ns.append(free)
        self._site += 1
        if self._site < self.workload.sites:
            self._gate_alarm.set(free + self._dense_ns[self._site] - now, GATE)
            return
        self._free_ns = free + self.durations.tail_ns(self._step)
        self.record.step_end_ns.append(self._free_ns)
        index = self._step.index
        if self._progress and index % self._stride == 0:
            self._progress(index + 1)
        following = self.workload.steps[index + 1 : index + 2]
        if self._step.ends or not following or following[0].begins:
            self._end_alarm.set(self._free_ns - now, SEQUENCE_END)
        else:
            self._begin_step(index + 1, now)

    def _on_step_end(self, event: simpy.Event) -> None:
        now = self.env.now
        for sequence in self._step.ends:
            self.controller.end_sequence(sequence)
            self.record.call_ns.append(now)
            self._fill_link(now)
        if self._step.index + 1 < len(self.workload.steps):
            self._begin_step(self._step.index + 1, now)
        else:
            self._close(now)
            self.done.succeed()

    def _close(self, now: int) -> None:
        """The run is over; what is still on the link is cut."""
        record, issued = self.record, self.controller.num_issued
        record.makespan_ns = now
        counts = np.diff([*self._first_rows, self._row])
        lookup_ns = np.repeat(np.array(record.gate_ns, np.int64), counts)
        for first, last, looked_up_ns in self._later_lookups:
            lookup_ns[first:last] = looked_up_ns
        ready_ns = lookup_ns.copy()
        if self._arrivals:
            rows, times = zip(*self._arrivals, strict=True)
            ready_ns[list(rows)] = times
        record.lookup_ns, record.ready_ns = lookup_ns.tolist(), ready_ns.tolist()
        record.start_ns += [-1] * (issued - len(record.start_ns))
        record.service_end_ns += [-1] * (issued - len(record.service_end_ns))

    # ---- the compute stream

    def _on_gate(self, event: simpy.Event) -> None:
        now = self.env.now
        record, controller, gate = self.record, self.controller, self._gate
        gate.visit(self._site)
        record.gate_ns.append(now)
        record.call_ns.append(now)
        first = self._row
        self._first_rows.append(first)
        outcomes, waits = controller.gate(gate)
        self._row = first + len(outcomes)
        if waits is None and self._is_simple_step and not controller.waiting:
            # The common gate: one precision, and everything is there.
            self._free_ns = now + len(outcomes) * self._one_token_ns[0]
            if len(self._issued) < self._in_flight:
                self._fill_link(now)
            self._end_site(now)
            return
        self._free_ns = now
        self._take(waits, first, now)
        if len(self._issued) < self._in_flight:
            self._fill_link(now)
        if not self._awaited and not controller.waiting:
            self._end_site(now)

    def _take(self, waits: dict[int, Transfer] | None, row: int, now: int) -> None:
        """Compute what an admission found (its first lookup is ``row``); remember what it waits for."""
        admitted, awaited = self.controller.admitted, self._awaited
        if self._wait_all:
            for key in waits or ():
                awaited[key] = row + admitted.index(key)
            self._groups.append(Group(admitted, set(waits or ()), row))
            self._compute_groups(now)
        else:
            for key in admitted:
                if waits and key in waits:
                    awaited[key] = row
                elif key != SKIP:
                    self._compute(key, row, now)
                row += 1
        if self._releases:
            self._set_release()

    def _compute_groups(self, now: int) -> None:
        """wait_all: what an earlier call admitted goes first, so a complete group may wait for the one before it."""
        while self._groups and not self._groups[0].awaited:
            group = self._groups.popleft()
            for index, key in enumerate(group.admitted):
                if key != SKIP:
                    self._compute(key, group.row + index, now)

    def _compute(self, key: int, row: int, ready_ns: int) -> None:
        precision = key // self._plane
        if self._step.rows == 1:
            duration = self._one_token_ns[precision]
        else:
            duration = self.durations.expert_ns(precision, self._gate.tokens[row - self._first_rows[-1]])
        start = self._free_ns if self._free_ns > ready_ns else ready_ns
        self._free_ns = start + duration
        if self.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _set_release(self) -> None:
        if not self._release_is_set:
            self._release_is_set = True
            self._release_alarm.set(self._releases[0][0] - self.env.now, NEED_DONE)

    def _on_need_done(self, event: simpy.Event) -> None:
        now = self.env.now
        self._release_is_set = False
        _, key = self._releases.popleft()
        self.record.call_ns.append(now)
        outcomes, waits = self.controller.need_done(key)
        if not self.controller.waiting:
            self._releases.clear()
        row = self._row
        self._row += len(outcomes)
        self._later_lookups.append((row, self._row, now))
        self._take(waits, row, now)
        self._fill_link(now)
        if not self._awaited and not self.controller.waiting:
            self._end_site(now)

    # ---- the link

    def _fill_link(self, now: int) -> None:
        issued = self._issued
        while len(issued) < self._in_flight:
            self.record.call_ns.append(now)
            transfer = self.controller.poll(LINK)
            if transfer is None:
                return
            issued.append(transfer)
            if len(issued) == 1:
                self._serve(transfer, now)

    def _serve(self, transfer: Transfer, now: int) -> None:
        """The link turns to an issued transfer: services begin and end in the order of their numbers."""
        self.record.start_ns.append(now)
        self._transfer_alarm.set(self._transfer_ns[transfer.moved_bytes], TRANSFER_END + transfer.number)

    def _on_transfer_end(self, event: simpy.Event) -> None:
        now = self.env.now
        record, issued = self.record, self._issued
        transfer = issued.popleft()
        record.service_end_ns.append(now)
        record.call_ns.append(now)
        key, following = self.controller.transfer_done(LINK, transfer)
        if following is not None:
            issued.append(following)
        if issued:
            self._serve(issued[0], now)
        if key in self._awaited:
            self._arrive(key, transfer.number, now)

    def _arrive(self, key: int, number: int, now: int) -> None:
        """A need's expert is there."""
        record = self.record
        row = self._awaited.pop(key)
        self._arrivals.append((row, now))
        if self._wait_all:
            for group in self._groups:
                group.awaited.discard(key)
            if self._groups[0].awaited:
                return
        if now > self._free_ns:
            record.idle_start_ns.append(self._free_ns)
            record.idle_end_ns.append(now)
            record.idle_cause.append(number)
        if self._wait_all:
            self._compute_groups(now)
        else:
            self._compute(key, row, now)
        if self._releases:
            self._set_release()
        if not self._awaited and not self.controller.waiting:
            self._end_site(now)
