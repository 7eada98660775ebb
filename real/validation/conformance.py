"""Conformance in time: the simulator replays a recorded run, and must come out at the same time.

The recording brings the durations (`real.driver.recording`); rules, queues and the order of events
are the simulator's own. The simulator's next call may differ from the recorded one where both lie
within ``TIE_NS`` of each other in the recording. Threads decide such ties, and no simulator can
know how: the recorded order is forced, and counted. Any other difference is an error that names the
call.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isfunction
from typing import Any, cast

import numpy as np
import simpy

from real.driver.recording import NEVER_NS, Lengths, Recording, Service, lengths_of
from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import (
    ARRIVAL,
    CPU_DONE,
    GATE,
    LINKS,
    NEED_DONE,
    PREDICTION,
    SEQUENCE_END,
    TRANSFER_END,
    Alarm,
    Clock,
    Entry,
    from_outside,
)
from sim.engine.engine import Engine
from sim.engine.links import ChunkedLink, Link, Machine, SharedLink
from sim.engine.written import SERVICE, STARTED
from sim.machine.durations import Durations
from sim.results.calls import Call, RecordedController, RecordedWorkload
from sim.results.replay import Difference
from sim.values.record import Record
from sim.values.types import HostCosts, Step
from sim.workload.steps import Workload

TIE_NS = 200_000
LATENESS = 250
"""How many ties late a thread may be: work due closer to the run's end need not have ended."""
MAX_MAKESPAN_ERROR, MAX_TOKEN_ERROR, MAX_FORCED = 0.005, 0.01, 0.01
"""The largest errors of a replay.

They are those of the makespan, those of 95 % of the tokens' durations, and the share of calls whose
order is forced.
"""
CLASSES: dict[int, tuple[str, ...]] = {
    TRANSFER_END: ("transfer_done", "head_done", "chunk_done"),
    CPU_DONE: ("cpu_done",),
    NEED_DONE: ("need_done",),
    PREDICTION: ("prediction_ready",),
    SEQUENCE_END: ("end_sequence", "begin_sequence"),
    GATE: ("gate",),
    ARRIVAL: ("begin_sequence",),
}
"""By class of an event's priority: the calls that the event may begin with."""


class NonconformanceError(RuntimeError):
    """The simulator does something else than the recorded run did."""


@dataclass(frozen=True)
class Conformance:
    """How a replay came out. Times are in ns.

    ``token_error`` is the 95th percentile over the steps' durations. ``gap_ns`` is the time in
    which the recorded run's stream neither computed nor stood idle for something. That time is
    replayed like all other, so a driver that dawdles shows only here.
    """

    calls: int
    forced: int
    recorded_ns: int
    replayed_ns: int
    token_error: float
    gap_ns: int

    @property
    def makespan_error(self) -> float:
        return abs(self.replayed_ns - self.recorded_ns) / self.recorded_ns

    def check(self) -> None:
        """Raise NonconformanceError if an error is larger than it may be."""
        for what, value, most in (
            ("the makespan differs by", self.makespan_error, MAX_MAKESPAN_ERROR),
            (
                "the 95th percentile of the steps' durations differs by",
                self.token_error,
                MAX_TOKEN_ERROR,
            ),
            ("the order was forced in", self.forced / self.calls, MAX_FORCED),
        ):
            if value > most:
                raise NonconformanceError(
                    f"{what} {100 * value:.3g} %, but may by {100 * most:g} %: {self}"
                )


def conform(
    recording: Recording,
    controller: Controller,
    workload: Workload,
    durations: Durations,
    tie_ns: int = TIE_NS,
) -> Conformance:
    """Let the simulator replay a recorded run on a controller that has not been called yet.

    ``durations`` are the nominal ones. Raise NonconformanceError where the simulator's calls are
    not those of the recording, and ValueError in a compiled build, which takes no wrapped controller.
    """
    if not isfunction(Engine.settle):
        raise ValueError(
            "a replay wraps the controller, which compiled code does not allow: install the package"
            " without MOELAB_COMPILED=1"
        )
    lengths = lengths_of(recording, controller.loader.wait)
    order = RecordedOrder(recording, tie_ns)
    guided = GuidedController(controller, recording, order)
    replayed = cast(Workload, RecordedWorkload(workload, recording.asked_ns))
    engine = ReplayEngine(
        order,
        cast(Controller, guided),
        replayed,
        ReplayedDurations(durations, lengths, tie_ns),
        lengths,
        tie_ns,
    )
    engine.begin()
    order.run(until=engine.done)
    if len(guided.log) < len(recording.calls):
        raise NonconformanceError(str(Difference(recording.calls[len(guided.log)], None)))
    controller.finish()
    return Conformance(
        len(recording.calls),
        order.forced,
        recording.record.makespan_ns,
        engine.record.makespan_ns,
        _token_error(recording.record, engine.record),
        lengths.gap_ns(recording),
    )


def _token_error(recorded: Record, replayed: Record) -> float:
    spans = [
        np.array(record.step_end_ns) - np.array(record.step_start_ns)
        for record in (recorded, replayed)
    ]
    return float(np.percentile(np.abs(spans[1] - spans[0]) / np.maximum(spans[0], 1), 95))


class RecordedOrder(Clock):
    """A clock and event heap that takes the recorded run's next call first where it is a tie.

    An event that is held up happens later than it was set to: at the time of the one before it.
    """

    def __init__(self, recording: Recording, tie_ns: int) -> None:
        super().__init__()
        self._calls, self._call_ns, self._tie_ns = recording.calls, recording.record.call_ns, tie_ns
        self.num_made = 0
        """How many calls have been made; the recorded call of this number comes next."""
        self.forced = 0

    def run(self, until: simpy.Event) -> None:
        simpy.Environment.run(self, until)

    def step(self) -> None:
        """Take the next event: the first of the heap, or the one that makes the recorded call."""
        if not self._queue:
            raise simpy.core.EmptySchedule
        first = self._queue[0]
        if not self._takes(first) and self._is_tie(first) and self._take_recorded():
            return
        self._ring(heapq.heappop(self._queue))

    def _take_recorded(self) -> bool:
        """Take the event that makes the recorded next call, before its turn.

        Return False if there is none close enough.
        """
        found = min((event for event in self._queue if self._takes(event)), default=None)
        if found is None or found[0] > self.peek() + self._tie_ns:
            return False
        self._queue.remove(found)
        heapq.heapify(self._queue)
        self.forced += 1
        self._ring(found)
        return True

    @property
    def next_call(self) -> Call | None:
        return self._calls[self.num_made] if self.num_made < len(self._calls) else None

    def _ring(self, entry: Entry) -> None:
        time_ns, _, _, event = entry
        self._now = max(self._now, time_ns)
        for callback in event.callbacks:
            callback(self._now if isinstance(event, Alarm) else event)

    def _takes(self, entry: Entry) -> bool:
        """Whether an event makes the recorded next call, as far as its priority tells."""
        call = self.next_call
        return call is None or _may_make(entry[1], call)

    def _is_tie(self, entry: Entry) -> bool:
        """Whether an event's own call lies close to the next recorded one in the recording."""
        until_ns = self._call_ns[self.num_made] + self._tie_ns
        for index in range(self.num_made, len(self._calls)):
            if self._call_ns[index] > until_ns:
                return False
            if _may_make(entry[1], self._calls[index]):
                return True
        return False


def _may_make(priority: int, call: Call) -> bool:
    rank, number = priority >> 48 << 48, priority & ((1 << 48) - 1)
    if call.kind not in CLASSES.get(rank, ()):
        return False
    if rank == TRANSFER_END:
        return (call.argument, from_outside(call.link)) == divmod(number, LINKS)
    return rank != PREDICTION or call.argument == number


class GuidedController(RecordedController):
    """A controller whose calls and answers must be those of a recording."""

    def __init__(self, controller: Controller, recording: Recording, order: RecordedOrder) -> None:
        super().__init__(controller)
        self._recorded, self._order = recording.calls, order

    def _write(self, kind: str, argument: int, **answered: Any) -> None:
        super()._write(kind, argument, **answered)
        index = len(self.log) - 1
        recorded = self._recorded[index] if index < len(self._recorded) else None
        if recorded != self.log[-1]:
            raise NonconformanceError(str(Difference(recorded, self.log[-1])))
        self._order.num_made += 1


class ReplayedDurations:
    """The nominal durations, but a recording's where the engine asks in a known order."""

    def __init__(self, nominal: Durations, lengths: Lengths, tie_ns: int) -> None:
        self._nominal, self._lengths, self._late_ns = nominal, lengths, LATENESS * tie_ns
        self.host = HostCosts()
        self._cpu, self._ticks = iter(lengths.cpu), enumerate(lengths.gate_ns)

    @property
    def prediction_ns(self) -> int:
        """How long the next gate's prediction takes; the engine asks once a gate."""
        tick, gate_ns = next(self._ticks)
        missing_ns = self._lengths.if_missing(gate_ns, self._nominal.prediction_ns, self._late_ns)
        return self._lengths.prediction.get(tick, missing_ns)

    def dense_ns(self, step: Step) -> Sequence[int]:
        by_site = dict(zip(step.sites, self._lengths.dense[step.index], strict=True))
        return [by_site.get(site, 0) for site in range(step.sites[-1] + 1)]

    def tail_ns(self, step: Step) -> int:
        return self._lengths.tail[step.index]

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        return self._nominal.expert_ns(precision, site, tokens, rows)

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        """How long the next need takes on the CPU; the engine asks once a submission."""
        return next(self._cpu, NEVER_NS)

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._nominal.hop_ns(link, moved_bytes)

    def latency_ns(self, link: int) -> int:
        return self._nominal.latency_ns(link)


class ReplayEngine(Engine):
    """The simulator with a recording's durations: every computation has its own."""

    is_arithmetic = False

    def __init__(
        self,
        env: RecordedOrder,
        controller: Controller,
        workload: Workload,
        durations: Any,
        lengths: Lengths,
        tie_ns: int,
    ) -> None:
        self._lengths, self._tie_ns = lengths, tie_ns
        super().__init__(env, controller, workload, durations)
        self._only_link = None

    def _make_links(self) -> Sequence[Link]:
        return [
            make_link(self, link, self._lengths, self._tie_ns)
            for link in range(self.controller.route.links)
        ]

    def _compute(self, key: int, row: int) -> None:
        self._free_ns += self._lengths.compute.get(row, NEVER_NS)
        if self.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _on_need_done(self, now: int) -> None:
        self._release_is_set = False
        if self._releases and self._releases[0][0] <= now:
            self._release(self._releases.popleft()[1], now)
            self._end_site_if_done(now)
        elif self._releases:
            self._set_release()


class Measured(Link):
    """A link whose services take what they took in a recording.

    Each service has the link to itself here: what sharing cost it is in its recorded time.
    """

    lengths: Lengths
    tie_ns: int
    _current: Service = (-1, -1, -1)

    def _serve(self, transfer: Transfer, now: int, engine: int = 0) -> None:
        self._seen = vars(self).setdefault("_seen", {})
        nth = self._seen[transfer.number] = self._seen.get(transfer.number, -1) + 1
        self._current = (transfer.number, self.index, nth)
        super()._serve(transfer, now, engine)

    def service_ns(self, transfer: Transfer) -> int:
        found = self.lengths.service.get(self._current)
        return self._if_missing(self._nominal_ns(transfer)) if found is None else found

    def _nominal_ns(self, transfer: Transfer) -> int:
        nominal_ns = super().service_ns(transfer)
        # A link keeps the time of each size, but here every service has a time of its own.
        self._hop_ns.clear()
        return nominal_ns

    def _head_ns(self, transfer: Transfer) -> int:
        found, nominal_ns = self.lengths.head.get(self._current), super()._head_ns(transfer)
        if found is not None:
            return found
        if nominal_ns >= self._nominal_ns(transfer):
            return NEVER_NS
        return nominal_ns if self._current in self.lengths.service else self._if_missing(nominal_ns)

    def _if_missing(self, nominal_ns: int) -> int:
        begun_ns = self.lengths.begun_ns.get(self._current, 0)
        return self.lengths.if_missing(begun_ns, nominal_ns, LATENESS * self.tie_ns)


class MeasuredChunks(Measured, ChunkedLink):
    """A link whose services are cut where they were, if the simulator would cut them there, too."""

    def service_ns(self, transfer: Transfer) -> int:
        return NEVER_NS if self._current in self.lengths.cut else super().service_ns(transfer)

    def _ask_for_cut(self, transfer: Transfer, now: int) -> None:
        since_ns = self._services[self._service * SERVICE + STARTED]
        chunk = self._first_chunk(transfer, now - since_ns)
        if chunk is not None:
            self.cut_at, end_ns = chunk
            self._cut_service = self._service
            alarm = Alarm(self._env, partial(self._on_cut, transfer, self._service, self.cut_at))
            alarm.set(since_ns + end_ns, self._order(transfer))

    def _first_chunk(self, transfer: Transfer, elapsed_ns: int) -> tuple[int, int] | None:
        """The number and end of the first chunk that ends later, unless it is the last."""
        size, cut = self._chunk_bytes, self.lengths.cut.get(self._current)
        assert size is not None
        nominal_ns = [
            self._durations.hop_ns(self.index, end)
            for end in range(size, transfer.left_bytes, size)
        ]
        chunks = bisect_right(nominal_ns, elapsed_ns)
        if cut is not None and cut[0] // size <= chunks + 1 and cut[1] > elapsed_ns:
            return cut[0] // size, cut[1]
        if chunks == len(nominal_ns):
            return None
        # A loader is late now and then. By the time it came to the chunk's end the reason for a cut
        # may have gone.
        end_ns = nominal_ns[chunks] + (self.tie_ns if cut is None else 0)
        return (chunks + 1, end_ns) if end_ns < self.service_ns(transfer) else None


class MeasuredEngines(Measured, SharedLink):
    """Engines that share a link; what sharing cost their services is in the recorded times."""

    def __init__(self, machine: Machine, index: int) -> None:
        super().__init__(machine, index)
        self._alarmed: set[int] = set()

    def service_ns(self, transfer: Transfer) -> int:
        # All of the service counts as latency, which is not shared.
        self._latency_ns = self.lengths.service.get(self._current, NEVER_NS)
        return self._latency_ns

    def _set_alarm(self, now: int) -> None:
        """Give each service an alarm of its own, since none changes when another ends."""
        for engine in self._working:
            if engine.service not in self._alarmed:
                self._alarmed.add(engine.service)
                order = self._order(engine.transfer)
                Alarm(self._env, partial(self._on_change, order)).set(
                    engine.latency_until_ns, order
                )


def make_link(engine: ReplayEngine, index: int, lengths: Lengths, tie_ns: int) -> Measured:
    """The kind of link for its number of engines and for chunks or none."""
    controller = engine.controller
    kind = Measured
    if controller.route.engines[index] > 1:
        kind = MeasuredEngines
    elif controller.loader.chunk_bytes is not None and not controller.route.head_bytes[index]:
        kind = MeasuredChunks
    link = kind(engine, index)
    link.lengths, link.tie_ns = lengths, tie_ns
    return link
