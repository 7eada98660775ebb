"""A link that goes as fast as others at work let it, with all that a link may be.

Nothing is known beforehand: whatever happens at a point of a service (its end, a head that is
through, the end of a chunk) happens when so much of its work is done. A latency holds nobody up,
nor does anybody hold that up.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Protocol, cast

from sim.core.transfer import Transfer
from sim.engine.contest import Contest, Draw, Mark
from sim.engine.links import SERVICE, Machine, PagedLink
from sim.machine.contention import FIRST_LINK
from sim.machine.costs import PagedDurations


class ContestedMachine(Machine, Protocol):
    """An engine whose parties hold each other up."""

    contest: Contest


class Service:
    """A transfer on an engine. ``row``: of its record. ``cut``: where it is to give way. ``waits``:
    on the way to where it would overtake the link that it comes from.
    """

    __slots__ = ("chunks", "cut", "draw", "engine", "row", "transfer", "waits")

    def __init__(self, transfer: Transfer, engine: int, row: int, draw: Draw) -> None:
        self.transfer, self.engine, self.row, self.draw = transfer, engine, row, draw
        self.cut: Mark | None = None
        self.chunks = 0  # that are done at the cut
        self.waits: Mark | None = None


class ContendedLink(PagedLink):
    """``outer``: the link that feeds this one, once it is known; transfers may come from its
    head.
    """

    def __init__(self, machine: ContestedMachine, index: int) -> None:
        super().__init__(machine, index, cast(PagedDurations, machine.durations))
        self._contest, self._latency_ns = machine.contest, self._durations.latency_ns(index)
        self.is_cuttable, self.cut_at = self._chunk_bytes is not None, -1
        self._engines = self.controller.route.engines[index]
        self.room *= self._engines
        self.serving: list[Service] = []  # ``issued`` holds those that wait for an engine
        self.outer: ContendedLink | None = None
        self.inner: ContendedLink | None = None

    def fill(self, now: int) -> None:
        demands, prefetches = self.queues
        while (demands or prefetches) and len(self.issued) + len(self.serving) < self.room:
            self._calls.append(now)
            transfer = self.controller.poll(self.index)
            if transfer is None:
                break
            self.issued.append(transfer)
        self._begin(now)

    def _begin(self, now: int) -> None:
        """Give issued transfers to free engines."""
        while self.issued and len(self.serving) < self._engines:
            taken = {service.engine for service in self.serving}
            self._serve(
                self.issued.popleft(), now, next(n for n in range(self._engines) if n not in taken)
            )

    def _serve(self, transfer: Transfer, now: int, engine: int = 0) -> None:
        self._engine = engine
        super()._serve(transfer, now, engine)

    def _set_end(self, transfer: Transfer, now: int) -> None:
        duration = self._read_ns(transfer)
        latency = min(self._latency_ns, duration)
        order, row = self._order(transfer), self._service
        head = self._head_ns(transfer) if self._forwards else duration
        draw = self._contest.begin(
            FIRST_LINK + self.index,
            now,
            latency,
            duration - latency,
            order,
            lambda alarm: self._on_service_end(service, alarm.at_ns),
        )
        service = Service(transfer, self._engine, row, draw)
        self.serving.append(service)
        if head < duration:
            self._contest.mark(
                draw, now, head - latency, lambda alarm: self._on_passed(service, alarm.at_ns)
            )
        if self.outer is not None and self.outer.serves(transfer):
            # At least 1 ns, so that it waits before its end.
            last = max(
                1, self._durations.hop_ns(self.index, min(self._outer_head, transfer.left_bytes))
            )
            service.waits = self._contest.mark(
                draw,
                now,
                duration - latency - last,
                lambda alarm: self._on_overtaking(service, alarm.at_ns),
            )

    @property
    def _outer_head(self) -> int:
        return self.controller.route.head_bytes[self.index + 1]

    def serves(self, transfer: Transfer) -> bool:
        return any(service.transfer is transfer for service in self.serving)

    def _on_service_end(self, service: Service, now: int) -> None:
        self.serving.remove(service)
        transfer = service.transfer
        self._ends[service.row] = now
        if self.inner is not None and self._forwards:
            self.inner.go_on(transfer, now)
        self._calls.append(now)
        key, following = self.controller.transfer_done(self.index, transfer)
        if following is not None:
            self.issued.append(following)
        self._begin(now)
        self.machine.settle(now, self.index, following is not None)
        self.machine.arrive(key, transfer.number, now)

    # ---- from a head (cut-through)

    def _on_passed(self, service: Service, now: int) -> None:
        """Enough is through for the next link to begin; where all is, the end comes at this
        instant.
        """
        if not self._contest.is_done(service.draw, now):
            self._on_head(service.transfer, now)

    def _on_overtaking(self, service: Service, now: int) -> None:
        """A head's bytes are left, which come when the outer link is through, and not before."""
        self._contest.hold(service.draw, now, held=True)

    def go_on(self, transfer: Transfer, now: int) -> None:
        """The outer link is through with a transfer: what this one has of it need not wait any
        more.
        """
        for service in self.serving:
            if service.transfer is transfer and service.waits is not None:
                if service.draw.held:
                    self._contest.hold(service.draw, now, held=False)
                else:
                    self._contest.forget(service.draw, service.waits)
                service.waits = None

    # ---- in chunks

    def consider_cut(self, now: int) -> None:
        if not self.serving:
            return
        assert self._chunk_bytes is not None
        service = self.serving[0]
        # Only a prefetch gives way, and only to what waits.
        if not service.transfer.prefetch or not (self.queues[0] or self.issued or service.cut):
            return
        if not self.controller.cut(self.index):
            if service.cut is not None:
                self._contest.forget(service.draw, service.cut)
                service.cut = None
        elif service.cut is None:
            self._ask_for_cut(service, self._chunk_bytes, now)

    def _ask_for_cut(self, service: Service, size: int, now: int) -> None:
        """Mark the end of the first chunk that ends after now, unless that is the transfer's
        last.
        """
        last = -(-service.transfer.left_bytes // size)
        done_ns = self._contest.done_ns(service.draw, now)

        def work_ns(chunks: int) -> int:
            return max(0, self._durations.hop_ns(self.index, chunks * size) - self._latency_ns)

        service.chunks = bisect_right(range(1, last), done_ns, key=work_ns) + 1
        if service.chunks < last:
            service.cut = self._contest.mark(
                service.draw,
                now,
                work_ns(service.chunks),
                lambda alarm: self._on_cut_due(service, alarm.at_ns),
            )

    def _on_cut_due(self, service: Service, now: int) -> None:
        service.cut = None
        if self._contest.is_done(service.draw, now):
            return
        assert self._chunk_bytes is not None
        moved = service.chunks * self._chunk_bytes
        self._contest.stop(service.draw, now)
        self.serving.remove(service)
        self._ends[service.row] = now
        self._services[service.row * SERVICE + SERVICE - 1] = moved
        self._calls.append(now)
        following = self.controller.chunk_done(self.index, service.transfer, moved)
        if following is not None:
            self.issued.append(following)
        self._begin(now)
        self.machine.settle(now, self.index, following is not None)

    # ---- the end of the run

    def note_cut(self, now: int, left_ns: dict[int, int]) -> None:
        """Note, by row, what the services that the run's end cuts had still to do."""
        for service in self.serving:
            left = self._contest.left_ns(service.draw, now)
            if left is not None:
                left_ns[service.row] = left


def make_links(machine: ContestedMachine) -> list[ContendedLink]:
    """From the device outwards, each with its neighbours."""
    links = [ContendedLink(machine, index) for index in range(machine.controller.route.links)]
    for inner, outer in pairwise(links):
        inner.outer, outer.inner = outer, inner
    return links
