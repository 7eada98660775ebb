"""The engine: walks through steps, sites and gates, and connects links, stream and controller.

``sim.engine.simulate`` says how a run goes as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import ARRIVAL, GATE, PREDICTION, SEQUENCE_END, Alarm, Clock
from sim.engine.lanes import make_link
from sim.engine.links import Link
from sim.engine.stream import Line, Stream
from sim.machine.durations import Durations
from sim.values.record import HOST_TIME, NO_REQUEST
from sim.values.types import Found, Step
from sim.workload.steps import Workload

PACKED_LOOKUPS = 1500
"""After so many lookups long columns are packed: soon enough for their numbers to be in the processor's cache."""


class Engine(Stream):
    """One run around one controller: its links, and its walk through steps and gates.

    ``progress`` is told the number of steps done, about every hundredth.
    """

    is_arithmetic: ClassVar[bool] = True
    """Whether a need takes exactly the time that ``durations`` say. If so, simple gates add the
    times up and never call ``_compute``.
    """

    __slots__ = (
        "_awaited_site",
        "_awaits_blocks",
        "_cuttable",
        "_due",
        "_end_ns",
        "_gate_alarm",
        "_is_one_variant",
        "_is_simple_gate",
        "_is_simple_step",
        "_key_ns",
        "_kv_links",
        "_lacking",
        "_lead_ns",
        "_links",
        "_only_link",
        "_polled",
        "_put",
        "_schedule",
        "_site",
        "_step",
        "_streams_dense",
        "_sync_ns",
        "_walk",
    )

    def __init__(
        self,
        env: Clock,
        controller: Controller,
        workload: Workload,
        durations: Durations,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(env, controller, workload, durations)
        self.workload = workload
        self._put, self._due = env.put, env.due
        self.done = env.event()
        self._progress, self._stride = progress, max(1, len(workload.steps) // 100)
        host = durations.host
        self._sync_ns, self._issue_ns, self._post_ns = host.sync_ns, host.issue_ns, host.post_ns
        self._books_loads = bool(host.load_ns or host.load_bytes_per_s)
        # See ``sim.core.simple``: what an engine adds to it.
        has_host_time = any(vars(host).values())
        self._is_simple = (
            controller.simple.needs
            and self.is_arithmetic
            and not has_host_time
            and self.pages is None
            and (self._is_as_ready or self._is_wait_all)
        )
        self._is_one_variant = controller.simple.gates
        # The time of a key's expert for one row; SKIP, which is -1, finds the 0 at the end.
        times = [time_ns for time_ns in self._one_token_ns for _ in range(self._units)]
        self._key_ns = [*times, 0]
        self._links: Sequence[Link] = self._make_links()
        # What is asked of every link after each call. Unpacking a tuple is faster than attributes.
        self._polled = [
            (link.index, link.room, link.issued, *link.queues, link) for link in self._links
        ]
        self._cuttable = [
            (link, link.queues[0], link.room > 1) for link in self._links if link.is_cuttable
        ]
        self._only_link = self._links[0] if len(self._links) == 1 and not self._cuttable else None
        self._end_ns = self.written.rows("end_ns")
        self._next_pack = PACKED_LOOKUPS  # at so many lookups columns are packed
        self._prepare_steps()

    def _make_links(self) -> Sequence[Link]:
        return [make_link(self, index) for index in range(self.controller.route.links)]

    def _prepare_steps(self) -> None:
        self._schedule = self.workload.start()
        self._gate_alarm = Alarm(self.env, self._on_gate)
        self._end_alarm = Alarm(self.env, self._on_step_end)
        geometry, ahead = self.controller.geometry, self.controller.loader.dense_slots
        self._streams_dense = ahead > 0
        # Where a site's dense work needs a dense block, or keys and values, over a link: by site how
        # many of these have not come, and the site that the stream waits at (-1: none).
        self._awaits_blocks = self._streams_dense or bool(self.controller.kv_bytes)
        self._lacking = [int(0 < ahead <= site) for site in range(geometry.sites)]
        self._awaited_site = -1
        route = self.controller.route
        self._kv_links = route.out_of_ram, route.links - 1
        self._step: Step | None = None

    def keep_packed(self) -> None:
        """Keep long columns as arrays (`sim.values.packing`), the controller's, too."""
        self.written.keep_packed()
        for link in self._links:
            link.note_services()

    def _pack(self) -> None:
        self._next_pack = self._row + PACKED_LOOKUPS
        if self.written.is_packed:
            self.written.pack()
            self.controller.pack()

    def begin(self) -> None:
        """Begin the first step, at time 0; the clock does the rest."""
        self._go_on(0)

    # ---- calls of the controller

    def settle(self, now: int, but: int = -1, but_always: bool = True) -> None:
        """After a call: poll each link that has room, and ask chunked links whether to give way.

        ``but``: the link that the call was about, which is left out; -1: none. Where a prefetch is
        given up on the way, another link may have waited for what the prefetch held: then all are
        polled again. This includes the link ``but``, unless it has issued something in the call
        (``but_always``).
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

    # ---- steps and sequences

    def _go_on(self, now: int) -> None:
        """The stream is free: begin the next step, wait for its requests, or end the run."""
        following = self._schedule.next(now)
        if following is None:
            self._close(now)
            self.done.succeed()
        elif isinstance(following, int):
            alarm = Alarm(self.env, lambda now: self._on_request(following, now))
            alarm.set(following + self._waking_ns(following - self._free_ns), ARRIVAL)
        else:
            self._begin_step(following, now)

    def _on_request(self, arrival_ns: int, now: int) -> None:
        """A request has come that the stream stood idle for, and the stream is awake."""
        self._wake(arrival_ns, NO_REQUEST)
        self._go_on(now)

    @property
    def where(self) -> tuple[int, int]:
        """The step and the site of the last gate."""
        gate = self._gate
        return (gate.step, gate.site) if gate.tick >= 0 else (0, 0)

    def _begin_step(self, step: Step, now: int) -> None:
        """Begin a step when the stream is free. Its first gate follows after its dense work."""
        self._step = step
        if step.rows != self._step_rows:
            self._step_rows, self._one_token_ns = step.rows, self._one_token(step.rows)
        self.record.step_start_ns.append(self._free_ns)
        for sequence in step.begins:
            self.controller.begin_sequence(sequence)
            self.other_calls.append(now)
            self.settle(now)
        brings = step.found is not None and self._bring(step.found, now)
        self._gate.open(step)
        self._is_simple_step = self._is_simple and step.rows == 1 and not brings
        self._is_simple_gate = self._is_simple_step
        dense_ns = self.durations.dense_ns(step)
        self._walk = iter([(site, dense_ns[site] + self._sync_ns) for site in step.sites])
        self._site, self._lead_ns = next(self._walk)
        self._begin_site()

    def _bring(self, found: Found, now: int) -> bool:
        """Let keys and values come that are found in RAM or on disk: whether there are any."""
        for link, tokens in zip(self._kv_links, (found.ram, found.disk), strict=True):
            if tokens:
                self._lacking = [count + 1 for count in self._lacking]
                self.controller.bring(link, tokens)
                self.other_calls.append(now)
                self.settle(now)
        return found.ram + found.disk > 0

    def _begin_site(self) -> None:
        """Begin the dense work before a gate, once what the site needs for it is there."""
        if not self._awaits_blocks or self._has_blocks():
            self._gate_alarm.set(self._free_ns + self._lead_ns, GATE)

    def _has_blocks(self) -> bool:
        if not self._lacking[self._site]:
            return True
        self._awaited_site = self._site
        return False

    def _pass_on(self, free_ns: int, now: int) -> int:
        """``_end_site`` and ``_begin_site`` in one piece, for simple gates, where this runs every
        time: when the step's next gate is, or -1 if the step has no other.
        """
        self._end_ns.append(free_ns)
        for site, lead_ns in self._walk:
            self._site = site
            return free_ns + lead_ns
        self._begin_tail(now)
        return -1

    def _end_site(self, now: int) -> None:
        """Every need of the site has been computed, or the end of its computation is known."""
        if self._post_ns:
            self._idle(self._free_ns + self._post_ns, HOST_TIME)
        self._end_ns.append(self._free_ns)
        for site, lead_ns in self._walk:
            self._site, self._lead_ns = site, lead_ns
            self._begin_site()
            return
        self._begin_tail(now)

    def _begin_tail(self, now: int) -> None:
        """Do the work of a step after its last site: final norm and LM head."""
        assert self._step is not None
        self._free_ns += self.durations.tail_ns(self._step)
        self._end_step(now)

    def _end_step(self, now: int) -> None:
        """The step ends when the stream is free."""
        step, end = self._step, self._free_ns
        assert step is not None
        self.record.step_end_ns.append(end)
        if self._row >= self._next_pack:
            self._pack()
        if self._progress and step.index % self._stride == 0:
            self._progress(step.index + 1)
        if not step.ends:
            following = self._schedule.next(end)
            assert isinstance(following, Step)  # a sequence that has not ended goes on
            if not following.begins:
                self._begin_step(following, now)
                return
            self._following = following
        self._end_alarm.set(end, SEQUENCE_END)

    def _on_step_end(self, now: int) -> None:
        step = self._step
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
        """The run is over: fill the record. Transfers that are still on a link are cut."""
        record = self.record
        record.makespan_ns = now
        if self.pages is not None:
            record.paged = self.pages.came, self.pages.went
        self.written.close()
        for link in self._links:
            link.note_cut(now, record.service_left_ns)
        self.controller.finish()
        self._notes.gate_calls, self._notes.lookups = self.controller.gate_calls, self._row

    # ---- the compute stream

    def _on_gate(self, now: int) -> None:
        """Visit a gate, and each that follows before anything else is due. SimPy's clock stands at
        the first of them meanwhile: a simple gate asks it nothing.
        """
        controller, gate, due = self.controller, self._gate, self._due
        while True:
            gate.visit(self._site)
            first = self._row
            self._gates += (now, first)
            outcomes, waits = controller.gate(gate)
            count = len(outcomes)
            self._row = first + count
            if not self._is_simple_step or controller.waiting:
                self._work_in_full(outcomes, waits, first, now)
                return
            # The short way: needs that are there are computed at once, one after another, or once
            # all are there.
            self._is_simple_gate = True
            if self._is_one_variant:
                if waits is not None and not self._is_wait_all:
                    count -= len(waits)
                work_ns = count * self._one_token_ns[self._site]
            else:
                work_ns, key_ns = 0, self._key_ns
                for key in controller.admitted:
                    work_ns += key_ns[key]
                if waits is not None and not self._is_wait_all:
                    for key in waits:
                        work_ns -= key_ns[key]
            if waits is not None:
                if self._is_wait_all:
                    self._batch_ns, work_ns = work_ns, 0
                for key in waits:
                    self.awaited[key] = first + controller.admitted.index(key)
            free = self._free_ns = now + work_ns
            link = self._only_link
            if link is None:
                self.settle(now)
            elif (link.demands or link.prefetches) and len(link.issued) < link.room:
                link.fill(now)
            if waits is not None:
                return
            at_ns = self._pass_on(free, now)
            if at_ns < 0:
                return
            if due and due[0][0] <= at_ns:
                self._set_gate(at_ns)
                return
            now = at_ns

    def _set_gate(self, at_ns: int) -> None:
        # There is only one gate alarm, so that it needs no number.
        put = self._put  # as a method, an attribute that is none would be looked up at length
        put((at_ns, GATE, 0, self._gate_alarm))

    def _work_in_full(
        self,
        outcomes: Sequence[int],
        waits: dict[int, Transfer] | None,
        first: int,
        now: int,
    ) -> None:
        """Set the needs of a gate to work that is not simple. ``first``: the row of its first lookup."""
        self._is_simple_gate = False
        if self.pages is not None:
            assert self._step is not None
            self.pages.visit(self._site, self._step)
            self.pages.admit(self._computed(outcomes))
        self._enter_gate(now, waits)
        self._take(outcomes, waits, first, now)
        self._end_site_if_done(now)

    def _enter_gate(self, now: int, waits: dict[int, Transfer] | None) -> None:
        """A gate in full: host time before and after it, and what it begins besides its needs."""
        self._free_ns = now - self._sync_ns
        if self._sync_ns:
            self._idle(now, HOST_TIME)
        issue_ns = self._issue_ns
        if self._books_loads and waits:
            call, host = self.controller.calls, self.durations.host
            issue_ns += sum(
                host.loading_ns(t.moved_bytes) for t in waits.values() if t.call == call
            )
        if self.pages is not None:
            issue_ns += self.pages.bill_ns()
        if issue_ns:
            self._idle(now + issue_ns, HOST_TIME)
        if self._streams_dense:
            self._lacking[self._site] = 1
        if self.controller.predicts_later:
            tick = self._gate.tick
            alarm = Alarm(self.env, lambda now: self._on_prediction(tick, now))
            alarm.set(now + self.durations.prediction_ns, PREDICTION + tick)

    def _on_prediction(self, tick: int, now: int) -> None:
        self.other_calls.append(now)
        self.controller.prediction_ready(tick)
        self.settle(now)

    # ---- arrivals

    def arrive(self, key: int, number: int, now: int) -> None:
        """Transfer ``number`` has brought a key to the device. A need may wait for it, or the
        stream for a dense block, or for keys and values.
        """
        if key not in self.awaited:
            if self._awaits_blocks and key >= 0 and self.controller.issued[number].dense:
                self._take_block(key, number, now)
            return
        row = self.awaited.pop(key)
        self._arrivals += (row, now)
        if self._is_simple_gate:
            if self._is_as_ready:
                work_ns = self._one_token_ns[key // self._units]
            elif self.awaited:
                return
            else:
                work_ns = self._batch_ns
            free = self._free_ns
            if now > free:
                self._idles += (free, now, number)
                free = now
            free = self._free_ns = free + work_ns
            if not self.awaited:
                at_ns = self._pass_on(free, now)
                if at_ns >= 0:
                    self._set_gate(at_ns)
            return
        if self._line_of(key).take_in(key, row, number, now):
            self._end_site_if_done(now)

    def _line_of(self, key: int) -> Line:
        """The device that computes a key."""
        return self

    def _take_block(self, key: int, number: int, now: int) -> None:
        """What a site's dense work needs has arrived. The stream may wait for it."""
        site = self.controller.geometry.site_of(key)
        self._lacking[site] -= 1
        if site == self._awaited_site and not self._lacking[site]:
            self._awaited_site = -1
            self._wake(now, number)
            self._begin_site()
