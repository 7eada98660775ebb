"""An independent, idiomatic SimPy model of docs/design.md: slow, plain, and the judge of the production engine.

Processes and resources, as a SimPy user would write them: the machine walks through steps and sites; every need is a
process that waits for its variant and then for the compute resource; every issued transfer is a process that waits for
the link. What a PriorityResource cannot say (a claim at issue, a dropped prefetch, a queue place that survives
promotion) is written beside it, as a list sorted when it is asked.

Events of the contract carry their class and number as SimPy priority, far above SimPy's own URGENT and NORMAL: whatever
SimPy does to resume processes and to hand over resources at an instant is over before the contract's next event of that
instant.

Where the page allows more than one reading, `Readings` names the choice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import simpy

from differential.history import Admitted, History, Readings, Transfer
from differential.scenario import SKIP, Fixed, Forecast, Key, Need, Scenario, Step
from differential.timeline import (
    PREFETCH_OUTCOMES,
    GateRow,
    IdleRow,
    Kind,
    LookupRow,
    Timeline,
    TransferRow,
    check,
    split_stall,
)

Process = Generator[simpy.Event, Any, None]


class Rank(IntEnum):
    """The classes of section 3, in their order at equal times; 1 and up, as SimPy's own priorities are 0 and 1."""

    TRANSFER_END = 1
    NEED_DONE = 2
    END_SEQUENCE = 3
    GATE = 4
    BEGIN_SEQUENCE = 5


class Moment(simpy.Event):  # type: ignore[misc]  # mypy skips simpy
    """An event that is sure to happen, like a Timeout, but scheduled by whoever makes it."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None


@dataclass(eq=False)
class Pool:
    """Whole variants against a byte budget. `claimed` holds the slots of what is issued and has not arrived."""

    capacity_bytes: int
    resident: set[Key] = field(default_factory=set)
    claimed: set[Key] = field(default_factory=set)


@dataclass(eq=False)
class Lookup:
    tick: int
    key: Key | None
    wanted: int
    outcome: str
    lookup_ns: int
    transfer: Transfer | None


@dataclass(eq=False)
class Busy:
    """Work of the compute stream; it could not begin before these transfers had ended."""

    start_ns: int
    end_ns: int
    awaited: tuple[Transfer, ...] = ()


class Reference:
    """One run. `run` below is the way in."""

    def __init__(self, scenario: Scenario, readings: Readings) -> None:
        self.scenario = scenario
        self.readings = readings
        self.loader = scenario.loader
        self.env = simpy.Environment()
        self.wire = simpy.PriorityResource(self.env, capacity=1)
        self.compute = simpy.Resource(self.env, capacity=1)
        self.history = History(scenario, readings)
        self.pools = [Pool(spec.capacity_bytes) for spec in scenario.pools]
        for spec, pool in zip(scenario.pools, self.pools, strict=True):
            for key in spec.initial:
                pool.resident.add(key)
                self.history.arrived(key, enters_recent=True)
        # Of the link
        self.queue: list[Transfer] = []
        self.issued: list[Transfer] = []
        self.places = 0
        # Of the gates
        self.pinned: set[Key] = set()
        self.masked: dict[int, set[Key]] = {}
        self.waiting: list[tuple[Need, int]] = []
        self.unfinished = 0
        self.site_end = self.env.event()
        self.tick, self.site, self.token = -1, 0, 0
        # What is told afterwards
        self.prefetched_unused: set[Key] = set()
        self.prefetch: Counter[str] = Counter()
        self.gates: list[GateRow] = []
        self.lookups: list[Lookup] = []
        self.transfers: list[Transfer] = []
        self.busy: list[Busy] = []
        self.sequence_ends: list[tuple[int, int]] = []
        self.calls: list[tuple[int, str, int]] = []

    # ---- the clock -------------------------------------------------------------------------------------------------

    def at(self, rank: Rank, number: int, delay: int = 0) -> simpy.Event:
        """An event of the contract, which takes place after everything of a lower class or number at its instant."""
        event = Moment(self.env)
        self.env.schedule(event, priority=rank << 48 | number, delay=delay)
        return event

    def say(self, call: str, number: int) -> None:
        self.calls.append((self.now, call, number))

    @property
    def now(self) -> int:
        return int(self.env.now)

    # ---- processes -------------------------------------------------------------------------------------------------

    def machine(self) -> Process:
        """The compute stream: sequences one after another, their steps, their sites."""
        for step in self.scenario.steps:
            if step.begins:
                yield self.at(Rank.BEGIN_SEQUENCE, step.sequence)
                self.say("begin_sequence", step.sequence)
                self.history.begin_sequence()
                self.poll()
            for site in range(self.scenario.sites):
                self.busy.append(Busy(self.now, self.now + step.dense_ns[site]))
                yield self.at(Rank.GATE, self.tick + 1, delay=step.dense_ns[site])
                gate_ns = self.now
                self.start(self.gate(step, site))
                self.poll()
                yield self.site_end
                self.gates.append(GateRow(self.tick, gate_ns, self.now))
            self.busy.append(Busy(self.now, self.now + step.tail_ns))
            if not step.ends:
                yield self.env.timeout(step.tail_ns)
                continue
            yield self.at(Rank.END_SEQUENCE, step.sequence, delay=step.tail_ns)
            self.say("end_sequence", step.sequence)
            self.sequence_ends.append((step.sequence, self.now))
            self.poll()

    def start(self, admitted: list[Admitted]) -> None:
        """Set to work what one call admitted: each need for itself (as_ready) or all together (wait_all)."""
        if self.loader.wait == "as_ready":
            for one in admitted:
                self.env.process(self.batch([one]))
        elif admitted:
            self.env.process(self.batch(admitted))

    def batch(self, admitted: list[Admitted]) -> Process:
        """Needs that are computed in need order after the last of their transfers has arrived."""
        awaited = tuple(one.transfer for one in admitted if one.transfer)
        everything_here = self.env.all_of([transfer.arrived for transfer in awaited])
        keeps_its_turn = self.loader.wait == "wait_all" and self.readings.waves_in_call_order
        if not keeps_its_turn and awaited:
            yield everything_here
        with self.compute.request() as turn:
            yield turn
            if keeps_its_turn and awaited:
                yield everything_here
            for one in admitted:
                precision = one.key[0] if self.readings.computes_served_precision else one.wanted
                duration = self.scenario.expert_ns(precision, one.need.tokens)
                self.busy.append(Busy(self.now, self.now + duration, awaited))
                yield self.at(Rank.NEED_DONE, len(self.busy), delay=duration)
                self.finish(one)

    def finish(self, one: Admitted) -> None:
        """The end of a need's computation, which the controller hears only while needs wait for admission."""
        if self.waiting:
            self.start(self.need_done(one.key))
            self.poll()
        self.unfinished -= 1
        if self.unfinished == 0:
            self.site_end.succeed()

    def carry(self, transfer: Transfer) -> Process:
        """An issued transfer waits for the link, is served, and ends; its end and the issue of the next are one."""
        assert transfer.number is not None
        with self.wire.request(priority=transfer.number) as turn:
            yield turn
            transfer.start_ns = self.now
            yield self.at(Rank.TRANSFER_END, transfer.number, delay=self.scenario.service_ns[transfer.key[0]])
        self.transfer_done(transfer)

    # ---- what is where ---------------------------------------------------------------------------------------------

    def pool(self, key: Key) -> Pool:
        found = [pool for spec, pool in zip(self.scenario.pools, self.pools, strict=True) if spec.covers(key)]
        assert len(found) == 1, f"{key} must belong to one pool"
        return found[0]

    def bytes(self, keys: Iterable[Key]) -> int:
        return sum(self.scenario.variant_bytes[precision] for precision, _, _ in keys)

    def resident(self, key: Key) -> bool:
        return key in self.pool(key).resident

    def in_flight(self, key: Key) -> bool:
        return any(transfer.key == key for transfer in self.issued)

    def queued(self, key: Key) -> Transfer | None:
        return next((transfer for transfer in self.queue if transfer.key == key), None)

    def everything_masked(self) -> set[Key]:
        return set().union(*self.masked.values())

    def select(self, site: int, expert: int, score: float) -> int:
        """The wanted precision, or SKIP."""
        selector = self.scenario.selector
        if isinstance(selector, Fixed):
            return selector.precision
        if score <= selector.low_above:
            return 0
        if score <= selector.skip_above:
            return 1
        here = [p for p in range(self.scenario.precisions) if self.resident((p, site, expert))]
        return here[0] if here else SKIP

    def serving(self, wanted: int, site: int, expert: int) -> Key:
        """The key that serves a need or a forecast (section 4, step 4)."""
        own: Key = (wanted, site, expert)
        higher: list[Key] = [(p, site, expert) for p in range(wanted - 1, -1, -1)]
        lower: list[Key] = [(p, site, expert) for p in range(wanted + 1, self.scenario.precisions)]
        candidates = [own, *higher] + (lower if self.loader.low_for_high else [])
        for key in candidates:
            if self.resident(key):
                return key
        for key in [own, *higher]:
            if self.in_flight(key):
                return key
        return own

    # ---- calls of the controller -----------------------------------------------------------------------------------

    def gate(self, step: Step, site: int) -> list[Admitted]:
        """The steps 1 to 10 of section 4."""
        self.tick, self.site, self.token = self.tick + 1, site, step.token
        self.say("gate", self.tick)
        self.pinned.clear()
        self.masked.pop(site, None)
        self.waiting = [(need, self.select(site, need.expert, need.score)) for need in step.needs[site]]
        wanting = [(need, wanted) for need, wanted in self.waiting if wanted != SKIP]
        serving = {self.serving(wanted, site, need.expert) for need, wanted in wanting}
        self.unfinished = len(wanting)
        self.site_end = self.env.event()
        if not wanting:
            self.site_end.succeed()
        admitted = self.admit()
        self.cancel(
            transfer
            for transfer in list(self.queue)
            if transfer.kind == "prefetch"
            and transfer.key not in serving
            and (
                self.loader.prefetch_budget == "until_next_gate"
                or (self.loader.cancel_stale and transfer.key[1] == site)
            )
        )
        asked = self.look_up(admitted)
        self.history.requested(asked, step.token, site)
        self.look_ahead(step, site)
        return asked

    def need_done(self, key: Key) -> list[Admitted]:
        """Section 6: the key is unpinned and the next needs come in."""
        self.say("need_done", self.scenario.pack(key))
        self.pinned.discard(key)
        admitted = self.look_up(self.admit())
        self.history.requested(admitted, self.token, self.site)
        return admitted

    def transfer_done(self, transfer: Transfer) -> None:
        """A variant has arrived; the next transfer is issued in the same call."""
        assert transfer.number is not None
        self.say("transfer_done", transfer.number)
        transfer.end_ns = self.now
        pool = self.pool(transfer.key)
        pool.claimed.remove(transfer.key)
        pool.resident.add(transfer.key)
        self.issued.remove(transfer)
        unasked = transfer.kind == "prefetch" and not transfer.needed
        self.history.arrived(transfer.key, enters_recent=unasked)
        if unasked:
            self.prefetched_unused.add(transfer.key)
        transfer.arrived.succeed()
        if self.readings.refill_once:
            self.issue()
        else:
            self.poll()

    def poll(self) -> None:
        while len(self.issued) < self.loader.in_flight and self.issue():
            pass

    # ---- parts of a gate -------------------------------------------------------------------------------------------

    def admit(self) -> list[Admitted | None]:
        """Needs come in, in need order, until one does not fit beside what is pinned; None is a skipped one."""
        admitted: list[Admitted | None] = []
        while self.waiting:
            need, wanted = self.waiting[0]
            if wanted == SKIP:
                admitted.append(None)
            else:
                key = self.serving(wanted, self.site, need.expert)
                pool = self.pool(key)
                beside = {other for other in self.pinned if self.pool(other) is pool}
                if self.bytes(beside | {key}) > pool.capacity_bytes:
                    break
                self.pinned.add(key)
                admitted.append(Admitted(need, wanted, key))
            self.waiting.pop(0)
        return admitted

    def look_up(self, admitted: list[Admitted | None]) -> list[Admitted]:
        """Section 5. Answers the needs that were not skipped."""
        for one in admitted:
            if one is None:
                self.lookups.append(Lookup(self.tick, None, SKIP, "skip", self.now, None))
                continue
            outcome = self.outcome(one)
            self.lookups.append(Lookup(self.tick, one.key, one.wanted, outcome, self.now, one.transfer))
        return [one for one in admitted if one]

    def outcome(self, one: Admitted) -> str:
        """Name the lookup's outcome; what is not resident makes the need wait for a transfer."""
        if self.resident(one.key):
            if one.key in self.prefetched_unused:
                self.prefetched_unused.remove(one.key)
                self.prefetch["used"] += 1
            if one.key[0] == one.wanted:
                return "hit"
            return "high_for_low" if one.key[0] < one.wanted else "low_for_high"
        for transfer in self.issued:
            if transfer.key == one.key:
                return self.wait_late(one, transfer)
        waiting = self.queued(one.key)
        if waiting is None:
            one.transfer = self.enqueue(one.key, "demand")
            return "miss"
        assert waiting.kind == "prefetch", "no demand outlives its gate"
        if not self.loader.promote:
            return self.wait_late(one, waiting)
        self.queue.remove(waiting)
        self.prefetch["promoted"] += 1
        one.transfer = self.enqueue(one.key, "demand", place=None if self.loader.demand_first else waiting.place)
        return "promoted"

    def wait_late(self, one: Admitted, transfer: Transfer) -> str:
        assert transfer.kind == "prefetch", "no demand outlives its gate"
        assert not transfer.needed
        one.transfer = transfer
        transfer.needed = True
        self.prefetch["late"] += 1
        return "late"

    def look_ahead(self, step: Step, site: int) -> None:
        """Step 9: ask the predictor, nearest site first, as long as depth and budget let it."""
        budget = self.loader.prefetch_budget
        left = budget if isinstance(budget, int) else math.inf
        replaced = False
        if left == 0 and not self.readings.exhausted_budget_asks:
            return
        for ahead, forecast in enumerate(step.forecasts[site][: self.loader.lookahead], start=1):
            if forecast is None:
                return
            self.masked.pop(site + ahead, None)
            if self.loader.queue == "replace" and not replaced:
                replaced = True
                spared = self.unadmitted_keys() if self.readings.replace_spares_unadmitted else set()
                self.cancel(
                    transfer
                    for transfer in list(self.queue)
                    if transfer.kind == "prefetch" and not transfer.needed and transfer.key not in spared
                )
            keys = self.foreseen(site + ahead, forecast)
            self.masked[site + ahead] = set(keys)
            all_resident = all(self.resident(key) for key in keys)
            for key in keys:
                if left > 0 and not (self.resident(key) or self.in_flight(key) or self.queued(key)):
                    self.enqueue(key, "prefetch")
                    self.prefetch["queued"] += 1
                    left -= 1
            if left == 0 or (self.loader.depth == "first_missing" and not all_resident):
                return

    def foreseen(self, site: int, forecast: tuple[Forecast, ...]) -> list[Key]:
        wanted = [(self.select(site, one.expert, one.score), one.expert) for one in forecast]
        return [self.serving(precision, site, expert) for precision, expert in wanted if precision != SKIP]

    def unadmitted_keys(self) -> set[Key]:
        return {self.serving(wanted, self.site, need.expert) for need, wanted in self.waiting if wanted != SKIP}

    # ---- the link --------------------------------------------------------------------------------------------------

    def enqueue(self, key: Key, kind: Kind, place: int | None = None) -> Transfer:
        self.places += 1
        transfer = Transfer(
            key, kind, self.places if place is None else place, self.now, self.env.event(), needed=kind == "demand"
        )
        self.queue.append(transfer)
        return transfer

    def cancel(self, transfers: Iterable[Transfer]) -> None:
        for transfer in transfers:
            assert transfer.kind == "prefetch"
            assert not transfer.needed
            self.queue.remove(transfer)
            self.prefetch["cancelled"] += 1

    def in_order(self) -> list[Transfer]:
        """The queue as the link sees it: demands before prefetches (or not), first in first out."""
        return sorted(self.queue, key=lambda t: (self.loader.demand_first and t.kind == "prefetch", t.place))

    def issue(self) -> bool:
        """Issue the next transfer if its slot can be claimed; prefetches that find none are dropped on the way."""
        for transfer in self.in_order():
            victims = self.victims(transfer)
            if victims is not None:
                self.queue.remove(transfer)
                self.claim(transfer, victims)
                self.env.process(self.carry(transfer))
                return True
            if transfer.needed:
                return False
            self.queue.remove(transfer)
            self.prefetch["dropped_no_slot"] += 1
        return False

    def victims(self, transfer: Transfer) -> list[Key] | None:
        """The keys that must go for it to be issued, in the order of their going; None if too few may go."""
        pool = self.pool(transfer.key)
        lacking = self.bytes([transfer.key]) - (pool.capacity_bytes - self.bytes(pool.resident | pool.claimed))
        ordered = self.history.victims_first(pool.resident - self.pinned)
        masked = self.everything_masked()
        candidates = [key for key in ordered if key not in masked]
        if transfer.needed:
            candidates += [key for key in ordered if key in masked]
        victims: list[Key] = []
        for key in candidates:
            if self.bytes(victims) >= lacking:
                break
            victims.append(key)
        return victims if self.bytes(victims) >= lacking else None

    def claim(self, transfer: Transfer, victims: list[Key]) -> None:
        pool = self.pool(transfer.key)
        for key in victims:
            pool.resident.remove(key)
            self.history.evicted(key)
            if key in self.prefetched_unused:
                self.prefetched_unused.remove(key)
                self.prefetch["evicted_unused"] += 1
        pool.claimed.add(transfer.key)
        assert self.bytes(pool.resident | pool.claimed) <= pool.capacity_bytes
        transfer.victims = tuple(victims)
        transfer.number = len(self.transfers)
        self.transfers.append(transfer)
        self.issued.append(transfer)
        if transfer.kind == "prefetch":
            self.prefetch["started"] += 1

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def run(self) -> Timeline:
        self.env.run(until=self.env.process(self.machine()))
        makespan = self.now
        self.cancel([transfer for transfer in self.queue if transfer.kind == "prefetch"])
        assert not self.queue, "a demand was left"
        for transfer in self.issued:
            transfer.start_ns = makespan if transfer.start_ns is None else transfer.start_ns
            transfer.end_ns = makespan
        self.prefetch["unused_at_end"] += len(self.prefetched_unused)
        self.prefetch["unused_at_end"] += sum(t.kind == "prefetch" and not t.needed for t in self.issued)
        pack = self.scenario.pack
        transfers = tuple(
            TransferRow(
                number=_set(t.number),
                key=pack(t.key),
                kind=t.kind,
                queued_ns=t.queued_ns,
                start_ns=_set(t.start_ns),
                end_ns=_set(t.end_ns),
                victims=tuple(pack(key) for key in t.victims),
            )
            for t in self.transfers
        )
        lookups = tuple(
            LookupRow(
                look.tick,
                SKIP if look.key is None else pack(look.key),
                look.wanted,
                look.outcome,
                look.lookup_ns,
                _set(look.transfer.end_ns) if look.transfer else look.lookup_ns,
            )
            for look in self.lookups
        )
        idle = self.idle()
        return Timeline(
            gates=tuple(self.gates),
            lookups=lookups,
            transfers=transfers,
            prefetch={name: self.prefetch[name] for name in PREFETCH_OUTCOMES},
            makespan_ns=makespan,
            busy_ns=sum(work.end_ns - work.start_ns for work in self.busy),
            stall=split_stall(idle, transfers),
            sequence_ends=tuple(self.sequence_ends),
            idle=idle,
            calls=tuple(self.calls),
        )

    def idle(self) -> tuple[IdleRow, ...]:
        """The gaps between works, each with the last of the transfers that the work after it waited for."""
        gaps = []
        for before, after in zip(self.busy, self.busy[1:], strict=False):
            assert before.end_ns <= after.start_ns, "one compute stream"
            if before.end_ns < after.start_ns:
                closing = [_set(t.number) for t in after.awaited if t.end_ns == after.start_ns]
                assert closing, "only an arrival ends an idle interval"
                gaps.append(IdleRow(before.end_ns, after.start_ns, max(closing)))
        return tuple(gaps)


def _set(value: int | None) -> int:
    assert value is not None
    return value


def run(scenario: Scenario, readings: Readings | None = None) -> Timeline:
    """Simulate the scenario and check the result's invariants."""
    timeline = Reference(scenario, readings or Readings()).run()
    check(scenario, timeline)
    return timeline
