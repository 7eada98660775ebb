"""The driver of real runs: a main loop around the controller, on a device. Never imports simpy.

Theory of operation. The main loop is written as an engine runs: for every step and every site it computes the dense
work, tells the controller the gate, and then computes needs one after another, blocking where the next one is still on
its way. It knows no event queue. Transfers end behind its back: the device hands each end over, perhaps on its own
thread, and ``on_transfer_end`` passes it to the controller, which answers with the next transfer for the link.

One lock is held around each call of the controller with the polls that belong to it; the order in which it is taken is
the order of events, and each call is stamped inside. The lock is never held while the device is waited for.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from real.device import TAIL, Device
from sim.controller import Controller
from sim.costs import Durations
from sim.loader import Transfer
from sim.record import Record
from sim.types import SKIP, Step
from sim.workload import Workload

LINK = 0


class Batch:
    """Needs that are computed one after another, once none of them is on its way any more.

    ``as_ready``: a single need. ``wait_all``: all that one call admitted, in need order.
    """

    __slots__ = ("needs", "pending", "ready_ns", "transfer")

    def __init__(self) -> None:
        self.needs: list[tuple[int, int]] = []
        """(key, tokens)"""
        self.pending = 0
        self.ready_ns = 0
        self.transfer = -1
        """Number of the transfer that arrived last, at ``ready_ns``."""


def drive(controller: Controller, workload: Workload, durations: Durations, device: Device) -> Record:
    """Run the workload to its end on ``device``. Transfers that are then in flight are cut.

    Raise RuntimeError if a need waits for a transfer that nothing can bring about.
    """
    driver = Driver(controller, workload, durations, device)
    device.open(driver.on_transfer_end)
    try:
        for step in workload.steps:
            driver.run_step(step)
    finally:
        device.close()
    return driver.finish()


class Driver:
    """The compute stream's thread (``run_step``) and the link's (``on_transfer_end``) around one controller."""

    def __init__(self, controller: Controller, workload: Workload, durations: Durations, device: Device) -> None:
        self.controller, self.workload, self.durations, self.device = controller, workload, durations, device
        self.record = Record()
        self._gate = workload.gate()
        self._lock = Lock()
        self._is_wait_all = controller.loader.wait == "wait_all"
        self._issued: deque[Transfer] = deque()
        self._num_started = 0
        self._line: deque[Batch] = deque()
        """What to compute next; ``wait_all`` puts a batch here when it is admitted, ``as_ready`` when it is ready."""
        self._awaited: dict[int, tuple[int, Batch]] = {}
        """key -> row of its lookup, and the batch that waits for it"""
        self._num_taken = 0
        """Needs of the current gate that have been admitted, skips included."""

    # ---- the main loop

    def run_step(self, step: Step) -> None:
        """One forward call, from the beginning of its sequences to the end of those that end with it."""
        device, record, controller = self.device, self.record, self.controller
        record.step_start_ns.append(device.now_ns())
        for sequence in step.begins:
            with self._lock:
                self._stamp()
                controller.begin_sequence(sequence)
                self._fill_link()
        self._gate.open(step)
        dense_ns = self.durations.dense_ns(step)
        geometry = controller.geometry
        for site in range(self.workload.sites):
            device.compute(geometry.key(0, site, geometry.experts), step.rows, dense_ns[site])
            self._run_site(site)
        device.compute(TAIL, step.rows, self.durations.tail_ns(step))
        record.step_end_ns.append(device.now_ns())
        for sequence in step.ends:
            with self._lock:
                self._stamp()
                controller.end_sequence(sequence)
                self._fill_link()

    def finish(self) -> Record:
        """The record, complete: what the device knows about the link is copied into it."""
        record = self.record
        record.makespan_ns = record.step_end_ns[-1]
        services = [self.device.service_ns(number) for number in range(self._num_started)]
        record.start_ns = [start_ns for start_ns, _ in services]
        record.service_end_ns = [end_ns for _, end_ns in services]
        self.controller.finish()
        return record

    def _run_site(self, site: int) -> None:
        controller, gate = self.controller, self._gate
        gate.visit(site)
        with self._lock:
            self._num_taken = 0
            self.record.gate_ns.append(self._stamp())
            _, waits = controller.gate(gate)
            self._take(waits)
            self._fill_link()
        while (batch := self._next_batch()) is not None:
            for key, tokens in batch.needs:
                precision = controller.geometry.precision_of(key)
                self.device.compute(key, tokens, self.durations.expert_ns(precision, tokens))
                if controller.waiting:
                    self._release(key)
        self.record.end_ns.append(self.device.now_ns())

    def _release(self, key: int) -> None:
        """A need of a union served in waves has been computed: let the next ones in."""
        with self._lock:
            self._stamp()
            _, waits = self.controller.need_done(key)
            self._take(waits)
            self._fill_link()

    def _take(self, waits: dict[int, Transfer] | None) -> None:
        """Line up what a call admitted: what is there, to be computed; what is not, to be waited for."""
        record, tokens = self.record, self._gate.tokens
        now = record.call_ns[-1]
        together = Batch()
        if self._is_wait_all:
            self._line.append(together)
        for key in self.controller.admitted:
            row = len(record.lookup_ns)
            record.lookup_ns.append(now)
            record.ready_ns.append(now)
            need = (key, tokens[self._num_taken])
            self._num_taken += 1
            if key == SKIP:
                continue
            batch = together if self._is_wait_all else Batch()
            batch.needs.append(need)
            if waits and key in waits:
                batch.pending += 1
                self._awaited[key] = (row, batch)
            elif not self._is_wait_all:
                self._line.append(batch)

    def _next_batch(self) -> Batch | None:
        """The next needs to compute, or None if the site has no more.

        Blocks while they are on their way, and writes down for how long.
        """
        idle_from_ns = self.device.now_ns()
        while (number := self._blocked_by()) is not None:
            self.device.wait(number)
        if not self._line:
            return None
        batch = self._line.popleft()
        if batch.ready_ns > idle_from_ns:
            self.record.idle_start_ns.append(idle_from_ns)
            self.record.idle_end_ns.append(batch.ready_ns)
            self.record.idle_cause.append(batch.transfer)
        return batch

    def _blocked_by(self) -> int | None:
        """The number of the transfer whose end the main loop must wait for; None if it may go on.

        That is the oldest on the link: the transfer that is needed may not have been issued yet. All is looked at under
        one lock, or an end between two looks would be missed.
        """
        with self._lock:
            if self._line and not self._line[0].pending:
                return None
            if not (self._line or self._awaited or self.controller.waiting):
                return None
            if self._issued:
                return self._issued[0].number
            names = ", ".join(self.controller.geometry.name_of(key) for key in self._awaited)
        raise RuntimeError(
            f"step {self._gate.step} site {self._gate.site} waits for {names or 'admission'} "
            f"({self.controller.waiting} needs not admitted), but nothing is on the link: the controller finds no slot "
            f"for it; raise budget.resident_share"
        )

    # ---- the link

    def on_transfer_end(self, number: int) -> None:
        """The oldest issued transfer has ended: its key has arrived, and the link gets the next."""
        with self._lock:
            transfer = self._issued.popleft()
            assert transfer.number == number, "the link serves in order"
            now = self._stamp()
            key, following = self.controller.transfer_done(LINK, transfer)
            if following is not None:
                self._start(following)
            if key in self._awaited:
                self._arrive(key, number, now)

    def _arrive(self, key: int, number: int, now: int) -> None:
        row, batch = self._awaited.pop(key)
        self.record.ready_ns[row] = now
        batch.pending -= 1
        batch.ready_ns, batch.transfer = now, number
        if not self._is_wait_all:
            self._line.append(batch)

    def _fill_link(self) -> None:
        """Poll while the link has room and the controller has something for it."""
        while len(self._issued) < self.controller.loader.in_flight:
            self._stamp()
            transfer = self.controller.poll(LINK)
            if transfer is None:
                return
            self._start(transfer)

    def _start(self, transfer: Transfer) -> None:
        self._issued.append(transfer)
        self._num_started += 1
        nominal_ns = self.durations.transfer_ns(transfer.moved_bytes)
        self.device.transfer(transfer.number, transfer.key, transfer.moved_bytes, nominal_ns)

    def _stamp(self) -> int:
        """The time of the call that follows; the lock is held."""
        now = self.device.now_ns()
        self.record.call_ns.append(now)
        return now
