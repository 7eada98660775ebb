"""The device that runs everywhere: experts in a file, slots in RAM, loader threads, torch.

Bytes really move from the store into the slots that the controller has claimed, and torch computes
the experts from there. The settings ``links`` and ``compute`` say what nominal times are for:

- *paced* links and *padded* computations take them, so this machine stands for a slower one;
- *free* ones take the time that this machine needs.

A hop reads what the link outside it brought, else the RAM tier if that holds the variant, else the
store. It writes into the device's slot (link 0), the RAM tier's slot, or a buffer for the next hop.
Where a link hands on early (cut-through), the next one waits for the bytes that it lacks.

A payload may move more than a variant: the other experts of its layer, whose bytes are dropped on
arrival. It may also move less: some of an expert's neurons (`real.store.neurons`), and then only
these are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import local

import numpy as np
import torch

from real.driver.device import TAIL, Listener, Service, Turn
from real.driver.settings import Engine
from real.driver.threads import Job, ThreadedDevice, Worker
from real.driver.timers import sleep_until
from real.host.dense_blocks import DenseBlocks
from real.store.neurons import Arrivals
from real.store.reading import (
    BufferedReader,
    Bytes,
    DirectReader,
    MappedReader,
    RamReader,
    Reader,
    drop_cached,
    read_whole,
)
from real.store.slots import SlotMemory
from real.store.work import ExpertWork, SiteInputs, Weights
from sim.core.controller import Controller
from sim.core.slots import Slots
from sim.policies.payloads import WholeLayer
from sim.results.run import Run

PIECE_BYTES = 1 << 20


class CpuDevice(ThreadedDevice):
    """The CPU device of one run; ``controller`` is the run's, whose slots say what is resident.

    In a *live* run experts compute the model's own inputs, and the caller puts ``begin_site`` and
    ``end_site`` around the needs of a gate. In a replay experts compute rows of noise, and dense
    work is a product with stand-in weights.
    """

    def __init__(
        self, controller: Controller, weights: Weights, engine: Engine, *, overflow_bytes: int = 0
    ) -> None:
        super().__init__(PIECE_BYTES, engine.patience_s, is_paced=engine.links == "paced")
        check(controller, engine, by_neuron=weights.store.header.resident is not None)
        weights.store.check_shape(controller.geometry)
        self._controller, self._store, self._engine = controller, weights.store, engine
        self._is_padded, self._is_live = engine.compute == "padded", False
        self._work_of = ExpertWork(weights, controller.geometry)
        self.arrivals = Arrivals(controller.geometry, weights.store.header.neurons)
        largest = max(controller.geometry.variant_bytes)
        outside_bytes = controller.loader.staging_slots * largest + overflow_bytes
        self.slots = SlotMemory(controller.slots, outside_bytes, controller.keeps_slot)
        self.ram = None if controller.ram is None else SlotMemory(controller.ram)
        self.blocks = DenseBlocks(controller) if controller.loader.dense_slots else None
        self._refers = controller.loader.copies == "free"
        self._transit: dict[tuple[int, int], Bytes] = {}  # by link and transfer
        self._moved: dict[tuple[int, int], int] = {}  # bytes that are through, by link and transfer
        # By service: the bytes that earlier services of its transfer have moved.
        self._base: dict[int, int] = {}
        self._cpu_inputs: dict[int, torch.Tensor] = {}
        self._own = local()
        self._readers: list[Reader] = []
        self._home: Bytes | None = None
        self.load_s = 0.0

    # ---- before and after

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Load what is resident at the start, then begin the run."""
        began = time.perf_counter()
        path = self._store.path
        if self._engine.source == "ram":
            self._home = read_whole(path, self._store.header.num_bytes)
            self._store.check_in_place()
        if self._engine.cold:
            drop_cached(path)
        self._fill(self.slots, self._controller.slots)
        if self.ram is not None and self._controller.ram is not None:
            self._fill(self.ram, self._controller.ram)
        self.load_s = time.perf_counter() - began
        super().open(listener, engines)

    def close(self) -> None:
        try:
            super().close()
        finally:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

    def _fill(self, memory: SlotMemory, slots: Slots) -> None:
        for key in slots.initial:
            memory.place(key)
            self._read_home(key, 0, list(memory.pieces(key, 0, slots.key_bytes[key])))

    # ---- what moves

    def serve(self, service: Service) -> None:
        link, number = service.link, service.number
        self._base[service.row] = self._moved.setdefault((link, number), service.there_bytes)
        if self._store.header.resident is not None:
            self.arrivals.begin(service.key, number, service.there_bytes, service.moved_bytes)
        if self.blocks is not None and self.blocks.has(service.key):
            self.blocks.place(service.key)
        elif link == 0:
            self.slots.place(service.key)
        elif self.ram is not None and link == self._controller.route.ram_link:
            self.ram.place(service.key)
        elif (link, number) not in self._transit:
            self._transit[link, number] = np.empty(
                service.there_bytes + service.moved_bytes, np.uint8
            )
        super().serve(service)

    def _copy(self, service: Service, done: int, count: int) -> None:
        begin = self._base[service.row] + done
        for at in range(begin, begin + count, self._piece_bytes):
            piece = min(self._piece_bytes, begin + count - at)
            self._move(service, at, piece)
            with self.lock:
                self._moved[service.link, service.number] = at + piece
                if self._controller.route.head_bytes[service.link]:
                    self._news.notify_all()

    def _move(self, service: Service, begin: int, count: int) -> None:
        """Copy bytes ``begin .. begin + count`` of a hop from where they are to where they go."""
        link, number, key = service.link, service.number, service.key
        if self._refers:
            return
        if self.blocks is not None and self.blocks.has(key):
            self.blocks.copy(key, begin, count)
            return
        if link == 0:
            targets = self._slot_targets(key, begin, count)
        elif self.ram is not None and link == self._controller.route.ram_link:
            targets = list(self.ram.pieces(key, begin, count))
        else:
            targets = [self._transit[link, number][begin : begin + count]]
        outer = link + 1
        if (outer, number) in self._moved:
            self._await_bytes(outer, number, begin + count)
        if (outer, number) in self._transit:
            _copy_all([self._transit[outer, number][begin : begin + count]], targets)
            if begin + count == len(self._transit[outer, number]):
                del self._transit[outer, number]
        elif self.ram is not None and link < self.ram_link:
            _copy_all(list(self.ram.pieces(key, begin, count)), targets)
        else:
            self._read_home(key, begin, targets)

    def _slot_targets(self, key: int, begin: int, count: int) -> list[Bytes]:
        """Where bytes of a transfer go on the device.

        Bytes beyond the variant (the layer's other experts) go into a buffer that is overwritten.
        """
        inside = min(count, max(0, self._controller.geometry.bytes_of(key) - begin))
        targets = list(self.slots.pieces(key, begin, inside))
        if inside < count:
            if not hasattr(self._own, "passing"):
                self._own.passing = np.empty(self._piece_bytes, np.uint8)
            targets.append(self._own.passing[: count - inside])
        return targets

    @property
    def ram_link(self) -> int:
        link = self._controller.route.ram_link
        return -1 if link is None else link

    def _await_bytes(self, link: int, number: int, count: int) -> None:
        """Wait until the outer link has moved ``count`` bytes of a transfer (cut-through)."""
        with self.lock:
            while self._moved[link, number] < count and not self._stop.is_set():
                if not self._news.wait(self._patience_s):
                    raise RuntimeError(
                        f"link {link} has not moved {count} B of transfer {number}: nothing happens"
                    )

    def _read_home(self, key: int, begin: int, targets: list[Bytes]) -> None:
        for target in targets:
            done = 0
            while done < len(target):
                offset, count = self._extent_at_home(key, begin, len(target) - done)
                self._reader().read(offset, target[done : done + count])
                begin, done = begin + count, done + count

    def _extent_at_home(self, key: int, begin: int, count: int) -> tuple[int, int]:
        """Where byte ``begin`` of a transfer is in the store.

        Return its offset, and how many of ``count`` bytes follow it there in one piece.

        A transfer has the variant's own bytes first, then those of the experts after it in its
        layer; the layer's first expert follows its last.
        """
        g = self._controller.geometry
        size = g.bytes_of(key)
        later, at = divmod(begin, size)
        expert = (g.expert_of(key) + later) % g.experts
        offset = self._store.header.offset(g.precision_of(key), g.site_of(key), expert)
        if later:
            return offset + at, min(count, size - at)
        at, count = self.arrivals.extent(key, at, min(count, size - at))
        return offset + at, count

    def _offset(self, key: int) -> int:
        g = self._controller.geometry
        return self._store.header.offset(g.precision_of(key), g.site_of(key), g.expert_of(key))

    def _reader(self) -> Reader:
        """The calling thread's own reader, opened at its first use."""
        if not hasattr(self._own, "reader"):
            path, source = self._store.path, self._engine.source
            make: dict[str, Callable[[], Reader]] = {
                "ram": lambda: RamReader(self._home),  # type: ignore[arg-type]
                "buffered": partial(BufferedReader, path),
                "direct": partial(DirectReader, path, PIECE_BYTES),
                "mmap": partial(MappedReader, path),
            }
            self._own.reader = make[source]()
            self._readers.append(self._own.reader)
            if source != "ram":
                self._store.check_in_place()
        reader: Reader = self._own.reader
        return reader

    # ---- what is computed

    def begin_site(self, inputs: SiteInputs) -> None:
        """Live runs: take the next gate's inputs; its needs compute them until ``end_site``."""
        self._is_live = True
        self._work_of.begin_site(inputs)

    def end_site(self) -> torch.Tensor:
        """Live runs: the sum [T, H] of the site's experts."""
        return self._work_of.end_site()

    def up_of(self, site: int, expert: int) -> torch.Tensor:
        """Live runs of experts stored by neuron: an expert's up projection [I, H]."""
        return self._work_of.up_of(site, expert)

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        start_ns = self.now_ns()
        g, work = self._controller.geometry, self._work_of
        if key != TAIL and g.expert_of(key) < g.experts:
            blob = self._home_blob(key) if self._refers else self.slots.blob(key)
            work.run(
                key, blob, work.rows(key, rows), None if self._refers else self.arrivals.held(key)
            )
        elif not self._is_live and not self._is_padded:
            # In a live run the model has done the dense work; padded, only its time counts.
            work.run_dense(-1 if key == TAIL else g.site_of(key), rows)
        if self._is_padded:
            self._sleep(start_ns + nominal_ns)
        self._raise_failure()

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        self._cpu_inputs[key] = self._work_of.rows(key, tokens)
        super().compute_on_cpu(key, tokens, nominal_ns)

    def _perform(self, worker: Worker, job: Job) -> None:
        if worker is self._cpu:
            with self.lock:
                rows = self._cpu_inputs.pop(job.number)
            self._work_of.run(job.number, self._home_blob(job.number), rows)

    def _home_blob(self, key: int) -> torch.Tensor:
        """A variant's bytes in the store: a view where they are in memory, else a copy."""
        reader, size, offset = (
            self._reader(),
            self._controller.geometry.bytes_of(key),
            self._offset(key),
        )
        if isinstance(reader, MappedReader):
            reader.check(offset, size)
        if isinstance(reader, (MappedReader, RamReader)):
            return torch.from_numpy(reader.bytes[offset : offset + size])
        content = np.empty(size, np.uint8)
        reader.read(offset, content)
        return torch.from_numpy(content)

    # ---- time

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        # Nominal host time passes on padded machines only; a free one has its own host's time.
        if self._is_padded or turn == Turn.ARRIVALS:
            super().sleep_until(time_ns, turn)

    def _pace_job(self, until_ns: int) -> None:
        if self._is_padded:
            sleep_until(self._opened_ns + until_ns, self._stop)


def _copy_all(sources: list[Bytes], targets: list[Bytes]) -> None:
    """Copy the bytes of some arrays into others; in all both have the same length."""
    if len(sources) == len(targets) == 1:
        np.copyto(targets[0], sources[0])
        return
    joined, at = np.concatenate(sources), 0
    for target in targets:
        np.copyto(target, joined[at : at + len(target)])
        at += len(target)


def check(controller: Controller, engine: Engine, *, by_neuron: bool) -> None:
    """Raise ValueError for what this device does not do; `real.setup.devices` calls it by name."""
    loader, name = controller.loader, type(controller.payload).__name__
    refused = {
        f"payload {name} of {', '.join(controller.geometry.precisions)} (parts of experts move with precision=floe)": (
            controller.payload.active_share < 1 and not by_neuron
        ),
        f"payload {name} with a RAM tier (which holds whole experts)": (
            controller.payload.active_share < 1 and controller.ram is not None
        ),
        f"payload {name} with a RAM tier (which holds single experts)": (
            isinstance(controller.payload, WholeLayer) and controller.ram is not None
        ),
        f"loader.copies=free with engine.source={engine.source} (a reference needs memory: source=ram or mmap)": (
            loader.copies == "free" and engine.source not in ("ram", "mmap")
        ),
        "loader.write_back with engine.links=free (nothing is copied back; engine.links=paced takes the time)": (
            loader.write_back and engine.links == "free"
        ),
    }
    if wrong := [what for what, is_asked in refused.items() if is_asked]:
        raise ValueError(
            f"device=cpu does not run {' nor '.join(wrong)}; choose device=null, or another system"
        )


def make(run: Run, weights: Weights | None, engine: Engine) -> CpuDevice:
    """The device for a run; `real.setup.devices` calls this by name."""
    if weights is None:
        raise ValueError("device=cpu computes experts: it needs a store")
    return CpuDevice(run.controller, weights, engine, overflow_bytes=run.ledger.overflow_bytes)
