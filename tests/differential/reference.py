"""An independent SimPy model of docs/contracts, against which the production engine is judged.

It is slow and plain, with processes and resources as a SimPy user would write them. The compute
stream walks through steps and sites; every need is a process that waits for its variant; the CPU is
a resource; every service of a link is a process. What SimPy cannot express (a claim at issue, a
dropped prefetch, a queue place that survives promotion) is a list beside it, sorted when it is
asked.

This file is the compute stream (contract C66). `ref_control` is the controller, `ref_moves` its
transfers, `ref_links` the links, `ref_steps` the steps, `ref_memory` the tiers, `history` the
victim orders, `stall` the idle time.

READINGS lists where the page allows more than one reading, and which one this model takes.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor

import simpy

from differential.ref_clock import Clock, Process, Rank
from differential.ref_control import Control
from differential.ref_links import service_rows
from differential.ref_memory import Asked, Transfer
from differential.ref_owners import Owner, owner_of, rows_of
from differential.ref_steps import Planned, steps_of
from differential.rows import (
    PREFETCH_OUTCOMES,
    Cause,
    GateRow,
    IdleRow,
    LookupRow,
    StepRow,
    Timeline,
    TransferRow,
)
from differential.scenario import SKIP, Scenario
from differential.stall import split_stall
from differential.timeline import check

READINGS = (
    (
        "Contract C13: the link of a transfer_done or chunk_done is left out only if that call"
        " issued something, and all links are polled again where a prefetch was given up on the"
        " way; else what it gives back may never be taken."
    ),
    (
        "Contract C14: of several sequences that begin or end at one instant the lower number comes"
        " first."
    ),
    "Contract C16: a pool holds what is resident and what is claimed in it.",
    (
        "Contract C19: after_batch waives the capacity, not the staging slots; needs on the"
        " CPU and needs that are left out count in both as long as they are pinned; `no pool holds`"
        " means not resident."
    ),
    (
        "Contract C21: RAM's policy is told of the misses (and the rests of staged partial"
        " moves), not of promotions."
    ),
    "Contract C29: all serving keys of a forecast are masked before the first is queued.",
    (
        "Contract C39: an urgent or waited-for prefetch that goes to staging claims there"
        " like a demand; what arrives in staging is not told to the policy as an insert; what it"
        " displaces is no victim of the transfer."
    ),
    "Contract C37: masks do not hold there, pins do; promotion does not look up again.",
    "Contract C58: a service draws its share until the whole ns at which it ends.",
    (
        "Contract C36: each victim costs its whole `hop`, overhead included; with engines"
        " the latency, in which nothing is drawn, is that of one. In contract C72 the first so"
        " many ns"
        " of the service are its write-back part."
    ),
    (
        "Contract C33: a dense block has its claim from when it is queued, as has the rest of"
        " a partial move; both pass a head that finds no slot."
    ),
    (
        "Contract C44, `queued: its bytes become those of the need` is said of partial"
        " prefetches; a"
        " whole one stays whole."
    ),
    "Contract C46, rows: within what one call admits.",
    "Contract C48: a gate's token count is the largest of its sequences'.",
    (
        "Contracts C67, C68: who stands for 0 ns does not stand idle. Host time ends after all"
        " that arrives"
        " at its last instant. in_order leaves out what the CPU computes. An arrival of a request"
        " wakes the stream, too, and the step is composed from what has arrived when it is awake."
    ),
    (
        "Contracts C71, C72: an interval ends with the event that let the stream go on: of"
        " several needs"
        " that come at one instant with as_ready, the first. A service that was urgent when it"
        " began counts as a demand's for those behind it, too."
    ),
)


class Reference:
    """One run. `run` below is the way in."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loader, self.hosts = scenario.loader, scenario.host
        self.clock = Clock()
        self.env = self.clock.env
        self.control = Control(scenario, self.clock)
        self.rivals = self.control.rivals
        self.cpu = simpy.Resource(self.env, capacity=1)
        self.plan = steps_of(scenario)
        # Of a site
        self.ready: list[Asked] = []
        self.batches: list[list[Asked]] = []
        self.pieces: list[tuple[Asked, int]] = []
        self.step_rows = 0
        self.control.on_read = lambda transfer: self.tell("transfer", transfer)
        devices = len(scenario.devices.slower) if scenario.owns else 1
        self.others = [
            Owner(
                scenario,
                self.clock,
                self.control,
                device,
                self.waking_ns,
                self.start,
                self.on_other,
            )
            for device in range(1, devices)
        ]
        self.unfinished = 0
        self.cpu_pending, self.cpu_submitted = 0, 0
        self.news: simpy.Event | None = None
        self.awaits: Callable[[], bool] = lambda: False
        # What is told afterwards
        self.busy_ns = 0
        self.gates: list[GateRow] = []
        self.steps: list[StepRow] = []
        self.idle: list[IdleRow] = []
        self.sequence_ends: list[tuple[int, int]] = []

    @property
    def now(self) -> int:
        return self.clock.now

    # ---- the compute stream

    def machine(self) -> Process:
        while True:
            planned = self.plan.next(self.now)
            if planned is not None:
                yield from self.run_step(planned)
                continue
            arrival = self.plan.next_arrival()
            if arrival is None:
                return
            yield from self.stand(
                self.clock.at(Rank.BEGIN_SEQUENCE, delay=arrival - self.now), "no_request"
            )

    def run_step(self, planned: Planned) -> Process:
        step = planned.step
        for sequence in planned.begins:
            yield self.clock.at(Rank.BEGIN_SEQUENCE, sequence)
            self.control.begin_sequence(sequence)
        for link, tokens in zip(self.scenario.kv_links, planned.brought, strict=True):
            if tokens:
                self.control.bring(link, tokens)
        start_ns = self.now
        before = None
        for site in step.sites:
            yield from self.run_site(planned, site, before)
            before = site
        crossing_ns = self.scenario.crossing_ns(before, -1, step.rows)
        yield from self.work(crossing_ns + self.scenario.work_ns(-1, step.tail_ns))
        self.steps.append(StepRow(start_ns, self.now, step.members))
        for sequence in planned.ends:
            yield self.clock.at(Rank.END_SEQUENCE, sequence)
            self.control.end_sequence(sequence)
            self.sequence_ends.append((sequence, self.now))

    def run_site(self, planned: Planned, site: int, before: int | None) -> Process:
        """The seven parts of contract C66. `before`: the site that the step was at."""
        step, control = planned.step, self.control
        self.step_rows = step.rows
        if self.loader.dense_slots and site not in control.dense_here:
            block = control.dense_coming[site]
            assert block
            yield from self.stand(block.arrived, "dense", block)
        yield from self.await_kv(control.kv_coming.pop(site, []))
        crossing_ns = self.scenario.crossing_ns(before, site, step.rows)
        yield from self.work(crossing_ns + self.scenario.work_ns(site, step.dense_ns[site]))
        yield from self.host(self.hosts.sync_ns)
        yield self.clock.at(Rank.GATE, control.tick + 1)
        gate_ns = self.now
        demands = len(control.demanded)
        for other in self.others:
            other.begin_gate(step.rows)
        admitted = control.gate(step, site)
        loads = control.demanded[demands:]
        paging_ns = control.swapped.pay() if control.swapped else 0
        self.start(admitted)
        if self.scenario.prediction_ns:
            self.env.process(self.predict(control.tick))
        books_ns = sum(self.hosts.load_ns + self.hosts.load_byte_ns * size for size in loads)
        yield from self.host(self.hosts.issue_ns + books_ns + paging_ns)
        yield from self.compute_needs()
        yield from self.join_cpu()
        yield from self.host(self.hosts.post_ns)
        self.gates.append(GateRow(control.tick, len(self.steps), site, gate_ns, self.now))

    def await_kv(self, coming: list[Transfer]) -> Process:
        """Idle until all of a site's keys and values are there; the last one wakes the stream."""
        start_ns = self.now
        for transfer in coming:
            yield transfer.arrived
        if coming:
            last = max(coming, key=self.control.kv_landed.index)
            yield from self.wake(start_ns, "dense", last)

    def compute_needs(self) -> Process:
        """Part (e). A CPU result that lets further needs in wakes the stream, too."""
        if self.loader.wait == "by_projection":
            yield from self.compute_projections()
            return
        while self.unfinished or self.control.waiting:
            one = self.take_need()
            if one is None:
                yield from self.stand_until(lambda: bool(self.next_batch()))
                continue
            precision, site, _ = one.key
            alone_ns = self.scenario.expert_ns(precision, one.need.tokens, self.step_rows)
            yield from self.work(self.scenario.work_ns(site, alone_ns))
            self.unfinished -= 1
            if self.control.waiting:
                self.start(self.control.need_done(one.key))

    def compute_projections(self) -> Process:
        """Contract C167: in the order of `pieces`, each as soon as it is there."""
        while self.unfinished or self.control.waiting:
            if not (self.pieces and self.is_there(*self.pieces[0])):
                yield from self.stand_until(
                    lambda: bool(self.pieces) and self.is_there(*self.pieces[0])
                )
                continue
            one, projection = self.pieces.pop(0)
            times = self.scenario.projection_ns(one.key, one.need.tokens, self.step_rows)
            yield from self.work(self.scenario.work_ns(one.key[1], times[projection]))
            if projection < len(times) - 1:
                continue
            self.unfinished -= 1
            if self.control.waiting:
                self.start(self.control.need_done(one.key))

    def is_there(self, one: Asked, projection: int) -> bool:
        has_come = one.transfer is not None and projection in one.transfer.come
        return one.ready_ns is not None or has_come

    def join_cpu(self) -> Process:
        """Part (f); other devices, too, if they own experts."""
        if not self.is_all_back():
            yield from self.stand_until(self.is_all_back)

    def is_all_back(self) -> bool:
        return self.cpu_pending == 0 and not any(other.is_pending for other in self.others)

    def on_other(self, other: Owner, lets_in: bool) -> None:
        """Another device has ended a need of a wave, or its results are home."""
        self.tell("cpu_join", other, at_once=lets_in)

    def work(self, duration: int) -> Process:
        start_ns = self.now
        if self.rivals:
            yield from self.rivals.work(0, 0, duration, Rank.NEED_DONE)
        else:
            yield self.clock.at(Rank.NEED_DONE, delay=duration)
        self.busy_ns += self.now - start_ns

    def host(self, duration: int) -> Process:
        if duration:
            self.idle.append(IdleRow(self.now, self.now + duration, "host"))
            yield self.clock.at(Rank.NEED_DONE, delay=duration)

    # ---- standing idle

    def stand(self, event: simpy.Event, cause: Cause, transfer: Transfer | None = None) -> Process:
        """Idle until that event. Only who stood for some time must be woken."""
        start_ns = self.now
        yield event
        yield from self.wake(start_ns, cause, transfer)

    def stand_until(self, condition: Callable[[], bool]) -> Process:
        """Idle until something makes this true, or a CPU result lets further needs in."""
        start_ns = self.now
        self.news, self.awaits = self.env.event(), condition
        cause, transfer = yield self.news
        yield from self.wake(start_ns, cause, transfer)

    def tell(
        self, cause: Cause, transfer: Transfer | Owner | None = None, at_once: bool = False
    ) -> None:
        """Something has arrived: does it end the idle interval?"""
        if self.news is not None and (at_once or self.awaits()):
            self.news.succeed((cause, transfer))
            self.news = None

    def wake(self, start_ns: int, cause: Cause, transfer: Transfer | Owner | None) -> Process:
        if isinstance(transfer, Owner):
            if self.now > start_ns:
                self.idle += rows_of(start_ns, self.now, transfer)
                yield from self.host(self.waking_ns(self.now - start_ns))
        elif self.now > start_ns:
            number = -1 if transfer is None or transfer.number is None else transfer.number
            self.idle.append(IdleRow(start_ns, self.now, cause, number))
            yield from self.host(self.waking_ns(self.now - start_ns))

    def waking_ns(self, idle_ns: int) -> int:
        """Contract C67: on the line through the two points around, whole ns; else the nearest's."""
        points = self.hosts.wakes or ((0, self.hosts.wake_ns),)
        below = [point for point in points if point[0] < idle_ns]
        above = [point for point in points if point[0] >= idle_ns]
        if not below or not above:
            return (above[0] if above else below[-1])[1]
        share = Fraction(idle_ns - below[-1][0], above[0][0] - below[-1][0])
        return floor(below[-1][1] + share * (above[0][1] - below[-1][1]))

    # ---- the needs of a gate

    def start(self, admitted: list[Asked]) -> None:
        """Set to work what one call admitted; what the placement leaves out has ended at once."""
        own = [one for one in admitted if one.outcome not in ("skip", "cpu") and not one.joins]
        for other in self.others:
            if given := [one for one in own if owner_of(self.scenario, one.key) == other.device]:
                other.ask(given)
        own = [one for one in own if not owner_of(self.scenario, one.key)]
        self.unfinished += len(own)
        if self.loader.wait == "wait_all":
            self.batches += [own] if own else []
        elif self.loader.wait == "in_order":
            self.batches += [[one] for one in own]
        elif self.loader.wait == "by_projection":
            pieces = [
                (projection, one.key, one)
                for one in own
                for projection in range(len(self.scenario.projection_bytes[one.key[0]]))
            ]
            self.pieces += [
                (one, projection)
                for projection, _, one in sorted(pieces, key=lambda piece: piece[:2])
            ]
        for one in admitted:
            if one.outcome == "cpu":
                self.cpu_pending += 1
                self.cpu_submitted += 1
                self.env.process(self.on_cpu(one, self.cpu_submitted))
            elif one.transfer is None:
                self.has_come(one)
            else:
                self.env.process(self.need(one, one.transfer))
        for one in admitted:
            if one.outcome == "skip" and one.wanted != SKIP and self.control.waiting:
                self.start(self.control.need_done(one.key))
        if not self.control.waiting:
            for other in self.others:
                other.let_go()

    def need(self, one: Asked, transfer: Transfer) -> Process:
        last = yield transfer.arrived
        self.has_come(one, last)
        self.tell("transfer", last)

    def has_come(self, one: Asked, last: Transfer | None = None) -> None:
        one.ready_ns = self.now
        device = owner_of(self.scenario, one.key)
        if device and one.outcome != "skip" and not one.joins:
            self.others[device - 1].has_come(one, last)
        elif self.loader.wait == "as_ready" and one.outcome != "skip" and not one.joins:
            self.batches.append([one])

    def next_batch(self) -> list[Asked] | None:
        """The needs that are computed next, if all of them are there."""
        if self.batches and all(one.ready_ns is not None for one in self.batches[0]):
            return self.batches[0]
        return None

    def take_need(self) -> Asked | None:
        batch = self.next_batch()
        if batch is None:
            return None
        one = batch.pop(0)
        if not batch:
            self.batches.pop(0)
        return one

    def on_cpu(self, one: Asked, number: int) -> Process:
        """A need on the CPU, and its result's way back."""
        placement = self.scenario.placement
        assert placement
        with self.cpu.request() as turn:
            yield turn
            time = placement.time_ns(one.need.tokens)
            if self.rivals:
                latency = min(time, self.rivals.rivalry.cpu_latency_ns)
                yield from self.rivals.work(1, latency, time - latency, Rank.CPU_DONE, number)
            else:
                yield self.clock.at(Rank.CPU_DONE, number, delay=time)
        one.ready_ns = self.now
        self.cpu_pending -= 1
        self.control.cpu_done(one.key)
        lets_in = bool(self.control.waiting)
        if lets_in:
            self.start(self.control.need_done(one.key))
        self.tell("cpu_join", at_once=lets_in)

    def predict(self, tick: int) -> Process:
        yield self.clock.at(Rank.PREDICTION, tick, delay=self.scenario.prediction_ns)
        self.control.prediction_ready(tick)

    # ---- afterwards

    def run(self) -> Timeline:
        self.env.run(until=self.env.process(self.machine()))
        makespan = self.now
        control, pack = self.control, self.scenario.pack
        prefetch = control.finish()
        transfers = tuple(
            TransferRow(
                _set(t.number),
                pack(t.key),
                t.kind,
                t.moved,
                tuple(map(pack, t.victims)),
                tuple(t.hops),
            )
            for t in control.transfers
        )
        lookups = tuple(
            LookupRow(
                one.tick,
                SKIP if one.wanted == SKIP else pack(one.key),
                one.wanted,
                one.outcome,
                one.lookup_ns,
                _set(one.ready_ns),
            )
            for one in control.lookups
        )
        services = service_rows(control.log)
        completes = {
            _set(t.number): _set(t.completes.number) for t in control.transfers if t.completes
        }
        return Timeline(
            gates=tuple(self.gates),
            lookups=lookups,
            services=services,
            transfers=transfers,
            steps=tuple(self.steps),
            prefetch={name: prefetch[name] for name in PREFETCH_OUTCOMES},
            makespan_ns=makespan,
            busy_ns=self.busy_ns,
            stall=split_stall(self.scenario, self.idle, services, transfers, completes),
            sequence_ends=tuple(self.sequence_ends),
            ram_lookups=tuple(control.ram_lookups),
            ram_evictions=tuple(control.ram_evictions),
            trimmed=tuple(control.trimmed),
            exchanged=tuple(control.exchanged),
            idle=tuple(self.idle),
            calls=tuple(self.clock.calls),
        )


def _set(value: int | None) -> int:
    assert value is not None
    return value


def run(scenario: Scenario) -> Timeline:
    """Simulate the scenario and check the result's invariants."""
    timeline = Reference(scenario).run()
    check(scenario, timeline)
    return timeline
