"""The links of the reference whose engines have a pace of their own (docs/contracts/lanes.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import simpy

from differential.ref_clock import Process, Rank
from differential.ref_links import Service, Wire
from differential.ref_memory import Transfer

MILLION = 1_000_000


@dataclass(eq=False)
class Read:
    """What waits for an engine: one projection of a transfer (None: all of it), in its batch."""

    batch: int
    projection: int | None
    transfer: Transfer
    bytes: int

    @property
    def turn(self) -> tuple[int, int, int]:
        _, site, expert = self.transfer.key
        key = self.transfer.key[0] * 1_000_000 + site * 1_000 + expert
        return self.batch, -1 if self.projection is None else self.projection, key


class LanedWire(Wire):
    """One link: reads wait in the order of contract C166, engines take them one by one."""

    def prepare(self) -> None:
        self.figures = self.scenario.links[self.link]
        self.reads: list[Read] = []
        self.batches = 0
        self.last_batch: tuple[int, bool] | None = None
        self.unread: dict[Transfer, int] = {}
        self.begun: dict[Transfer, int] = {}
        self.free_since: list[int | None] = [None for _ in self.engines]

    def issue(self, transfer: Transfer) -> None:
        batch = transfer.call, transfer.kind == "prefetch"
        if batch != self.last_batch or not self.figures.by_projection:
            self.batches, self.last_batch = self.batches + 1, batch
        moved = self.whole_bytes(transfer)
        parts: list[tuple[int | None, int]] = [(None, moved)]
        if self.figures.by_projection and transfer.kind != "dense":
            sizes = self.scenario.projections(transfer.key[0], moved)
            parts = [(number, size) for number, size in enumerate(sizes) if size > 0]
        self.reads += [Read(self.batches, number, transfer, size) for number, size in parts]
        self.unread[transfer], self.begun[transfer] = len(parts), 0
        # Engines take reads when all that a call issues has been issued (`Moves.poll`).
        self.issued.append(transfer)

    def fill_engines(self) -> None:
        while None in self.engines and self.reads:
            read = min(self.reads, key=lambda read: read.turn)
            self.reads.remove(read)
            engine, transfer = self.engines.index(None), read.transfer
            left = self.clock.env.event()
            service = Service(
                transfer, engine, transfer.urgent, self.clock.now, read.bytes, left=left
            )
            service.turn = self.begun[transfer]
            self.begun[transfer] += 1
            self.engines[engine] = service
            self.log.append((self.link, service))
            self.clock.env.process(self.one_read(service, read))

    def place(self, service: Service) -> int:
        """Among the ends of one instant: by transfer, then as they began."""
        return self.order(service.transfer) + service.turn

    def one_read(self, service: Service, read: Read) -> Process:
        latency = self.scenario.latency_ns(self.link)
        time = self.duration(service.transfer, service.bytes)
        service.work = Fraction(time - latency)
        if self.free_since[service.engine] != self.clock.now:
            latency += self.figures.wake_ns
        copy = self.figures.copy_ns * service.bytes
        drawn: simpy.Event | None = None
        if service.work:
            if latency:
                yield self.clock.env.timeout(latency)
            self.settle()
            self.sharing.append(service)
            service.drawn = drawn = self.clock.env.event()
            self.expect_ends()
            yield drawn
        else:
            yield self.clock.at(Rank.TRANSFER, self.place(service), delay=latency)
        if copy:
            yield self.clock.at(Rank.TRANSFER, self.place(service), delay=copy)
        self.end_read(service, read)

    def end_read(self, service: Service, read: Read) -> None:
        transfer = service.transfer
        service.end_ns = self.clock.now
        self.engines[service.engine] = None
        self.free_since[service.engine] = self.clock.now
        self.unread[transfer] -= 1
        if self.unread[transfer]:
            self.fill_engines()
            self.ends.read_ends(self.link, transfer, read.projection)
            return
        service.left.succeed()
        self.issued.remove(transfer)
        self.ends.hop_ends(self.link, transfer)

    # ---- shares

    @property
    def rate(self) -> Fraction:
        """What each of those that draw does in a ns."""
        return min(Fraction(1, len(self.sharing)), Fraction(self.figures.pace, MILLION))

    def settle(self) -> None:
        past, self.settled_ns = self.clock.now - self.settled_ns, self.clock.now
        for service in self.sharing:
            service.work -= past * self.rate

    def expect_ends(self) -> None:
        for service in self.sharing:
            due = self.clock.now + max(0, math.ceil(service.work / self.rate))
            if due != service.due:
                service.due = due
                self.clock.env.process(self.drawn_when_due(service, due))

    def drawn_when_due(self, service: Service, due: int) -> Process:
        yield self.clock.at(Rank.TRANSFER, self.place(service), delay=due - self.clock.now)
        if service.due == due and service in self.sharing:
            self.settle()
            self.sharing.remove(service)
            self.expect_ends()
            assert service.drawn is not None
            service.drawn.succeed()
