"""One engine of the link to the device: pieces of a variant, from pinned memory or by way of it,
into a slot.

A service is given to the engine's stream as a whole, pieces and spins, and its end is one event:
the host's jitter touches neither. Where a service may be cut, it is given up to the next chunk's
end, and the host then looks up: a started copy cannot be stopped, so none is started that might
have to be.

Pacing is the GPU's: a stamp at the service's beginning, and behind each piece a kernel that spins
until the piece is due, on an absolute schedule, so that what is late inside a service is caught up.
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
    """A variant that rests in pinned memory: ``pieces`` are all of its bytes, in order."""

    pieces: tuple[Tensor, ...]


@dataclass(frozen=True)
class Elsewhere:
    """A variant that must be read first: ``read(begin, into)`` fills a pinned buffer; called on
    the engine's thread.
    """

    read: Callable[[int, Tensor], None]
    ring: StagingRing


@dataclass(frozen=True)
class Scattered:
    """A variant of which some rows come, whole ones: ``pairs`` [I, row bytes] are all of them, in
    host memory, ``kept`` those that the slot is to hold, in its order.
    """

    gatherer: RowGatherer
    pairs: Tensor
    kept: Tensor


Source = Pinned | Elsewhere | Scattered


class CopyEngine:
    """Copies one service at a time. ``due_ns`` of a service is None where the link is not paced."""

    def __init__(self, runtime: Runtime, slots: DeviceSlots, name: str, piece_bytes: int) -> None:
        if piece_bytes < 1:
            raise ValueError(f"piece_bytes={piece_bytes} must be at least 1")
        self._runtime, self._slots, self._piece_bytes = runtime, slots, piece_bytes
        self.stream = runtime.stream(name)
        self._clock = runtime.allocate(8)
        self.num_copies = 0

    def begin(self, slot: Slot, is_paced: bool) -> None:
        """The service's slot may be overwritten from now on, when its readers have ended."""
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
        """Issue bytes ``begin .. begin + count`` of a variant, and do not wait for them.

        ``done`` of the service's bytes have been issued before; ``due_ns(done + n)`` is when n more
        are due, counted from ``begin()``. From a source elsewhere it returns when the last piece
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
        """Return when all that has been issued is through."""
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
        """The rows that end within these bytes, by the gatherer's streams, for which this one
        waits.
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
        """All of the variant has been issued: it can be read when that is over. Returns then."""
        self._runtime.synchronize(self._slots.end_write(slot, self.stream))
