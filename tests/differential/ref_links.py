"""The links of the reference: engines that serve what was issued.

Engines share a link's bandwidth, serve in chunks, or hand on early (cut-through).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import simpy

from differential.ref_clock import Clock, Process, Rank
from differential.ref_memory import Transfer
from differential.ref_rivals import Piece, Rivals
from differential.rows import ServiceRow
from differential.scenario import Scenario


class Ends(Protocol):
    """Who hears of the ends of hops, heads and chunks."""

    def hop_ends(self, link: int, transfer: Transfer) -> None: ...
    def head_ends(self, link: int, transfer: Transfer) -> None: ...
    def would_cut(self, link: int) -> bool: ...
    def chunk_ends(self, link: int, transfer: Transfer) -> None: ...
    def read_ends(self, link: int, transfer: Transfer, projection: int | None) -> None: ...


@dataclass(eq=False)
class Service:
    """A transfer on an engine. `work`: what is left of it beyond the latency, in ns of the whole
    link. `left`: when it has left the engine. `turn`: which of the transfer's services it is, from
    0 on; `drawn`: when nothing of `work` is left (`ref_lanes`)."""

    transfer: Transfer
    engine: int
    urgent: bool
    start_ns: int
    bytes: int
    left: simpy.Event
    work: Fraction = Fraction(0)
    due: int | None = None
    end_ns: int = -1
    wants_cut_since: int | None = None
    turn: int = 0
    drawn: simpy.Event | None = None


class Wire:
    """One link: what is issued on it, in order of issue, and who is served by which engine."""

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        link: int,
        ends: Ends,
        log: list[tuple[int, Service]],
        rivals: Rivals | None = None,
    ) -> None:
        self.scenario, self.clock, self.link, self.ends, self.log = scenario, clock, link, ends, log
        self.rivals = rivals
        self.issued: list[Transfer] = []
        self.engines: list[Service | None] = [None] * scenario.engines(link)
        self.sharing: list[Service] = []
        self.settled_ns = 0
        self.pages: list[tuple[object, int]] = []
        self.outer: Wire | None = None
        """Where this link's transfers come from, if not from where the experts rest."""
        self.prepare()

    def prepare(self) -> None:
        """For links of another kind."""

    # ---- asked by the controller

    @property
    def has_room(self) -> bool:
        return len(self.issued) < len(self.engines) * self.scenario.loader.in_flight

    @property
    def serving(self) -> list[Transfer]:
        return [service.transfer for service in self.engines if service]

    @property
    def next_issued(self) -> Transfer | None:
        """The oldest that is issued and waits for an engine."""
        return next((transfer for transfer in self.issued if transfer not in self.serving), None)

    def issue(self, transfer: Transfer) -> None:
        self.issued.append(transfer)
        self.fill_engines()

    # ---- services

    def fill_engines(self) -> None:
        while None in self.engines and self.next_issued:
            transfer, engine = self.next_issued, self.engines.index(None)
            moved = transfer.left.pop(self.link, self.whole_bytes(transfer))
            service = Service(
                transfer,
                engine,
                transfer.urgent,
                self.clock.now,
                moved,
                left=self.clock.env.event(),
            )
            self.engines[engine] = service
            self.log.append((self.link, service))
            self.clock.env.process(self.serve(service))
            if self.scenario.head_bytes(self.link) and not self.rivals:
                self.clock.env.process(self.head(service))

    def serve(self, service: Service) -> Process:
        if self.rivals:
            return self.among_rivals(service, self.rivals)
        return self.in_chunks(service) if self.chunk_bytes else self.as_a_whole(service)

    def leave(self, service: Service) -> None:
        """The engine is free for the next one that waits for it."""
        service.end_ns = self.clock.now
        service.left.succeed()
        self.engines[service.engine] = None
        self.issued.remove(service.transfer)
        self.fill_engines()

    def end(self, service: Service) -> None:
        self.leave(service)
        self.ends.hop_ends(self.link, service.transfer)

    def order(self, transfer: Transfer) -> int:
        """At one instant: by number; of one transfer the outer link first. Between two of these
        numbers there is room for the services of a transfer on one link.
        """
        assert transfer.number is not None
        return (transfer.number * 64 + (63 - self.link)) * 16

    def whole_bytes(self, transfer: Transfer, inwards: int = 0) -> int:
        """What the transfer moves on this link, or on one further inwards."""
        ram = self.scenario.ram
        if ram and self.link - inwards >= ram.link and transfer.slot != "kv":
            return self.scenario.size(transfer.key)
        return transfer.moved

    def duration(self, transfer: Transfer, moved: int) -> int:
        time = self.scenario.hop_ns(self.link, moved)
        if self.scenario.links and (room := self.scenario.links[self.link].page_cache_bytes):
            time = self.read(transfer, moved, time, room)
        if self.link == 0 and self.scenario.loader.write_back:
            time += sum(
                self.scenario.hop_ns(0, self.scenario.size(victim)) for victim in transfer.victims
            )
        return time

    def read(self, transfer: Transfer, moved: int, time: int, room: int) -> int:
        """The time of a read. Of all reads the last ones are kept that fit, and nothing of one
        that never can.
        """
        kept = max((size for key, size in self.pages if key == transfer.key), default=0)
        self.pages = [page for page in self.pages if page[0] != transfer.key]
        if moved <= room:
            self.pages.append((transfer.key, max(kept, moved)))
        while sum(size for _, size in self.pages) > room:
            self.pages.pop(0)
        return moved * self.scenario.links[self.link].kept_ns if kept >= moved else time

    # ---- a link that others hold up

    def among_rivals(self, service: Service, rivals: Rivals) -> Process:
        """After the latency it goes as fast as those at work, and the other engines, let it: each
        point of a service is reached when so much of its work is done."""
        transfer, time = service.transfer, self.duration(service.transfer, service.bytes)
        latency = min(time, self.scenario.latency_ns(self.link))
        order = self.order(transfer)
        source = self.outer and next(
            (other for other in self.outer.engines if other and other.transfer is transfer), None
        )
        if latency:
            yield self.clock.env.timeout(latency)
        piece = Piece(2 + self.link, Fraction(time - latency))
        rivals.join(piece)
        if self.scenario.head_bytes(self.link) and self.head_ns(service) < time:
            self.clock.env.process(
                self.head_among_rivals(service, rivals, piece, time - self.head_ns(service))
            )
        if source:
            head = min(self.scenario.head_bytes(self.link + 1), service.bytes)
            last = max(1, self.scenario.hop_ns(self.link, head))
            self.clock.env.process(
                self.keep_behind(source, rivals, piece, min(last, time - latency))
            )
        for end in (
            range(self.chunk_bytes, service.bytes, self.chunk_bytes) if self.chunk_bytes else ()
        ):
            later = time - self.duration(transfer, end)
            yield from rivals.until(
                piece, Fraction(min(later, time - latency)), Rank.TRANSFER, order
            )
            if piece.left > 0 and self.gives_way(service):
                rivals.leave(piece)
                self.cut(service, end)
                return
        yield from rivals.until(piece, Fraction(0), Rank.TRANSFER, order)
        rivals.leave(piece)
        self.end(service)

    def head_among_rivals(
        self, service: Service, rivals: Rivals, piece: Piece, left: int
    ) -> Process:
        """Hand on when only so much of the work is left; what is over at that instant has no
        head.
        """
        yield from rivals.until(piece, Fraction(left), Rank.TRANSFER, self.order(service.transfer))
        if service.end_ns < 0 and piece.left > 0:
            self.ends.head_ends(self.link, service.transfer)

    def keep_behind(self, source: Service, rivals: Rivals, piece: Piece, left: int) -> Process:
        """With a head's bytes left it waits for the outer link to be through: others may have
        held that up.
        """
        yield from rivals.until(piece, Fraction(left), Rank.TRANSFER)
        if piece in rivals.at_work and source.end_ns < 0:
            rivals.hold(piece, held=True)
            yield source.left
            rivals.hold(piece, held=False)

    # ---- a link that is shared

    def as_a_whole(self, service: Service) -> Process:
        """The latency, in which nothing is drawn, and then a share of the link until nothing is
        left.
        """
        time = self.duration(service.transfer, service.bytes)
        latency = min(time, self.scenario.latency_ns(self.link))
        service.work = Fraction(time - latency)
        if latency and service.work:
            yield self.clock.env.timeout(latency)
            latency = 0
        if service.work:
            self.settle()
            self.sharing.append(service)
            self.expect_ends()
        else:
            yield self.clock.at(Rank.TRANSFER, self.order(service.transfer), delay=latency)
            self.end(service)

    def settle(self) -> None:
        """What was moved since the last change of the shares."""
        past, self.settled_ns = self.clock.now - self.settled_ns, self.clock.now
        for service in self.sharing:
            service.work -= Fraction(past, len(self.sharing))

    def expect_ends(self) -> None:
        """When each would end if the shares stayed as they are."""
        for service in self.sharing:
            due = self.clock.now + max(0, math.ceil(service.work * len(self.sharing)))
            if due != service.due:
                service.due = due
                self.clock.env.process(self.end_when_due(service, due))

    def end_when_due(self, service: Service, due: int) -> Process:
        yield self.clock.at(Rank.TRANSFER, self.order(service.transfer), delay=due - self.clock.now)
        if service.due == due and service.end_ns < 0:
            self.settle()
            self.sharing.remove(service)
            self.expect_ends()
            self.end(service)

    # ---- a link whose prefetches give way

    @property
    def chunk_bytes(self) -> int:
        return 0 if self.scenario.head_bytes(self.link) else self.scenario.loader.chunk_bytes

    def in_chunks(self, service: Service) -> Process:
        """One event a chunk. A chunk that ends now has ended before anything of this instant was
        submitted.
        """
        transfer, moved = service.transfer, 0
        while True:
            before, moved = moved, min(moved + self.chunk_bytes, service.bytes)
            time = self.duration(transfer, moved) - (
                self.duration(transfer, before) if before else 0
            )
            yield self.clock.at(Rank.TRANSFER, self.order(transfer), delay=time)
            if moved == service.bytes:
                self.end(service)
                return
            if self.gives_way(service):
                self.cut(service, moved)
                return

    def gives_way(self, service: Service) -> bool:
        """At the end of a chunk: has it been wanted since before now?"""
        wanted = service.wants_cut_since is not None and service.wants_cut_since < self.clock.now
        return wanted and self.ends.would_cut(self.link)

    def cut(self, service: Service, moved: int) -> None:
        transfer = service.transfer
        transfer.left[self.link], service.bytes = service.bytes - moved, moved
        self.leave(service)
        self.ends.chunk_ends(self.link, transfer)

    def watch(self) -> None:
        """After every call: since when has the transfer in service been wanted to give way?"""
        service = self.engines[0]
        if self.chunk_bytes and service:
            if not self.ends.would_cut(self.link):
                service.wants_cut_since = None
            elif service.wants_cut_since is None:
                service.wants_cut_since = self.clock.now

    # ---- a link that hands on early

    def head(self, service: Service) -> Process:
        """Cut-through: early enough that the next link never starves, and ends no sooner than a
        head after this one.
        """
        delay = self.head_ns(service)
        if delay < self.scenario.hop_ns(self.link, service.bytes):
            yield self.clock.at(Rank.TRANSFER, self.order(service.transfer), delay=delay)
            self.ends.head_ends(self.link, service.transfer)

    def head_ns(self, service: Service) -> int:
        """When it hands on, of its own pace."""
        head_bytes, here, there = (
            self.scenario.head_bytes(self.link),
            service.bytes,
            self.whole_bytes(service.transfer, 1),
        )
        enough = self.scenario.hop_ns(self.link, min(head_bytes, here))
        keeps_up = self.scenario.hop_ns(self.link - 1, min(head_bytes, there))
        keeps_up += self.scenario.hop_ns(self.link, here) - self.scenario.hop_ns(
            self.link - 1, there
        )
        return max(enough, keeps_up)


def service_rows(log: list[tuple[int, Service]]) -> tuple[ServiceRow, ...]:
    rows = []
    for link, service in log:
        number = service.transfer.number
        assert number is not None
        rows.append(
            ServiceRow(
                number,
                link,
                service.engine,
                service.urgent,
                service.start_ns,
                service.end_ns,
                service.bytes,
            )
        )
    return tuple(rows)
