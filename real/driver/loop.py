"""The driver of real runs: the main loop around the controller, on a device. Never imports simpy.

Theory of operation:

- The main loop is written as an engine runs. For every step and every site it computes the dense
  work, tells the controller the gate, and computes the needs one after another. It blocks where the
  next need has not arrived. It knows no event queue.
- Transfers, CPU results and predictions end behind its back. The device hands each over, perhaps on
  a thread of its own, and an ``on_...`` method passes it to the controller.
- The device's lock is held around each call of the controller and the polls that belong to it. The
  order in which threads take the lock is the order of events, and the clock is read inside.
- What follows from a call at once happens under the same lock and at the same time: polls, the next
  service of an engine, the need that a CPU result ends.
- The lock is never held while a thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from real.driver.device import TAIL, Device, Service, Turn
from real.driver.links import Links
from real.driver.needs import Needs
from real.driver.stream import stream_of
from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.machine.durations import Durations
from sim.policies.requires import PolicyError
from sim.process.uncollected import uncollected
from sim.values.record import NO_REQUEST, Record
from sim.values.types import SKIP, Outcome, Step
from sim.workload.steps import Schedule, Workload

CPU = int(Outcome.CPU)
ELSEWHERE = frozenset({CPU, int(Outcome.SKIP), int(Outcome.REROUTE)})
"""The outcomes of needs that may have nothing to be computed on the device."""


def drive(
    controller: Controller, workload: Workload, durations: Durations, device: Device
) -> Record:
    """Run the workload to its end on ``device``; transfers still under way then are cut.

    Raise RuntimeError if a need waits for something that nothing under way can bring.
    """
    return Driver(controller, workload, durations, device).drive()


class Driver:
    """The compute stream's thread (``run``), and what devices hand over to it (``on_...``)."""

    def __init__(
        self, controller: Controller, workload: Workload, durations: Durations, device: Device
    ) -> None:
        self.controller, self.workload, self.durations, self.device = (
            controller,
            workload,
            durations,
            device,
        )
        self.record = Record()
        self._links = Links(controller, durations, device, self.record, self._stamp)
        self._needs = Needs(controller.loader.wait)
        self._gate = workload.gate()
        self._step_rows = 1
        self.stream = stream_of(device, self.record, durations.host)
        self._on_cpu: dict[int, int] = {}  # key -> row of its lookup
        self._num_taken = 0
        """Needs of the current gate that have been admitted, skips included."""
        g = controller.geometry
        self._blocks = [g.key(0, site, g.experts) for site in range(g.sites)]
        """By site the key of its dense block."""
        # By key: the dense blocks that are there, when they came, and by which transfer.
        self._dense = dict.fromkeys(self._blocks[: controller.loader.dense_slots], (0, -1))

    # ---- the main loop

    def drive(self) -> Record:
        """Open the device, run, and close it, also after a failure; return the record."""
        self.device.open(self, self.controller.route.engines)
        try:
            with uncollected():
                self.run()
        except PolicyError as error:
            error.add_gate(self._gate.step, self._gate.site)
            raise
        finally:
            try:
                self.device.close()
            finally:
                self._links.tell_services()
        return self.finish()

    def run(self) -> None:
        """Run every step of the workload, as its schedule composes them."""
        schedule = self.workload.start()
        step = self._go_on(None, schedule)
        while step is not None:
            if isinstance(step, int):
                self.device.sleep_until(step, Turn.ARRIVALS)
                self.stream.stand_idle(step, NO_REQUEST)
                step = self._go_on(None, schedule)
            else:
                self._run_step(step)
                step = self._go_on(step, schedule)

    def finish(self) -> Record:
        """Complete the record and return it."""
        self.stream.finish()
        self.record.makespan_ns = self.record.step_end_ns[-1]
        self.controller.finish()
        return self.record

    def _go_on(self, ended: Step | None, schedule: Schedule) -> Step | int | None:
        """End a step and begin the next at the same instant.

        Return the next step, or the time until which to wait for one, or None at the run's end.
        """
        self.stream.read_out()
        self.device.sleep_until(self.stream.free_ns, Turn.SEQUENCE_END)
        with self.device.lock:
            now = self.device.now_ns()
            self.stream.host_until(now)
            if ended is not None:
                self.record.step_end_ns.append(now)
                for sequence in ended.ends:
                    self._call_at(now, self.controller.end_sequence, sequence)
            following = schedule.next(now)
            if isinstance(following, Step):
                self.record.step_start_ns.append(now)
                for sequence in following.begins:
                    self._call_at(now, self.controller.begin_sequence, sequence)
            elif following is None:
                self.device.cut_off()
        return following

    def _call_at(self, now_ns: int, call: Callable[[int], None], argument: int) -> None:
        self.record.call_ns.append(now_ns)
        call(argument)
        self._links.fill()

    def _run_step(self, step: Step) -> None:
        """One forward call."""
        self._gate.open(step)
        self._step_rows = step.rows
        dense_ns = self.durations.dense_ns(step)
        for site in step.sites:
            self._run_site(step, site, dense_ns[site])
        self._compute(TAIL, step.head_rows, self.durations.tail_ns(step))

    def _run_site(self, step: Step, site: int, dense_ns: int) -> None:
        host, gate = self.durations.host, self._gate
        block = self._blocks[site]
        if self.controller.loader.dense_slots:
            self._await_dense(block)
        self._compute(block, step.rows, dense_ns)
        due_ns = self.stream.approach_gate(host.sync_ns)
        gate.visit(site)
        with self.device.lock:
            self.stream.reach_gate(self._stamp(), due_ns)
            self._dense.pop(block, None)
            self._num_taken = 0
            if self.controller.predicts_later:
                self.device.predict(gate.tick, self.durations.prediction_ns)
            self._start(*self.controller.gate(gate))
        self.stream.pass_host_time(host.issue_ns)
        while self._compute_next():
            pass
        self.stream.pass_host_time(host.post_ns)
        self.stream.end_site()

    # ---- needs

    def _start(self, outcomes: list[int], waits: dict[int, Transfer] | None) -> None:
        """Set to work what a call admitted. The lock is held.

        Needs that the placement skips have ended at once.
        """
        keys, now = self.controller.admitted, self.record.call_ns[-1]
        self._take(keys, outcomes, waits, now)
        self._links.fill()
        if self.controller.waiting:
            for key, outcome in zip(keys, outcomes, strict=True):
                if outcome == Outcome.SKIP and key != SKIP and self.controller.waiting:
                    self._end_need(key, now)

    def _take(
        self, keys: Sequence[int], outcomes: list[int], waits: dict[int, Transfer] | None, now: int
    ) -> None:
        """Line up the admitted needs for the stream, arrived or not, and give the CPU its own."""
        record, count = self.record, len(keys)
        row, first = len(record.lookup_ns), self._num_taken
        # Tokens of the run's lookups, kept where other experts may serve a need.
        served = self.controller.lookup_tokens
        tokens = served[row : row + count] if served else self._gate.tokens[first : first + count]
        self._num_taken += count
        record.lookup_ns += [now] * count
        record.ready_ns += [now] * count
        late = {key: row + keys.index(key) for key in waits} if waits else {}
        loaded, rows = list(keys), list(tokens)
        if not ELSEWHERE.isdisjoint(outcomes):
            loaded, rows = self._loaded(keys, tokens, outcomes, row)
        self._needs.admit(loaded, rows, late, now)

    def _loaded(
        self, keys: Sequence[int], tokens: Sequence[int], outcomes: list[int], row: int
    ) -> tuple[list[int], list[int]]:
        """Those of some needs that the device computes, and their tokens; the CPU gets its own."""
        loaded, loaded_rows = list[int](), list[int]()
        for nth, (key, rows, outcome) in enumerate(zip(keys, tokens, outcomes, strict=True)):
            if outcome == CPU:
                self._on_cpu[key] = row + nth
                precision = self.controller.geometry.precision_of(key)
                nominal_ns = self.durations.cpu_ns(precision, self._gate.site, rows)
                self.device.compute_on_cpu(key, rows, nominal_ns)
            elif key != SKIP and outcome != Outcome.SKIP:
                loaded.append(key)
                loaded_rows.append(rows)
        return loaded, loaded_rows

    def _compute_next(self) -> bool:
        """Wait for the next needs and compute them; return False if the site has no more."""
        self.device.wait(self._may_go_on, self._what_is_missing)
        with self.device.lock:
            # Where no need's end is told, all that is there is given to the stream at once.
            gives_all = self.stream.is_deferred and not self.controller.waiting
            batch = self._needs.take(self.stream.free_ns, whole=gives_all)
            keys, rows = batch.keys, batch.rows
            is_done = not keys and self._is_done()
        self.stream.stand_idle(batch.ready_ns, batch.cause)
        if not keys:
            return not is_done or self._needs.last_result_ns > self.stream.free_ns
        if gives_all:
            while (along := self._needs.take_along()) is not None:
                self.stream.stand_idle(along.ready_ns, along.cause)
                keys += along.keys
                rows += along.rows
            self.stream.compute(keys, rows)
            with self.device.lock:
                is_done = self._is_done()
            return not is_done or self._needs.last_result_ns > self.stream.free_ns
        for key, tokens in zip(keys, rows, strict=True):
            precision = self.controller.geometry.precision_of(key)
            nominal_ns = self.durations.expert_ns(
                precision, self._gate.site, tokens, self._step_rows
            )
            self.stream.compute((key,), (tokens,), nominal_ns)
            if self.controller.waiting:
                self.stream.read_out()
            with self.device.lock:
                # A CPU result may just have let the last waiting needs in.
                if self.controller.waiting:
                    now = self.device.now_ns()
                    self.stream.host_until(now)
                    self._end_need(key, now)
        return True

    def _may_go_on(self) -> bool:
        return self._needs.may_go_on(self.stream.free_ns) or self._is_done()

    def _end_need(self, key: int, now_ns: int) -> None:
        """End a need of a union served in waves, and let the next needs in. The lock is held."""
        self.record.call_ns.append(now_ns)
        self._start(*self.controller.need_done(key))

    def _is_done(self) -> bool:
        """Whether the site has no more needs. The lock is held."""
        needs = self._needs
        return not (needs.line or needs.awaited or self._on_cpu or self.controller.waiting)

    def _await_dense(self, block: int) -> None:
        self.device.wait(lambda: block in self._dense, self._what_is_missing)
        self.stream.stand_idle(*self._dense[block])

    def _what_is_missing(self) -> str:
        """What the stream waits for, for messages. The lock is held."""
        controller = self.controller
        keys = [*self._needs.awaited, *self._on_cpu]
        names = (
            ", ".join(controller.geometry.name_of(key) for key in keys)
            or "admission or its dense block"
        )
        return (
            f"step {self._gate.step} site {self._gate.site} waits for {names} ({controller.waiting}"
            f" needs not admitted; {self._links}); where the controller finds no slot for it, raise"
            " budget.resident_share or slots_gib"
        )

    def _is_under_way(self, key: int) -> bool:
        """Whether the time since the stream was free was spent on ``key``, and not by the host.

        A driver whose computations begin elsewhere overrides this.
        """
        return False

    def _compute(self, key: int, rows: int, nominal_ns: int) -> None:
        is_under_way = self._is_under_way(key)
        self.stream.compute((key,), (rows,), nominal_ns, is_under_way=is_under_way)

    # ---- what the device hands over, with its lock held

    def on_service_end(self, service: Service) -> None:
        """A hop has ended; if it was a transfer's last, a key has arrived."""
        now, key = self._links.end(service)
        if key in self._needs.awaited:
            self.record.ready_ns[self._needs.arrive(key, now, service.number)] = now
        elif (
            key >= 0 and self.controller.geometry.expert_of(key) == self.controller.geometry.experts
        ):
            self._dense[key] = (now, service.number)
        self._links.fill(without=service.link)

    def on_head(self, service: Service) -> None:
        """Enough of a hop is through for the next link to begin (cut-through)."""
        self._links.hand_on(service)
        self._links.fill()

    def on_chunk(self, service: Service, moved_bytes: int) -> None:
        """The service gives way at a chunk that has just ended."""
        self._links.cut(service, moved_bytes)
        self._links.fill(without=service.link)

    def on_cpu_result(self, key: int) -> None:
        """The CPU has computed a need. Where others wait for admission this also ends the need."""
        now = self._stamp()
        self.controller.cpu_done(key)
        self.record.ready_ns[self._on_cpu.pop(key)] = now
        ends_need = self.controller.waiting > 0
        self._needs.bring_result(now, ends_need)
        if ends_need:
            self._end_need(key, now)
        else:
            self._links.fill()

    def on_prediction(self, tick: int) -> None:
        """The forecasts made at gate ``tick`` are there."""
        self._call_at(self.device.now_ns(), self.controller.prediction_ready, tick)

    def _stamp(self) -> int:
        """Record the time of the call that follows, and return it. The lock is held."""
        now = self.device.now_ns()
        self.record.call_ns.append(now)
        return now
