"""Devices that own experts, in the reference (contracts C169 to C171): a process for each.

Home is the reference's own compute stream. A device is asked for the needs of a gate, computes them
one after another, and sends what it has home.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from differential.ref_clock import Clock, Process, Rank
from differential.ref_control import Control
from differential.ref_memory import Asked, Transfer
from differential.rows import IdleRow
from differential.scenario import Key, Scenario


@dataclass(eq=False)
class Gate:
    """One device at one gate. `batches`: needs that are computed together when all are there."""

    rows: int
    given_ns: int = -1
    """When it was given needs last."""
    batches: list[list[Asked]] = field(default_factory=list)
    unfinished: int = 0
    done_ns: int = -1
    begun: tuple[int, Transfer] | None = None
    """The last load that it stood idle for, and when that came."""
    is_sent: bool = False
    is_back: bool = False


class Owner:
    """A device other than home."""

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        control: Control,
        device: int,
        waking_ns: Callable[[int], int],
        admit: Callable[[list[Asked]], None],
        tell: Callable[[Owner, bool], None],
    ) -> None:
        """`admit`: what an end of a need lets in. `tell`: home hears of it, or of the results."""
        self.scenario, self.clock, self.control, self.device = scenario, clock, control, device
        self.waking_ns, self.admit, self.tell = waking_ns, admit, tell
        self.gate = Gate(0)
        self.news: simpy.Event | None = None

    def begin_gate(self, rows: int) -> None:
        assert self.gate.unfinished == 0
        self.gate = Gate(rows)

    def ask(self, needs: list[Asked]) -> None:
        gate, loader = self.gate, self.scenario.loader
        gate.unfinished += len(needs)
        if loader.wait == "wait_all":
            gate.batches.append(list(needs))
        elif loader.wait == "in_order":
            gate.batches += [[one] for one in needs]
        is_first, gate.given_ns = gate.given_ns < 0, self.clock.now
        if is_first:
            self.clock.env.process(self.serve(gate))

    def has_come(self, one: Asked, last: Transfer | None) -> None:
        """A need's expert is there; `last` brought it."""
        if self.scenario.loader.wait == "as_ready":
            self.gate.batches.append([one])
        if self.news is not None and self.is_ready(self.gate):
            self.news.succeed(last)
            self.news = None

    @staticmethod
    def is_ready(gate: Gate) -> bool:
        return bool(gate.batches) and all(one.ready_ns is not None for one in gate.batches[0])

    def serve(self, gate: Gate) -> Process:
        """Until the gate is over: wait for the activations, then compute what is ready."""
        yield self.clock.at(Rank.NEED_DONE, self.device, self.scenario.message_ns(gate.rows))
        while gate.unfinished or self.control.waiting:
            if not self.is_ready(gate):
                yield from self.stand(gate)
                continue
            one = gate.batches[0].pop(0)
            if not gate.batches[0]:
                gate.batches.pop(0)
            yield self.clock.at(Rank.NEED_DONE, self.device, self.expert_ns(one, gate.rows))
            gate.unfinished -= 1
            gate.done_ns = self.clock.now
            if self.control.waiting:
                self.admit(self.control.need_done(one.key))
                self.tell(self, True)
        self.send(gate)

    def expert_ns(self, one: Asked, rows: int) -> int:
        alone_ns = self.scenario.expert_ns(one.key[0], one.need.tokens, rows)
        return self.scenario.device_ns(self.device, alone_ns)

    def stand(self, gate: Gate) -> Process:
        """Idle until a need is ready, or until no more can come."""
        since_ns = self.clock.now
        self.news = self.clock.env.event()
        last = yield self.news
        idle_ns = self.clock.now - max(since_ns, gate.given_ns)
        if last is not None and idle_ns:
            gate.begun = self.clock.now, last
            if wake_ns := self.waking_ns(idle_ns):
                yield self.clock.at(Rank.NEED_DONE, self.device, wake_ns)

    def let_go(self) -> None:
        """No need waits for admission any more."""
        if self.news is not None and self.gate.unfinished == 0:
            self.news.succeed(None)
            self.news = None

    def send(self, gate: Gate) -> None:
        if not gate.is_sent:
            gate.is_sent = True
            self.clock.env.process(self.come_home(gate))

    def come_home(self, gate: Gate) -> Process:
        due_ns = gate.done_ns + self.scenario.message_ns(gate.rows)
        yield self.clock.at(Rank.NEED_DONE, self.device, max(0, due_ns - self.clock.now))
        gate.is_back = True
        self.tell(self, False)

    @property
    def is_pending(self) -> bool:
        """Whether home must still wait for it."""
        return self.gate.given_ns >= 0 and not self.gate.is_back


def rows_of(start_ns: int, end_ns: int, of: Owner) -> list[IdleRow]:
    """Home stood idle until another device's result was there (contract C171)."""
    if of.gate.begun is None or of.gate.begun[0] <= start_ns:
        return [IdleRow(start_ns, end_ns, "cpu_join")]
    begun_ns, transfer = of.gate.begun
    assert transfer.number is not None
    load = IdleRow(start_ns, begun_ns, "transfer", transfer.number)
    return [load, IdleRow(begun_ns, end_ns, "cpu_join")] if end_ns > begun_ns else [load]


def owner_of(scenario: Scenario, key: Key) -> int:
    """The device that computes a key; 0: home."""
    where = scenario.devices
    return where.has(key) if where and where.owner else 0
