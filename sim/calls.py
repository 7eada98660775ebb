"""The decision log: every call of a controller with its answer, as plain data, and where two logs first differ.

The same order of calls gives the same answers (docs/design.md section 1). So a recorded run, simulated or real, is
checked by feeding its calls to a fresh controller: ``replay`` compares with ``==`` and names the first call whose
answer differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest

from sim.controller import Controller, Event
from sim.loader import Transfer
from sim.policies.base import Gate
from sim.workload import StepGate, Workload

NONE = -1
"""In a field of a call that has nothing there: no key, no transfer."""

KINDS = ("begin_sequence", "end_sequence", "gate", "need_done", "transfer_done", "poll")


@dataclass(frozen=True)
class Call:
    """One call. Ints, strings and tuples of ints, so that a log is a table.

    Asked: ``number`` (calls so far in the run, this one included), ``kind``, and ``argument``: the sequence, the gate's
    tick, the key computed, the number of the transfer that ended, or the link polled.

    Answered: ``outcomes`` and ``keys`` of the admitted needs (-1 for a skip), in need order; ``waits``, the keys waited
    for; ``waiting``, the needs left to later waves; ``arrived``, the key that a transfer brought; of the transfer to
    start ``transfer`` (its number), ``key``, ``prefetch`` and ``victims``, least valuable first.

    Decided on the way, as keys in the order of deciding: prefetches ``queued``, ``cancelled`` and ``dropped``.
    """

    number: int
    kind: str
    argument: int
    outcomes: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    waiting: int = 0
    arrived: int = NONE
    transfer: int = NONE
    key: int = NONE
    prefetch: bool = False
    victims: tuple[int, ...] = ()
    queued: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"call {self.number} {self.kind}({self.argument})"


@dataclass(frozen=True)
class Difference:
    """Where two logs part: the call on either side (None where that log has ended or the call could not be made)."""

    expected: Call | None
    got: Call | None
    why: str = ""

    @property
    def number(self) -> int:
        """The number of the call."""
        call = self.expected or self.got
        assert call is not None
        return call.number

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the call that differ, in their order."""
        if self.expected is None or self.got is None:
            return ()
        return tuple(f.name for f in fields(Call) if getattr(self.expected, f.name) != getattr(self.got, f.name))

    def __str__(self) -> str:
        if self.why:
            return f"{self.expected}: {self.why}"
        if self.expected is None or self.got is None:
            log = "recorded" if self.expected is None else "compared"
            return f"{self.expected or self.got}: the {log} log ends before it"
        parts = [f"{n} {getattr(self.expected, n)!r} expected, got {getattr(self.got, n)!r}" for n in self.names]
        return f"{self.expected}: {'; '.join(parts)}"


class RecordedController(Controller):
    """The controller it is given, with a ``log`` of its calls."""

    def __init__(self, controller: Controller) -> None:
        # One state under two names: whoever holds the given controller sees this run, and no attribute can go stale.
        self.__dict__ = controller.__dict__
        self.log: list[Call] = []
        self._num_events = len(self.events)

    def begin_sequence(self, sequence: int) -> None:
        super().begin_sequence(sequence)
        self._write("begin_sequence", sequence)

    def end_sequence(self, sequence: int) -> None:
        super().end_sequence(sequence)
        self._write("end_sequence", sequence)

    def gate(self, gate: Gate) -> tuple[list[int], dict[int, Transfer] | None]:
        answer = super().gate(gate)
        self._write("gate", gate.tick, lookups=answer)
        return answer

    def need_done(self, key: int) -> tuple[list[int], dict[int, Transfer] | None]:
        answer = super().need_done(key)
        self._write("need_done", key, lookups=answer)
        return answer

    def transfer_done(self, link: int, transfer: Transfer) -> tuple[int, Transfer | None]:
        arrived, following = super().transfer_done(link, transfer)
        self._write("transfer_done", transfer.number, arrived=arrived, started=following)
        return arrived, following

    def poll(self, link: int) -> Transfer | None:
        transfer = super().poll(link)
        self._write("poll", link, started=transfer)
        return transfer

    def _write(self, kind: str, argument: int, *, lookups: tuple[list[int], dict[int, Transfer] | None] | None = None,
               arrived: int = NONE, started: Transfer | None = None) -> None:  # fmt: skip
        """Copy the answer: the controller goes on to use its lists and transfers."""
        outcomes, waits = lookups or ((), None)
        decided: dict[Event, list[int]] = {event: [] for event in Event}
        for event, key in self._new_events():
            decided[event].append(key)
        self.log.append(Call(
            self.calls, kind, argument, tuple(outcomes), tuple(self.admitted) if lookups else (), tuple(waits or ()),
            self.waiting if lookups else 0, arrived,
            started.number if started else NONE, started.key if started else NONE, bool(started and started.prefetch),
            tuple(started.victims) if started else (), tuple(decided[Event.QUEUE_PREFETCH]),
            tuple(decided[Event.CANCEL]), tuple(decided[Event.DROP_NO_SLOT]),
        ))  # fmt: skip

    def _new_events(self) -> Iterator[tuple[Event, int]]:
        """(kind, key) of the events since the last call."""
        events = self.events[self._num_events :]
        self._num_events = len(self.events)
        for kind, key in zip(events[1::4], events[2::4], strict=True):
            yield Event(kind), key


def first_difference(expected: Sequence[Call], got: Sequence[Call]) -> Difference | None:
    """The first call in which two logs differ, be it in what was asked or in what was answered."""
    for one, other in zip_longest(expected, got):
        if one != other:
            return Difference(one, other)
    return None


def replay(calls: Sequence[Call], controller: Controller, workload: Workload) -> Difference | None:
    """Feed recorded calls to a controller that has not been called yet; the first call whose answer differs, or None.

    ``workload`` is that of the recorded run: it brings the gates, which a log names by tick only.
    """
    return _Replay(controller, workload).run(calls)


class _Replay:
    def __init__(self, controller: Controller, workload: Workload) -> None:
        self._controller = RecordedController(controller)
        self._in_flight: dict[int, Transfer] = {}
        self._gates = _walk(workload)

    def run(self, calls: Sequence[Call]) -> Difference | None:
        for call in calls:
            impossible = self._make(call)
            if impossible:
                return Difference(call, None, impossible)
            got = self._controller.log[-1]
            if got != call:
                return Difference(call, got)
        return None

    def _make(self, call: Call) -> str | None:
        """Call the controller as recorded; why that cannot be done, if so. The answer is the last entry of its log."""
        controller = self._controller
        if call.kind == "begin_sequence":
            controller.begin_sequence(call.argument)
        elif call.kind == "end_sequence":
            controller.end_sequence(call.argument)
        elif call.kind == "gate":
            return self._make_gate(call.argument)
        elif call.kind == "need_done":
            if not controller.waiting or not controller.pinned[call.argument]:
                return f"key {call.argument} is not being computed while needs wait for admission"
            controller.need_done(call.argument)
        elif call.kind == "transfer_done":
            transfer = self._in_flight.pop(call.argument, None)
            if transfer is None:
                return f"transfer {call.argument} is not in flight; in flight: {sorted(self._in_flight)}"
            self._remember(controller.transfer_done(0, transfer)[1])
        elif call.kind == "poll":
            self._remember(controller.poll(call.argument))
        else:
            return f"{call.kind!r} is no call of a controller; known: {', '.join(KINDS)}"
        return None

    def _make_gate(self, tick: int) -> str | None:
        gate = next(self._gates, None)
        if gate is None:
            return "the workload has no more gates"
        if gate.tick != tick:
            return f"the workload's next gate has tick {gate.tick}"
        self._controller.gate(gate)
        return None

    def _remember(self, transfer: Transfer | None) -> None:
        if transfer is not None:
            self._in_flight[transfer.number] = transfer


def _walk(workload: Workload) -> Iterator[StepGate]:
    """Every gate of the workload, as a driver visits them."""
    gate = workload.gate()
    for step in workload.steps:
        gate.open(step)
        for site in range(workload.sites):
            gate.visit(site)
            yield gate
