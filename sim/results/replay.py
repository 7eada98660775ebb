"""Feeds a decision log to a fresh controller, and names the first call whose answer differs.

Answers are compared with ``==`` (contract C10; `sim.results.calls` has the log).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, zip_longest

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.results.calls import KINDS, NONE, Call, RecordedController
from sim.values.types import Outcome
from sim.workload.steps import StepGate, Workload


@dataclass(frozen=True)
class Difference:
    """The first call at which two logs differ.

    A side is None where its log has ended. ``got`` is also None where the call could not be made;
    ``why`` then says why not.
    """

    expected: Call | None
    got: Call | None
    why: str = ""

    @property
    def number(self) -> int:
        """The number of the call that differs."""
        call = self.expected or self.got
        assert call is not None
        return call.number

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the call that differ, in their order."""
        if self.expected is None or self.got is None:
            return ()
        return tuple(
            f.name
            for f in fields(Call)
            if getattr(self.expected, f.name) != getattr(self.got, f.name)
        )

    def __str__(self) -> str:
        if self.why:
            return f"{self.expected}: {self.why}"
        if self.expected is None or self.got is None:
            log = "recorded" if self.expected is None else "compared"
            return f"{self.expected or self.got}: the {log} log ends before it"
        parts = [
            f"{n} {getattr(self.expected, n)!r} expected, got {getattr(self.got, n)!r}"
            for n in self.names
        ]
        return f"{self.expected}: {'; '.join(parts)}"


def first_difference(expected: Sequence[Call], got: Sequence[Call]) -> Difference | None:
    """The first call in which two logs differ, in what was asked or in what was answered."""
    for one, other in zip_longest(expected, got):
        if one != other:
            return Difference(one, other)
    return None


def replay(
    calls: Sequence[Call],
    controller: Controller,
    workload: Workload,
    asked_ns: Sequence[int] | None = None,
) -> Difference | None:
    """Feed recorded calls to a fresh controller; return the first that differs, or None.

    ``controller`` must not have been called before. ``workload`` is that of the recorded run: it
    brings the gates, which a log names by tick only. ``asked_ns`` are the times at which the run
    asked for its steps (`RecordedWorkload`); they are needed only where steps depend on time.
    """
    return _Replay(controller, workload, asked_ns).run(calls)


class _Replay:
    def __init__(
        self, controller: Controller, workload: Workload, asked_ns: Sequence[int] | None
    ) -> None:
        self._controller = RecordedController(controller)
        self._in_flight: dict[tuple[int, int], Transfer] = {}  # by link and number
        self._computing: set[int] = (
            set()
        )  # keys of the current gate's admitted needs, until their need_done
        self._on_cpu: set[int] = set()
        self._predicting: set[int] = set()
        self._gates = _walk(workload, asked_ns)

    def run(self, calls: Sequence[Call]) -> Difference | None:
        for call in calls:
            impossible = self._make(call)
            if impossible:
                return Difference(call, None, impossible)
            got = self._controller.log[-1]
            if got != call:
                return Difference(call, got)
            self._compute(got)
        return None

    def _compute(self, call: Call) -> None:
        if call.kind == "gate":
            self._computing.clear()
        for key, outcome in zip(call.keys, call.outcomes, strict=True):
            if key != NONE:
                self._computing.add(key)
            if outcome == Outcome.CPU:
                self._on_cpu.add(key)

    def _make(self, call: Call) -> str | None:
        """Make the recorded call; return why that is impossible, or None.

        The answer is then the last entry of the controller's log.
        """
        if call.kind not in KINDS:
            return f"{call.kind!r} is no call of a controller; known: {', '.join(KINDS)}"
        if call.kind in ("transfer_done", "head_done", "chunk_done"):
            return self._make_of_transfer(call)
        if call.kind in ("need_done", "cpu_done"):
            return self._make_of_need(call)
        controller = self._controller
        if call.kind == "gate":
            return self._make_gate(call.argument)
        if call.kind == "poll":
            self._remember(call.argument, controller.poll(call.argument))
        elif call.kind == "prediction_ready":
            if call.argument not in self._predicting:
                return (
                    f"no prediction of gate {call.argument} is being made; made:"
                    f" {sorted(self._predicting)}"
                )
            self._predicting.remove(call.argument)
            controller.prediction_ready(call.argument)
        elif call.kind == "bring":
            controller.bring(call.link, call.argument)
        elif call.kind == "begin_sequence":
            controller.begin_sequence(call.argument)
        else:
            controller.end_sequence(call.argument)
        return None

    def _make_gate(self, tick: int) -> str | None:
        gate = next(self._gates, None)
        if gate is None:
            return "the workload has no more gates"
        if gate.tick != tick:
            return f"the workload's next gate has tick {gate.tick}"
        self._controller.gate(gate)
        if self._controller.predicts_later:
            self._predicting.add(tick)
        return None

    def _make_of_need(self, call: Call) -> str | None:
        controller, key = self._controller, call.argument
        if call.kind == "cpu_done":
            if key not in self._on_cpu:
                return f"key {key} is not being computed on the CPU; on it: {sorted(self._on_cpu)}"
            self._on_cpu.remove(key)
            controller.cpu_done(key)
            return None
        if not controller.waiting or key not in self._computing:
            return f"key {key} is not being computed while needs wait for admission"
        self._computing.remove(key)
        controller.need_done(key)
        return None

    def _make_of_transfer(self, call: Call) -> str | None:
        controller, link = self._controller, call.link
        transfer = self._in_flight.get((link, call.argument))
        if transfer is None:
            there = sorted(number for at, number in self._in_flight if at == link)
            return f"transfer {call.argument} is not in flight there; in flight: {there}"
        if call.kind == "head_done":
            controller.head_done(link, transfer)
            return None
        if call.kind == "chunk_done" and not controller.cut(link):
            return f"transfer {call.argument} would not be cut"
        del self._in_flight[link, call.argument]
        if call.kind == "chunk_done":
            self._remember(link, controller.chunk_done(link, transfer, call.moved_bytes))
        else:
            self._remember(link, controller.transfer_done(link, transfer)[1])
        return None

    def _remember(self, link: int, transfer: Transfer | None) -> None:
        if transfer is not None:
            self._in_flight[link, transfer.number] = transfer


def _walk(workload: Workload, asked_ns: Sequence[int] | None) -> Iterator[StepGate]:
    """Every gate of the workload, in the order in which a driver visits them."""
    gate, schedule, now = workload.gate(), workload.start(), 0
    for asked in count() if asked_ns is None else asked_ns:
        step = schedule.next(now if asked_ns is None else asked)
        if isinstance(step, int):
            now = step
        elif step is None:
            return
        else:
            gate.open(step)
            for site in step.sites:
                gate.visit(site)
                yield gate
