"""The links of a run: what is issued on each, which engine serves it, and the controller's calls.

``real.driver.loop`` uses it with the device's lock held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from real.driver.device import Device, Service
from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.machine.durations import Durations
from sim.values.record import Record

ROW = attrgetter("row")


class Line:
    """The engines of one link, and what has been issued and waits for one."""

    def __init__(self, engines: int, in_flight: int) -> None:
        self.serving: list[Service | None] = [None] * engines
        """By engine its service. The free engine of the lowest number serves first."""
        self.waiting: deque[Transfer] = deque()
        self._most_issued = engines * in_flight

    @property
    def has_room(self) -> bool:
        """Whether another transfer may be issued."""
        serving = self.serving
        return len(serving) - serving.count(None) + len(self.waiting) < self._most_issued


class Links:
    """Serves transfers in order of issue, records every service, and polls where there is room.

    ``stamp`` is called before each call of the controller that a hand-over leads to. It records the
    time of that call and returns it. Polls have the time of the call that they follow.
    """

    def __init__(
        self,
        controller: Controller,
        durations: Durations,
        device: Device,
        record: Record,
        stamp: Callable[[], int],
    ) -> None:
        self._controller, self._durations, self._device = controller, durations, device
        self._record, self._stamp = record, stamp
        self._route = controller.route
        self._chunk_bytes = controller.loader.chunk_bytes or 0
        in_flight = controller.loader.in_flight
        self._lines = [Line(engines, in_flight) for engines in self._route.engines]
        self._kinds = [
            (
                partial(durations.hop_ns, link),
                durations.latency_ns(link),
                head_bytes > 0,
                0 if head_bytes > 0 else self._chunk_bytes,
            )
            for link, head_bytes in enumerate(self._route.head_bytes[: len(self._lines)])
        ]
        """By link what its services have in common: their pace, and how they may be cut."""
        links = range(len(self._lines))
        self._others = [[other for other in links if other != link] for link in (*links, -1)]
        """By link the other ones; the last are all."""
        self._begun: list[tuple[Service, Transfer, bool]] = []
        """By row of the record: the service, its transfer, and whether it was urgent at first."""
        self._end_ns: list[int] = []
        """By row: when the service has ended (-1: not yet)."""
        self._cut_bytes: dict[int, int] = {}
        """By row of what was cut: the bytes that it moved."""
        self._has_issued = False
        """Whether the last end or cut of a service issued another transfer on its link."""

    # ---- what has ended

    def end(self, service: Service) -> tuple[int, int]:
        """Tell the controller that a hop has ended, and let the engine go on.

        Return the time, and the key that has arrived on the device (-1: none).
        """
        link, row = service.link, service.row
        self._lines[link].serving[service.engine] = None
        self._end_ns[row] = now = self._stamp()
        key, following = self._controller.transfer_done(link, self._begun[row][1])
        self._has_issued = following is not None
        self._go_on(link, following)
        return now, key

    def hand_on(self, service: Service) -> None:
        """Cut-through: let the next link inwards begin with what this one is still serving."""
        self._stamp()
        self._controller.head_done(service.link, self._begun[service.row][1])

    def cut(self, service: Service, moved_bytes: int) -> None:
        """Cut a service at the chunk that has just ended; what waits goes first."""
        self._device.stop(service)
        link, row = service.link, service.row
        self._lines[link].serving[service.engine] = None
        self._end_ns[row] = self._stamp()
        self._cut_bytes[row] = moved_bytes
        following = self._controller.chunk_done(link, self._begun[row][1], moved_bytes)
        self._has_issued = following is not None
        self._go_on(link, following)

    def _go_on(self, link: int, following: Transfer | None) -> None:
        line = self._lines[link]
        waiting, serving = line.waiting, line.serving
        if following is not None:
            waiting.append(following)
        elif not waiting:
            return
        while waiting and None in serving:
            engine = serving.index(None)
            service = serving[engine] = self._begin(link, engine, waiting.popleft())
            self._device.serve(service)
        if waiting:
            following = waiting[0]
            self._device.announce(
                link, following.number, following.key, following.left_bytes, following.victims
            )

    # ---- what is issued

    def fill(self, without: int = -1) -> None:
        """Poll the links after a call of the controller, then ask which services to cut.

        Links are polled in ascending order while they have room and something waits. ``without`` is
        the link of the call (-1: none): it is left out at first. If prefetches were given up on the
        way, all is polled again, and the link of the call too, unless the call has issued something
        there (contracts C11 to C14).
        """
        controller, given_up = self._controller, -1
        queues = controller.queues  # by link
        for link in self._others[without]:
            if any(queues[link]):
                break
        else:
            # Nothing is polled, so nothing is given up on the way.
            if not self._chunk_bytes:
                return
        while given_up < controller.given_up:
            given_up = controller.given_up
            for link in self._others[without]:
                if any(queues[link]):
                    self._fill_one(link)
            if not self._has_issued:
                without = -1
        if self._chunk_bytes:
            for service in self._under_way():
                if service.chunk_bytes:
                    self._device.ask_cut(service, controller.cut(service.link))

    def _fill_one(self, link: int) -> None:
        controller, line, call_ns = self._controller, self._lines[link], self._record.call_ns
        while any(controller.queues[link]) and line.has_room:
            call_ns.append(call_ns[-1])
            transfer = controller.poll(link)
            if transfer is None:
                return
            self._go_on(link, transfer)

    def _under_way(self) -> list[Service]:
        """The services under way, in order of beginning."""
        found = (service for line in self._lines for service in line.serving if service is not None)
        return sorted(found, key=ROW)

    def _begin(self, link: int, engine: int, transfer: Transfer) -> Service:
        """The service of a transfer, which begins now; it is the next row of the record."""
        hop_ns, latency_ns, forwards, chunk_bytes = self._kinds[link]
        service = Service(
            len(self._begun),
            link,
            engine,
            transfer.number,
            transfer.key,
            transfer.left_bytes,
            self._record.call_ns[-1],
            hop_ns if link or not transfer.write_back else self._writing(transfer),
            latency_ns,
            self._head_ns(link, transfer) if forwards else -1,
            chunk_bytes,
            0 if transfer.parent < 0 else self._controller.issued[transfer.parent].moved_bytes,
            transfer.victims,
        )
        self._begun.append((service, transfer, not transfer.prefetch or transfer.is_needed))
        self._end_ns.append(-1)
        return service

    def tell_services(self) -> None:
        """Write all services into the record. Called once, when the run is over."""
        record = self._record
        for row, (service, _, is_urgent) in enumerate(self._begun):
            record.service_number.append(service.number)
            record.service_link.append(service.link)
            record.service_engine.append(service.engine)
            record.service_urgent.append(int(is_urgent))
            record.service_start_ns.append(service.start_ns)
            record.service_end_ns.append(self._end_ns[row])
            record.service_bytes.append(self._cut_bytes.get(row, service.moved_bytes))

    def _writing(self, transfer: Transfer) -> Callable[[int], int]:
        """When so many bytes are through on link 0 behind the victims that are written back."""
        hop_ns, geometry = self._kinds[0][0], self._controller.geometry
        back_ns = sum(hop_ns(geometry.bytes_of(victim)) for victim in transfer.write_back)
        return lambda moved_bytes: back_ns + hop_ns(moved_bytes)

    def _head_ns(self, link: int, transfer: Transfer) -> int:
        """When the next link may begin without starving later, counted from this service's start.

        -1: only at this service's end (contract C59).
        """
        hop_ns, head = self._durations.hop_ns, self._route.head_bytes[link]
        outer, inner = (
            self._controller.hop_bytes(transfer, link),
            self._controller.hop_bytes(transfer, link - 1),
        )
        whole_ns = hop_ns(link, outer)
        spare_ns = hop_ns(link - 1, inner) - hop_ns(link - 1, min(head, inner))
        head_ns = max(hop_ns(link, min(head, outer)), whole_ns - spare_ns)
        return head_ns if head_ns < whole_ns else -1

    def __str__(self) -> str:
        """What each link is doing, for messages."""
        names = []
        for link, line in enumerate(self._lines):
            served = [service.number for service in self._under_way() if service.link == link]
            waiting = [transfer.number for transfer in line.waiting]
            names.append(
                f"link {link} serves {served or 'nothing'}, {waiting or 'nothing'} issued behind, "
                f"{sum(map(len, self._controller.queues[link]))} queued"
            )
        return "; ".join(names)
