"""The links of the simulated machine: callback state machines on SimPy's clock.

A link serves transfers in the order in which the controller issues them.

- ``Link`` has one engine. It may hand a transfer on to the next link from its head (cut-through).
- ``PagedLink`` reads from a drive whose reads the operating system caches.
- ``ChunkedLink`` has one engine, and its prefetches give way to demands at the end of a chunk.
- ``SharedLink`` has several engines that share its bandwidth.

`sim.engine.lanes` has engines with a pace of their own.

Each service costs one heap event. A head, a cut and a change of a shared rate cost one more each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from math import lcm
from typing import Protocol

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import LINKS, TRANSFER_END, Alarm, Clock, from_outside
from sim.engine.written import SERVICE, STARTED, Written
from sim.machine.durations import Durations, PagedDurations
from sim.machine.page_cache import PageCache
from sim.values.record import Record


class Machine(Protocol):
    """What a link needs of the engine that it belongs to."""

    env: Clock
    controller: Controller
    durations: Durations
    record: Record
    written: Written
    awaited: dict[int, int]
    """The keys that needs wait for, with the numbers of their lookups."""
    come: dict[int, set[int]]
    """Of what is on its way to the device: the projections that have come, by key."""
    other_calls: list[int]
    """The times of the controller's calls in ns, without those of gates."""

    def settle(self, now: int, but: int = -1, but_always: bool = True) -> None:
        """After a call: poll each link that has room; see `sim.engine.engine.Engine.settle`."""

    def arrive(self, key: int, number: int, now: int) -> None:
        """Transfer ``number`` has brought a key to the device."""

    def arrive_projection(self, key: int, projection: int, number: int, now: int) -> None:
        """Transfer ``number`` has brought a projection of a key, and not yet all of it."""


class Link:
    """A link with one engine. ``index``: its number, 0 at the device. ``room``: how many transfers
    may be issued on it at once.
    """

    is_cuttable = False
    """Whether its transfers may have to give way at the end of a chunk (``consider_cut``)."""
    cut_at = 0
    """After how many chunks the service in progress is to be cut; 0: not at all; -1: ask the link.
    The service may have ended since this was set.
    """

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine, self.index = machine, index
        self.controller, self._env = machine.controller, machine.env
        self._put, self._numbers = machine.env.put, machine.env.numbers
        self._awaited, self._calls = machine.awaited, machine.other_calls
        self.note_services()
        self._durations = machine.durations
        loader, route = self.controller.loader, self.controller.route
        self.room = loader.in_flight
        self.queues = self.demands, self.prefetches = self.controller.queues[index]
        self.issued: deque[Transfer] = deque()
        self._alarm = Alarm(self._env, self._on_end)
        self._hop_ns: dict[int, int] = {}
        self._service = -1  # the row of the service in progress
        self._forwards = route.head_bytes[index] > 0
        self._chunk_bytes = None if self._forwards else loader.chunk_bytes
        self._moves_simply = self.controller.simple.moves
        # The known times by bytes, where a service takes a time that depends on its bytes alone,
        # and nothing happens before its end.
        is_plain = type(self) in (Link, ChunkedLink) and not (self._forwards or loader.write_back)
        self._plain_ns = self._hop_ns if is_plain else {}
        # Links that end at devices share no transfer.
        self._first_order = TRANSFER_END + (0 if route.link_of else from_outside(index))

    def note_services(self) -> None:
        """Services are noted in the machine's columns from now on."""
        self._services, self._ends = (
            self.machine.written.services,
            self.machine.record.service_end_ns,
        )

    def fill(self, now: int) -> None:
        """Poll the controller while there is room and something waits."""
        issued, controller = self.issued, self.controller
        demands, prefetches = self.queues
        while (demands or prefetches) and len(issued) < self.room:
            self._calls.append(now)
            transfer = controller.poll(self.index)
            if transfer is None:
                return
            issued.append(transfer)
            if len(issued) == 1:
                self._serve(transfer, now)

    def consider_cut(self, now: int) -> None:
        """To be called after every call: the transfer in service may have to give way."""

    def note_cut(self, now: int, left_ns: dict[int, int]) -> None:
        """At the end of the run: note, by row, the work left in services that it cuts, in ns, where
        their times do not tell it.
        """

    def _order(self, transfer: Transfer) -> int:
        return self._first_order + transfer.number * LINKS

    def _serve(self, transfer: Transfer, now: int, engine: int = 0) -> None:
        """Begin to serve an issued transfer."""
        ends, number, size = self._ends, transfer.number, transfer.left_bytes
        self._service = len(ends)
        ends.append(-1)
        self._services.extend(
            (number, self.index, engine, 1 if transfer.is_needed else 0, now, size)
        )
        duration = self._plain_ns.get(size)
        if duration is None:
            self._set_end(transfer, now)
            return
        # ``_set_end`` in one piece, because this runs at every hop.
        order = self._first_order + number * LINKS
        put = self._put
        put((now + duration, order, next(self._numbers), self._alarm))

    def _set_end(self, transfer: Transfer, now: int) -> None:
        duration = self.service_ns(transfer)
        self._alarm.set(now + duration, self._order(transfer))
        if self._forwards:
            head = self._head_ns(transfer)
            if head < duration:
                alarm = Alarm(self._env, lambda now: self._on_head(transfer, now))
                alarm.set(now + head, self._order(transfer))

    def service_ns(self, transfer: Transfer) -> int:
        """How long a transfer takes alone on this link, its write-back included, in ns."""
        size = transfer.left_bytes
        duration = self._hop_ns.get(size, -1)
        if duration < 0:
            duration = self._hop_ns[size] = self._durations.hop_ns(self.index, size)
        if self.index == 0 and transfer.write_back:
            key_bytes = self.controller.slots.key_bytes
            duration += sum(
                self._durations.hop_ns(0, key_bytes[victim]) for victim in transfer.write_back
            )
        return duration

    def _head_ns(self, transfer: Transfer) -> int:
        """How long after the service's start the next link may begin, in ns. The next link then
        never runs out of bytes (contract C59).
        """
        hop, link, head = (
            self._durations.hop_ns,
            self.index,
            self.controller.route.head_bytes[self.index],
        )
        mine, following = transfer.left_bytes, self.controller.hop_bytes(transfer, self.index - 1)
        starves_until = (
            hop(link, mine) + hop(link - 1, min(head, following)) - hop(link - 1, following)
        )
        return max(hop(link, min(head, mine)), starves_until)

    def _on_head(self, transfer: Transfer, now: int) -> None:
        self._calls.append(now)
        self.controller.head_done(self.index, transfer)
        self.machine.settle(now)

    def _on_end(self, now: int) -> None:
        issued = self.issued
        transfer = issued.popleft()
        self._ends[self._service] = now
        self._calls.append(now)
        key, following = self.controller.transfer_done(self.index, transfer)
        if following is not None:
            issued.append(following)
        if issued:
            self._serve(issued[0], now)
        machine = self.machine
        if self._moves_simply:
            if key in self._awaited:
                machine.arrive(key, transfer.number, now)
            return
        machine.settle(now, self.index, following is not None)
        if key in self._awaited or transfer.dense:
            machine.arrive(key, transfer.number, now)


class PagedLink(Link):
    """A link from a drive whose reads the operating system caches. What is in its page cache is
    read again at another rate.
    """

    def __init__(self, machine: Machine, index: int, durations: PagedDurations) -> None:
        super().__init__(machine, index)
        self._paged = durations
        self._pages = PageCache(durations.page_cache_bytes(index))

    def _set_end(self, transfer: Transfer, now: int) -> None:
        self._alarm.set(now + self._read_ns(transfer), self._order(transfer))

    def _read_ns(self, transfer: Transfer) -> int:
        size = transfer.left_bytes
        duration = self.service_ns(transfer)
        if self._pages.read(transfer.key, size):
            duration += self._paged.kept_ns(self.index, size) - self._durations.hop_ns(
                self.index, size
            )
        return duration


def _ignore(now: int) -> None:
    """The end of a service that has been cut: nothing happens."""


class ChunkedLink(Link):
    """A link whose prefetches give way to demands at the end of a chunk. A heap event is spent on
    each cut, not on each chunk.
    """

    is_cuttable = True

    def __init__(self, machine: Machine, index: int) -> None:
        super().__init__(machine, index)
        self.cut_at, self._cut_service = 0, -1
        self._chunk_ends_ns = [0]  # by number of chunks, from the start of a service

    def consider_cut(self, now: int) -> None:
        issued = self.issued
        if self._cut_service != self._service:
            self.cut_at = 0
        # Only a prefetch gives way, and only to a transfer that waits.
        if (
            not issued
            or not issued[0].prefetch
            or not (self.queues[0] or len(issued) > 1 or self.cut_at)
        ):
            return
        if not self.controller.cut(self.index):
            self.cut_at = 0
        elif not self.cut_at:
            self._ask_for_cut(issued[0], now)

    def _ask_for_cut(self, transfer: Transfer, now: int) -> None:
        """Set an alarm for the end of the first chunk that ends after now. The last chunk needs
        none: its end is the transfer's.
        """
        size, service, ends_ns = self._chunk_bytes, self._service, self._chunk_ends_ns
        assert size is not None
        last = -(-transfer.left_bytes // size)
        while len(ends_ns) < last:
            ends_ns.append(self._durations.hop_ns(self.index, len(ends_ns) * size))
        since_ns = self._services[service * SERVICE + STARTED]
        number = bisect_right(ends_ns, now - since_ns, 1, last)
        if number == last:
            return
        self.cut_at, self._cut_service = number, service
        alarm = Alarm(self._env, lambda now: self._on_cut(transfer, service, number, now))
        alarm.set(since_ns + ends_ns[number], self._order(transfer))

    def _on_cut(self, transfer: Transfer, service: int, chunks: int, now: int) -> None:
        if (service, chunks) != (self._service, self.cut_at):
            return  # the service has ended, or the demand has gone since
        self.cut_at = 0
        assert self._chunk_bytes is not None
        moved = chunks * self._chunk_bytes
        issued = self.issued
        self._ends[self._service] = now
        self._services[self._service * SERVICE + SERVICE - 1] = moved
        self._service = -1
        # An alarm cannot be taken back: that of the service's end will ring, and be ignored.
        self._alarm.callbacks[0] = _ignore
        self._alarm = Alarm(self._env, self._on_end)
        self._calls.append(now)
        issued.popleft()
        following = self.controller.chunk_done(self.index, transfer, moved)
        if following is not None:
            issued.append(following)
        if issued:
            self._serve(issued[0], now)
        self.machine.settle(now, self.index, following is not None)


class Engine:
    """One DMA engine of a shared link at work.

    ``service``: the row of its service. ``latency_until_ns``: until then it draws no bandwidth.
    ``left``: the work left to do, in ns of the whole link's time, times the link's scale.
    """

    __slots__ = ("latency_until_ns", "left", "number", "service", "transfer")

    def __init__(
        self, number: int, transfer: Transfer, service: int, latency_until_ns: int, left: int
    ) -> None:
        self.number, self.transfer, self.service = number, transfer, service
        self.latency_until_ns, self.left = latency_until_ns, left


class SharedLink(Link):
    """A link of several engines. Past its latency, each has an equal share of the bandwidth.

    With m engines drawing bandwidth each does ``scale / m`` units of work in a ns. The scale makes
    that a whole number, so that only the ends are rounded.

    ``_copying``: the engines that copy what they moved (contract C165), with the ends of that.
    """

    _copying: Sequence[tuple[int, Engine]] = ()

    def __init__(self, machine: Machine, index: int) -> None:
        super().__init__(machine, index)
        self._engines = self.controller.route.engines[index]
        self.room *= self._engines
        self._scale = lcm(*range(1, self._engines + 1))
        # The work that each of so many drawing engines does in a ns.
        self._rates = [0, *(self._scale // m for m in range(1, self._engines + 1))]
        self._working: list[Engine] = []
        self._since_ns = 0
        self._alarms = 0
        self._latency_ns = self._durations.latency_ns(index)

    def fill(self, now: int) -> None:
        controller = self.controller
        while any(self.queues) and len(self.issued) + len(self._working) < self.room:
            self._calls.append(now)
            transfer = controller.poll(self.index)
            if transfer is None:
                break
            self.issued.append(transfer)
        if self._begin(now):
            self._set_alarm(now)

    def _begin(self, now: int) -> bool:
        """Give issued transfers to free engines: whether any has begun."""
        before = len(self._working)
        while self.issued and len(self._working) < self._engines:
            self._advance(now)
            transfer = self.issued.popleft()
            taken = {engine.number for engine in self._working}
            number = next(n for n in range(self._engines) if n not in taken)
            self._serve(transfer, now, number)
            left = (self.service_ns(transfer) - self._latency_ns) * self._scale
            self._working.append(
                Engine(number, transfer, self._service, now + self._latency_ns, left)
            )
        return len(self._working) > before

    def _set_end(self, transfer: Transfer, now: int) -> None:
        """Nothing to do here: an end depends on the other engines, so that one alarm is set for the
        link's next change.
        """

    def _drawing(self, now: int) -> list[Engine]:
        return [engine for engine in self._working if engine.latency_until_ns <= now]

    def _advance(self, now: int) -> None:
        """Count the work done since the last call, which every change of the rate makes."""
        elapsed = now - self._since_ns
        if elapsed:
            drawing = self._drawing(self._since_ns)
            done = elapsed * self._rates[len(drawing)]
            for engine in drawing:
                engine.left -= done
            self._since_ns = now

    def _set_alarm(self, now: int) -> None:
        """Set the alarm for the next end of a service or of a latency."""
        self._advance(now)
        drawing = self._drawing(now)
        rate = self._rates[len(drawing)]
        changes = [
            (now + max(0, -(-engine.left // rate)), self._order(engine.transfer))
            for engine in drawing
        ]
        changes += [
            (e.latency_until_ns, self._order(e.transfer))
            for e in self._working
            if e.latency_until_ns > now
        ]
        if self._copying:
            changes += [(copied_ns, self._order(e.transfer)) for copied_ns, e in self._copying]
        self._alarms += 1
        if changes:
            alarms = self._alarms
            at_ns, order = min(changes)
            alarm = Alarm(
                self._env,
                lambda now: self._on_change(order, now) if alarms == self._alarms else None,
            )
            alarm.set(at_ns, order)

    def _on_change(self, order: int, now: int) -> None:
        self._advance(now)
        ended = next(
            (e for e in self._drawing(now) if e.left <= 0 and self._order(e.transfer) == order),
            None,
        )
        if ended is None:
            self._set_alarm(now)
            return
        transfer = ended.transfer
        self._working.remove(ended)
        self._ends[ended.service] = now
        self._calls.append(now)
        key, following = self.controller.transfer_done(self.index, transfer)
        if following is not None:
            self.issued.append(following)
        self._begin(now)
        self._set_alarm(now)
        self.machine.settle(now, self.index, following is not None)
        self.machine.arrive(key, transfer.number, now)
