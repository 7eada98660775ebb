"""The slots of the device's pools: which holds what, when it can be read, and when it may be overwritten.

The controller decides what is resident and counts bytes. Here every pool is one allocation, cut into slots of its
largest variant, or shared out by bytes where it mixes sizes; all of it is taken before the run, and nothing after
(``check_budget``).

A slot is read by compute streams behind the event that its copy recorded, and overwritten by copy streams behind the
events that its readers recorded since. Neither asks the host to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from real.cuda.runtime import DeviceError, Event, Runtime, Stream
from real.room import Extent, Room
from sim.slots import IN_FLIGHT, Slots

SLOT_ALIGNMENT = 256
"""What a GPU loads from memory at once, several times over."""


@dataclass(eq=False)
class Slot:
    """Room for one variant: its ``pieces`` of a pool, in order, and the events behind which it may be read and
    overwritten. ``index``: its place in a pool of equal slots.
    """

    pieces: tuple[Tensor, ...]
    pool: int
    index: int = -1
    key: int = -1
    ready: Event | None = None
    readers: list[Event] = field(default_factory=list)

    @property
    def memory(self) -> Tensor:
        """All of it, where it lies in one piece."""
        (memory,) = self.pieces
        return memory

    def parts(self, begin: int, count: int) -> Iterator[Tensor]:
        """The memory of bytes ``begin .. begin + count``, in order."""
        return parts_of(self.pieces, begin, count)


def parts_of(pieces: Sequence[Tensor], begin: int, count: int) -> Iterator[Tensor]:
    """Bytes ``begin .. begin + count`` of what lies in pieces, in order."""
    for piece in pieces:
        if count > 0 and begin < len(piece):
            part = piece[begin : begin + count]
            yield part
            count -= len(part)
        begin = max(0, begin - len(piece))


class Grid:
    """A pool whose slots are all as large as its largest variant: [count, bytes]."""

    def __init__(self, runtime: Runtime, pool: int, count: int, num_bytes: int, is_gone: Callable[[int], bool]) -> None:
        self._is_gone = is_gone
        self.tensor = runtime.allocate(count * num_bytes).view(count, num_bytes)
        self._free = [Slot((self.tensor[index],), pool, index) for index in reversed(range(count))]
        self._count = count
        self.of: dict[int, Slot] = {}

    def place(self, key: int, num_bytes: int) -> Slot | None:
        """A slot for a key; None where there is none."""
        if not self._free:
            for gone in [held for held in self.of if self._is_gone(held)]:
                slot = self.of.pop(gone)
                slot.key = -1
                # It stays unsafe to write until its readers end.
                self._free.append(slot)
        if not self._free:
            return None
        slot = self.of[key] = self._free.pop()
        slot.key = key
        return slot

    def check(self) -> None:
        places = [slot.index for slot in (*self.of.values(), *self._free)]
        assert len(places) == len(set(places)) == self._count


class Mixed:
    """A pool of variants of several sizes: each takes as many bytes as it has, in several pieces if need be.

    What is placed over bytes that others have left is written behind the events of these.
    """

    def __init__(self, runtime: Runtime, pool: int, sizes: Sequence[int], is_gone: Callable[[int], bool]) -> None:
        self._pool, self._room = pool, Room(sizes, is_gone, self._leave)
        self.tensor = runtime.allocate(self._room.end)
        self.of: dict[int, Slot] = {}
        self._left: list[tuple[Extent, list[Event]]] = []
        """Bytes that were somebody's, and what must be over before they are written."""

    def place(self, key: int, num_bytes: int) -> Slot | None:
        """Room for a key; None where there is none."""
        if not self._room.place(key, num_bytes, 0):
            return None
        extents = self._room.extents[key]
        slot = Slot(tuple(self.tensor[at : at + length] for at, length in extents), self._pool, key=key)
        for left, events in self._left:
            if any(_overlap(left, extent) for extent in extents):
                slot.readers += events
        self._left = [(left, events) for left, events in self._left if not _is_inside(left, extents)]
        self.of[key] = slot
        return slot

    def _leave(self, key: int, extents: list[Extent]) -> None:
        slot = self.of.pop(key)
        events = [*slot.readers, *([] if slot.ready is None else [slot.ready])]
        self._left += [(extent, events) for extent in extents]

    def check(self) -> None:
        self._room.check()


def _overlap(one: Extent, other: Extent) -> bool:
    return one[0] < sum(other) and other[0] < sum(one)


def _is_inside(one: Extent, others: Sequence[Extent]) -> bool:
    return any(at <= one[0] and sum(one) <= at + length for at, length in others)


class Parts(NamedTuple):
    """The bytes of a pool that is shared out by bytes: the controller's, and those of spare slots."""

    own_bytes: int
    spare_bytes: int


class DeviceSlots:
    """Slots for what ``slots`` (the controller's) holds; ``spare`` more in every pool, for staging and overflow.
    ``keeps_slot(key)``: a key that is neither there nor on its way has one all the same.

    A pool that may hold more variants than slots of its largest is shared out by bytes (`Mixed`), any other one is cut
    into equal slots (`Grid`), which kernels find by a table.
    """

    def __init__(self, runtime: Runtime, slots: Slots, spare: int = 0,
                 keeps_slot: Callable[[int], bool] = lambda key: False) -> None:  # fmt: skip
        self._runtime, self._slots, self._keeps_slot = runtime, slots, keeps_slot
        self._shapes = [self._shape_of(pool, capacity, spare) for pool, capacity in enumerate(slots.capacity_bytes)]
        self.pools: list[Grid | Mixed] = []
        self._sealed_bytes: int | None = None

    def _shape_of(self, pool: int, capacity: int, spare: int) -> tuple[int, int] | Parts:
        """How many slots of how many bytes a pool has; or what one has that is shared out by bytes."""
        g = self._slots.geometry
        experts = (
            key for key in range(g.num_keys) if g.expert_of(key) < g.experts and self._slots.pool_of[key] == pool
        )
        sizes = {self._slots.key_bytes[key] for key in experts}
        largest = max(sizes, default=1)
        if len(sizes) > 1 and capacity // min(sizes) > capacity // largest:
            return Parts(capacity, spare * largest)
        return capacity // largest + (spare if capacity else 0), _up(largest)

    def allocate(self) -> None:
        """Take the pools' memory: when a run begins, for devices are made that never run. Raise DeviceError."""
        state = self._slots.state

        def is_gone(key: int) -> bool:
            return state[key] > IN_FLIGHT and not self._keeps_slot(key)

        for pool, shape in enumerate(self._shapes):
            if isinstance(shape, Parts):
                self.pools.append(Mixed(self._runtime, pool, (shape.own_bytes, shape.spare_bytes), is_gone))
            else:
                self.pools.append(Grid(self._runtime, pool, *shape, is_gone))

    def release(self) -> None:
        """Give the memory back: the garbage collector would take its time."""
        self.pools = []

    @property
    def num_bytes(self) -> int:
        """Of all pools, whether or not they have been allocated."""
        return sum(sum(shape) if isinstance(shape, Parts) else shape[0] * shape[1] for shape in self._shapes)

    # ---- which slot

    def place(self, key: int) -> Slot:
        """The slot of a key that the controller has claimed one for; its bytes are still to come."""
        pool = self.pools[self._slots.pool_of[key]]
        slot = pool.of.get(key) or pool.place(key, self._slots.key_bytes[key])
        if slot is None:
            name = self._slots.geometry.name_of(key)
            raise RuntimeError(f"pool {self._slots.pool_of[key]} has no slot for {name}")
        return slot

    def of(self, key: int) -> Slot:
        return self.pools[self._slots.pool_of[key]].of[key]

    # ---- when

    def begin_write(self, slot: Slot, stream: Stream) -> None:
        """What the stream is given from now on may overwrite the slot."""
        for reader in slot.readers:
            self._runtime.wait(stream, reader)
        if slot.ready is not None:
            self._runtime.wait(stream, slot.ready)
        slot.readers.clear()
        slot.ready = None

    def end_write(self, slot: Slot, stream: Stream) -> Event:
        """The slot can be read when all that the stream has been given is over."""
        slot.ready = self._runtime.event()
        self._runtime.record(slot.ready, stream)
        return slot.ready

    def begin_read(self, slot: Slot, stream: Stream) -> None:
        """What the stream is given from now on may read the slot."""
        if slot.ready is None:
            raise RuntimeError(f"{self._slots.geometry.name_of(slot.key)} is read, but its copy has not been issued")
        self._runtime.wait(stream, slot.ready)

    def end_read(self, slot: Slot, stream: Stream) -> None:
        """The slot may be overwritten when all that the stream has been given is over."""
        reader = self._runtime.event()
        self._runtime.record(reader, stream)
        # A stream's later event covers its earlier ones, and experts are read by one stream.
        slot.readers[:] = [reader]

    def seal(self) -> None:
        """What is allocated on the device now, workspaces and graphs included, is all that the run may have."""
        self._sealed_bytes = self._runtime.allocated_bytes()

    def check_budget(self) -> None:
        """Raise DeviceError if the device holds more than when it was sealed."""
        assert self._sealed_bytes is not None
        if (more := self._runtime.allocated_bytes() - self._sealed_bytes) > 0:
            raise DeviceError(
                f"{more} B have been allocated on the device since the run began: it is over its budget of "
                f"{self.num_bytes} B of slots"
            )

    def check(self) -> None:
        """Assert that every slot is in one place. For tests."""
        for pool in self.pools:
            pool.check()
            assert all(slot.key == key for key, slot in pool.of.items())


def _up(num_bytes: int) -> int:
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
