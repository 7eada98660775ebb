"""How idle time is split by cause (section 8).

From the end of each idle interval it walks back, along what ended the interval, to the interval's
start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from differential.rows import STALL_PARTS, IdleRow, ServiceRow, TransferRow
from differential.scenario import Scenario


def split_stall(
    scenario: Scenario,
    idle: Iterable[IdleRow],
    services: Sequence[ServiceRow],
    transfers: Sequence[TransferRow],
    completes: Mapping[int, int],
) -> dict[str, int]:
    """`completes`: of the rest of a partial move, the prefetch that it completes (both by
    number).
    """
    parts = dict.fromkeys(STALL_PARTS, 0)
    walk = Walk(scenario, services, transfers)
    for gap in idle:
        if gap.cause != "transfer":
            parts[gap.cause] += gap.end_ns - gap.start_ns
            continue
        number: int | None = gap.transfer
        until = gap.end_ns
        while number is not None and until > gap.start_ns:
            until = walk.back(number, gap.start_ns, until, parts)
            number = completes.get(number)
        assert until == gap.start_ns, "the chain must reach the start of the interval"
    return parts


class Walk:
    """Along the hops of a transfer, from its end to when it was queued first."""

    def __init__(
        self, scenario: Scenario, services: Sequence[ServiceRow], transfers: Sequence[TransferRow]
    ) -> None:
        self.scenario, self.transfers = scenario, transfers
        self.of_transfer: dict[tuple[int, int], list[ServiceRow]] = defaultdict(list)
        self.of_engine: dict[tuple[int, int], list[ServiceRow]] = defaultdict(list)
        for row in services:
            self.of_transfer[row.number, row.link].append(row)
            self.of_engine[row.link, row.engine].append(row)

    def back(self, number: int, start: int, until: int, parts: dict[str, int]) -> int:
        """Account for the time between `start` and `until`; answers how far back the transfer
        reaches.
        """
        for link, queued in reversed(self.transfers[number].hops):
            since = max(start, queued)
            if since < until:
                self.hop(number, link, since, until, parts)
                until = since
        return until

    def hop(self, number: int, link: int, since: int, until: int, parts: dict[str, int]) -> None:
        own = [service for service in self.of_transfer[number, link] if service.start_ns <= until]
        # Of projections read beside each other: the one that ended then, and what its engine served.
        last = ([service for service in own if service.end_ns == until] or own)[-1]
        own = own[: own.index(last) + 1]
        own = [service for service in own if service.engine == last.engine]
        waited = until - since
        for service in own:
            share = self.shared(service, since, until)
            waited -= share
            if link not in self.scenario.last_links:
                parts["storage"] += share
                continue
            late = 0
            if self.transfers[number].kind == "prefetch" and not service.urgent:
                late = self.shared(
                    service, max(since, service.start_ns + self.write_back_ns(number)), until
                )
            parts["late_prefetch"] += late
            parts["demand"] += share - late
        for other in self.during(link, own[-1].engine, since, until):
            if other.number != number:
                shared = self.shared(other, since, until)
                behind = (
                    "prefetch"
                    if self.transfers[other.number].kind == "prefetch" and not other.urgent
                    else "demand"
                )
                parts[f"behind_{behind}"] += shared
                waited -= shared
        parts["no_slot"] += waited

    def during(self, link: int, engine: int, since: int, until: int) -> Iterator[ServiceRow]:
        """What an engine serves in that time, backwards. Its services follow each other
        (`timeline` checks that).
        """
        services = self.of_engine[link, engine]
        for place in reversed(
            range(bisect_left(services, until, key=lambda service: service.start_ns))
        ):
            if 0 <= services[place].end_ns <= since:
                return
            yield services[place]

    def write_back_ns(self, number: int) -> int:
        """The first part of a service on link 0."""
        if not self.scenario.loader.write_back:
            return 0
        victims = self.transfers[number].victims
        return sum(
            self.scenario.hop_ns(0, self.scenario.size(self.scenario.unpack(victim)))
            for victim in victims
        )

    @staticmethod
    def shared(service: ServiceRow, since: int, until: int) -> int:
        end = until if service.end_ns < 0 else service.end_ns
        return max(0, min(end, until) - max(service.start_ns, since))
