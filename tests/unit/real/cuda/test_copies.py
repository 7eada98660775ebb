"""Slots, staging and copies on a runtime that checks their order.

Each rule is broken once, and the test sees it fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from helpers.fake_runtime import FakeRuntime, OrderError
from helpers.lanes import at_once, give_whole, lane_of
from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.copies import CopyEngine, Crewed, Elsewhere, Pinned
from real.cuda.lanes import Lane
from real.cuda.runtime import DeviceError
from real.cuda.slots import DeviceSlots
from sim.core.slots import ABSENT, RESIDENT, Slots
from sim.values.types import Geometry

SIZE = 1000
BASE = Geometry(2, 2, 1, ("fp16",), (16.0,), (SIZE,), 2 * SIZE)
"""Keys 0 and 1 are the first site's experts, 3 and 4 the second's."""


@dataclass
class Held:
    """Stands in for the controller's slots: all that `DeviceSlots` asks of them."""

    geometry: Geometry
    capacity_bytes: tuple[int, ...]
    pool_of: list[int]
    key_bytes: list[int]
    state: list[int]


def held(capacity: int = 2 * SIZE) -> Held:
    keys = range(BASE.num_keys)
    return Held(
        BASE,
        (capacity,),
        [0] * len(keys),
        [BASE.bytes_of(key) for key in keys],
        [ABSENT] * len(keys),
    )


@dataclass
class Bench:
    runtime: FakeRuntime
    held: Held
    slots: DeviceSlots
    engine: CopyEngine
    arena: PinnedArena


def bench(*, strict: bool = True, piece_bytes: int = 300) -> Bench:
    runtime = FakeRuntime(strict=strict)
    state = held()
    slots = DeviceSlots(runtime, cast(Slots, state))
    slots.allocate()
    return Bench(
        runtime,
        state,
        slots,
        CopyEngine(runtime, slots, lane_of(runtime, "copies"), piece_bytes),
        PinnedArena(runtime, 1 << 16),
    )


def content(seed: int) -> Tensor:
    return torch.randint(
        0, 256, (SIZE,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )


def load(b: Bench, key: int, source: Any = None) -> Tensor:
    """Bring a key into its slot as a loader does; return what the slot should hold."""
    want = content(key)
    if source is None:
        memory = b.arena.take(SIZE)
        memory.copy_(want)
        source = Pinned((memory,))
    b.held.state[key] = RESIDENT
    slot = b.slots.place(key)
    b.engine.begin(slot, is_paced=False)
    give_whole(b.engine.copy(slot, source, 0, SIZE), b.engine.lane)
    b.engine.end(slot)
    return want


def read(b: Bench, key: int, lane: Lane, *, waits: bool = True, tells: bool = True) -> Tensor:
    """Compute with a key, which here is to look at its bytes."""
    slot = b.slots.of(key)
    if waits:
        b.slots.begin_read(slot, lane)
    seen = b.runtime.run(lane.stream, lambda: slot.memory[:SIZE].clone(), reads=[slot.memory])
    if tells:
        b.slots.end_read((slot,), lane)
    return seen


def test_what_is_copied_is_read_and_its_slot_used_again_behind_its_reader() -> None:
    b = bench()
    compute = lane_of(b.runtime, "compute")
    b.slots.seal()
    for key in (0, 1, 3, 4, 0, 3):
        for other in [other for other in (0, 1, 3, 4) if b.held.state[other] == RESIDENT][:-1]:
            b.held.state[other] = ABSENT
        want = load(b, key)
        assert torch.equal(read(b, key, compute), want)
        b.slots.check()
    assert b.engine.num_copies == 6, "one copy a variant"
    b.slots.check_budget()


# Contracts: C124
def test_a_slot_that_is_read_before_its_copy_is_ordered_is_found() -> None:
    b = bench()
    load(b, 0)
    with pytest.raises(OrderError, match="compute reads memory that stream 1 may still be writing"):
        read(b, 0, lane_of(b.runtime, "compute"), waits=False)


# Contracts: C124
def test_a_slot_that_is_overwritten_before_its_readers_event_is_found() -> None:
    b = bench()
    compute = lane_of(b.runtime, "compute")
    load(b, 0)
    load(b, 1)
    read(b, 0, compute, tells=False)
    read(b, 1, compute)
    b.held.state[0] = ABSENT
    with pytest.raises(OrderError, match="copies writes memory that stream 2 may still be reading"):
        load(b, 3)


def test_a_slot_whose_copy_has_not_been_issued_is_not_read() -> None:
    b = bench()
    with pytest.raises(RuntimeError, match="is read, but its copy has not been issued"):
        b.slots.begin_read(b.slots.place(0), lane_of(b.runtime, "compute"))


def test_work_on_the_legacy_stream_is_found() -> None:
    b = bench()
    load(b, 0)
    with pytest.raises(OrderError, match="stream legacy is not one of the runtime's own"):
        b.runtime.run(b.runtime.legacy, lambda: None)


def test_memory_that_is_not_pinned_is_found() -> None:
    b = bench()
    with pytest.raises(OrderError, match="not pinned"):
        load(b, 0, Pinned((content(0),)))
    held = b.arena.take(SIZE)
    b.arena.close()
    with pytest.raises(OrderError, match="not pinned"):
        load(b, 1, Pinned((held,)))


class File:
    """A source that must be read before it can be copied."""

    def __init__(self, want: Tensor) -> None:
        self.want, self.reads = want, list[tuple[int, int]]()

    def read(self, begin: int, into: Tensor) -> None:
        self.reads.append((begin, into.numel()))
        into.copy_(self.want[begin : begin + into.numel()])


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_what_rests_elsewhere_goes_through_buffers_that_are_filled_again_when_copied(
    buffers: int,
) -> None:
    b = bench()
    ring = StagingRing(b.runtime, b.arena, buffers, 300)
    file = File(content(0))
    want = load(b, 0, Elsewhere(file.read, Crewed(ring, at_once)))
    assert torch.equal(read(b, 0, lane_of(b.runtime, "compute")), want)
    assert file.reads == [(0, 300), (300, 300), (600, 300), (900, 100)]


def test_a_ring_gives_no_buffer_out_before_the_host_has_seen_its_copy_over() -> None:
    b = bench()
    ring, lane = StagingRing(b.runtime, b.arena, 1, 300), b.engine.lane
    buffer = ring.take()
    assert buffer is not None
    assert ring.take() is None
    ring.give_back(buffer, lane.moment)
    assert ring.take() is None
    lane.finish()
    assert ring.take() is buffer


def test_a_buffer_that_is_filled_before_it_has_been_copied_is_found() -> None:
    b = bench()
    ring = StagingRing(b.runtime, b.arena, 1, 300)
    forgetful = cast(StagingRing, Forgetful(ring, b.runtime))
    with pytest.raises(
        OrderError, match="the host writes memory that stream 1 may still be reading"
    ):
        load(b, 0, Elsewhere(File(content(0)).read, Crewed(forgetful, at_once)))


class Forgetful:
    """A ring that gives a buffer out without asking whether the copy from it is over."""

    def __init__(self, ring: StagingRing, runtime: FakeRuntime) -> None:
        self._buffer, self._runtime = ring.take(), runtime

    def take(self) -> Tensor:
        assert self._buffer is not None
        self._runtime.host_writes(self._buffer)
        return self._buffer

    def give_back(self, buffer: Tensor, read: Any) -> None: ...


def test_a_paced_service_is_held_until_each_piece_is_due_on_an_absolute_schedule() -> None:
    """2 ns a byte after 50 ns. The times are those of the formula, not sums over pieces."""
    b = bench()
    memory = b.arena.take(SIZE)
    memory.copy_(content(0))
    slot = b.slots.place(0)
    b.runtime.time_ns = 7_000
    b.engine.begin(slot, is_paced=True)
    b.engine.copy(slot, Pinned((memory,)), 0, 600, lambda count: 50 + 2 * count)
    b.engine.lane.finish()
    assert b.runtime.time_ns == 7_000 + 50 + 2 * 600
    b.engine.copy(slot, Pinned((memory,)), 600, 400, lambda count: 50 + 2 * count, done=600)
    b.engine.end(slot)
    assert b.runtime.time_ns == 7_000 + 50 + 2 * SIZE
    assert [line for line in b.runtime.log if "holds" in line] == [
        f"copies holds until {50 + 2 * count}" for count in (300, 600, 900, 1000)
    ]
    assert torch.equal(slot.memory[:SIZE], content(0))


# Contracts: C123
def test_what_is_allocated_after_the_slots_breaks_the_budget() -> None:
    b = bench()
    b.slots.seal()
    b.slots.check_budget()
    b.runtime.allocate(1)
    with pytest.raises(
        DeviceError, match="1 B have been allocated on the device since the run began"
    ):
        b.slots.check_budget()


def test_a_device_that_is_too_small_says_so() -> None:
    with pytest.raises(DeviceError, match="the device has 1000 B free, but 2048 B are needed"):
        DeviceSlots(FakeRuntime(capacity_bytes=1000), cast(Slots, held())).allocate()


# Contracts: C124
def test_a_pool_of_two_sizes_holds_them_to_the_last_byte_and_is_written_behind_what_lay_there() -> (
    None
):
    """Keys of 992 and 400 B in 2000 B.

    Two large keys leave little room, and two small ones leave it in pieces.
    """
    runtime, mixed = FakeRuntime(strict=True), held()
    for key in (0, 4):
        mixed.key_bytes[key] = 992
    for key in (1, 3):
        mixed.key_bytes[key] = 400
    slots = DeviceSlots(runtime, cast(Slots, mixed))
    slots.allocate()
    assert runtime.allocated == slots.num_bytes == 2 * SIZE
    engine = CopyEngine(runtime, slots, lane_of(runtime, "copies"), 300)
    compute = lane_of(runtime, "compute")
    arena = PinnedArena(runtime, 1 << 16)

    def load(key: int) -> Tensor:
        mixed.state[key] = RESIDENT
        slot, stored = slots.place(key), arena.take(mixed.key_bytes[key])
        stored.copy_(content(key)[: len(stored)])
        engine.begin(slot, is_paced=False)
        engine.copy(slot, Pinned((stored,)), 0, len(stored))
        engine.end(slot)
        slots.check()
        return stored

    def read(key: int, stored: Tensor) -> None:
        slot = slots.of(key)
        slots.begin_read(slot, compute)
        seen = runtime.run(compute.stream, lambda: torch.cat(slot.pieces), reads=slot.pieces)
        slots.end_read((slot,), compute)
        assert torch.equal(seen, stored)

    homes = {key: load(key) for key in (1, 0, 3)}
    for key, stored in homes.items():
        read(key, stored)
    with pytest.raises(RuntimeError, match="pool 0 has no slot for"):
        slots.place(4)
    for key in (1, 3):
        mixed.state[key] = ABSENT
    stored = load(4)
    read(4, stored)
    assert len(slots.of(4).pieces) > 1
    read(0, homes[0])


def test_what_kernels_find_by_its_place_is_what_was_brought_even_in_pieces() -> None:
    """The windows at the places of keys of 992 and 400 B, behind a pool of equal slots."""
    runtime, mixed = FakeRuntime(strict=True), held()
    mixed.capacity_bytes = (2 * SIZE, 2 * SIZE)
    mixed.pool_of = [1, 1, 0, 1, 1, 0]
    mixed.key_bytes = [992, 400, 0, 400, 992, 0]
    slots = DeviceSlots(runtime, cast(Slots, mixed))
    slots.allocate(mends=True)
    assert slots.unit == 16
    engine = CopyEngine(runtime, slots, lane_of(runtime, "copies"), 300)
    compute = lane_of(runtime, "compute")
    arena, stored = PinnedArena(runtime, 1 << 16), dict[int, Tensor]()

    def bring(key: int) -> None:
        mixed.state[key] = RESIDENT
        slot, stored[key] = slots.place(key), arena.take(mixed.key_bytes[key])
        stored[key].copy_(content(key)[: len(stored[key])])
        engine.begin(slot, is_paced=False)
        engine.copy(slot, Pinned((stored[key],)), 0, len(stored[key]))
        engine.end(slot)

    def seen(key: int) -> Tensor:
        slot, size = slots.of(key), mixed.key_bytes[key]
        slots.begin_read(slot, compute)
        window = slots.windows(size)[slots.place_of(slot, size, compute)]
        found = runtime.run(compute.stream, window.clone, reads=[window])
        slots.end_read((slot,), compute)
        return found

    for key in (1, 0, 3):
        bring(key)
    for key in (1, 0, 3):
        assert torch.equal(seen(key), stored[key])
    for key in (1, 3):
        mixed.state[key] = ABSENT
    bring(4)
    assert len(slots.of(4).pieces) > 1
    for key in (4, 0, 4):
        assert torch.equal(seen(key), stored[key])


def test_pieces_that_are_put_together_before_they_have_come_are_found() -> None:
    runtime, mixed = FakeRuntime(strict=True), held()
    mixed.key_bytes = [992, 400, 0, 400, 992, 0]
    slots = DeviceSlots(runtime, cast(Slots, mixed))
    slots.allocate(mends=True)
    copies, compute = runtime.stream("copies"), lane_of(runtime, "compute")
    for key in (1, 0, 3):
        mixed.state[key] = RESIDENT
        slots.place(key)
    for key in (1, 3):
        mixed.state[key] = ABSENT
    slot = slots.place(4)
    assert slot.at < 0
    runtime.run(copies, lambda: None, writes=slot.pieces)
    with pytest.raises(OrderError, match="compute reads memory that stream 1 may still be writing"):
        slots.place_of(slot, 992, compute)


def test_bytes_of_a_mixed_pool_that_are_written_before_their_readers_end_are_found() -> None:
    runtime, mixed = FakeRuntime(strict=True), held()
    mixed.key_bytes[1] = 400
    slots = DeviceSlots(runtime, cast(Slots, mixed))
    slots.allocate()
    engine = CopyEngine(runtime, slots, lane_of(runtime, "copies"), 300)
    compute = lane_of(runtime, "compute")
    memory = PinnedArena(runtime, 1 << 16).take(SIZE)
    for key in (0, 4):
        mixed.state[key] = RESIDENT
        slot = slots.place(key)
        engine.begin(slot, is_paced=False)
        engine.copy(slot, Pinned((memory,)), 0, SIZE)
        engine.end(slot)
        slots.begin_read(slot, compute)
        runtime.run(compute.stream, lambda slot=slot: None, reads=slot.pieces)  # type: ignore[misc]
        slots.end_read((slot,), compute)
        mixed.state[key] = ABSENT
    mixed.state[1] = RESIDENT
    slot = slots.place(1)
    slot.readers = []
    engine.begin(slot, is_paced=False)
    with pytest.raises(OrderError, match="writes memory that stream 2 may still be reading"):
        engine.copy(slot, Pinned((memory[:400],)), 0, 400)


def test_the_arena_gives_out_aligned_pieces_and_no_more_than_it_has() -> None:
    runtime = FakeRuntime()
    arena = PinnedArena(runtime, ring_bytes(2, 5000) + 10)
    first, second = arena.take(5000), arena.take(5000)
    assert first.data_ptr() % (1 << 21) == 0
    assert second.data_ptr() == first.data_ptr() + 8192
    assert runtime.is_pinned(first)
    assert runtime.is_pinned(second)
    assert runtime.mapped(second) is second
    assert second.untyped_storage().nbytes() == arena.num_bytes, (
        "the storage holds more than what is pinned"
    )
    arena.take(10)
    with pytest.raises(ValueError, match="has 0 B left, not 1"):
        arena.take(1)
