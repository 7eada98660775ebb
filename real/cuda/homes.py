"""Where experts lie outside the device's slots, all of it in pinned memory.

That is the store or the buffers through which it is read, the RAM tier, and the buffers between two
links.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import local

import numpy as np
import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.copies import Crewed, Elsewhere, Pinned, RowGatherer, Scattered, Source, Submit
from real.cuda.runtime import Runtime
from real.cuda.zero_copy import gatherer_bytes, gatherer_of
from real.driver.settings import Engine
from real.store.neurons import Arrivals
from real.store.reading import BufferedReader, Bytes, DirectReader, Reader
from real.store.slots import SlotMemory, most_bytes
from real.store.store import Store
from sim.core.controller import Controller

STAGING_BUFFERS = 3
"""Staging buffers of an engine: one is filled, one is copied, and one waits."""


class Transit:
    """Pinned buffers between two links, one for each transfer between them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._of: dict[int, Tensor] = {}  # by transfer
        self.free: list[Tensor] = []

    def of(self, number: int) -> Tensor | None:
        """A transfer's buffer. The first link that asks takes one; None while none is free."""
        if number not in self._of and self.free:
            self._of[number] = self.free.pop()
            self._runtime.host_writes(self._of[number])
        return self._of.get(number)

    def give_back(self, number: int) -> None:
        """Take back the buffer of a transfer that is over, if it had one."""
        if (buffer := self._of.pop(number, None)) is not None:
            self.free.append(buffer)

    def close(self) -> None:
        self._of.clear()
        self.free = []


class Homes:
    """The host's side of a run. All memory is pinned by ``pin``, none before and none after it.

    With ``source=ram`` memory holds the whole store; else each engine of link 0 has staging
    buffers. ``arrivals`` knows which neurons of an expert are asked for. ``submit(name, count)``
    gives work to so many threads of that name. ``piece_bytes`` is how much is read at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        controller: Controller,
        store: Store,
        engine: Engine,
        arrivals: Arrivals,
        submit: Callable[[str, int], Submit],
        piece_bytes: int,
    ) -> None:
        self._runtime, self._controller, self._store, self._engine = (
            runtime,
            controller,
            store,
            engine,
        )
        self._arrivals, self._piece_bytes = arrivals, piece_bytes
        self.transit = Transit(runtime)
        self._submit = submit
        self.ram: SlotMemory | None = None
        self._content: Tensor | None = None
        self._crewed: list[Crewed] = []
        self.content_of: dict[int, Tensor] = {}
        """By key: a variant that rests in one piece. To cut a tensor costs more than to copy it."""
        self._gatherers: list[RowGatherer] = []
        self._arena: PinnedArena | None = None
        self._own = local()
        self._readers: list[Reader] = []

    @property
    def arena(self) -> PinnedArena:
        """All that is pinned for the run."""
        assert self._arena is not None
        return self._arena

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
        self._arena = PinnedArena(
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
            self.content_of = self._variants_of(self._content)
            if is_partial:
                gather = self._submit("gatherers", self._engine.gather_threads)
                self._gatherers = [
                    gatherer_of(
                        self._runtime, self.arena, self._engine, gather, neurons, pair_bytes
                    )
                    for _ in range(engines[0])
                ]
        else:
            for number in range(engines[0]):
                ring = StagingRing(self._runtime, self.arena, STAGING_BUFFERS, self._piece_bytes)
                read = self._submit(f"reader of engine {number} of link 0", 1)
                self._crewed.append(Crewed(ring, read))
        if tier is not None:
            self.ram = SlotMemory(tier, take=lambda count: self.arena.take(count).numpy())
            for key in tier.initial:
                self.ram.place(key)
                self.bring(key, 0, list(self.ram.pieces(key, 0, self._bytes_of(key))))
        self.transit.free = [self.arena.take(largest) for _ in range(in_transit)]

    def _variants_of(self, content: Tensor) -> dict[int, Tensor]:
        g = self._controller.geometry
        keys = (
            g.key(precision, site, expert)
            for precision in range(len(g.precisions))
            for site in range(g.sites)
            for expert in range(g.experts)
        )
        return {key: content[(at := self.offset(key)) : at + self._bytes_of(key)] for key in keys}

    def close(self) -> None:
        """Unpin all memory. Copies from it must be over."""
        # Dropped here: the garbage collector would take its time, and a next run needs the room.
        self._content, self._crewed, self._gatherers, self.ram = None, [], [], None
        self.content_of = {}
        self.transit.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def of(self, key: int, engine: int) -> Source:
        """A variant where it rests for good, as a source for an engine of link 0."""
        kept = self._arrivals.held(key)
        if kept is None and (found := self.content_of.get(key)) is not None:
            return Pinned((found,))
        offset, size = self.offset(key), self._bytes_of(key)
        if self._content is not None:
            whole = self._content[offset : offset + size]
            assert kept is not None
            pairs = whole.view(-1, self._arrivals.pair_bytes(key))
            return Scattered(self._gatherers[engine], pairs, torch.from_numpy(kept))

        def read(begin: int, into: Tensor) -> None:
            done = 0
            while done < len(into):
                at, count = self._arrivals.extent(key, begin + done, len(into) - done)
                self._reader().read(offset + at, into[done : done + count].numpy())
                done += count

        return Elsewhere(read, self._crewed[engine])

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
            self._store.check_in_place()
        reader: Reader = self._own.reader
        return reader


def _open(store: Store, source: str, piece_bytes: int) -> Reader:
    return (
        DirectReader(store.path, piece_bytes) if source == "direct" else BufferedReader(store.path)
    )
