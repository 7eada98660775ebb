"""Where experts lie outside the device's slots, all of it in pinned memory.

That is the store or the buffers through which it is read, the RAM tier, and the buffers between two
links.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Lock, local

import numpy as np
import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.copies import Elsewhere, Pinned, Scattered, Source
from real.cuda.runtime import Runtime
from real.cuda.zero_copy import RowGatherer, gatherer_bytes, gatherer_of
from real.driver.settings import Engine
from real.store.neurons import Arrivals
from real.store.reading import BufferedReader, Bytes, DirectReader, Reader
from real.store.slots import SlotMemory, most_bytes
from real.store.store import Store
from sim.core.controller import Controller

STAGING_BUFFERS = 3
"""Staging buffers of an engine: one is filled, one is copied, and one waits."""


class Transit:
    """Pinned buffers between two links, one for each transfer between them.

    ``lock`` is the device's.
    """

    def __init__(
        self, runtime: Runtime, lock: Lock, is_over: Callable[[], bool], patience_s: float
    ) -> None:
        self._runtime, self._is_over, self._patience_s = runtime, is_over, patience_s
        self._given_back = Condition(lock)
        self._of: dict[int, Tensor] = {}  # by transfer
        self.free: list[Tensor] = []

    def of(self, number: int) -> Tensor:
        """A transfer's buffer. The first link that asks takes one, and waits until one is free."""
        with self._given_back:
            while number not in self._of and not self._is_over():
                if self.free:
                    self._of[number] = self.free.pop()
                    self._runtime.host_writes(self._of[number])
                elif not self._given_back.wait(self._patience_s):
                    raise RuntimeError(
                        f"no transit buffer has become free for {self._patience_s:g} s"
                    )
            return self._of[number]

    def give_back(self, number: int) -> None:
        """Take back the buffer of a transfer that is over, if it had one."""
        with self._given_back:
            if (buffer := self._of.pop(number, None)) is not None:
                self.free.append(buffer)
                self._given_back.notify_all()

    def close(self) -> None:
        self._of.clear()
        self.free = []


class Homes:
    """The host's side of a run. All memory is pinned by ``pin``, none before and none after it.

    With ``source=ram`` memory holds the whole store; else each engine of link 0 has staging
    buffers. ``arrivals`` knows which neurons of an expert are asked for. ``piece_bytes`` is how
    much is read at once.
    """

    arena: PinnedArena

    def __init__(
        self,
        runtime: Runtime,
        controller: Controller,
        store: Store,
        engine: Engine,
        arrivals: Arrivals,
        transit: Transit,
        piece_bytes: int,
    ) -> None:
        self._runtime, self._controller, self._store, self._engine = (
            runtime,
            controller,
            store,
            engine,
        )
        self._arrivals, self._piece_bytes = arrivals, piece_bytes
        self.transit = transit
        self.ram: SlotMemory | None = None
        self._content: Tensor | None = None
        self._rings: list[StagingRing] = []
        self._gatherers: list[RowGatherer] = []
        self._own = local()
        self._readers: list[Reader] = []

    def pin(self, engines: tuple[int, ...], beside_bytes: int) -> None:
        """Take one arena for all that is pinned, with ``beside_bytes`` for others, and fill it.

        ``engines``: how many each link has.
        """
        largest, size = max(self._controller.geometry.variant_bytes), self._store.header.num_bytes
        tier = self._controller.ram
        in_transit = (
            2 * self._controller.loader.in_flight * sum(engines)
            if len(engines) > 1 and tier is None
            else 0
        )
        is_home, is_partial = (
            self._engine.source == "ram",
            self._controller.payload.active_share < 1,
        )
        staging = 0 if is_home else engines[0] * ring_bytes(STAGING_BUFFERS, self._piece_bytes)
        neurons, pair_bytes = self._store.header.neurons, self._arrivals.pair_bytes(0)
        if is_home and is_partial:
            staging = engines[0] * gatherer_bytes(self._engine, neurons, pair_bytes)
        self.arena = PinnedArena(
            self._runtime,
            ring_bytes(in_transit, largest)
            + staging
            + beside_bytes
            + (ring_bytes(1, size) if is_home else 0)
            + (0 if tier is None else ring_bytes(1, most_bytes(tier))),
        )
        if is_home:
            self._content = self.arena.take(size)
            self._reader().read(0, self._content.numpy())
            if is_partial:
                self._gatherers = [
                    gatherer_of(self._runtime, self.arena, self._engine, neurons, pair_bytes)
                    for _ in range(engines[0])
                ]
        else:
            self._rings = [
                StagingRing(self._runtime, self.arena, STAGING_BUFFERS, self._piece_bytes)
                for _ in range(engines[0])
            ]
        if tier is not None:
            self.ram = SlotMemory(tier, take=lambda count: self.arena.take(count).numpy())
            for key in tier.initial:
                self.ram.place(key)
                self.bring(key, 0, list(self.ram.pieces(key, 0, self._bytes_of(key))))
        self.transit.free = [self.arena.take(largest) for _ in range(in_transit)]

    def close(self) -> None:
        """Unpin all memory. Copies from it must be over."""
        for gatherer in self._gatherers:
            gatherer.close()
        # Dropped here: the garbage collector would take its time, and a next run needs the room.
        self._content, self._rings, self._gatherers, self.ram = None, [], [], None
        self.transit.close()
        self.arena.close()
        for reader in self._readers:
            reader.close()

    def of(self, key: int, engine: int) -> Source:
        """A variant where it rests for good, as a source for an engine of link 0."""
        offset, size = self.offset(key), self._bytes_of(key)
        kept = self._arrivals.held(key)
        if self._content is not None:
            whole = self._content[offset : offset + size]
            if kept is None:
                return Pinned((whole,))
            pairs = whole.view(-1, self._arrivals.pair_bytes(key))
            return Scattered(self._gatherers[engine], pairs, torch.from_numpy(kept))

        def read(begin: int, into: Tensor) -> None:
            done = 0
            while done < len(into):
                at, count = self._arrivals.extent(key, begin + done, len(into) - done)
                self._reader().read(offset + at, into[done : done + count].numpy())
                done += count

        return Elsewhere(read, self._rings[engine])

    def bring(self, key: int, begin: int, targets: list[Bytes]) -> None:
        """Fill host memory with a variant's bytes from ``begin`` on, from where they rest."""
        offset = self.offset(key) + begin
        for target in targets:
            if self._content is not None:
                np.copyto(target, self._content[offset : offset + len(target)].numpy())
            else:
                self._reader().read(offset, target)
            offset += len(target)

    def blob(self, key: int) -> Tensor:
        """A variant's bytes in host memory; read if they do not rest there."""
        offset, size = self.offset(key), self._bytes_of(key)
        if self._content is not None:
            return self._content[offset : offset + size]
        blob = torch.empty(size, dtype=torch.uint8)
        self._reader().read(offset, blob.numpy())
        return blob

    def offset(self, key: int) -> int:
        """The byte at which a variant begins in the store."""
        g = self._controller.geometry
        return self._store.header.offset(g.precision_of(key), g.site_of(key), g.expert_of(key))

    def _bytes_of(self, key: int) -> int:
        return self._controller.geometry.bytes_of(key)

    def _reader(self) -> Reader:
        """The calling thread's own reader, opened at its first use."""
        if not hasattr(self._own, "reader"):
            self._own.reader = _open(self._store, self._engine.source, self._piece_bytes)
            self._readers.append(self._own.reader)
        reader: Reader = self._own.reader
        return reader


def _open(store: Store, source: str, piece_bytes: int) -> Reader:
    return (
        DirectReader(store.path, piece_bytes) if source == "direct" else BufferedReader(store.path)
    )
