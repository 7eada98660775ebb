"""Services under way: what each link still has to give, and when it has ended.

Nothing here waits. ``advance`` gives what can be given, asks what can be asked, and says what has
happened since (`Stop`). The device calls it again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial

import torch

from real.cuda.copies import CopyEngine, Feed, Source, Submit
from real.cuda.homes import Homes
from real.cuda.pools import Slot
from real.cuda.runtime import Memory, Runtime
from real.cuda.slots import DeviceSlots
from real.driver.device import Service


class Stop(Enum):
    """Why a service stops: at a head or a chunk that is to be told, or at its end."""

    HEAD = auto()
    CHUNK = auto()
    END = auto()


class Whole:
    """A service of link 0 that is one copy, from one piece of memory to one. Nothing may cut it.

    The lane is given it at once, its end included.
    """

    __slots__ = ("_lane", "_mark")
    is_given, is_asked, through = True, False, 0

    def __init__(self, engine: CopyEngine, slot: Slot, content: Memory, num_bytes: int) -> None:
        self._lane, self._mark = engine.lane, engine.bring(slot, content, num_bytes)

    def advance(self) -> Stop | None:
        return Stop.END if self._lane.has_passed(self._mark) else None


class Copying:
    """A service of link 0, or a copy that is given ahead of its service, in whatever pieces.

    - ``base``: the bytes that earlier services of the transfer have moved.
    - ``source(until)`` is where the variant's first ``until`` bytes are; None while they are not.
    - ``is_paced``: the GPU ends every piece when it is due.
    - ``may_end()``: whether nothing else holds up the service's end.
    """

    def __init__(
        self,
        engine: CopyEngine,
        slots: DeviceSlots,
        slot: Slot,
        base: int,
        moved_bytes: int,
        chunk_bytes: int,
        source: Callable[[int], Source | None],
    ) -> None:
        self._engine, self._slots, self._slot = engine, slots, slot
        self._base, self._moved_bytes, self._chunk_bytes = base, moved_bytes, chunk_bytes
        self._source = source
        self._given = 0
        self._feed: Feed | None = None
        self._mark = 0
        """The number of the mark that it waits for; 0: none."""
        self._due_ns: Callable[[int], int] | None = None
        self.is_asked = False
        self.may_end: Callable[[], bool] | None = None
        self.has_begun = False

    @property
    def is_given(self) -> bool:
        """Whether the lane has all of it, its end included."""
        return self._mark > 0 and self._given == self._moved_bytes

    @property
    def through(self) -> int:
        """The bytes that have been given in this service; at a stop, those that are through."""
        return self._given

    def begin(self, due_ns: Callable[[int], int] | None) -> None:
        """Let the lane overwrite the slot; ``due_ns(b)``: when b bytes are due from now on."""
        self._due_ns = due_ns
        self._engine.begin(self._slot, is_paced=due_ns is not None)
        self.has_begun = True

    def advance(self) -> Stop | None:
        while True:
            if self._mark:
                if not self._engine.lane.has_passed(self._mark):
                    return None
                if self._given == self._moved_bytes:
                    return Stop.END if self.may_end is None or self.may_end() else None
                if self.is_asked:
                    return Stop.CHUNK
                self._mark = 0
            if not self.give():
                return None

    def give(self) -> bool:
        """Give up to the next place where the service may be cut; return whether that is done."""
        if self._mark:
            return True
        if self._feed is None:
            until = min(self._given + (self._chunk_bytes or self._moved_bytes), self._moved_bytes)
            source = self._source(self._base + until)
            if source is None:
                return False
            self._feed = self._engine.copy(
                self._slot,
                source,
                self._base + self._given,
                until - self._given,
                self._due_ns,
                self._given,
            )
            self._given = until
        if self._feed is not None and not self._feed.advance():
            return False
        self._feed = None
        if self._given == self._moved_bytes:
            self._mark = self._engine.end(self._slot)
        else:
            self._mark = self._engine.lane.mark()
        return True


class Bringing:
    """A service of an outer link: a thread brings its bytes into the RAM tier or a transit buffer.

    ``note(bytes)`` is told how many bytes of the transfer are there.
    """

    def __init__(
        self,
        runtime: Runtime,
        homes: Homes,
        service: Service,
        base: int,
        piece_bytes: int,
        is_paced: bool,
        submit: Submit,
        now_ns: Callable[[], int],
        note: Callable[[int], None],
    ) -> None:
        self._runtime, self._homes, self._service, self._base = runtime, homes, service, base
        self._piece_bytes = min(piece_bytes, service.chunk_bytes or piece_bytes)
        self._is_paced, self._submit, self._now_ns, self._note = is_paced, submit, now_ns, note
        self.begin_ns = service.start_ns
        self._head_ns = service.head_ns
        self.through = 0
        self._is_out = False
        self.is_given = False
        self.is_asked = False
        self.may_end: Callable[[], bool] | None = None

    @property
    def due_ns(self) -> int:
        """When what is through was due."""
        return self.begin_ns + self._service.due_ns(self.through)

    def advance(self) -> Stop | None:
        service = self._service
        while not self._is_out:
            if self.through:
                due_ns = service.due_ns(self.through)
                if 0 <= self._head_ns <= due_ns:
                    if self._is_early(self._head_ns):
                        return None
                    self._head_ns = -1
                    return Stop.HEAD
                if self._is_early(due_ns):
                    return None
                if self.through == service.moved_bytes:
                    return Stop.END if self.may_end is None or self.may_end() else None
                if self.is_asked and self._is_at_chunk():
                    return Stop.CHUNK
            if not self._fetch():
                return None
        return None

    def _is_early(self, due_ns: int) -> bool:
        return self._is_paced and self._now_ns() < self.begin_ns + due_ns

    def _is_at_chunk(self) -> bool:
        chunk_bytes = self._service.chunk_bytes
        return bool(chunk_bytes) and self.through % chunk_bytes == 0

    def _fetch(self) -> bool:
        """Let the thread bring the next piece; return False while there is no room for it."""
        service, begin = self._service, self._base + self.through
        count = min(self._piece_bytes, service.moved_bytes - self.through)
        if service.chunk_bytes:
            count = min(count, service.chunk_bytes - self.through % service.chunk_bytes)
        if self._homes.ram is not None:
            targets = list(self._homes.ram.pieces(service.key, begin, count))
            for target in targets:
                self._runtime.host_writes(torch.from_numpy(target))
        else:
            buffer = self._homes.transit.of(service.number)
            if buffer is None:
                return False
            targets = [buffer[begin : begin + count].numpy()]
        self._is_out = True
        self._submit(
            partial(self._homes.bring, service.key, begin, targets), partial(self._have, count)
        )
        return True

    def _have(self, count: int, _: object) -> None:
        self._is_out = False
        self.through += count
        self._note(self._base + self.through)


Move = Whole | Copying | Bringing
