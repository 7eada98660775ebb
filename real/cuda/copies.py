"""One engine of the link to the device: copies variants into slots, from or through pinned memory.

A service is given to the engine's stream as a whole, pieces and spins, and its end is one event. So
the host's jitter touches neither the pieces nor their pacing. A started copy cannot be stopped.
Where a service may be cut it is therefore given to the stream up to the next chunk's end, and the
host looks up before it goes on.

The GPU paces: it stamps the time at the service's beginning, and behind each piece a kernel spins
until the piece is due. The schedule is absolute, so lateness inside a service is caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from real.cuda.arena import StagingRing
from real.cuda.runtime import Event, Runtime
from real.cuda.slots import DeviceSlots, Slot, parts_of
from real.cuda.zero_copy import RowGatherer


@dataclass(frozen=True)
class Pinned:
    """A variant in pinned memory: ``pieces`` are all of its bytes, in order."""

    pieces: tuple[Tensor, ...]


@dataclass(frozen=True)
class Elsewhere:
    """A variant that must be read before it can be copied.

    ``read(begin, into)`` fills a pinned buffer, on the engine's thread.
    """

    read: Callable[[int, Tensor], None]
    ring: StagingRing


@dataclass(frozen=True)
class Scattered:
    """A variant of which only some rows come, each of them whole.

    ``pairs`` [I, row bytes] are all of its rows, in host memory. ``kept`` are the numbers of those
    that the slot is to hold, in its order.
    """

    gatherer: RowGatherer
    pairs: Tensor
    kept: Tensor


Source = Pinned | Elsewhere | Scattered


class CopyEngine:
    """Copies one service at a time. The caller's ``due_ns`` is None on links that are not paced."""

    def __init__(self, runtime: Runtime, slots: DeviceSlots, name: str, piece_bytes: int) -> None:
        if piece_bytes < 1:
            raise ValueError(f"piece_bytes={piece_bytes} must be at least 1")
        self._runtime, self._slots, self._piece_bytes = runtime, slots, piece_bytes
        self.stream = runtime.stream(name)
        self._clock = runtime.allocate(8)
        self.num_copies = 0

    def begin(self, slot: Slot, is_paced: bool) -> None:
        """Begin a service: the stream overwrites the slot once the slot's readers have ended."""
        self._slots.begin_write(slot, self.stream)
        if is_paced:
            self._runtime.stamp(self._clock, self.stream)

    def copy(
        self,
        slot: Slot,
        source: Source,
        begin: int,
        count: int,
        due_ns: Callable[[int], int] | None = None,
        done: int = 0,
    ) -> None:
        """Issue bytes ``begin .. begin + count`` of a variant, without waiting for the copies.

        ``done`` bytes of the service have been issued before. ``due_ns(done + n)`` is when n more
        are due, counted from ``begin()``. From a source elsewhere this returns when the last piece
        has been read.
        """
        if isinstance(source, Scattered):
            self._gather(slot, source, begin, count)
            if due_ns is not None:
                self._runtime.spin_until(self._clock, due_ns(done + count), self.stream)
            return
        for at in range(begin, begin + count, self._piece_bytes):
            piece = min(self._piece_bytes, begin + count - at)
            place = at
            for target in slot.parts(at, piece):
                if isinstance(source, Pinned):
                    self._copy_pinned(target, source, place)
                else:
                    self._copy_by_way(target, source, place)
                place += len(target)
            done += piece
            if due_ns is not None:
                self._runtime.spin_until(self._clock, due_ns(done), self.stream)

    def finish(self) -> None:
        """Wait until everything issued is through."""
        self._runtime.synchronize(self._event())

    def _copy_pinned(self, target: Tensor, source: Pinned, at: int) -> None:
        done = 0
        for held in parts_of(source.pieces, at, len(target)):
            self._runtime.copy(target[done : done + len(held)], held, self.stream)
            self.num_copies += 1
            done += len(held)

    def _copy_by_way(self, target: Tensor, source: Elsewhere, at: int) -> None:
        buffer = source.ring.take()
        held = buffer[: target.numel()]
        source.read(at, held)
        self._runtime.copy(target, held, self.stream)
        self.num_copies += 1
        source.ring.give_back(buffer, self._event())

    def _gather(self, slot: Slot, source: Scattered, begin: int, count: int) -> None:
        """Gather the rows that end within these bytes, on the gatherer's streams.

        This engine's stream waits for them.
        """
        size = source.pairs.shape[1]
        rows = slice(begin // size, (begin + count) // size)
        target = slot.memory[: source.pairs.numel()].view(source.pairs.shape)[rows]
        for end in source.gatherer.gather(source.pairs, source.kept[rows], target, [self._event()]):
            self._runtime.wait(self.stream, end)
        self.num_copies += 1

    def _event(self) -> Event:
        event = self._runtime.event()
        self._runtime.record(event, self.stream)
        return event

    def end(self, slot: Slot) -> None:
        """End a service that is issued as a whole, and wait: the slot can be read from then on."""
        self._runtime.synchronize(self._slots.end_write(slot, self.stream))
