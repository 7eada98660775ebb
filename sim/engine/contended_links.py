"""Links whose bandwidth depends on who else is active.

One class supports engines, chunks, cut-through and a page cache. No time of a service is known
beforehand. What happens at a point of it (its end, the end of its head, the end of a chunk) happens
when so much of its work is done (`sim.engine.contest`). A latency slows nobody down, and nobody
slows a latency down.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Protocol, cast

from sim.core.transfer import Transfer
from sim.engine.contest import Contest, Draw, Mark
from sim.engine.links import Machine, PagedLink
from sim.engine.written import SERVICE
from sim.machine.contention import FIRST_LINK
from sim.machine.durations import PagedDurations


class ContestedMachine(Machine, Protocol):
    """An engine for a machine with contention."""

    contest: Contest


class Service:
    """A transfer on an engine of a link.

    ``row``: the row of the service in the record. ``cut``: the mark at which it is to give way.
    ``waits``: the mark at which it would run ahead of the outer hop that feeds it, and must pause.
    """

    __slots__ = ("chunks", "cut", "draw", "engine", "row", "transfer", "waits")

    def __init__(self, transfer: Transfer, engine: int, row: int, draw: Draw) -> None:
        self.transfer, self.engine, self.row, self.draw = transfer, engine, row, draw
        self.cut: Mark | None = None
        self.chunks = 0  # how many chunks are done at the cut
        self.waits: Mark | None = None


class ContendedLink(PagedLink):
    """A link of a machine with contention.

    ``outer``: the link that feeds this one, perhaps from the head of a transfer; None for the
    outermost. ``inner``: the link that this one feeds; None for link 0.
    """

    def __init__(self, machine: ContestedMachine, index: int) -> None:
        super().__init__(machine, index, cast(PagedDurations, machine.durations))
        self._contest, self._latency_ns = machine.contest, self._durations.latency_ns(index)
        self.is_cuttable, self.cut_at = self._chunk_bytes is not None, -1
        self._engines = self.controller.route.engines[index]
        self.room *= self._engines
        self.serving: list[Service] = []  # ``issued`` holds what waits for an engine
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
            lambda now: self._on_service_end(service, now),
        )
        service = Service(transfer, self._engine, row, draw)
        self.serving.append(service)
        if head < duration:
            self._contest.mark(draw, now, head - latency, lambda now: self._on_passed(service, now))
        if self.outer is not None and self.outer.serves(transfer):
            # At least 1 ns is left, so that the pause comes before the end.
            last = max(
                1, self._durations.hop_ns(self.index, min(self._outer_head, transfer.left_bytes))
            )
            service.waits = self._contest.mark(
                draw,
                now,
                duration - latency - last,
                lambda now: self._on_overtaking(service, now),
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
        """The head is through: the next link may begin. If all the work is done, the end comes at
        this instant, too, and hands the transfer on.
        """
        if not self._contest.is_done(service.draw, now):
            self._on_head(service.transfer, now)

    def _on_overtaking(self, service: Service, now: int) -> None:
        """Pause: a head's bytes are left, and they come only when the outer hop ends."""
        self._contest.hold(service.draw, now, held=True)

    def go_on(self, transfer: Transfer, now: int) -> None:
        """The outer link is through with a transfer: its service here need not pause any more."""
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
        # Only a prefetch gives way, and only to a transfer that waits.
        if not service.transfer.prefetch or not (self.queues[0] or self.issued or service.cut):
            return
        if not self.controller.cut(self.index):
            if service.cut is not None:
                self._contest.forget(service.draw, service.cut)
                service.cut = None
        elif service.cut is None:
            self._ask_for_cut(service, self._chunk_bytes, now)

    def _ask_for_cut(self, service: Service, size: int, now: int) -> None:
        """Mark the end of the first chunk that ends after now. The last chunk needs no mark: its
        end is the transfer's.
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
                lambda now: self._on_cut_due(service, now),
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
        for service in self.serving:
            left = self._contest.left_ns(service.draw, now)
            if left is not None:
                left_ns[service.row] = left


def make_links(machine: ContestedMachine) -> list[ContendedLink]:
    """All links of a machine with contention, from the device outwards, joined to each other."""
    links = [ContendedLink(machine, index) for index in range(machine.controller.route.links)]
    for inner, outer in pairwise(links):
        inner.outer, outer.inner = outer, inner
    return links
