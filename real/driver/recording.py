"""Records a run on a device (calls, times, computations), and tells how long each part of it took.

A length counts from the earliest instant at which the work could begin to its end. So every gap of
the host is part of what comes after it, and time spent waiting is no part of a length. A driver
without host time of its own that takes these lengths gets the same run (contract C66).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from real.driver.device import Device
from real.driver.loop import Driver
from sim.core.controller import Controller
from sim.machine.durations import Durations
from sim.results.calls import Call, RecordedController, RecordedWorkload
from sim.values.record import Record
from sim.values.types import SKIP, Outcome, Step
from sim.workload.steps import Workload

NEVER_NS = 1 << 60
"""The length of what does not end in a run."""
NOT_LOADED = (Outcome.CPU, Outcome.SKIP)
Service = tuple[int, int, int]
"""A service's name: the transfer's number, the link, and how many services it had there before."""


@dataclass(frozen=True)
class Recording:
    """A run on a device, written down.

    ``computed``: key, start and end in ns of all that the compute stream did.
    """

    calls: list[Call]
    record: Record
    asked_ns: list[int]
    steps: list[Step]
    computed: list[tuple[int, int, int]]


def record_run(
    controller: Controller, workload: Workload, durations: Durations, device: Device
) -> Recording:
    """Drive a run on ``device`` and record it."""
    recorded, steps = RecordedController(controller), RecordedWorkload(workload)
    driver = Driver(cast(Controller, recorded), cast(Workload, steps), durations, device)
    record = driver.drive()
    return Recording(
        recorded.log, record, steps.asked_ns, list(workload.steps), driver.stream.computed
    )


@dataclass
class Lengths:
    """How long everything in a recorded run took, in ns. What had not ended at its end is left out.

    - ``dense``: by step, and in the step by site in its order. ``tail``: by step.
    - ``compute``: by lookup. ``cpu``: in order of submission. ``prediction``: by gate.
    - ``service``, ``head``, ``cut``: by service; of a cut also the bytes that were through.
    - ``gate_ns``, ``begun_ns``: when gates were, and when services began.
    """

    makespan_ns: int
    gate_ns: Sequence[int]
    begun_ns: dict[Service, int] = field(default_factory=dict)
    dense: list[list[int]] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    compute: dict[int, int] = field(default_factory=dict)
    cpu: list[int] = field(default_factory=list)
    prediction: dict[int, int] = field(default_factory=dict)
    service: dict[Service, int] = field(default_factory=dict)
    head: dict[Service, int] = field(default_factory=dict)
    cut: dict[Service, tuple[int, int]] = field(default_factory=dict)

    def gap_ns(self, recording: Recording) -> int:
        """The part of the stream's lengths in which it computed nothing.

        That is the host's time, and delays that nothing accounts for.
        """
        lengths = sum(map(sum, self.dense)) + sum(self.compute.values()) + sum(self.tail)
        return lengths - sum(end_ns - start_ns for _, start_ns, end_ns in recording.computed)

    def if_missing(self, begun_ns: int, nominal_ns: int, late_ns: int) -> int:
        """The length of work that is not known to have ended.

        If the work was due at the run's end, or up to ``late_ns`` before it, it never ends. Else
        its length is nominal, for it should have ended.
        """
        return nominal_ns if begun_ns + nominal_ns + late_ns < self.makespan_ns else NEVER_NS


def lengths_of(recording: Recording, wait: str) -> Lengths:
    """The lengths of a recorded run; ``wait`` is the loader's switch of that name."""
    lengths = Lengths(recording.record.makespan_ns, recording.record.gate_ns)
    _measure_services(recording, lengths)
    _measure_stream(recording, lengths, _read_calls(recording, lengths, wait == "wait_all"))
    return lengths


def _measure_services(recording: Recording, lengths: Lengths) -> None:
    record = recording.record
    served: dict[tuple[int, int], list[tuple[Service, int]]] = {}
    columns = (
        record.service_number,
        record.service_link,
        record.service_start_ns,
        record.service_end_ns,
    )
    for number, link, start_ns, end_ns in zip(*columns, strict=True):
        times = served.setdefault((number, link), [])
        service = (number, link, len(times))
        times.append((service, start_ns))
        lengths.begun_ns[service] = start_ns
        if end_ns >= 0:
            lengths.service[service] = end_ns - start_ns
    for call, now in zip(recording.calls, record.call_ns, strict=True):
        if call.kind == "head_done":
            service, start_ns = served[call.argument, call.link][0]
            lengths.head[service] = now - start_ns
            # The head came before the end, however coarse the clock.
            if service in lengths.service:
                lengths.service[service] = max(lengths.service[service], now - start_ns + 1)
        elif call.kind == "chunk_done":
            service, start_ns = served[call.argument, call.link].pop(0)
            lengths.cut[service] = (call.moved_bytes, now - start_ns)
        elif call.kind == "transfer_done":
            served[call.argument, call.link].pop(0)


@dataclass
class Gate:
    """What the calls say of one gate, which was at ``at_ns``.

    - ``waiting``: (when, how many needs waited for admission then).
    - ``row``, ``ready_ns``, ``done_ns``: by key of a loaded need, its lookup, since when it could
      be computed, and when the controller was told that it is over.
    - ``result_ns``: when the last CPU result came.
    """

    at_ns: int
    waiting: list[tuple[int, int]] = field(default_factory=list)
    row: dict[int, int] = field(default_factory=dict)
    ready_ns: dict[int, int] = field(default_factory=dict)
    done_ns: dict[int, int] = field(default_factory=dict)
    result_ns: int = 0

    def end_ns(self, key: int, computed_ns: int) -> int:
        """When the stream was through with a need, which it had computed at ``computed_ns``.

        If needs waited then, the controller is told that the need is over, and the call's time
        counts. There is no such call if a CPU result has let all waiting needs in meanwhile: then
        the time of that admission counts.
        """
        if key in self.done_ns:
            return self.done_ns[key]
        if [count for at_ns, count in self.waiting if at_ns <= computed_ns][-1] == 0:
            return computed_ns
        return next(at_ns for at_ns, count in self.waiting if at_ns > computed_ns and count == 0)


def _read_calls(recording: Recording, lengths: Lengths, together: bool) -> list[Gate]:
    """The gates of a run; also measures the CPU's and the predictor's lengths.

    ``together``: as for ``wait_all``, where needs are ready when the last of them is.
    """
    gates: list[Gate] = []
    submitted_ns: list[int] = []
    row = result_ns = 0
    for call, now in zip(recording.calls, recording.record.call_ns, strict=True):
        if call.kind == "gate":
            gates.append(Gate(now))
        elif call.kind == "need_done":
            gates[-1].done_ns[call.argument] = now
        elif call.kind == "cpu_done":
            lengths.cpu.append(now - max(submitted_ns[len(lengths.cpu)], result_ns))
            gates[-1].result_ns = result_ns = now
        elif call.kind == "prediction_ready":
            lengths.prediction[call.argument] = now - gates[call.argument].at_ns
        if call.kind in ("gate", "need_done"):
            gates[-1].waiting.append((now, call.waiting))
        admitted = [
            key
            for key, outcome in zip(call.keys, call.outcomes, strict=True)
            if key != SKIP and outcome not in NOT_LOADED
        ]
        submitted_ns += [now] * call.outcomes.count(Outcome.CPU)
        for key in call.keys:
            if key in admitted:
                gates[-1].row[key], gates[-1].ready_ns[key] = row, recording.record.ready_ns[row]
            row += 1
        if together and admitted:
            last_ns = max(gates[-1].ready_ns[key] for key in admitted)
            gates[-1].ready_ns |= dict.fromkeys(admitted, last_ns)
    return gates


def _measure_stream(recording: Recording, lengths: Lengths, gates: list[Gate]) -> None:
    """Measure what the main thread computed: by site its dense block and needs; then the tail."""
    record, computed = recording.record, iter(recording.computed)
    came_ns: dict[int, list[int]] = {}
    for call, now in zip(recording.calls, record.call_ns, strict=True):
        if call.kind == "transfer_done":
            came_ns.setdefault(call.arrived, []).append(now)
    tick = 0
    for step in recording.steps:
        free_ns = record.step_start_ns[step.index]
        lengths.dense.append([])
        for _ in step.sites:
            gate = gates[tick]
            tick += 1
            block, _, _ = next(computed)
            came = came_ns.get(block, [])
            there_ns = (
                came[bisect_right(came, gate.at_ns) - 1] if came and came[0] <= gate.at_ns else 0
            )
            lengths.dense[-1].append(gate.at_ns - max(free_ns, there_ns))
            free_ns = gate.at_ns
            for _ in gate.row:
                key, _, computed_ns = next(computed)
                end_ns = gate.end_ns(key, computed_ns)
                lengths.compute[gate.row[key]] = end_ns - max(free_ns, gate.ready_ns[key])
                free_ns = end_ns
            free_ns = max(free_ns, gate.result_ns)
        next(computed)
        lengths.tail.append(record.step_end_ns[step.index] - free_ns)
