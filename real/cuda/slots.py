"""The slots of the device's pools: which variant each holds, when it may be read and overwritten.

The controller decides what is resident, and counts bytes. Here all pools are one allocation
(`real.cuda.pools` says where in them a variant lies). All memory is
taken before the run and nothing after it (``check_budget``). Kernels find a variant by the place
where it begins, in units that divide all beginnings (``windows``).

Compute lanes read a slot behind the moment of its copy. Copy lanes overwrite it behind the moments
of its readers. Neither makes the host wait (`real.cuda.lanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from real.cuda.lanes import Lane, is_over
from real.cuda.pools import Grid, Ground, Mixed, Slot
from real.cuda.runtime import DeviceError, Runtime
from real.store.room import ALIGNMENT as ROOM_ALIGNMENT
from real.store.room import Room
from sim.core.slots import ABSENT, QUEUED, Slots

SLOT_ALIGNMENT = 256
"""A multiple, several times over, of what a GPU loads from memory at once."""


class Parts(NamedTuple):
    """The shape of a pool that is shared out by bytes: the controller's, and those of spare slots.

    All sizes in it, and so all places, are multiples of ``unit``.
    """

    own_bytes: int
    spare_bytes: int
    unit: int


class Equal(NamedTuple):
    """The shape of a pool of equal slots."""

    num_slots: int
    slot_bytes: int


class DeviceSlots:
    """Slots for what ``slots`` (the controller's) holds.

    - ``spare``: how many more there are in every pool, for staging and overflow.
    - ``keeps_slot(key)``: whether a key that is queued keeps its slot.

    A pool that may hold more variants than slots of its largest is shared out by bytes (`Mixed`).
    Any other pool is cut into equal slots (`Grid`).
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: Slots,
        spare: int = 0,
        keeps_slot: Callable[[int], bool] = lambda key: False,
    ) -> None:
        self._runtime, self._slots, self._keeps_slot = runtime, slots, keeps_slot
        self._shapes = [
            self._shape_of(pool, capacity, spare)
            for pool, capacity in enumerate(slots.capacity_bytes)
        ]
        self.pools: list[Grid | Mixed] = []
        self._of: dict[int, Slot] = {}
        self.coming: dict[int, Slot] = {}
        """By key: slots whose copy the host may not have seen over; those of keys gone since, too."""
        self._memory: Tensor | None = None
        self._mending: Tensor | None = None
        self._sealed_bytes: int | None = None
        self.unit = SLOT_ALIGNMENT
        """Every slot that lies in one piece begins at a multiple of so many bytes."""
        for shape in self._shapes:
            steps = (
                (shape.unit, ROOM_ALIGNMENT) if isinstance(shape, Parts) else (shape.slot_bytes,)
            )
            self.unit = gcd(self.unit, *steps)

    def _shape_of(self, pool: int, capacity: int, spare: int) -> Equal | Parts:
        g = self._slots.geometry
        experts = (
            key
            for key in range(g.num_keys)
            if g.expert_of(key) < g.experts and self._slots.pool_of[key] == pool
        )
        sizes = {self._slots.key_bytes[key] for key in experts}
        largest = max(sizes, default=1)
        if len(sizes) > 1 and capacity // min(sizes) > capacity // largest:
            unit = gcd(*sizes)
            return Parts(capacity // unit * unit, spare * largest, unit)
        return Equal(capacity // largest + (spare if capacity else 0), _up(largest))

    def allocate(self, *, mends: bool = False) -> None:
        """Take the pools' memory. Raise DeviceError if the device has too little.

        This waits until a run begins, since some devices are made and never run. ``mends``: take
        also room to put a variant of several pieces together (``place_of``).
        """
        state, keeps_slot = self._slots.state, self._keeps_slot

        def is_gone(key: int) -> bool:
            now = state[key]
            return now == ABSENT or (now == QUEUED and not keeps_slot(key))

        begins, end = [], 0
        for shape in self._shapes:
            begins.append(_up(end))
            end = begins[-1] + _length(shape)
        mixes = any(isinstance(shape, Parts) for shape in self._shapes)
        largest = max(self._slots.geometry.variant_bytes) if mends and mixes else 0
        memory = self._memory = self._runtime.allocate(_up(end) + largest if largest else end)
        self._mending = memory[_up(end) :] if largest else None
        ground = Ground(memory, self.unit, self._of, is_gone, self._runtime.memory_of)
        for pool, (shape, begin) in enumerate(zip(self._shapes, begins, strict=True)):
            if isinstance(shape, Parts):
                sizes = shape.own_bytes, shape.spare_bytes
                self.pools.append(Mixed(ground, pool, begin, sizes))
            else:
                self.pools.append(Grid(ground, pool, begin, *shape))

    def release(self) -> None:
        """Give the memory back now; the garbage collector would take its time."""
        self.pools, self._memory, self._mending = [], None, None
        self._of.clear()
        self.coming.clear()

    def windows(self, num_bytes: int) -> Tensor:
        """What lies at each multiple of ``unit``, uint8 [places, num_bytes]; windows overlap.

        For kernels that find slots by a table of places.
        """
        assert self._memory is not None
        count = (len(self._memory) - num_bytes) // self.unit + 1
        return self._memory.as_strided((max(0, count), num_bytes), (self.unit, 1))

    def place_of(self, slot: Slot, num_bytes: int, lane: Lane) -> int:
        """The place, in units, of a variant that the lane reads next.

        A variant of several pieces is put together first, in room that the next such variant takes.
        """
        if slot.at >= 0:
            return slot.at
        assert self._memory is not None
        assert self._mending is not None
        whole, pieces = self._mending[:num_bytes], list(slot.parts(0, num_bytes))
        self._runtime.run(
            lane.stream, lambda: torch.cat(pieces, out=whole), reads=pieces, writes=[whole]
        )
        return (len(self._memory) - len(self._mending)) // self.unit

    @property
    def num_bytes(self) -> int:
        """The bytes of all pools, whether or not they have been allocated."""
        return sum(
            (
                shape.own_bytes + shape.spare_bytes
                if isinstance(shape, Parts)
                else shape.num_slots * shape.slot_bytes
            )
            for shape in self._shapes
        )

    # ---- which slot

    def place(self, key: int, victims: Sequence[int] = ()) -> Slot:
        """The slot of a key, which the controller has claimed; its bytes are still to come.

        ``victims`` were evicted for it. To know them saves a search for slots that are free.
        """
        if (slot := self._of.get(key)) is not None:
            return slot
        number = self._slots.pool_of[key]
        slot = self.pools[number].place(key, self._slots.key_bytes[key], victims)
        if slot is None:
            raise RuntimeError(f"pool {number} has no slot for {self._slots.geometry.name_of(key)}")
        self.coming[key] = slot
        return slot

    def of(self, key: int) -> Slot:
        return self._of[key]

    # ---- when

    def begin_write(self, slot: Slot, lane: Lane) -> None:
        """Let the lane overwrite the slot only after its readers and its last copy."""
        for moment in slot.readers:
            lane.follow(moment)
        if slot.ready is not None:
            lane.follow(slot.ready)
        slot.readers, slot.ready = (), None
        self.coming[slot.key] = slot

    def begin_read(self, slot: Slot, lane: Lane) -> None:
        """Let the lane read the slot only after its copy."""
        if slot.ready is None:
            raise RuntimeError(
                f"{self._slots.geometry.name_of(slot.key)} is read, but its copy has not been"
                " issued"
            )
        lane.follow(slot.ready)

    def begin_reads(self, keys: Iterable[int], lane: Lane) -> list[Slot]:
        """The slots of some keys, of which the lane is let read each only after its copy."""
        coming = self.coming
        if not coming.keys().isdisjoint(keys):
            for key in sorted(coming.keys() & keys):
                slot = self._of[key]
                self.begin_read(slot, lane)
                if slot.ready is not None and is_over(slot.ready):
                    del coming[key]
        return list(map(self._of.__getitem__, keys))

    def end_read(self, slots: Iterable[Slot], lane: Lane) -> None:
        """Let writers of the slots come behind what the lane has been given so far."""
        # Experts are read by one lane, whose later moments cover its earlier ones.
        readers = (lane.moment,)
        for slot in slots:
            slot.readers = readers

    def seal(self) -> None:
        """Note what is allocated on the device: the run may have no more.

        Workspaces and graphs are included. All that was copied so far is over.
        """
        self.coming.clear()
        self._sealed_bytes = self._runtime.allocated_bytes()

    def check_budget(self) -> None:
        """Raise DeviceError if more is allocated on the device than when it was sealed."""
        assert self._sealed_bytes is not None
        if (more := self._runtime.allocated_bytes() - self._sealed_bytes) > 0:
            raise DeviceError(
                f"{more} B have been allocated on the device since the run began: it is over its"
                f" budget of {self.num_bytes} B of slots"
            )

    def check(self) -> None:
        """Assert that every slot is in one place. For tests."""
        for pool in self.pools:
            pool.check()
        assert all(slot.key == key for key, slot in self._of.items())


def _length(shape: Equal | Parts) -> int:
    """The bytes of a pool's memory, gaps included."""
    if isinstance(shape, Equal):
        return shape.num_slots * shape.slot_bytes
    return Room((shape.own_bytes, shape.spare_bytes), lambda key: False).end


def _up(num_bytes: int) -> int:
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
