"""A chunked link with one event a cut, against a plain simulation with an event for every chunk.

The streams are random: demands, prefetches, and needs for what was prefetched earlier. Many come at
the instant at which a chunk ends. Slots are plenty here: whether a demand can claim one is checked
by the comparison with the reference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any, Literal

import numpy as np
import pytest

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.clock import GATE, Alarm, Clock, Entry
from sim.engine.engine import Engine
from sim.engine.written import SERVICE
from sim.machine.durations import FixedDurations
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.recency import FIFO
from sim.values.types import Geometry

SEEDS = range(250)
LONG_NS = 1 << 40
Row = tuple[int, int, int, int]
"""Of a service: the transfer's number, start, end, bytes."""


@dataclass(frozen=True)
class Submission:
    """``count`` variants of ``size`` bytes each are asked for, or the ones that submission
    ``of`` asked for.
    """

    at_ns: int
    kind: Literal["demand", "prefetch", "need"]
    size: int
    count: int
    of: int


@dataclass(frozen=True)
class Stream:
    submissions: tuple[Submission, ...]
    chunk: int
    overhead_ns: int
    ns_per_bytes: tuple[int, int]
    in_flight: int

    def hop(self, size: int) -> int:
        """A fraction of a ns a byte lets several chunks end at one instant."""
        ns, size_per_ns = self.ns_per_bytes
        return self.overhead_ns + size * ns // size_per_ns


@cache
def random_stream(seed: int, ties: bool) -> Stream:
    rng = np.random.default_rng([seed, int(ties)])
    most, speeds = (12, ((1, 1), (1, 2), (2, 1))) if ties else (40, ((7, 1), (50, 3), (300, 7)))
    stream = Stream(
        (),
        chunk=int(rng.integers(1, 1 + most // 4)),
        overhead_ns=int(rng.integers(0, 2 if ties else 60)),
        ns_per_bytes=speeds[int(rng.integers(3))],
        in_flight=int(rng.integers(1, 3)),
    )
    number = int(rng.integers(3, 15))
    load = float(rng.choice([0.5, 1.0, 2.0, 3.0]))
    span = 1 + int(load * number * stream.hop(most))
    times = sorted(int(ns) for ns in rng.integers(0, span, number))
    submissions: list[Submission] = []
    for at_ns in times:
        asked = {submission.of for submission in submissions if submission.kind == "need"}
        open_ones = [
            i for i, s in enumerate(submissions) if s.kind == "prefetch" and i not in asked
        ]
        kind = (
            str(rng.choice(["demand", "prefetch", "need"], p=[0.5, 0.3, 0.2]))
            if open_ones
            else "prefetch"
        )
        of = int(rng.choice(open_ones)) if kind == "need" else -1
        size = int(rng.integers(1, most + 1 if kind == "prefetch" else 2 + most // 4))
        count = int(rng.integers(1, 4))
        if kind == "need":
            size, count = submissions[of].size, int(rng.integers(1, submissions[of].count + 1))
        submissions.append(Submission(at_ns, kind, size, count, of))  # type: ignore[arg-type]
    return Stream(
        tuple(submissions),
        **{name: value for name, value in vars(stream).items() if name != "submissions"},
    )


# ---- an event a chunk


@dataclass(eq=False)
class Item:
    prefetch: bool
    left: int
    number: int = -1
    awaited: bool = False
    urgent: bool = False

    @property
    def goes_first(self) -> bool:
        return self.urgent or not self.prefetch


class Plain:
    """The link as docs/contracts/links.md has it, without shortcuts."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.demands: deque[Item] = deque()
        self.prefetches: deque[Item] = deque()
        self.issued: deque[Item] = deque()
        self.asked: dict[tuple[int, int], Item] = {}
        self.rows: list[Row] = []
        self.numbers = 0
        self.chunk_ends = 0
        self.wishes = 0
        """How often a transfer in service began to be one that should give way."""
        self.cuts = 0
        self.start_ns = self.moved = 0
        self.wish_ns: int | None = None
        self.heap = [
            (submission.at_ns, 1, index) for index, submission in enumerate(stream.submissions)
        ]
        heapify(self.heap)

    def run(self) -> Plain:
        while self.heap:
            now, is_submission, index = heappop(self.heap)
            if is_submission:
                self.submit(index)
                while len(self.issued) < self.stream.in_flight and self.issue():
                    if len(self.issued) == 1:
                        self.serve(now)
            else:
                self.chunk_ends += 1
                self.end_chunk(now)
            if not self.gives_way():
                self.wish_ns = None
            elif self.wish_ns is None:
                self.wish_ns = now
                self.wishes += 1
        return self

    def submit(self, index: int) -> None:
        submission = self.stream.submissions[index]
        for place in range(submission.count):
            if submission.kind == "need":
                self.need(self.asked[submission.of, place])
                continue
            item = Item(submission.kind == "prefetch", submission.size)
            self.asked[index, place] = item
            (self.prefetches if item.prefetch else self.demands).append(item)

    def need(self, item: Item) -> None:
        if item.left == 0:
            return
        waits = item in self.prefetches
        item.awaited = True
        item.urgent = item.number >= 0
        item.prefetch = item.urgent
        if waits:
            self.prefetches.remove(item)
            self.demands.append(item)

    def issue(self) -> bool:
        queue = self.demands or self.prefetches
        if not queue:
            return False
        item = queue.popleft()
        if item.number < 0:
            item.number, self.numbers = self.numbers, self.numbers + 1
        self.issued.append(item)
        return True

    def serve(self, now: int) -> None:
        self.start_ns, self.moved, self.wish_ns = now, 0, None
        self.expect_chunk()

    def expect_chunk(self) -> None:
        """What ends at the instant at which the transfer does is its end."""
        left = self.issued[0].left
        self.moved = min(self.moved + self.stream.chunk, left)
        if self.stream.hop(self.moved) == self.stream.hop(left):
            self.moved = left
        heappush(self.heap, (self.start_ns + self.stream.hop(self.moved), 0, 0))

    def end_chunk(self, now: int) -> None:
        item = self.issued[0]
        is_over = self.moved == item.left
        if not is_over and (self.wish_ns is None or self.wish_ns == now):
            self.expect_chunk()
            return
        self.rows.append((item.number, self.start_ns, now, self.moved))
        item.left -= self.moved
        self.issued.popleft()
        if not is_over:
            self.cuts += 1
            self.prefetches.appendleft(item)
        self.issue()
        if self.issued:
            self.serve(now)

    def gives_way(self) -> bool:
        if not self.issued or not self.issued[0].prefetch or self.issued[0].awaited:
            return False
        return self.issued[1].goes_first if len(self.issued) > 1 else bool(self.demands)


@cache
def plain(seed: int, ties: bool) -> Plain:
    return Plain(random_stream(seed, ties)).run()


# ---- the project's own link


class Asked:
    """A gate without rows, or a forecast: experts of a site."""

    token = step = tick = 0
    experts = weights = np.zeros((0, 0))

    def __init__(self, site: int, count: int, units: int, ahead: Sequence[Asked] = ()) -> None:
        self.site, self.ahead = site, ahead
        self.needs = list(range(count))
        self.keys = [site * units + expert for expert in self.needs]
        self.tokens, self.scores = [1] * count, [0.0] * count


class AsTold:
    """Forecasts what the gate says."""

    lookahead_sites = 0
    learns = silent = False

    def predict(self, gate: Any) -> Sequence[Any]:
        return gate.ahead  # type: ignore[no-any-return]

    def observe(self, gate: Any) -> None:
        """There is nothing to learn."""


class CountingClock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.alarms, self._push, self.put = 0, self.put, self._count

    def _count(self, entry: Entry) -> None:
        self.alarms += 1
        self._push(entry)


class NoSteps:
    """The stream of steps stands still: it waits for a request that comes when all is over."""

    steps = ()

    def gate(self) -> None:
        """There is none."""

    def start(self) -> NoSteps:
        return self

    def next(self, now_ns: int) -> int:
        return LONG_NS


class Machine:
    """The engine with one link. Every submission asks at a site of its own; site 0 is for gates
    without needs.
    """

    EXPERTS = 3

    def __init__(self, stream: Stream) -> None:
        self.stream, self.env = stream, CountingClock()
        sizes = (1, *(submission.size for submission in stream.submissions))
        experts, largest = self.EXPERTS, max(sizes)
        geometry = Geometry(
            len(sizes),
            experts,
            experts,
            ("fp16",),
            (16.0,),
            (largest,),
            len(sizes) * experts * largest,
            (sizes,),
        )
        loader = Loader(
            chunk_bytes=stream.chunk,
            in_flight=stream.in_flight,
            cancel_stale=False,
        )
        self.controller = Controller(
            geometry, AsTold(), FIFO(initial="empty"), Fixed("fp16"), Load(), loader
        )
        hops = {size: stream.hop(size) for size in range(1, largest + 1)}
        durations = FixedDurations([0] * len(sizes), 0, [0], hops, latency_ns=[stream.overhead_ns])
        self.engine = Engine(self.env, self.controller, NoSteps(), durations)  # type: ignore[arg-type]

    def run(self) -> Machine:
        for index, submission in enumerate(self.stream.submissions):
            Alarm(self.env, lambda _, index=index: self.submit(index)).set(
                submission.at_ns, GATE + index
            )  # type: ignore[misc]
        self.engine.begin()
        self.env.alarms = 0
        self.env.run(until=self.env.timeout(LONG_NS))
        self.controller.finish()
        self.controller.check()
        return self

    def submit(self, index: int) -> None:
        submission, units = self.stream.submissions[index], self.EXPERTS + 1
        site = 1 + (submission.of if submission.kind == "need" else index)
        gate = Asked(site, submission.count, units)
        self.controller.gate(gate if submission.kind != "prefetch" else Asked(0, 0, units, [gate]))  # type: ignore[arg-type]
        self.engine.settle(self.env.now)

    @property
    def rows(self) -> list[Row]:
        numbers, starts, sizes = (self.engine.written.services[i::SERVICE] for i in (0, 4, 5))
        return list(zip(numbers, starts, self.engine.record.service_end_ns, sizes, strict=True))


@cache
def own(seed: int, ties: bool) -> Machine:
    return Machine(random_stream(seed, ties)).run()


# Contracts: C62
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_services_begin_end_and_move_what_they_do_chunk_by_chunk(ties: bool) -> None:
    for seed in SEEDS:
        assert own(seed, ties).rows == plain(seed, ties).rows, (seed, ties)


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_there_is_an_event_a_service_and_one_a_cut_asked_for(ties: bool) -> None:
    events = chunk_ends = 0
    for seed in SEEDS:
        machine, model = own(seed, ties), plain(seed, ties)
        assert machine.env.alarms <= len(machine.rows) + model.wishes, (seed, ties)
        events, chunk_ends = events + machine.env.alarms, chunk_ends + model.chunk_ends
    assert events < chunk_ends / 2


def test_the_streams_hold_what_is_hard() -> None:
    """Cuts, several of one transfer, wishes in vain, and submissions at the instant at which a
    chunk could end.
    """
    cuts = again = vain = at_an_end = 0
    for seed in SEEDS:
        stream, model = random_stream(seed, True), plain(seed, True)
        cut = [number for number, *_ in model.rows]
        cuts += model.cuts > 0
        again += any(cut.count(number) > 2 for number in cut)
        vain += model.wishes > model.cuts
        times = {submission.at_ns for submission in stream.submissions}
        at_an_end += any(
            start + stream.hop(moved) in times
            for _, start, _, size in model.rows
            for moved in range(stream.chunk, size, stream.chunk)
        )
    assert min(cuts, vain, at_an_end) > len(SEEDS) // 6
    assert again > 10
