"""The device that is a GPU: experts move from pinned memory or a file into slots, and are computed.

One thread drives it, the caller's (`real.driver.polled`). A service is given to its stream when the
controller begins it, and an event behind it tells its end. Downwards it goes through these:

1. `real.cuda.traffic`: the services of one link, each begun, and asked for its end;
2. `real.cuda.moves`: what one service does, as a whole or chunk by chunk;
3. `real.cuda.copies`: the copies of a service;
4. `real.cuda.lanes`: a CUDA stream of copies, with an event behind each;
5. `real.cuda.runtime`: the raw calls.

`real.cuda.computing` is the other half: what the compute stream is given.

With ``links=paced`` and ``compute=padded`` kernels spin until nominal times have passed, so this
GPU stands for a slower one: real schedules, nominal durations. Results of such runs are *emulated*,
and say so; caches and memory are still this GPU's own.

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

from real.cuda.computing import ComputingDevice
from real.cuda.copies import CopyEngine, Submit
from real.cuda.homes import Homes
from real.cuda.host import HostRuntime
from real.cuda.lanes import Lane
from real.cuda.refusals import check
from real.cuda.runtime import CudaRuntime, Runtime
from real.cuda.segments import tables_bytes
from real.cuda.slots import DeviceSlots
from real.cuda.times import Times
from real.cuda.traffic import Traffic
from real.cuda.work import DeviceWork, captured_of, dense_graphs
from real.driver.device import Listener, Service
from real.driver.settings import Engine
from real.store.neurons import Arrivals
from real.store.work import Weights
from sim.core.controller import Controller
from sim.results.run import Run

PIECE_BYTES = 8 << 20
"""Bytes read, or paced, at once: 150 us of a PCIe 5 link, beside which a call's cost vanishes."""
TIMED_EVENTS = 4096
"""Events with clocks, for what is computed."""


class CudaDevice(ComputingDevice):
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
        check(controller, engine, by_neuron=weights.store.header.resident is not None)
        weights.store.check_shape(controller.geometry)
        largest = max(controller.geometry.variant_bytes)
        spare = controller.loader.staging_slots + -(-overflow_bytes // largest)
        super().__init__(
            controller,
            runtime,
            DeviceSlots(runtime, controller.slots, spare, controller.keeps_slot),
            Arrivals(controller.geometry, weights.store.header.neurons),
            patience_s=engine.patience_s,
            is_padded=engine.compute == "padded",
        )
        self._engine_of, self._is_paced = engine, engine.links == "paced"
        self._weights, self._top_k, self._most_rows = weights, top_k, most_rows
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
        self._lane = Lane(self._runtime, "compute", TIMED_EVENTS, timed=True)
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
        self.slots.allocate(mends=self._uses_graphs)
        self.homes.pin(engines, tables_bytes(self._top_k, header.neurons, len(header.variants)))
        self._engines = [
            CopyEngine(
                self._runtime,
                self.slots,
                Lane(self._runtime, f"copies {n}"),
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
            is_paced=self._is_paced,
        )
        for key in self._controller.slots.initial:
            self._load_one(key)
        # A capture reads slots, so it comes after the copies into them.
        lane.follow(self._engines[0].lane.moment)
        self._captured, self._dense = None, {}
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
            self._dense = dense_graphs(self._runtime, lane, self._work_of)
        self._times = Times(self._runtime, lane, self.now_ns)
        self._warm_up(self._most_rows, is_paced=self._is_paced)
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
        slot.ready = engine.lane.moment

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
        self._captured, self._dense = None, {}
        self.slots.release()
        self.homes.close()

    # ---- what moves

    def serve(self, service: Service) -> None:
        self._traffic.serve(service)

    def announce(
        self, link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> None:
        self._traffic.announce(link, number, key, moved_bytes, victims)

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
