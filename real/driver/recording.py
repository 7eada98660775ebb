"""A run written down whole: calls, times, and what the main thread did; and how long everything in
it took.

Durations are counted as a driver with no host time of its own would have to take them to get the
same run: from the earliest instant at which something could begin to its end, so that every gap of
the host is part of what comes after it (contract C66). What waited is not lengthened by
its wait.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, cast

from real.driver.device import Device
from real.driver.loop import drive
from sim.core.controller import Controller
from sim.machine.costs import Durations
from sim.results.calls import Call, RecordedController, RecordedWorkload
from sim.values.record import Record
from sim.values.types import SKIP, Outcome, Step
from sim.workload.steps import Workload

NEVER_NS = 1 << 60
"""How long takes what does not end in a run."""
NOT_LOADED = (Outcome.CPU, Outcome.SKIP)
Service = tuple[int, int, int]
"""A transfer's number, the link, and how many services of it there came before."""


@dataclass(frozen=True)
class Recording:
    """A run on a device. ``computed``: key, start and end, in ns, of all that the main thread
    computed.
    """

    calls: list[Call]
    record: Record
    asked_ns: list[int]
    steps: list[Step]
    computed: list[tuple[int, int, int]]


class WatchedDevice:
    """The device it is given, with a list of what is computed on it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.computed: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """As the device does, and write down when it was done."""
        start_ns = self._device.now_ns()
        self._device.compute(key, rows, nominal_ns)
        self.computed.append((key, start_ns, self._device.now_ns()))


def record_run(
    controller: Controller, workload: Workload, durations: Durations, device: Device
) -> Recording:
    """Drive a run on ``device`` and write it down."""
    recorded, watched = RecordedController(controller), WatchedDevice(device)
    steps = RecordedWorkload(workload)
    record = drive(
        cast(Controller, recorded), cast(Workload, steps), durations, cast(Device, watched)
    )
    return Recording(recorded.log, record, steps.asked_ns, list(workload.steps), watched.computed)


@dataclass
class Lengths:
    """How long everything in a recorded run took, in ns.

    ``dense`` by step, of the sites in its order; ``compute`` by lookup; ``cpu`` in order of
    submission; ``prediction`` by gate; ``service``, ``head`` and ``cut`` (with the bytes that were
    through) by service. What had not ended when the run was over is left out; ``gate_ns`` and
    ``begun_ns`` say when gates were and services began.
    """

    makespan_ns: int
    gate_ns: list[int]
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
        """What of the stream's lengths it did not compute: the host's time, and delays that
        nothing accounts for.
        """
        lengths = sum(map(sum, self.dense)) + sum(self.compute.values()) + sum(self.tail)
        return lengths - sum(end_ns - start_ns for _, start_ns, end_ns in recording.computed)

    def if_missing(self, begun_ns: int, nominal_ns: int, late_ns: int) -> int:
        """How long takes what is not known to have ended: never, if it was due when the run was
        over or just before.

        Else its nominal time: it should have come.
        """
        return nominal_ns if begun_ns + nominal_ns + late_ns < self.makespan_ns else NEVER_NS


def lengths_of(recording: Recording, wait: str) -> Lengths:
    """How long everything took, for a loader that waits like ``wait``."""
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
            # It came before the end, however coarse the clock.
            if service in lengths.service:
                lengths.service[service] = max(lengths.service[service], now - start_ns + 1)
        elif call.kind == "chunk_done":
            service, start_ns = served[call.argument, call.link].pop(0)
            lengths.cut[service] = (call.moved_bytes, now - start_ns)
        elif call.kind == "transfer_done":
            served[call.argument, call.link].pop(0)


@dataclass
class Gate:
    """What the calls say of one gate: when it was, and by key the lookup of a loaded need, since
    when it could be computed, and when that was told to be over; when the last CPU result came; how
    many needs waited since when.
    """

    at_ns: int
    waiting: list[tuple[int, int]] = field(default_factory=list)
    row: dict[int, int] = field(default_factory=dict)
    ready_ns: dict[int, int] = field(default_factory=dict)
    done_ns: dict[int, int] = field(default_factory=dict)
    result_ns: int = 0

    def end_ns(self, key: int, computed_ns: int) -> int:
        """When the stream was through with a need: not before its end was told, if it was or would
        have been.

        It would have been, if a CPU result had not let in all that waited in the meantime.
        """
        if key in self.done_ns:
            return self.done_ns[key]
        if [count for at_ns, count in self.waiting if at_ns <= computed_ns][-1] == 0:
            return computed_ns
        return next(at_ns for at_ns, count in self.waiting if at_ns > computed_ns and count == 0)


def _read_calls(recording: Recording, lengths: Lengths, together: bool) -> list[Gate]:
    """The gates; on the way, how long the CPU and the predictor took. ``together``: as for
    ``wait_all``.
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
    """What the main thread computed, site by site: the dense block, the needs, and at a step's
    end the tail.
    """
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
