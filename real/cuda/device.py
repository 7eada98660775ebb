"""The device that is a GPU: experts move from pinned memory or a file into slots, and are computed.

One thread drives it, the caller's (`real.driver.polled`). A service is given to its stream when the
controller begins it, and an event behind it tells its end. Needs are given to the compute stream
as soon as they are there, all in one launch where they can be. The host waits for the read-out of
the next gate and for nothing else. When each need was computed is read from timed events later.

With ``links=paced`` and ``compute=padded`` kernels spin until nominal times have passed, so this
GPU stands for a slower one: real schedules, nominal durations. Results of such runs are *emulated*,
and say so; caches and memory are still this GPU's own. Padded work is waited for piece by piece.

Link 0 ends in a slot. Its source is one of these:

- pinned memory that holds the whole store (``source=ram``);
- a pinned transit buffer that link 1 has filled;
- the slots of a managed RAM tier, which are pinned;
- the file, through pinned staging buffers.

`real.cuda.homes` keeps all of them. Where two transfers may be in flight, the second one's copy is
given to the stream behind the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from real.cuda.copies import CopyEngine, Submit
from real.cuda.homes import Homes
from real.cuda.host import HostRuntime
from real.cuda.lanes import Events, Lane
from real.cuda.refusals import check
from real.cuda.runtime import CudaRuntime, Runtime
from real.cuda.segments import tables_bytes
from real.cuda.slots import DeviceSlots
from real.cuda.times import Times
from real.cuda.traffic import Traffic
from real.cuda.work import Captured, DenseGraphs, DeviceWork, captured_of
from real.driver.device import TAIL, Listener, Service, Work
from real.driver.polled import PolledDevice
from real.driver.settings import Engine
from real.store.neurons import Arrivals
from real.store.work import SiteInputs, Weights
from sim.core.controller import Controller
from sim.results.run import Run

PIECE_BYTES = 8 << 20
"""Bytes read, or paced, at once: 150 us of a PCIe 5 link, beside which a call's cost vanishes."""
TIMED_EVENTS, EVENTS = 4096, 64
"""Events made before a run: with clocks for what is computed, and without for all else."""


NO_EXPERT = -1
"""The kind of work that is no expert's: dense blocks, and what comes after the last site."""


class CudaDevice(PolledDevice):
    """The GPU of one run; ``controller`` is the run's, whose slots say what is resident.

    ``top_k``: the most needs that one row has; ``most_rows``: the most rows of a step.
    ``uses_graphs``: kernels compute a replay, where the experts' form allows it.
    """

    def __init__(
        self,
        controller: Controller,
        weights: Weights,
        engine: Engine,
        runtime: Runtime,
        *,
        top_k: int,
        most_rows: int = 2,
        overflow_bytes: int = 0,
        uses_graphs: bool = True,
    ) -> None:
        super().__init__(engine.patience_s, is_padded=engine.compute == "padded")
        check(controller, weights.store, engine)
        self._controller, self._runtime, self._engine_of = controller, runtime, engine
        self._is_paced, self._is_live = engine.links == "paced", False
        largest = max(controller.geometry.variant_bytes)
        spare = controller.loader.staging_slots + -(-overflow_bytes // largest)
        self.slots = DeviceSlots(runtime, controller.slots, spare, controller.keeps_slot)
        self._weights, self._top_k, self._most_rows = weights, top_k, most_rows
        self.arrivals = Arrivals(controller.geometry, weights.store.header.neurons)
        g = controller.geometry
        # By key the precision of an expert; the last one is that of TAIL.
        self._kind_of = [
            g.precision_of(key) if g.expert_of(key) < g.experts else NO_EXPERT
            for key in range(g.num_keys)
        ] + [NO_EXPERT]
        self._uses_graphs = uses_graphs
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
        self.prepare()
        self._events = Events(self._runtime, EVENTS)
        self._lane = Lane(self._runtime, "compute", self._events)
        self._clock = self._runtime.allocate(8)
        self.homes = Homes(
            self._runtime,
            self._controller,
            self._weights.store,
            self._engine_of,
            self.arrivals,
            self._submit,
            PIECE_BYTES,
        )
        self._engines: list[CopyEngine] = []
        self._stream_before = None
        try:
            self._load(engines)
        except BaseException:
            self._release()
            raise
        self.load_s = time.perf_counter() - began
        # A live run's model computes in the caller's thread, which must not use the legacy stream.
        self._stream_before = self._runtime.make_current(self._lane.stream)
        self._traffic.open(listener)
        super().open(listener, engines)

    def _submit(self, name: str, count: int = 1) -> Submit:
        return partial(self.submit, self.crew(name, count))

    def _load(self, engines: tuple[int, ...]) -> None:
        lane, header = self._lane, self._weights.store.header
        # Made on the compute stream, so that its copies to the device come before it reads them.
        self._work_of = self._runtime.run(
            lane.stream, partial(DeviceWork, self._weights, self._controller.geometry, self._clock)
        )
        lane.note()
        self.slots.allocate(mends=self._uses_graphs)
        self.homes.pin(engines, tables_bytes(self._top_k, header.neurons, len(header.variants)))
        self._engines = [
            CopyEngine(
                self._runtime,
                self.slots,
                Lane(self._runtime, f"copies {n}", self._events),
                PIECE_BYTES,
            )
            for n in range(engines[0])
        ]
        self._traffic = Traffic(
            self._runtime,
            self._controller,
            self.slots,
            self.homes,
            self.arrivals,
            self._engines,
            [
                [self._submit(f"engine {n} of link {link}") for n in range(count if link else 0)]
                for link, count in enumerate(engines)
            ],
            PIECE_BYTES,
            self.now_ns,
            lambda: self._is_cut,
            is_paced=self._is_paced,
        )
        for key in self._controller.slots.initial:
            self._load_one(key)
        # A capture reads slots, so it comes after the copies into them.
        lane.follow(self._engines[0].lane.moment)
        self._captured: Captured | None = None
        self._dense: DenseGraphs | None = None
        if self._uses_graphs:
            self._captured = captured_of(
                self._runtime,
                lane,
                self.homes.arena,
                self.slots,
                self._work_of,
                self.arrivals,
                self._top_k,
            )
            self._dense = DenseGraphs(self._runtime, lane, self._work_of)
        self._times = Times(self._runtime, lane, Events(self._runtime, TIMED_EVENTS, timed=True))
        self._warm_up()
        for engine in self._engines:
            engine.lane.follow(lane.moment)
            engine.lane.finish()
        lane.finish()
        self.slots.seal()

    def _load_one(self, key: int) -> None:
        engine, slot = self._engines[0], self.slots.place(key)
        engine.begin(slot, is_paced=False)
        feed = engine.copy(slot, self.homes.of(key, 0), 0, self._bytes_of(key))
        while feed is not None and not feed.advance():
            if not self.take_results():
                engine.lane.ask()
        self.slots.end_write(slot, engine.lane)

    def _warm_up(self) -> None:
        """Make each kind of call once before the run, which must not pay for first calls.

        A first call takes workspaces of libraries, which stay allocated, and compiles kernels, once
        for each kind of number among their arguments (0, 1, multiples of 16, others).
        """
        for rows in (1, 2):
            for key in self._controller.slots.initial[:1]:
                self._give(((key, rows, 0),), 0)
            if not self.is_padded:
                for site in (0, -1):
                    self._compute_dense(site, rows)
        if self._is_paced or self.is_padded:
            for due_ns in (0, 1, 3):
                self._runtime.stamp(self._clock, self._lane.stream)
                self._spin(due_ns)

    def close(self) -> None:
        """End the run. Raise DeviceError if a replay has allocated memory on the device in it."""
        try:
            super().close()
            if not self._is_live:
                self.slots.check_budget()
        finally:
            self._runtime.make_current(self._stream_before)
            self._release()

    def _release(self) -> None:
        """Give everything back once all that was given to the device is over."""
        self.dismiss()
        for lane in (self._lane, *(engine.lane for engine in self._engines)):
            lane.finish()
        # Dropped here: the garbage collector would take its time, and a next run needs the room.
        self._captured, self._dense = None, None
        self.slots.release()
        self.homes.close()

    # ---- what moves

    def serve(self, service: Service) -> None:
        self._traffic.serve(service)

    def announce(self, link: int, number: int, key: int, moved_bytes: int) -> None:
        self._traffic.announce(link, number, key, moved_bytes)

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        self._traffic.ask_cut(service, is_wanted)

    def stop(self, service: Service) -> None:
        self._traffic.stop(service)

    def _ask(self) -> bool:
        return self._traffic.ask()

    def _is_asking(self) -> bool:
        return self._lane.is_busy or any(engine.lane.is_busy for engine in self._engines)

    def _is_serving(self) -> bool:
        return self._traffic.is_serving

    def _idle_turn(self) -> None:
        self._times.read_one()

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
        self._runtime.run(self._lane.stream, self._work_of.join)
        return self._runtime.run(self._lane.stream, self._work_of.end_site)

    def up_of(self, site: int, expert: int) -> Tensor:
        """Live runs of experts stored by neuron: an expert's up projection [I, H]."""
        return self._work_of.up_of(site, expert)

    def begin(self, works: Sequence[Work]) -> None:
        done = 0
        while done < len(works):
            given_ns = self.now_ns()
            count = self._give(works, done)
            self._times.note(given_ns, count)
            done += count

    def settle(self) -> None:
        mark = self._times.last
        if mark is None:
            return
        last_ns = time.monotonic_ns()
        while not self._lane.has_passed(mark):
            if self.poll():
                last_ns = time.monotonic_ns()
            else:
                self._check_patience(last_ns, lambda: "the GPU computes")
                self._rest()
        self._times.read_out(self.now_ns())
        # What has ended by now is handed over before the host goes on.
        self.poll()

    def spans(self) -> list[tuple[int, int]]:
        return self._times.spans()

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """Compute one work and wait for its end; padded, it lasts for its nominal time."""
        start_ns = self.now_ns()
        if self.is_padded:
            self._runtime.stamp(self._clock, self._lane.stream)
        self._give(((key, rows, nominal_ns),), 0)
        if self.is_padded:
            self._spin(nominal_ns - (self.now_ns() - start_ns))
        self._times.note(start_ns, 1)
        self.settle()

    def _spin(self, due_ns: int) -> None:
        self._runtime.spin_until(self._clock, due_ns, self._lane.stream)
        self._lane.note()

    def _give(self, works: Sequence[Work], first: int) -> int:
        """Give works to the stream from the first on, in one launch; return how many they are."""
        key, rows, _ = works[first]
        kind = self._kind_of[key]
        if kind == NO_EXPERT:
            if not self._is_live and not self.is_padded:
                site = -1 if key == TAIL else self._controller.geometry.site_of(key)
                self._compute_dense(site, rows)
            # In a live run the model has given its own work to this stream.
            self._lane.note()
            return 1
        if self._captured is None or rows != 1 or self._is_live:
            self._compute_expert(key, rows)
            return 1
        keys, counts, _ = zip(*works[first:], strict=True)
        kinds = list(map(self._kind_of.__getitem__, keys))
        if counts.count(1) + kinds.count(kind) < 2 * len(keys):
            # Precision by precision, and several rows of an expert by themselves.
            alike = takewhile((kind, 1).__eq__, zip(kinds, counts, strict=True))
            keys = keys[: len(list(alike))]
        return self._launch(self._captured, kind, keys)[0]

    def _compute_dense(self, site: int, rows: int) -> None:
        if self._dense is not None and rows == 1:
            self._dense.launch(site)
        else:
            self._runtime.run(self._lane.stream, partial(self._work_of.run_dense, site, rows))
            self._lane.note()

    def _launch(self, captured: Captured, kind: int, keys: Sequence[int]) -> tuple[int, Tensor]:
        return captured.launch(kind, keys)

    def _compute_expert(self, key: int, rows: int) -> None:
        """Compute an expert of any form and for any number of rows, live as the model does."""
        kind, captured = self._kind_of[key], self._captured
        if captured is not None and not self._is_live and captured.takes_rows(kind):
            captured.compute_rows(kind, key, rows)
            return
        slot, work = self.slots.of(key), self._work_of
        self.slots.begin_read(slot, self._lane)
        neurons = self.arrivals.held(key)
        pieces = list(slot.parts(0, self._bytes_of(key)))

        def run() -> None:
            blob = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            work.run(key, blob, work.rows(key, rows), neurons)

        self._runtime.run(self._lane.stream, run, reads=pieces)
        self._lane.note()
        self.slots.end_read((slot,), self._lane)

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        # This copy to the host waits for the compute stream only.
        rows = self._runtime.run(
            self._lane.stream, partial(self._work_of.rows_at_home, key, tokens)
        )
        work: Callable[[], None] = lambda: self._work_of.run_on_cpu(  # noqa: E731
            key, self.homes.blob(key), rows
        )
        self.on_cpu(key, work, nominal_ns)


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
        run.controller,
        weights,
        engine,
        runtime(),
        top_k=run.model.top_k,
        most_rows=run.workload.limits.rows,
        overflow_bytes=run.ledger.overflow_bytes,
    )
