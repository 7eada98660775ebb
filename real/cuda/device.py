"""The device that is a GPU: experts move from pinned memory or a file into slots, and are computed.

Loader threads and the compute stream are as on the CPU device: a thread for each engine, and the
caller's thread. The host only issues work; streams and events order it on the device
(`real.cuda.slots`). The end of a service, and of a computation, is one event that a thread waits
for.

With ``links=paced`` and ``compute=padded`` kernels spin until nominal times have passed, so this
GPU stands for a slower one: real schedules, nominal durations. Results of such runs are *emulated*,
and say so; caches and memory are still this GPU's own.

Link 0 ends in a slot. Its source is one of these:

- pinned memory that holds the whole store (``source=ram``);
- a pinned transit buffer that link 1 has filled;
- the slots of a managed RAM tier, which are pinned;
- the file, through pinned staging buffers.

`real.cuda.homes` keeps all of them. Where two transfers may be in flight, the second one's copy is
given to the stream behind the first (`real.cuda.feeder`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from real.cuda.copies import CopyEngine, Pinned, Source
from real.cuda.feeder import Feeder
from real.cuda.homes import Homes, Transit
from real.cuda.host import HostRuntime
from real.cuda.runtime import CudaRuntime, Runtime, Stream
from real.cuda.segments import tables_bytes
from real.cuda.slots import DeviceSlots
from real.cuda.work import Captured, DeviceWork, captured_of
from real.driver.device import TAIL, Listener, Service, Turn
from real.driver.settings import Engine
from real.driver.threads import Job, Seat, ThreadedDevice, Worker
from real.driver.timers import sleep_until
from real.store.neurons import Arrivals
from real.store.store import Store
from real.store.work import SiteInputs, Weights
from sim.core.controller import Controller
from sim.results.run import Run

PIECE_BYTES = 8 << 20
"""Bytes copied in one call: 150 us of a PCIe 5 link, beside which the call's own cost vanishes."""


class CudaDevice(ThreadedDevice):
    """The GPU of one run; ``controller`` is the run's, whose slots say what is resident.

    ``uses_graphs``: captured kernels compute a replay's experts, where the experts' form allows it.
    """

    def __init__(
        self,
        controller: Controller,
        weights: Weights,
        engine: Engine,
        runtime: Runtime,
        *,
        overflow_bytes: int = 0,
        uses_graphs: bool = True,
    ) -> None:
        super().__init__(PIECE_BYTES, engine.patience_s, is_paced=engine.links == "paced")
        _check(controller, weights.store, engine)
        self._controller, self._runtime = controller, runtime
        self._is_padded, self._is_live = engine.compute == "padded", False
        largest = max(controller.geometry.variant_bytes)
        spare = controller.loader.staging_slots + -(-overflow_bytes // largest)
        self.slots = DeviceSlots(runtime, controller.slots, spare, controller.keeps_slot)
        self._weights = weights
        self.arrivals = Arrivals(controller.geometry, weights.store.header.neurons)
        self._is_partial = controller.payload.active_share < 1
        self._transit = Transit(runtime, self.lock, lambda: self._stop.is_set(), engine.patience_s)
        self.homes = Homes(
            runtime, controller, weights.store, engine, self.arrivals, self._transit, PIECE_BYTES
        )
        self._uses_graphs = uses_graphs
        self._moved: dict[tuple[int, int], int] = {}  # bytes that are through, by link and transfer
        # By service: the bytes that earlier services of its transfer have moved.
        self._base: dict[int, int] = {}
        self._cpu_inputs: dict[int, Tensor] = {}
        self._feeder: Feeder | None = None
        self.load_s = 0.0

    @property
    def runtime_name(self) -> str:
        return self._runtime.name

    # ---- before and after

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Pin memory, load what is resident at the start, capture graphs, and begin the run.

        Nothing is allocated on the device from then on.
        """
        began = time.perf_counter()
        self.stream = self._runtime.stream("compute")
        self._clock = self._runtime.allocate(8)
        # Made on the compute stream, so that its copies to the device come before it reads them.
        self._work_of = self._runtime.run(
            self.stream, partial(DeviceWork, self._weights, self._controller.geometry, self._clock)
        )
        self.slots.allocate(mends=self._uses_graphs)
        self.homes.pin(engines, tables_bytes(1, self._weights.store.header.neurons))
        pieces = self._piece_bytes
        self._engines = [
            CopyEngine(self._runtime, self.slots, f"copies {n}", pieces) for n in range(engines[0])
        ]
        for key in self._controller.slots.initial:
            slot = self.slots.place(key)
            self._engines[0].begin(slot, is_paced=False)
            self._engines[0].copy(slot, self.homes.of(key, 0), 0, self._bytes_of(key))
            self._engines[0].end(slot)
        # A capture reads slots, so it comes after the copies into them.
        self._put_behind(self.stream, self._engines[0].stream)
        self._captured: Captured | None = None
        if self._uses_graphs:
            self._captured = captured_of(
                self._runtime, self.stream, self.homes.arena, self.slots, self._work_of
            )
        self._warm_up()
        for engine in self._engines:
            self._put_behind(engine.stream, self.stream)
        self.slots.seal()
        self.load_s = time.perf_counter() - began
        # A live run's model computes in the caller's thread, which must not use the legacy stream.
        self._stream_before = self._runtime.make_current(self.stream)
        super().open(listener, engines)

    def _warm_up(self) -> None:
        """Make each kind of call once before the run, which must not pay for first calls.

        A first call takes workspaces of libraries, which stay allocated, and compiles kernels, once
        for each kind of number among their arguments (0, 1, multiples of 16, others).
        """
        for rows in (1, 2):
            for key in self._controller.slots.initial[:1]:
                self._compute_expert(key, rows)
            if not self._is_padded:
                for site in (0, -1):
                    self._runtime.run(self.stream, partial(self._work_of.run_dense, site, rows))
        if self._is_paced or self._is_padded:
            for due_ns in (0, 1, 3):
                self._runtime.stamp(self._clock, self.stream)
                self._runtime.spin_until(self._clock, due_ns, self.stream)

    def close(self) -> None:
        """End the run. Raise DeviceError if a replay has allocated memory on the device in it."""
        try:
            super().close()
            if not self._is_live:
                self.slots.check_budget()
        finally:
            self._runtime.make_current(self._stream_before)
            self._finish(self.stream)
            for engine in self._engines:
                engine.finish()
            # Dropped here: the garbage collector would take its time, and a next run needs the
            # room.
            self._captured = None
            self.slots.release()
            self.homes.close()

    def _put_behind(self, later: Stream, stream: Stream) -> None:
        """Let ``later``'s work from now on wait for what ``stream`` has been given so far."""
        event = self._runtime.event()
        self._runtime.record(event, stream)
        self._runtime.wait(later, event)

    def _finish(self, stream: Stream) -> None:
        end = self._runtime.event()
        self._runtime.record(end, stream)
        self._runtime.synchronize(end)

    # ---- what moves

    def announce(self, link: int, number: int, key: int, moved_bytes: int) -> None:
        if self._feeder is not None and link == 0:
            current = self._seats[0][0].service
            assert current is not None, "something is announced behind nothing"
            self._feeder.announce(number, key, moved_bytes, current.number)

    def _own_works(self) -> dict[str, Callable[[], None]]:
        """A feeder, where services are never cut, paced or partial, on one link with one engine."""
        loader, is_alone = self._controller.loader, self._controller.route.engines == (1,)
        if (
            loader.in_flight < 2
            or loader.chunk_bytes
            or self._is_paced
            or self._is_partial
            or not is_alone
        ):
            return {}
        self._feeder = Feeder(
            self._runtime,
            self.slots,
            self._engines[0],
            partial(self.homes.of, engine=0),
            self._news,
            lambda: self._is_closed or self._stop.is_set(),
        )
        return {"feeder": self._feeder.loop}

    def serve(self, service: Service) -> None:
        self._base[service.row] = self._moved.setdefault(
            (service.link, service.number), service.there_bytes
        )
        if self._is_partial:
            self.arrivals.begin(
                service.key, service.number, service.there_bytes, service.moved_bytes
            )
        if service.link == 0:
            self.slots.place(service.key)
        elif self.homes.ram is not None:
            self.homes.ram.place(service.key)
        super().serve(service)

    def _copy_paced(self, seat: Seat, service: Service) -> None:
        """Link 0: copy a whole service at once, or chunk by chunk where it may be cut.

        The host serves the other links.
        """
        if service.link:
            super()._copy_paced(seat, service)
            return
        if self._feeder is not None and self._feeder.await_end(service.number, self._patience_s):
            return
        engine, slot = self._engines[service.engine], self.slots.of(service.key)
        base, step = self._base[service.row], service.chunk_bytes or service.moved_bytes
        engine.begin(slot, self._is_paced)
        lag_ns = self.now_ns() - service.start_ns
        due_ns: Callable[[int], int] | None = None
        if self._is_paced:
            due_ns = partial(_due_ns, service, lag_ns)
        for done in range(0, service.moved_bytes, step):
            count = min(step, service.moved_bytes - done)
            engine.copy(
                slot, self._source(service, base + done + count), base + done, count, due_ns, done
            )
            with self.lock:
                self._moved[0, service.number] = base + done + count
            if done + count < service.moved_bytes:
                engine.finish()
                with self.lock:
                    if seat.is_asked:
                        self._hand_over(partial(self._listener.on_chunk, service, done + count))
                        return
        self._end(engine, service)

    def _copy(self, service: Service, done: int, count: int) -> None:
        """Copy bytes of an outer link's service into the RAM tier or its transit buffer.

        Link 0 comes here only where several engines serve it: then a whole service, unpaced.
        """
        if service.link == 0:
            engine, slot = self._engines[service.engine], self.slots.of(service.key)
            engine.begin(slot, is_paced=False)
            begin = self._base[service.row] + done
            engine.copy(slot, self._source(service, begin + count), begin, count)
            self._end(engine, service)
            return
        begin = self._base[service.row] + done
        if self.homes.ram is not None:
            targets = list(self.homes.ram.pieces(service.key, begin, count))
            for target in targets:
                self._runtime.host_writes(torch.from_numpy(target))
        else:
            targets = [self._transit.of(service.number)[begin : begin + count].numpy()]
        self.homes.bring(service.key, begin, targets)
        with self.lock:
            self._moved[service.link, service.number] = begin + count
            self._news.notify_all()

    def _end(self, engine: CopyEngine, service: Service) -> None:
        end = self.slots.end_write(self.slots.of(service.key), engine.stream)
        if self._feeder is not None:
            self._feeder.was_issued(service.number)
        self._runtime.synchronize(end)
        self._transit.give_back(service.number)

    def _source(self, service: Service, until: int) -> Source:
        """Where link 0 finds a variant; its first ``until`` bytes are there on return."""
        if self._controller.route.links == 1:
            return self.homes.of(service.key, service.engine)
        ram = self.homes.ram
        with self.lock:
            # What was in the RAM tier already has no service on link 1.
            is_coming = ram is None or (1, service.number) in self._moved
            while (
                is_coming
                and self._moved.get((1, service.number), 0) < until
                and not self._stop.is_set()
            ):
                if not self._news.wait(self._patience_s):
                    raise RuntimeError(
                        f"link 1 has not brought {until} B of transfer {service.number}: nothing"
                        " happens"
                    )
            if ram is not None:
                held = ram.pieces(service.key, 0, self._bytes_of(service.key))
                return Pinned(tuple(torch.from_numpy(piece) for piece in held))
        return Pinned((self._transit.of(service.number),))

    def _bytes_of(self, key: int) -> int:
        return self._controller.geometry.bytes_of(key)

    # ---- what is computed

    def begin_site(self, inputs: SiteInputs) -> None:
        """Live runs: take the next gate's inputs, made on this device's stream."""
        if inputs.hidden.device != self._clock.device:
            raise RuntimeError(
                f"the model computes on {inputs.hidden.device}, its experts on"
                f" {self._clock.device}: move it there"
            )
        self._is_live = True
        self._work_of.begin_site(inputs)

    def end_site(self) -> Tensor:
        """Live runs: the sum [T, H] of the site's experts."""
        self._runtime.run(self.stream, self._work_of.join)
        return self._runtime.run(self.stream, self._work_of.end_site)

    def up_of(self, site: int, expert: int) -> Tensor:
        """Live runs of experts stored by neuron: an expert's up projection [I, H]."""
        return self._work_of.up_of(site, expert)

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        start_ns, g = self.now_ns(), self._controller.geometry
        if self._is_padded:
            self._runtime.stamp(self._clock, self.stream)
        if key != TAIL and g.expert_of(key) < g.experts:
            self._compute_expert(key, rows)
        elif not self._is_live and not self._is_padded:
            self._runtime.run(
                self.stream,
                partial(self._work_of.run_dense, -1 if key == TAIL else g.site_of(key), rows),
            )
        if self._is_padded:
            self._runtime.spin_until(
                self._clock, nominal_ns - (self.now_ns() - start_ns), self.stream
            )
        self._finish(self.stream)
        self._raise_failure()

    def _compute_expert(self, key: int, rows: int) -> None:
        slot, work = self.slots.of(key), self._work_of
        self.slots.begin_read(slot, self.stream)
        neurons = self.arrivals.held(key)
        if self._captured is not None and rows == 1 and not self._is_live:
            self._captured.run(key, slot, self._bytes_of(key), neurons)
        else:
            pieces = list(slot.parts(0, self._bytes_of(key)))

            def run() -> None:
                blob = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
                work.run(key, blob, work.rows(key, rows), neurons)

            self._runtime.run(self.stream, run, reads=pieces)
        self.slots.end_read(slot, self.stream)

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        # This copy to the host waits for the compute stream only.
        self._cpu_inputs[key] = self._runtime.run(
            self.stream, lambda: self._work_of.rows(key, tokens).to("cpu")
        )
        super().compute_on_cpu(key, tokens, nominal_ns)

    def _perform(self, worker: Worker, job: Job) -> None:
        if worker is self._cpu:
            with self.lock:
                rows = self._cpu_inputs.pop(job.number)
            self._work_of.run_on_cpu(job.number, self.homes.blob(job.number), rows)

    # ---- time

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        # Nominal host time passes on padded machines only; a free one has its own host's time.
        if self._is_padded or turn == Turn.ARRIVALS:
            super().sleep_until(time_ns, turn)

    def _pace_job(self, until_ns: int) -> None:
        if self._is_padded:
            sleep_until(self._opened_ns + until_ns, self._stop)


def _due_ns(service: Service, lag_ns: int, done: int) -> int:
    """When ``done`` bytes are due after the stamp, ``lag_ns`` after the service's beginning."""
    return max(0, service.due_ns(done) - lag_ns)


def _check(controller: Controller, store: Store, engine: Engine) -> None:
    """Raise ValueError for what this device does not do."""
    loader, name = controller.loader, type(controller.payload).__name__
    is_partial = controller.payload.active_share < 1
    refused = {
        f"{controller.route.links} links": controller.route.links > 2,
        f"loader.dense_slots={loader.dense_slots} (streamed dense blocks)": loader.dense_slots > 0,
        f"payload {name} (more than one expert)": not controller.payload.whole and not is_partial,
        f"payload {name} of {', '.join(controller.geometry.precisions)} (parts of experts move with precision=floe)": (
            is_partial and store.header.resident is None
        ),
        f"payload {name} on {controller.route.links} links": (
            is_partial and controller.route.links > 1
        ),
        f"engine.gather=zero_copy with engine.source={engine.source} (the whole store must rest in pinned memory)": (
            is_partial and engine.gather == "zero_copy" and engine.source != "ram"
        ),
        "loader.copies=free (no copy takes no time)": loader.copies == "free",
        "loader.write_back (weights are never copied back)": loader.write_back,
        "engine.source=mmap (page faults)": engine.source == "mmap",
    }
    if wrong := [what for what, is_asked in refused.items() if is_asked]:
        raise ValueError(
            f"device=cuda does not run {' nor '.join(wrong)}; choose device=null, or another system"
        )
    store.check_shape(controller.geometry)


def make(run: Run, weights: Weights | None, engine: Engine) -> CudaDevice:
    """The device for a run; `real.setup.devices` calls this. Raise DeviceError without a GPU."""
    return _make("cuda", CudaRuntime, run, weights, engine)


def make_on_host(run: Run, weights: Weights | None, engine: Engine) -> CudaDevice:
    """The same code with the host as its device: a rehearsal."""
    return _make("host", HostRuntime, run, weights, engine)


def _make(
    name: str, runtime: Callable[[], Runtime], run: Run, weights: Weights | None, engine: Engine
) -> CudaDevice:
    if weights is None:
        raise ValueError(f"device={name} computes experts: it needs a store")
    return CudaDevice(
        run.controller, weights, engine, runtime(), overflow_bytes=run.ledger.overflow_bytes
    )
