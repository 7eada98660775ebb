"""The slots of the device's pools: which holds what, when it can be read, and when it may be overwritten.

The controller decides what is resident and counts bytes. Here every pool is one allocation, cut into slots of its
largest variant; all of it is taken before the run, and nothing after (``check_budget``).

A slot is read by compute streams behind the event that its copy recorded, and overwritten by copy streams behind the
events that its readers recorded since. Neither asks the host to wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from real.cuda.runtime import DeviceError, Event, Runtime, Stream
from sim.slots import IN_FLIGHT, Slots

SLOT_ALIGNMENT = 256
"""What a GPU loads from memory at once, several times over."""


@dataclass(eq=False)
class Slot:
    """One slot: its bytes, what it holds, and the events behind which it may be read and overwritten."""

    memory: Tensor
    pool: int
    index: int
    key: int = -1
    ready: Event | None = None
    readers: list[Event] = field(default_factory=list)


class DeviceSlots:
    """Slots for what ``slots`` (the controller's) holds; ``spare`` more in every pool, for staging and overflow.

    Raise ValueError where a pool may hold more variants than slots of the largest: a pool must hold one size, or room
    for as many of the largest as it is ever to hold.
    """

    def __init__(self, runtime: Runtime, slots: Slots, spare: int = 0) -> None:
        self._runtime, self._slots = runtime, slots
        self._shapes = [self._shape_of(pool, capacity, spare) for pool, capacity in enumerate(slots.capacity_bytes)]
        self.tensors: list[Tensor] = []
        self._free: list[list[Slot]] = []
        self._of: dict[int, Slot] = {}
        self._sealed_bytes: int | None = None

    def _shape_of(self, pool: int, capacity: int, spare: int) -> tuple[int, int]:
        """How many slots of how many bytes a pool has."""
        g = self._slots.geometry
        experts = (
            key for key in range(g.num_keys) if g.expert_of(key) < g.experts and self._slots.pool_of[key] == pool
        )
        sizes = {self._slots.key_bytes[key] for key in experts}
        if len(sizes) > 1 and capacity // min(sizes) > capacity // max(sizes):
            raise ValueError(
                f"pool {pool} mixes variants of {min(sizes)} to {max(sizes)} B: its slots hold the largest, and "
                f"{capacity // min(sizes)} of the smallest would not find one; choose a system with a pool for "
                f"each precision, or device=cpu"
            )
        return capacity // max(sizes, default=1) + (spare if capacity else 0), _up(max(sizes, default=1))

    def allocate(self) -> None:
        """Take the pools' memory: when a run begins, for devices are made that never run. Raise DeviceError."""
        for pool, (count, size) in enumerate(self._shapes):
            memory = self._runtime.allocate(count * size).view(count, size)
            self.tensors.append(memory)
            self._free.append([Slot(memory[index], pool, index) for index in reversed(range(count))])

    def release(self) -> None:
        """Give the memory back: the garbage collector would take its time."""
        self.tensors, self._free, self._of = [], [], {}

    @property
    def num_bytes(self) -> int:
        """Of all pools, whether or not they have been allocated."""
        return sum(count * size for count, size in self._shapes)

    # ---- which slot

    def place(self, key: int) -> Slot:
        """The slot of a key that the controller has claimed one for; its bytes are still to come."""
        if key not in self._of:
            pool = self._slots.pool_of[key]
            if not self._free[pool]:
                self._sweep()
            if not self._free[pool]:
                raise RuntimeError(f"pool {pool} has no slot for {self._slots.geometry.name_of(key)}")
            slot = self._free[pool].pop()
            slot.key = key
            self._of[key] = slot
        return self._of[key]

    def of(self, key: int) -> Slot:
        return self._of[key]

    def _sweep(self) -> None:
        """Free the slots of what the controller holds no more; they stay unsafe to write until their readers end."""
        state = self._slots.state
        for key in [key for key in self._of if state[key] > IN_FLIGHT]:
            slot = self._of.pop(key)
            slot.key = -1
            self._free[slot.pool].append(slot)

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
        held = list(self._of.values())
        free = [slot for slots in self._free for slot in slots]
        places = [(slot.pool, slot.index) for slot in (*held, *free)]
        assert len(places) == len(set(places)) == sum(len(memory) for memory in self.tensors)
        assert all(self._of[slot.key] is slot for slot in held)


def _up(num_bytes: int) -> int:
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
