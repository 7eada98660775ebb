"""A runtime without a GPU that checks the order of what it is given.

It carries out all work at once, and refuses work that a GPU might do in another order. Everything
given to a stream has a place in that stream's order. An event carries what is ordered before it,
and a wait takes that over. Before memory is read, its last writes must be ordered before the read.
Before memory is written, all its reads and writes must be ordered before the write. What is in
order only by luck of timing is refused.

On a ``strict`` runtime, what a thread of the host has seen to be over comes before what that very
thread gives to streams later, and before what the host writes. It comes before nothing that another
thread gives: that would be luck. An event is over when it has been asked ``late`` times in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock, get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor

from real.cuda.runtime import DeviceError, Uses

T = TypeVar("T")
Clock = dict[int, int]


class OrderError(AssertionError):
    """Work breaks a rule of ordering."""


@dataclass(eq=False)
class FakeStream:
    number: int
    name: str
    clock: Clock = field(default_factory=dict)


@dataclass(eq=False)
class FakeEvent:
    clock: Clock | None = None
    time_ns: int = 0
    left: int = 0
    """How often it will be asked in vain."""


@dataclass(frozen=True)
class Access:
    """One use of the bytes ``begin .. end``.

    It is work number ``nth`` of its stream; the host is stream -1.
    """

    begin: int
    end: int
    stream: int
    nth: int
    is_write: bool


class FakeRuntime:
    name = "a runtime without a GPU"
    device = torch.device("cpu")

    def __init__(
        self, capacity_bytes: int = 1 << 30, *, strict: bool = False, late: int = 0
    ) -> None:
        self._strict, self._capacity_bytes, self._late = strict, capacity_bytes, late
        self._seen: dict[int, Clock] = {}
        """By thread of the host: what it has seen to be over."""
        self._streams: list[FakeStream] = []
        self._host: Clock = {}
        self._host_steps = 0
        self._accesses: list[Access] = []
        self._pinned: dict[int, int] = {}
        self._lock = RLock()
        self.allocated = 0
        self.time_ns = 0
        """Time of the only clock, in ns. Only `spin_until` moves it."""
        self.log: list[str] = []
        self.legacy = self.current = FakeStream(0, "legacy")

    def set_capacity(self, num_bytes: int) -> None:
        self._capacity_bytes = num_bytes

    # Order

    def stream(self, name: str) -> FakeStream:
        with self._lock:
            self._streams.append(FakeStream(len(self._streams) + 1, name))
            return self._streams[-1]

    def make_current(self, stream: FakeStream) -> FakeStream:
        before, self.current = self.current, stream
        return before

    def event(self, *, timed: bool = False) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        with self._lock:
            self._check_stream(stream)
            event.clock, event.time_ns, event.left = dict(stream.clock), self.time_ns, self._late

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        with self._lock:
            self._check_stream(stream)
            join(stream.clock, recorded(event))

    def query(self, event: FakeEvent) -> bool:
        with self._lock:
            recorded(event)
            event.left -= 1
            if event.left < 0:
                self.synchronize(event)
            return event.left < 0

    def synchronize(self, event: FakeEvent) -> None:
        with self._lock:
            join(self._host, recorded(event))
            join(self._seen.setdefault(get_ident(), {}), recorded(event))

    def elapsed_ns(self, first: FakeEvent, last: FakeEvent) -> int:
        return last.time_ns - first.time_ns

    def _check_stream(self, stream: FakeStream) -> None:
        if stream is self.legacy or stream not in self._streams:
            raise OrderError(f"stream {stream.name} is not one of the runtime's own")

    # Memory

    def allocate(self, num_bytes: int) -> Tensor:
        with self._lock:
            if self.allocated + num_bytes > self._capacity_bytes:
                raise DeviceError(
                    f"the device has {self._capacity_bytes - self.allocated} B free, but"
                    f" {num_bytes} B are needed"
                )
            self.allocated += num_bytes
            # New memory holds garbage.
            memory = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
            self._forget(*span(memory))
            return memory

    def _forget(self, begin: int, end: int) -> None:
        """Memory is new, though it lies where other memory was given back.

        What the host has waited for is over, on whichever stream it ran. All else is kept: memory
        that was given back too early is refused at its first use.
        """
        self._accesses = [
            access
            for access in self._accesses
            if access.end <= begin
            or end <= access.begin
            or self._host.get(access.stream, 0) < access.nth
        ]

    def allocated_bytes(self) -> int:
        return self.allocated

    def memory(self) -> tuple[int, int]:
        return self._capacity_bytes, 0

    def register(self, memory: Tensor) -> None:
        self._pinned[memory.data_ptr()] = memory.data_ptr() + memory.numel()

    def unregister(self, memory: Tensor) -> None:
        del self._pinned[memory.data_ptr()]

    def is_pinned(self, memory: Tensor) -> bool:
        begin, end = span(memory)
        return any(first <= begin and end <= last for first, last in self._pinned.items())

    def mapped(self, memory: Tensor) -> Tensor:
        if memory.numel() and not self.is_pinned(memory):
            raise OrderError(
                "a kernel is to read host memory that is not pinned: on a GPU it would fault"
            )
        # torch's `is_pinned` looks at the first byte of the tensor's storage, not of the tensor.
        first_byte = memory.untyped_storage().data_ptr()
        if memory.numel() and not any(
            first <= first_byte < last for first, last in self._pinned.items()
        ):
            raise OrderError(
                "a tensor is pinned, but its storage begins outside: torch says that it is not"
            )
        return memory

    # Work

    def copy(self, target: Tensor, source: Tensor, stream: FakeStream) -> None:
        if target.shape != source.shape:
            raise OrderError(f"a copy of {list(source.shape)} into {list(target.shape)}")
        if not self.is_pinned(source) and not self.is_pinned(target):
            raise OrderError(
                "a copy between the device and memory that is not pinned is no copy beside others"
            )
        self.run(stream, lambda: target.copy_(source), reads=[source], writes=[target])
        with self._lock:
            self.log.append(f"{stream.name} copies {target.numel()}")

    def memory_of(self, memory: Tensor) -> Tensor:
        return memory

    def move(self, target: Tensor, source: Tensor, num_bytes: int, stream: FakeStream) -> None:
        self.copy(target[:num_bytes], source[:num_bytes], stream)

    def run(
        self,
        stream: FakeStream,
        work: Callable[[], T],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> T:
        with self._lock:
            self._check_stream(stream)
            own = {**self._seen.get(get_ident(), {}), -1: self._host_steps}
            join(stream.clock, own if self._strict else self._host)
            stream.clock[stream.number] = nth = stream.clock.get(stream.number, 0) + 1
            for memory, is_write in [*((m, False) for m in reads), *((m, True) for m in writes)]:
                self._use(memory, is_write, stream.number, nth, stream.clock, stream.name)
            return work()

    def host_writes(self, memory: Tensor) -> None:
        with self._lock:
            self._host_steps += 1
            self._host[-1] = self._host_steps
            self._use(memory, True, -1, self._host_steps, self._host, "the host")

    def _use(
        self, memory: Tensor, is_write: bool, stream: int, nth: int, clock: Clock, name: str
    ) -> None:
        begin, end = span(memory)
        kept = []
        for access in self._accesses:
            is_over = clock.get(access.stream, 0) >= access.nth
            if access.end <= begin or end <= access.begin:
                kept.append(access)
                continue
            if (is_write or access.is_write) and not is_over:
                raise OrderError(
                    f"{name} {'writes' if is_write else 'reads'} memory that stream {access.stream}"
                    f" may still be {'writing' if access.is_write else 'reading'}"
                )
            # An access that lies wholly inside this write need not be remembered: whatever is
            # ordered behind the write is ordered behind it, too. The same holds for an earlier read
            # of the same stream.
            is_again = not is_write and not access.is_write and access.stream == stream
            if not ((is_write or is_again) and begin <= access.begin and access.end <= end):
                kept.append(access)
        self._accesses = [*kept, Access(begin, end, stream, nth, is_write)]

    def stamp(self, clock: Tensor, stream: FakeStream) -> None:
        def work() -> None:
            clock.view(torch.int64)[0] = self.time_ns

        self.run(stream, work, writes=[clock])
        self.log.append(f"{stream.name} stamps")

    def spin_until(self, clock: Tensor, due_ns: int, stream: FakeStream) -> None:
        def work() -> None:
            self.time_ns = max(self.time_ns, int(clock.view(torch.int64)[0]) + due_ns)

        self.run(stream, work, reads=[clock])
        self.log.append(f"{stream.name} holds until {due_ns}")

    def capture(
        self,
        stream: FakeStream,
        work: Callable[[], Any],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> Any:
        self.run(stream, work, reads=reads, writes=writes)
        return work

    def replay(
        self,
        graph: Any,
        stream: FakeStream,
        *,
        reads: Uses = (),
        writes: Uses = (),
    ) -> None:
        reads, writes = (uses() if callable(uses) else uses for uses in (reads, writes))
        self.run(stream, graph, reads=reads, writes=writes)


def recorded(event: FakeEvent) -> Clock:
    if event.clock is None:
        raise OrderError(
            "an event that was never recorded is waited for: nothing would be waited for"
        )
    return event.clock


def join(clock: Clock, other: Clock) -> None:
    for stream, nth in other.items():
        clock[stream] = max(clock.get(stream, 0), nth)


def span(memory: Tensor) -> tuple[int, int]:
    """The addresses that a tensor spans, gaps included."""
    length = 1 + sum(
        (size - 1) * stride for size, stride in zip(memory.shape, memory.stride(), strict=True)
    )
    return memory.data_ptr(), memory.data_ptr() + length * memory.element_size()
