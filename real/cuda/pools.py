"""Where variants lie in a pool's memory: slots of equal size, or bytes shared out.

A pool is cut into slots of its largest variant (`Grid`), or shared out by bytes where it mixes sizes
(`Mixed`). Both write into one table which slot each key has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from real.cuda.lanes import Moment
from real.cuda.runtime import Memory
from real.store.room import Extent, Room


@dataclass(eq=False, slots=True)
class Slot:
    """Room for one variant: its ``pieces`` in order, and the moments that guard it.

    ``at`` is where it begins in the slots' memory, in units (``DeviceSlots.unit``), and ``target``
    is that memory as ``Runtime.move`` takes it; -1 and None if it lies in several pieces. It may be
    read behind ``ready``, and overwritten behind ``readers`` and ``ready``.
    """

    pieces: tuple[Tensor, ...]
    pool: int
    at: int = -1
    target: Memory = None
    key: int = -1
    ready: Moment | None = None
    readers: Sequence[Moment] = ()
    _fronts: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """Parts that begin the slot, by bytes. To cut a tensor costs more than to copy it."""

    @property
    def memory(self) -> Tensor:
        """All of the slot, which must lie in one piece."""
        (memory,) = self.pieces
        return memory

    def parts(self, begin: int, count: int) -> Iterator[Tensor]:
        """The memory of bytes ``begin .. begin + count``, in order."""
        return parts_of(self.pieces, begin, count) if begin else iter(self.front(count))

    def front(self, count: int) -> tuple[Tensor, ...]:
        """The memory of the first ``count`` bytes."""
        found = self._fronts.get(count)
        if found is None:
            found = self._fronts[count] = tuple(parts_of(self.pieces, 0, count))
        return found


def parts_of(pieces: Sequence[Tensor], begin: int, count: int) -> Iterator[Tensor]:
    """Bytes ``begin .. begin + count`` of memory that lies in pieces, in order."""
    for piece in pieces:
        if not begin and count >= piece.numel():
            yield piece
            count -= piece.numel()
        elif count > 0 and begin < piece.numel():
            part = piece[begin : begin + count]
            yield part
            count -= len(part)
        begin = max(0, begin - len(piece))


@dataclass(frozen=True)
class Ground:
    """What all pools of a device share: one memory, and one table of the slots by key (``of``).

    Places count in units. ``is_gone(key)``: whether a key's slot may be taken from it.
    ``memory_of`` is the runtime's.
    """

    memory: Tensor
    unit: int
    of: dict[int, Slot]
    is_gone: Callable[[int], bool]
    memory_of: Callable[[Tensor], Memory]

    def slot(self, pool: int, at: int, num_bytes: int) -> Slot:
        """A slot of one piece that begins at byte ``at``."""
        piece = self.memory[at : at + num_bytes]
        return Slot((piece,), pool, at // self.unit, self.memory_of(piece))


class Grid:
    """A pool whose slots are all as large as its largest variant; it begins at byte ``begin``."""

    def __init__(self, ground: Ground, pool: int, begin: int, count: int, num_bytes: int) -> None:
        self._is_gone, self._pool, self._of = ground.is_gone, pool, ground.of
        places = range(begin, begin + count * num_bytes, num_bytes)
        self._free = [ground.slot(pool, at, num_bytes) for at in reversed(places)]
        self._count = count

    def place(self, key: int, num_bytes: int, likely: Sequence[int] = ()) -> Slot | None:
        """A slot for a key; None where there is none. ``likely``: keys that may be gone."""
        free = self._free
        if not free:
            self._free_those(likely)
            if not free:
                self._free_those(list(self._of))
                if not free:
                    return None
        slot = self._of[key] = free.pop()
        slot.key = key
        return slot

    def _free_those(self, keys: Iterable[int]) -> None:
        """Take back the slots of keys that are gone. None is written before its readers end."""
        of, is_gone = self._of, self._is_gone
        for key in keys:
            slot = of.get(key)
            if slot is not None and slot.pool == self._pool and is_gone(key):
                del of[key]
                slot.key = -1
                self._free.append(slot)

    def check(self) -> None:
        taken = [slot for slot in self._of.values() if slot.pool == self._pool]
        places = [slot.at for slot in (*taken, *self._free)]
        assert len(places) == len(set(places)) == self._count


class Mixed:
    """A pool of variants of several sizes: each takes its own bytes, in several pieces if need be.

    A variant placed over bytes that others have left is written behind the others' moments. The
    pool begins at byte ``begin``.
    """

    def __init__(self, ground: Ground, pool: int, begin: int, sizes: Sequence[int]) -> None:
        self._ground, self._pool, self._begin = ground, pool, begin
        self._room = Room(sizes, ground.is_gone, self._leave)
        self._left: list[tuple[Extent, list[Moment]]] = []
        """Bytes that variants have left, with the moments that must pass before they are written.
        """

    def place(self, key: int, num_bytes: int, likely: Sequence[int] = ()) -> Slot | None:
        """Room for a key; None where there is none."""
        if not self._room.place(key, num_bytes, 0):
            return None
        extents = self._room.extents[key]
        if len(extents) == 1:
            ((at, length),) = extents
            slot = self._ground.slot(self._pool, self._begin + at, length)
        else:
            memory = self._ground.memory[self._begin :]
            slot = Slot(tuple(memory[at : at + length] for at, length in extents), self._pool)
        slot.key = key
        for left, moments in self._left:
            if any(_overlap(left, extent) for extent in extents):
                slot.readers = [*slot.readers, *moments]
        self._left = [
            (left, moments) for left, moments in self._left if not _is_inside(left, extents)
        ]
        self._ground.of[key] = slot
        return slot

    def _leave(self, key: int, extents: list[Extent]) -> None:
        slot = self._ground.of.pop(key)
        moments = [*slot.readers, *([] if slot.ready is None else [slot.ready])]
        self._left += [(extent, moments) for extent in extents]

    def check(self) -> None:
        self._room.check()


def _overlap(one: Extent, other: Extent) -> bool:
    return one[0] < sum(other) and other[0] < sum(one)


def _is_inside(one: Extent, others: Sequence[Extent]) -> bool:
    return any(at <= one[0] and sum(one) <= at + length for at, length in others)
