"""What moves over the links to a GPU: every service under way, and copies given ahead of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from real.cuda.copies import CopyEngine, Pinned, Source, Submit
from real.cuda.homes import Homes
from real.cuda.moves import Bringing, Copying, Move, Stop, Whole
from real.cuda.runtime import Memory, Runtime
from real.cuda.slots import DeviceSlots
from real.driver.device import Listener, Service
from real.driver.sharing import Sharing
from real.driver.timers import WAKE_NS
from real.store.neurons import Arrivals
from sim.core.controller import Controller

NOTHING: tuple[Memory, int] = (None, -1)


class Traffic:
    """The services of one run, asked by one thread.

    - ``engines``: those of link 0. ``bringers``: by outer link and engine, what gives work to its
      thread; the first is link 0's, and empty.
    - ``now_ns()`` tells the time since the run began.
    """

    def __init__(
        self,
        runtime: Runtime,
        controller: Controller,
        slots: DeviceSlots,
        homes: Homes,
        arrivals: Arrivals,
        engines: Sequence[CopyEngine],
        bringers: Sequence[Sequence[Submit]],
        piece_bytes: int,
        now_ns: Callable[[], int],
        *,
        is_paced: bool,
    ) -> None:
        self._runtime, self._controller, self._slots = runtime, controller, slots
        self._homes, self._arrivals = homes, arrivals
        self._engines, self._bringers, self._piece_bytes = engines, bringers, piece_bytes
        self._now_ns, self._is_paced = now_ns, is_paced
        self._is_partial = controller.payload.active_share < 1
        counts, loader = controller.route.engines, controller.loader
        is_free = not (is_paced or loader.chunk_bytes or self._is_partial or len(counts) > 1)
        self._gives_ahead = is_free and counts == (1,)
        self._whole_of: dict[int, tuple[Memory, int]] = {}
        """By key: the memory and bytes of what a service may copy in one piece, as a whole.

        Nothing else has to do with such a service.
        """
        if is_free:
            self._whole_of = {
                key: (runtime.memory_of(content), len(content))
                for key, content in homes.content_of.items()
            }
        self._sharing = [Sharing(count) for count in counts]
        self._is_shared = [is_paced and count > 1 for count in counts]
        self._flying: dict[int, tuple[Move, Service]] = {}  # by row of the service
        self._ahead: dict[
            int, Whole | Copying
        ] = {}  # by transfer: copies given ahead of their services
        self._moved: dict[tuple[int, int], int] = {}  # bytes that are through, by link and transfer
        self._was_due_ns: int | None = None
        """While the end of an outer link's paced service is handed over: when it was due."""

    def open(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def is_serving(self) -> bool:
        return bool(self._flying)

    def serve(self, service: Service) -> None:
        move = self._ahead.pop(service.number, None) if self._ahead else None
        if move is None:
            move = self._whole(service.engine, service.key, service.moved_bytes, service.victims)
        elif isinstance(move, Copying) and not move.has_begun:
            move.begin(None)
            move.give()
        self._flying[service.row] = move or self._in_part(service), service

    def _whole(
        self, engine: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> Whole | None:
        """Give a variant to an engine's lane in one copy; None where that cannot be done."""
        content, num_bytes = self._whole_of.get(key, NOTHING)
        if num_bytes != moved_bytes:
            return None
        slot = self._slots.place(key, victims)
        return None if slot.at < 0 else Whole(self._engines[engine], slot, content, num_bytes)

    def _in_part(self, service: Service) -> Copying | Bringing:
        """Begin a service of any kind."""
        link, number = service.link, service.number
        base = self._moved.setdefault((link, number), service.there_bytes)
        if self._is_partial:
            self._arrivals.begin(service.key, number, service.there_bytes, service.moved_bytes)
        if self._is_shared[link]:
            work_ns = service.due_ns(service.moved_bytes) - service.latency_ns
            self._sharing[link].begin(service.engine, self._now_ns(), service.latency_ns, work_ns)
        move = self._bring(service, base) if link else self._copy(service, base)
        if self._is_shared[link] or self._controller.route.links > 1:
            move.may_end = partial(self._may_end, service)
        return move

    def _copy(self, service: Service, base: int) -> Copying:
        """Give a service of link 0 to its engine's lane, as far as that can be done now."""
        move = Copying(
            self._engines[service.engine],
            self._slots,
            self._slots.place(service.key, service.victims),
            base,
            service.moved_bytes,
            service.chunk_bytes,
            partial(self._source, service),
        )
        is_paced = self._is_paced and not self._is_shared[0]
        lag_ns = self._now_ns() - service.start_ns
        move.begin(partial(_due_ns, service, lag_ns) if is_paced else None)
        move.give()
        return move

    def _bring(self, service: Service, base: int) -> Bringing:
        """Let a thread begin a service of an outer link."""
        link, number = service.link, service.number
        if self._homes.ram is not None:
            self._homes.ram.place(service.key)

        def note(through: int) -> None:
            self._moved[link, number] = through

        move = Bringing(
            self._runtime,
            self._homes,
            service,
            base,
            self._piece_bytes,
            self._is_paced and not self._is_shared[link],
            self._bringers[link][service.engine],
            self._now_ns,
            note,
        )
        behind_ns = 0 if self._was_due_ns is None else service.start_ns - self._was_due_ns
        move.begin_ns -= behind_ns if 0 <= behind_ns <= WAKE_NS else 0
        return move

    def announce(
        self, link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> None:
        """Give a copy to the lane behind the one under way, where nothing can come between."""
        if not self._gives_ahead or number in self._ahead:
            return
        if (move := self._whole(0, key, moved_bytes, victims)) is not None:
            self._ahead[number] = move
            return
        home = partial(self._homes.of, key, 0)
        self._ahead[number] = Copying(
            self._engines[0],
            self._slots,
            self._slots.place(key, victims),
            0,
            moved_bytes,
            0,
            lambda until: home(),
        )
        self._give_ahead()

    def _give_ahead(self) -> None:
        """Give what was announced to the lane as soon as it has all that comes before."""
        before = next((move for move, _ in self._flying.values()), None)
        for move in self._ahead.values():
            if before is None or not before.is_given:
                return
            if isinstance(move, Copying):
                if not move.has_begun:
                    move.begin(None)
                if not move.is_given:
                    move.give()
            before = move

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        self._flying[service.row][0].is_asked = is_wanted

    def stop(self, service: Service) -> None:
        del self._flying[service.row]
        self._end_share(service)

    def _end_share(self, service: Service) -> None:
        if self._is_shared[service.link]:
            self._sharing[service.link].end(service.engine, self._now_ns())

    def _may_end(self, service: Service) -> bool:
        """Whether the link's other engines, and the link outside it, let a service end."""
        if self._is_shared[service.link]:
            now, sharing = self._now_ns(), self._sharing[service.link]
            sharing.settle(now)
            if sharing.end_ns(service.engine) > now:
                return False
        others = (other for _, other in self._flying.values())
        return not any(o.number == service.number and o.link > service.link for o in others)

    def _source(self, service: Service, until: int) -> Source | None:
        """Where link 0 finds a variant; None if its first ``until`` bytes are not there yet."""
        if self._controller.route.links == 1:
            return self._homes.of(service.key, service.engine)
        ram = self._homes.ram
        # What was in the RAM tier already has no service on link 1.
        is_coming = ram is None or (1, service.number) in self._moved
        if is_coming and self._moved.get((1, service.number), 0) < until:
            return None
        if ram is not None:
            held = ram.pieces(service.key, 0, self._controller.geometry.bytes_of(service.key))
            return Pinned(tuple(torch.from_numpy(piece) for piece in held))
        buffer = self._homes.transit.of(service.number)
        return None if buffer is None else Pinned((buffer,))

    def ask(self) -> bool:
        """Ask what is under way, and hand over what has ended; return whether anything has."""
        found = False
        for move, service in tuple(self._flying.values()):
            while (stop := move.advance()) is not None:
                found = True
                if stop is Stop.HEAD:
                    self._listener.on_head(service)
                    continue
                if stop is Stop.END:
                    self._end(move, service)
                else:
                    self._tell_chunk(move, service)
                break
        if self._ahead:
            self._give_ahead()
        return found

    def _tell_chunk(self, move: Move, service: Service) -> None:
        if service.link == 0:
            self._moved[0, service.number] += move.through
        self._listener.on_chunk(service, move.through)

    def _end(self, move: Move, service: Service) -> None:
        del self._flying[service.row]
        if self._is_paced:
            self._end_share(service)
        if service.link == 0:
            self._slots.coming.pop(service.key, None)
            if self._moved:
                number = service.number
                self._homes.transit.give_back(number)
                self._moved.pop((0, number), None)
                self._moved.pop((1, number), None)
        elif self._is_paced and isinstance(move, Bringing):
            self._was_due_ns = move.due_ns
        self._listener.on_service_end(service)
        self._was_due_ns = None


def _due_ns(service: Service, lag_ns: int, done: int) -> int:
    """When ``done`` bytes are due after the stamp, ``lag_ns`` after the service's beginning."""
    return max(0, service.due_ns(done) - lag_ns)
