"""The simulator: a SimPy driver around the controller.

SimPy is the clock and the event heap; the links (``sim.links``) and the compute stream are callback state machines with
events that are armed again and again. One heap event a gate, one a hop of a transfer, one a need of a union served in
waves, one where a sequence ends or begins; everything else is arithmetic. Equal times are ordered by the contract
(docs/design.md section 3) through the priority of ``Environment.schedule``.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence

from sim.alarms import ARRIVAL, CPU_DONE, GATE, NEED_DONE, PREDICTION, SEQUENCE_END, Alarm, Clock
from sim.controller import Controller
from sim.costs import ContendedDurations, Durations
from sim.links import SERVICE, Link, make_link
from sim.loader import Transfer
from sim.record import CPU_RESULT, HOST_TIME, NO_REQUEST, NotedRecord, Record
from sim.types import SKIP, Outcome, Step
from sim.workload import Workload

CPU, NOT_COMPUTED = int(Outcome.CPU), int(Outcome.SKIP)


class Group:
    """Needs that are computed together, in need order, once nothing of them is awaited any more."""

    __slots__ = ("awaited", "keys", "rows")

    def __init__(self, keys: Sequence[int], rows: Sequence[int], awaited: set[int]) -> None:
        self.keys = keys
        self.rows = rows  # of their lookups
        self.awaited = awaited


def simulate(controller: Controller, workload: Workload, durations: Durations,
             progress: Callable[[int], None] | None = None) -> Record:  # fmt: skip
    """Run the workload to its end. ``progress`` is told the number of steps done, about every hundredth."""
    env = Clock()
    kind = Engine
    if isinstance(durations, ContendedDurations) and durations.contention is not None:
        # It is made of this one.
        from sim.contended import ContendedEngine

        kind = ContendedEngine
    engine = kind(env, controller, workload, durations, progress)
    # The run makes no reference cycles, and its growing columns would be scanned again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        env.run(until=engine.done)
        controller.finish()
    finally:
        if collecting:
            gc.enable()
    return engine.record


class Engine:
    """The links, the compute stream and the CPU around one controller."""

    # What the common gate uses. Of what is left there must be less than 30: a larger dict makes each call slower.
    __slots__ = (
        "__dict__", "_arrivals", "_awaited", "_cuttable", "_end_ns", "_free_ns", "_gate", "_gate_alarm", "_gates",
        "_groups", "_idles", "_is_as_ready", "_is_common_step", "_is_simple_step", "_later_lookups", "_lead_ns",
        "_links", "_one_token_ns", "_only_link", "_polled", "_put", "_releases", "_row", "_schedule", "_site", "_step",
        "_streams_dense", "_sync_ns", "_units", "_wake_ns", "_walk", "controller", "env", "other_calls",
    )  # fmt: skip

    def __init__(self, env: Clock, controller: Controller, workload: Workload, durations: Durations,
                 progress: Callable[[int], None] | None = None) -> None:  # fmt: skip
        self.env, self.controller, self.workload, self.durations = env, controller, workload, durations
        self._put = env.put
        record = NotedRecord()
        self.record: Record = record
        self._notes = record.notes
        self.services: list[int] = []
        self.other_calls = self._notes.other_ns
        self.awaited: dict[int, int] = {}  # key -> row of its lookup
        self.done = env.event()
        self._progress, self._stride = progress, max(1, len(workload.steps) // 100)
        self._wait = controller.loader.wait
        self._is_as_ready = self._wait == "as_ready"
        geometry, host = controller.geometry, durations.host
        self._units = geometry.units
        self._sync_ns, self._issue_ns, self._wake_ns, self._post_ns = (
            host.sync_ns, host.issue_ns, host.wake_ns, host.post_ns)  # fmt: skip
        self._reroutes = controller.selector.reroutes
        # By key // units, which is precision * sites + site.
        self._one_token_ns = [durations.expert_ns(p, site, 1)
                              for p in range(len(geometry.precisions)) for site in range(geometry.sites)]  # fmt: skip
        # A constant selector never skips: what waits for nothing is all there, and computed one after another; and the
        # needs of one row always fit.
        loader = controller.loader
        self._is_simple = (
            len(geometry.precisions) == 1 and controller.selector.constant is not None
            and controller.placement.constant is not None and not any(vars(host).values())
            and not controller.predicts_later and not loader.dense_slots and not loader.staging_slots
            and loader.replay_unit == "union"
        )  # fmt: skip
        self._links: Sequence[Link] = self._make_links()
        # What every call asks of its links, in one piece.
        self._polled = [(link.index, link.room, link.issued, *link.queues, link) for link in self._links]
        self._cuttable = [(link, link.queues[0], link.room > 1) for link in self._links if link.is_cuttable]
        self._only_link = self._links[0] if len(self._links) == 1 and not self._cuttable else None
        self._end_ns = self.record.end_ns
        self._prepare_stream()

    def _make_links(self) -> Sequence[Link]:
        return [make_link(self, index) for index in range(self.controller.route.links)]

    def _prepare_stream(self) -> None:
        self._gate = self.workload.gate()
        self._schedule = self.workload.start()
        self._gate_alarm = Alarm(self.env, self._on_gate)
        self._end_alarm = Alarm(self.env, self._on_step_end)
        self._release_alarm = Alarm(self.env, self._on_need_done)
        self._cpu_alarm = Alarm(self.env, self._on_cpu_done)
        self._awaited = self.awaited
        self._groups: deque[Group] = deque()  # wait_all, in_order: in the order of their computation
        self._releases: deque[tuple[int, int]] = deque()  # waves: (end of a need's computation, key)
        self._release_is_set = False
        self._cpu: deque[tuple[int, int, int]] = deque()  # (end, key, row) of what the CPU computes
        self._cpu_free_ns = 0
        self._cpu_submissions = 0
        geometry, ahead = self.controller.geometry, self.controller.loader.dense_slots
        self._streams_dense = ahead > 0
        # Dense blocks that are there, where they are streamed; and the one that the stream waits for.
        self._blocks = {geometry.key(0, site, geometry.experts) for site in range(ahead)}
        self._awaited_block = -1
        self._free_ns = 0  # when the compute stream is through with what it was given
        self._row = 0  # lookups so far
        # Flat: one append a gate, or an idle interval.
        self._gates: list[int] = []  # time, first row
        self._idles: list[int] = []  # from, to, cause
        self._later_lookups, self._arrivals = self._notes.later, self._notes.arrivals
        self._step: Step | None = None
        self._go_on(0)

    # ---- calls of the controller

    def settle(self, now: int, but: int = -1, but_always: bool = True) -> None:
        """After a call: poll each link that has room, and ask chunked ones whether to give way.

        Where a prefetch is given up on the way, a link may have waited for what it held: all are polled again. ``but``
        is the link that the call was about; unless it has issued something (``but_always``) it, too, is polled then.
        """
        if self._only_link is not None and but < 0:
            self._only_link.fill(now)
            return
        controller, given_up = self.controller, -1
        while given_up < controller.given_up:
            given_up = controller.given_up
            for index, room, issued, demands, prefetches, link in self._polled:
                if (demands or prefetches) and len(issued) < room and index != but:
                    link.fill(now)
            if not but_always:
                but = -1
        for link, demands, issues_ahead in self._cuttable:
            if demands or link.cut_at or issues_ahead:
                link.consider_cut(now)

    def _idle(self, until_ns: int, cause: int) -> None:
        """The compute stream has nothing to do from when it was free until then."""
        self._idles += (self._free_ns, until_ns, cause)
        self._free_ns = until_ns

    def _wake(self, now: int, cause: int) -> None:
        """Something has come that the stream stood idle for, if it did."""
        if now > self._free_ns:
            self._idle(now, cause)
            if self._wake_ns:
                self._idle(now + self._wake_ns, HOST_TIME)

    # ---- steps and sequences

    def _go_on(self, now: int) -> None:
        """The stream is free for the next step, if there is one and its requests have come."""
        following = self._schedule.next(now)
        if following is None:
            self._close(now)
            self.done.succeed()
        elif isinstance(following, int):
            alarm = Alarm(self.env, lambda alarm: self._on_request(following, alarm.at_ns))
            alarm.set(following + self._wake_ns, ARRIVAL)
        else:
            self._begin_step(following, now)

    def _on_request(self, arrival_ns: int, now: int) -> None:
        """The stream stood idle until a request arrived, and is awake."""
        self._wake(arrival_ns, NO_REQUEST)
        self._go_on(now)

    def _begin_step(self, step: Step, now: int) -> None:
        """Called when the stream is free; the first gate of the step follows after its dense work."""
        self._step = step
        self.record.step_start_ns.append(self._free_ns)
        for sequence in step.begins:
            self.controller.begin_sequence(sequence)
            self.other_calls.append(now)
            self.settle(now)
        self._gate.open(step)
        self._is_simple_step = self._is_simple and step.rows == 1
        self._is_common_step = self._is_simple_step and self._is_as_ready
        dense_ns = self.durations.dense_ns(step)
        self._walk = iter([(site, dense_ns[site] + self._sync_ns) for site in step.sites])
        self._site, self._lead_ns = next(self._walk)
        self._begin_site()

    def _begin_site(self) -> None:
        """The dense work before the gate, once its block is there."""
        if not self._streams_dense or self._block_is_there():
            self._gate_alarm.set(self._free_ns + self._lead_ns, GATE)

    def _block_is_there(self) -> bool:
        geometry = self.controller.geometry
        key = geometry.key(0, self._site, geometry.experts)
        if key in self._blocks:
            return True
        self._awaited_block = key
        return False

    def _pass_on(self, free_ns: int, now: int) -> None:
        """``_end_site`` of the common gate, and what follows, in one piece: this runs at every gate."""
        self._end_ns.append(free_ns)
        for site, lead_ns in self._walk:
            self._site, alarm, put = site, self._gate_alarm, self._put
            alarm.at_ns = at_ns = free_ns + lead_ns
            put((at_ns, GATE, 0, alarm))  # there is but one: it needs no number
            return
        self._begin_tail(now)

    def _end_site(self, now: int) -> None:
        """Every need of the site is computed or its end is known."""
        if self._post_ns:
            self._idle(self._free_ns + self._post_ns, HOST_TIME)
        self._end_ns.append(self._free_ns)
        for site, lead_ns in self._walk:
            self._site, self._lead_ns = site, lead_ns
            self._begin_site()
            return
        self._begin_tail(now)

    def _begin_tail(self, now: int) -> None:
        """What the step does after its last site."""
        assert self._step is not None
        self._free_ns += self.durations.tail_ns(self._step)
        self._end_step(now)

    def _end_step(self, now: int) -> None:
        """The step's tail ends when the stream is free."""
        step, end = self._step, self._free_ns
        assert step is not None
        self.record.step_end_ns.append(end)
        if self._progress and step.index % self._stride == 0:
            self._progress(step.index + 1)
        if not step.ends:
            following = self._schedule.next(end)
            assert isinstance(following, Step)  # what has not ended goes on
            if not following.begins:
                self._begin_step(following, now)
                return
            self._following = following
        self._end_alarm.set(end, SEQUENCE_END)

    def _on_step_end(self, alarm: Alarm) -> None:
        now, step = alarm.at_ns, self._step
        assert step is not None
        for sequence in step.ends:
            self.controller.end_sequence(sequence)
            self.other_calls.append(now)
            self.settle(now)
        if step.ends:
            self._go_on(now)
        else:
            self._begin_step(self._following, now)

    def _close(self, now: int) -> None:
        """The run is over; what is still on a link is cut."""
        record, notes, services = self.record, self._notes, self.services
        (record.service_number, record.service_link, record.service_engine, record.service_urgent,
         record.service_start_ns, record.service_bytes) = (services[i::SERVICE] for i in range(SERVICE))  # fmt: skip
        record.makespan_ns = now
        record.gate_ns, notes.first_rows = self._gates[::2], self._gates[1::2]
        record.idle_start_ns, record.idle_end_ns, record.idle_cause = (self._idles[i::3] for i in range(3))
        notes.gate_calls, notes.lookups = self.controller.gate_calls, self._row

    # ---- the compute stream

    def _on_gate(self, alarm: Alarm) -> None:
        now = alarm.at_ns
        controller, gate = self.controller, self._gate
        gate.visit(self._site)
        first = self._row
        gates = self._gates
        gates.append(now)
        gates.append(first)
        outcomes, waits = controller.gate(gate)
        count = len(outcomes)
        self._row = first + count
        if self._is_simple_step and (waits is None or self._is_as_ready):
            # The common gate: one row, one precision, nothing but loads: what is there is computed at once.
            if waits is not None:
                count -= len(waits)
                for key in waits:
                    self._awaited[key] = first + controller.admitted.index(key)
            free = self._free_ns = now + count * self._one_token_ns[self._site]
            link = self._only_link
            if link is None:
                self.settle(now)
            elif len(link.issued) < link.room:
                link.fill(now)
            if waits is None:
                self._pass_on(free, now)
            return
        self._enter_gate(now)
        self._take(outcomes, waits, first, now)
        self._end_site_if_done(now)

    def _enter_gate(self, now: int) -> None:
        """Host time before and after the gate, and what it starts besides its needs."""
        self._free_ns = now - self._sync_ns
        if self._sync_ns:
            self._idle(now, HOST_TIME)
        if self._issue_ns:
            self._idle(now + self._issue_ns, HOST_TIME)
        if self._streams_dense:
            geometry = self.controller.geometry
            self._blocks.remove(geometry.key(0, self._site, geometry.experts))
        if self.controller.predicts_later:
            tick = self._gate.tick
            alarm = Alarm(self.env, lambda alarm: self._on_prediction(tick, alarm.at_ns))
            alarm.set(now + self.durations.prediction_ns, PREDICTION + tick)

    def _on_prediction(self, tick: int, now: int) -> None:
        self.other_calls.append(now)
        self.controller.prediction_ready(tick)
        self.settle(now)

    def _take(self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int) -> None:
        """Set to work what an admission found (its first lookup is ``row``), and poll."""
        left_out = self._line_up(outcomes, waits, row, now)
        self.settle(now)
        for key in left_out:
            # What the placement leaves out is over at once; others may wait for its place.
            if self.controller.waiting:
                self._release(key, now)

    def _line_up(self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int) -> list[int]:
        """Give the needs of an admission to the stream and the CPU; the keys that are not computed at all."""
        awaited = self._awaited
        waits = waits or {}
        keys: list[int] = []
        rows: list[int] = []
        left_out: list[int] = []
        for key, outcome in zip(self.controller.admitted, outcomes, strict=True):
            if outcome == CPU:
                self._submit(key, row, now)
            elif key == SKIP:
                pass
            elif outcome != NOT_COMPUTED:
                keys.append(key)
                rows.append(row)
                if key in waits:
                    awaited[key] = row
            else:
                left_out.append(key)
            row += 1
        if self._is_as_ready:
            for key, of in zip(keys, rows, strict=True):
                if key not in waits:
                    self._compute(key, of)
        elif self._wait == "wait_all":
            self._groups.append(Group(keys, rows, set(waits)))
        else:
            self._groups += [Group((key,), (of,), {key} & waits.keys()) for key, of in zip(keys, rows, strict=True)]
        self._compute_groups()
        if self._releases:
            self._set_release(now)
        return left_out

    def _compute_groups(self) -> None:
        """Groups are computed in order, so a complete one may wait for the one before it."""
        while self._groups and not self._groups[0].awaited:
            group = self._groups.popleft()
            for key, row in zip(group.keys, group.rows, strict=True):
                self._compute(key, row)

    def _compute(self, key: int, row: int) -> None:
        tokens, index = self._tokens(row), key // self._units
        if tokens == 1:
            self._free_ns += self._one_token_ns[index]
        else:
            precision, site = divmod(index, self.controller.geometry.sites)
            self._free_ns += self.durations.expert_ns(precision, site, tokens)
        if self.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _tokens(self, row: int) -> int:
        """For how many rows of the current gate the need of this lookup is computed."""
        if self._reroutes:
            return self.controller.lookup_tokens[row]
        return self._gate.tokens[row - self._gates[-1]]

    def _set_release(self, now: int) -> None:
        if not self._release_is_set:
            self._release_is_set = True
            self._release_alarm.set(self._releases[0][0], NEED_DONE)

    def _on_need_done(self, alarm: Alarm) -> None:
        now = alarm.at_ns
        self._release_is_set = False
        # A result of the CPU may have let the last needs in since the alarm was set.
        if self._releases and self._releases[0][0] == now:
            self._release(self._releases.popleft()[1], now)
            self._end_site_if_done(now)
        elif self._releases:
            self._set_release(now)

    def _release(self, key: int, now: int) -> None:
        """A need of a union served in waves has been computed: let the next ones in."""
        controller = self.controller
        self.other_calls.append(now)
        outcomes, waits = controller.need_done(key)
        if not controller.waiting:
            self._releases.clear()
        row = self._row
        self._row += len(outcomes)
        self._later_lookups.append((row, self._row, now))
        self._take(outcomes, waits, row, now)

    def _end_site_if_done(self, now: int) -> None:
        if not (self._awaited or self._cpu or self.controller.waiting):
            self._end_site(now)

    # ---- the CPU

    def _submit(self, key: int, row: int, now: int) -> None:
        """Have a need computed on the CPU, after those it has been given before."""
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        duration = self.durations.cpu_ns(precision, site, self._tokens(row))
        self._cpu_free_ns = max(now, self._cpu_free_ns) + duration
        self._cpu.append((self._cpu_free_ns, key, row))
        if len(self._cpu) == 1:
            self._set_cpu(now)

    def _set_cpu(self, now: int) -> None:
        self._cpu_submissions += 1
        self._cpu_alarm.set(self._cpu[0][0], CPU_DONE + self._cpu_submissions)

    def _on_cpu_done(self, alarm: Alarm) -> None:
        now, controller = alarm.at_ns, self.controller
        _, key, row = self._cpu.popleft()
        if self._cpu:
            self._set_cpu(now)
        self._arrivals.append((row, now))
        self.other_calls.append(now)
        controller.cpu_done(key)
        if controller.waiting:
            self._wake(now, CPU_RESULT)
            self._release(key, now)
        else:
            self.settle(now)
            if not (self._awaited or self._cpu):
                self._wake(now, CPU_RESULT)
        self._end_site_if_done(now)

    # ---- arrivals

    def arrive(self, key: int, number: int, now: int) -> None:
        """A key has arrived on the device; perhaps a need, or the stream, waits for it."""
        if key not in self._awaited:
            if self._streams_dense and self.controller.issued[number].dense:
                self._take_block(key, number, now)
            return
        row = self._awaited.pop(key)
        self._arrivals.append((row, now))
        if self._is_common_step:
            free = self._free_ns
            if now > free:
                self._idles += (free, now, number)
                free = now
            free = self._free_ns = free + self._one_token_ns[self._site]
            if not self._awaited:
                self._pass_on(free, now)
            return
        if now > self._free_ns or self._groups:
            for group in self._groups:
                group.awaited.discard(key)
            if self._groups and self._groups[0].awaited:
                return
            self._wake(now, number)
        if not self._is_as_ready:
            self._compute_groups()
        else:
            self._compute(key, row)
        if self._releases:
            self._set_release(now)
        self._end_site_if_done(now)

    def _take_block(self, key: int, number: int, now: int) -> None:
        """A dense block has arrived; perhaps the stream waits for it."""
        self._blocks.add(key)
        if key == self._awaited_block:
            self._awaited_block = -1
            self._wake(now, number)
            self._begin_site()
