"""One engine of the link to the device: copies variants into slots, from or through pinned memory.

What rests in pinned memory is given to the engine's lane at once, as a single copy where slot and
source lie in one piece. Anything else comes through pinned buffers, which threads fill: a file is
read, or chosen rows are gathered (`Fetching`).

The GPU paces: it stamps the time at the service's beginning, and behind each piece a kernel spins
until the piece is due. The schedule is absolute, so lateness inside a service is caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from real.cuda.arena import StagingRing
from real.cuda.lanes import Lane
from real.cuda.pools import Slot, parts_of
from real.cuda.runtime import Memory, Runtime
from real.cuda.slots import DeviceSlots

Submit = Callable[[Callable[[], object], Callable[[object], object]], None]
"""``submit(work, then)`` lets a thread do ``work``; ``then`` gets its result on this one."""
Piece = tuple[Tensor, Callable[[Tensor], object]]
"""Where bytes go, and what fills a pinned buffer of as many with them."""
Due = Callable[[int], int]


class Feed(Protocol):
    """A copy that cannot be given to its lane as a whole."""

    def advance(self) -> bool:
        """Give the lane what can be given now; return True once all of it has been."""


@dataclass(frozen=True, eq=False)
class Crewed:
    """Pinned buffers, and the threads that fill them."""

    ring: StagingRing
    submit: Submit


class Fetching:
    """Pieces that threads bring into pinned buffers; each is copied as soon as it is there.

    ``copy(target, held)`` gives the copy of a piece to the lane.
    """

    def __init__(
        self,
        lane: Lane,
        crewed: Crewed,
        pieces: Iterator[Piece],
        copy: Callable[[Tensor, Tensor], None],
    ) -> None:
        self._lane, self._crewed, self._pieces, self._copy = lane, crewed, pieces, copy
        self._next: Piece | None = next(pieces, None)
        self._num_out = 0

    def advance(self) -> bool:
        if self._next is not None:
            self._lane.ask()
        while self._next is not None and (buffer := self._crewed.ring.take()) is not None:
            target, fill = self._next
            self._next = next(self._pieces, None)
            self._num_out += 1
            held = buffer[: target.numel()]
            self._crewed.submit(partial(fill, held), partial(self._bring, target, held, buffer))
        return self._next is None and not self._num_out

    def _bring(self, target: Tensor, held: Tensor, buffer: Tensor, _: object) -> None:
        self._num_out -= 1
        self._copy(target, held.view(target.shape))
        self._crewed.ring.give_back(buffer, (self._lane, self._lane.mark()))


@dataclass(frozen=True)
class Pinned:
    """A variant in pinned memory: ``pieces`` are all of its bytes, in order."""

    pieces: tuple[Tensor, ...]


@dataclass(frozen=True)
class Elsewhere:
    """A variant that must be read before it can be copied.

    ``read(begin, into)`` fills a pinned buffer, on another thread.
    """

    read: Callable[[int, Tensor], object]
    crewed: Crewed


class RowGatherer(Protocol):
    """Brings chosen rows of an expert to the device."""

    def gather(self, pairs: Tensor, kept: Tensor, target: Tensor, lane: Lane) -> Feed | None:
        """Bring rows ``kept`` of ``pairs`` to the first rows of ``target``, in the lane's order.

        None: the lane has been given all of it.
        """


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
    """Copies one service at a time. The caller's ``due_ns`` is None on links that are not paced.

    ``piece_bytes``: how much is read at once, and how much a paced link brings at once.
    """

    def __init__(self, runtime: Runtime, slots: DeviceSlots, lane: Lane, piece_bytes: int) -> None:
        if piece_bytes < 1:
            raise ValueError(f"piece_bytes={piece_bytes} must be at least 1")
        self._runtime, self._slots, self._piece_bytes = runtime, slots, piece_bytes
        self._move = runtime.move
        self.lane = lane
        self._clock = runtime.allocate(8)
        self.num_copies = 0

    def begin(self, slot: Slot, *, is_paced: bool) -> None:
        """Begin a service: the lane overwrites the slot once the slot's readers have ended."""
        self._slots.begin_write(slot, self.lane)
        if is_paced:
            self._runtime.stamp(self._clock, self.lane.stream)

    def copy(
        self,
        slot: Slot,
        source: Source,
        begin: int,
        count: int,
        due_ns: Due | None = None,
        done: int = 0,
    ) -> Feed | None:
        """Copy bytes ``begin .. begin + count`` of a variant.

        ``done`` bytes of the service have been given before. ``due_ns(done + n)`` is when n more
        are due, counted from ``begin()``. None: the lane has been given all of it.
        """
        if isinstance(source, Scattered):
            return self._gather(slot, source, begin, count, due_ns, done + count)
        if isinstance(source, Elsewhere):
            return self._fetch(slot, source, begin, count, due_ns, done)
        step = count if due_ns is None else self._piece_bytes
        for at in range(begin, begin + count, max(1, step)):
            for target, place in _parts(slot, at, min(step, begin + count - at)):
                self._copy_pinned(target, source, place)
            if due_ns is not None:
                self._spin(due_ns(done + min(at + step, begin + count) - begin))
        return None

    def bring(self, slot: Slot, content: Memory, num_bytes: int) -> int:
        """Give the lane a whole service that is one copy into a slot of one piece."""
        lane = self.lane
        self._slots.begin_write(slot, lane)
        self._move(slot.target, content, num_bytes, lane.stream)
        self.num_copies += 1
        slot.ready = lane, (number := lane.mark())
        return number

    def end(self, slot: Slot) -> int:
        """End a service that has been given as a whole; the slot can be read behind its mark."""
        slot.ready = self.lane, (number := self.lane.mark())
        return number

    def _copy_pinned(self, target: Tensor, source: Pinned, at: int) -> None:
        done, size = 0, target.numel()
        for held in parts_of(source.pieces, at, size):
            whole = held.numel() == size
            self._give(target if whole else target[done : done + held.numel()], held)
            done += held.numel()

    def _give(self, target: Tensor, held: Tensor) -> None:
        self._runtime.copy(target, held, self.lane.stream)
        self.num_copies += 1

    def _spin(self, due_ns: int) -> None:
        self._runtime.spin_until(self._clock, due_ns, self.lane.stream)

    def _fetch(
        self,
        slot: Slot,
        source: Elsewhere,
        begin: int,
        count: int,
        due_ns: Due | None,
        done: int,
    ) -> Feed:
        brought = done

        def copy(target: Tensor, held: Tensor) -> None:
            nonlocal brought
            self._give(target, held)
            brought += target.numel()
            if due_ns is not None:
                self._spin(due_ns(brought))

        step = self._piece_bytes
        pieces = (
            (target, partial(source.read, place))
            for at in range(begin, begin + count, step)
            for target, place in _parts(slot, at, min(step, begin + count - at))
        )
        return Fetching(self.lane, source.crewed, pieces, copy)

    def _gather(
        self,
        slot: Slot,
        source: Scattered,
        begin: int,
        count: int,
        due_ns: Due | None,
        done: int,
    ) -> Feed | None:
        """Gather the rows that end within these bytes."""
        size = source.pairs.shape[1]
        rows = slice(begin // size, (begin + count) // size)
        target = slot.memory[: source.pairs.numel()].view(source.pairs.shape)[rows]
        self.num_copies += 1
        feed = source.gatherer.gather(source.pairs, source.kept[rows], target, self.lane)
        if due_ns is None:
            return feed
        if feed is None:
            self._spin(due_ns(done))
            return None
        return _Then(feed, partial(self._spin, due_ns(done)))


class _Then:
    """A feed with something to do when all of it has been given."""

    def __init__(self, feed: Feed, then: Callable[[], None]) -> None:
        self._feed, self._then = feed, then

    def advance(self) -> bool:
        if not self._feed.advance():
            return False
        self._then()
        return True


def _parts(slot: Slot, begin: int, count: int) -> Iterator[tuple[Tensor, int]]:
    """The memory of some bytes of a variant, each part with its place in the variant."""
    for target in slot.parts(begin, count):
        yield target, begin
        begin += target.numel()
