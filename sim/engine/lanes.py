"""A link whose engines have a pace of their own (contracts C165, C166), and which link is of what kind.

An engine may stand idle and wake, reach only a part of the link's rate, copy what it read, and read
one projection of a variant at a time.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.core.transfer import Transfer
from sim.engine.links import (
    ChunkedLink,
    Engine,
    Link,
    Machine,
    PagedLink,
    SharedLink,
)
from sim.engine.written import SERVICE
from sim.machine.contention import WHOLE
from sim.machine.durations import PagedDurations
from sim.machine.lanes import LanedDurations, Lanes

WHOLE_VARIANT = -1
"""Stands for the projection of a read that moves all of a variant."""


class LanedLink(SharedLink):
    """A link whose engines have a pace of their own.

    ``_open``: the reads left of each issued transfer, by number. ``_waiting``: those that wait for
    an engine, a heap in the order of contract C166. ``_working`` has the reads that draw or are to
    draw, ``_copying`` those that are copied, with the end of the copy.
    """

    def __init__(
        self, machine: Machine, index: int, durations: LanedDurations, lanes: Lanes
    ) -> None:
        super().__init__(machine, index)
        self._laned, self._lanes = durations, lanes
        self._rates = [
            0,
            *(
                min(self._scale * WHOLE // m, self._scale * lanes.pace)
                for m in range(1, self._engines + 1)
            ),
        ]
        self._scale *= WHOLE
        self._open: dict[int, int] = {}
        self._waiting: list[tuple[int, int, int, int, Transfer]] = []
        self._batch, self._batch_of = 0, (-1, False)
        self._copying = []
        self._projection_of: dict[int, int] = {}  # by row of a service at work
        self._free_since_ns = [-1] * self._engines

    def fill(self, now: int) -> None:
        controller = self.controller
        while any(self.queues) and len(self._open) < self.room:
            self._calls.append(now)
            transfer = controller.poll(self.index)
            if transfer is None:
                break
            self._take(transfer)
        if self._begin(now):
            self._set_alarm(now)

    def _take(self, transfer: Transfer) -> None:
        """Let the reads of an issued transfer wait for engines."""
        whole, key = transfer.left_bytes, transfer.key
        batch_of = transfer.call, transfer.prefetch
        if batch_of != self._batch_of or not self._lanes.by_projection:
            self._batch, self._batch_of = self._batch + 1, batch_of
        reads = [(WHOLE_VARIANT, whole)]
        if self._lanes.by_projection and not transfer.dense:
            precision, site = divmod(
                key // self.controller.geometry.units, self.controller.geometry.sites
            )
            parts = self._laned.projection_bytes(precision, site, whole)
            reads = [(number, size) for number, size in enumerate(parts) if size]
        self._open[transfer.number] = len(reads)
        for projection, size in reads:
            heappush(self._waiting, (self._batch, projection, key, size, transfer))

    def _begin(self, now: int) -> bool:
        before = len(self._ends)
        while self._waiting and len(self._working) + len(self._copying) < self._engines:
            self._advance(now)
            _, projection, _, size, transfer = heappop(self._waiting)
            taken = {read.number for read in self._at_work()}
            number = next(n for n in range(self._engines) if n not in taken)
            latency_ns = self._latency_ns
            if self._free_since_ns[number] != now:
                latency_ns += self._lanes.wake_ns
            row = len(self._ends)
            self._ends.append(-1)
            urgent = 1 if transfer.is_needed else 0
            self._services.extend((transfer.number, self.index, number, urgent, now, size))
            self._projection_of[row] = projection
            left = self._work_ns(transfer, projection, size) * self._scale
            self._working.append(Engine(number, transfer, row, now + latency_ns, left))
        return len(self._ends) > before

    def _at_work(self) -> list[Engine]:
        return [*self._working, *(read for _, read in self._copying)]

    def _work_ns(self, transfer: Transfer, projection: int, size: int) -> int:
        """What a read draws, in ns of the whole link's time."""
        if projection == WHOLE_VARIANT:
            return self.service_ns(transfer) - self._latency_ns
        duration = self._hop_ns.get(size, -1)
        if duration < 0:
            duration = self._hop_ns[size] = self._durations.hop_ns(self.index, size)
        return duration - self._latency_ns

    def _on_change(self, order: int, now: int) -> None:
        self._advance(now)
        through = [read for read in self._drawing(now) if read.left <= 0]
        through += [read for copied_ns, read in self._copying if copied_ns == now]
        of_transfer = [read for read in through if self._order(read.transfer) == order]
        if not of_transfer:
            self._set_alarm(now)
            return
        read = min(of_transfer, key=lambda read: read.service)
        if read in self._working:
            self._working.remove(read)
            moved = self._services[read.service * SERVICE + SERVICE - 1]
            if copy_ns := self._lanes.copy_ns(moved):
                self._copying = [*self._copying, (now + copy_ns, read)]
                self._set_alarm(now)
                return
        self._copying = [pair for pair in self._copying if pair[1] is not read]
        self._end(read, now)

    def _end(self, read: Engine, now: int) -> None:
        transfer, machine = read.transfer, self.machine
        number, key = transfer.number, transfer.key
        self._free_since_ns[read.number] = now
        self._ends[read.service] = now
        projection = self._projection_of.pop(read.service)
        self._open[number] -= 1
        if self._open[number]:
            self._begin(now)
            self._set_alarm(now)
            if self.index < self.controller.route.ends:
                machine.come.setdefault(key, set()).add(projection)
                machine.arrive_projection(key, projection, number, now)
            return
        del self._open[number]
        machine.come.pop(key, None)
        self._calls.append(now)
        arrived, following = self.controller.transfer_done(self.index, transfer)
        if following is not None:
            self._take(following)
        self._begin(now)
        self._set_alarm(now)
        machine.settle(now, self.index, following is not None)
        machine.arrive(arrived, number, now)

    def note_cut(self, now: int, left_ns: dict[int, int]) -> None:
        self._advance(now)
        for read in self._at_work():
            drawn_ns = max(0, -(-read.left // self._scale))
            still = min(self._latency_ns, max(0, read.latency_until_ns - now))
            left_ns[read.service] = drawn_ns + still


def make_link(machine: Machine, index: int) -> Link:
    """The kind of link that a machine without contention has at this place."""
    controller, durations = machine.controller, machine.durations
    if isinstance(durations, PagedDurations) and durations.page_cache_bytes(index):
        return PagedLink(machine, index, durations)
    if isinstance(durations, LanedDurations) and (lanes := durations.lanes(index)) is not None:
        return LanedLink(machine, index, durations, lanes)
    if controller.route.engines[index] > 1:
        return SharedLink(machine, index)
    if controller.loader.chunk_bytes is not None and not controller.route.head_bytes[index]:
        return ChunkedLink(machine, index)
    return Link(machine, index)
