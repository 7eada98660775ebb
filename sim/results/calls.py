"""The decision log: every call of a controller with its answer, as plain data.

The same order of calls gives the same answers (contract C10). So a recorded run, simulated or real,
is checked by feeding its calls to a fresh controller (`sim.results.replay`). Where steps are
composed during the run, the times at which the driver asked for them belong to the record, too
(`RecordedWorkload`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.policies.base import Gate
from sim.values.types import Event, Step
from sim.workload.steps import Schedule, Workload

NONE = -1
"""The value of a call's field that does not apply: no key, no transfer, no link."""

KINDS = (
    "begin_sequence",
    "end_sequence",
    "gate",
    "need_done",
    "cpu_done",
    "prediction_ready",
    "transfer_done",
    "head_done",
    "chunk_done",
    "poll",
    "bring",
)
DECIDED = {
    Event.QUEUE_PREFETCH: "queued",
    Event.CANCEL: "cancelled",
    Event.DROP_NO_SLOT: "dropped",
    Event.EVICT: "evicted",
}
Answer = tuple[list[int], dict[int, Transfer] | None]


@dataclass(frozen=True)
class Call:
    """One call of a controller, in ints, strings and tuples of ints, so that a log is a table.

    What was asked:

    - ``number``: the calls so far in the run, this one included.
    - ``kind``: the name of the method (`KINDS`).
    - ``argument``: the sequence, the gate's tick, the key computed, the tick of the prediction, the
      number of the transfer, the link polled, or the tokens brought.
    - ``link``: that of the transfer, or of the tokens. ``moved_bytes``: those of the service that was cut.

    What was answered:

    - ``outcomes`` and ``keys``: of the admitted needs, in need order; key -1 is a skip.
    - ``waits``: the keys waited for. ``waiting``: the number of needs left to later waves.
    - ``arrived``: the key that a transfer brought.
    - ``transfer`` (its number), ``key``, ``prefetch``, ``left_bytes`` (of the hop): the transfer to
      start.
    - ``victims``: what was evicted for that transfer, now or earlier, least valuable first.

    What was decided on the way, as keys in the order of deciding:

    - ``queued``, ``cancelled``, ``dropped``: prefetches.
    - ``evicted``: from the device. ``ram_evicted``: from RAM.
    """

    number: int
    kind: str
    argument: int
    link: int = NONE
    moved_bytes: int = 0
    outcomes: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    waiting: int = 0
    arrived: int = NONE
    transfer: int = NONE
    key: int = NONE
    prefetch: bool = False
    left_bytes: int = 0
    victims: tuple[int, ...] = ()
    queued: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    ram_evicted: tuple[int, ...] = ()

    @property
    def asked(self) -> tuple[str, int, int, int]:
        """What was asked, without the call's number."""
        return self.kind, self.argument, self.link, self.moved_bytes

    def __str__(self) -> str:
        where = f" on link {self.link}" if self.link != NONE else ""
        return f"call {self.number} {self.kind}({self.argument}){where}"


class RecordedController:
    """Wraps a controller and keeps a ``log`` of its calls; drivers use it as a `Controller`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.log: list[Call] = []
        self._told = controller.rows_alone, len(controller.many_events)
        self._num_ram_evictions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def begin_sequence(self, sequence: int) -> None:
        self._controller.begin_sequence(sequence)
        self._write("begin_sequence", sequence)

    def end_sequence(self, sequence: int) -> None:
        self._controller.end_sequence(sequence)
        self._write("end_sequence", sequence)

    def gate(self, gate: Gate) -> Answer:
        answer = self._controller.gate(gate)
        self._write("gate", gate.tick, **self._lookups(answer))
        return answer

    def need_done(self, key: int) -> Answer:
        answer = self._controller.need_done(key)
        self._write("need_done", key, **self._lookups(answer))
        return answer

    def cpu_done(self, key: int) -> None:
        self._controller.cpu_done(key)
        self._write("cpu_done", key)

    def prediction_ready(self, tick: int) -> None:
        self._controller.prediction_ready(tick)
        self._write("prediction_ready", tick)

    def bring(self, link: int, tokens: int) -> None:
        self._controller.bring(link, tokens)
        self._write("bring", tokens, link=link)

    def transfer_done(self, link: int, transfer: Transfer) -> tuple[int, Transfer | None]:
        arrived, following = self._controller.transfer_done(link, transfer)
        self._write(
            "transfer_done", transfer.number, link=link, arrived=arrived, **_started(following)
        )
        return arrived, following

    def head_done(self, link: int, transfer: Transfer) -> None:
        self._controller.head_done(link, transfer)
        self._write("head_done", transfer.number, link=link)

    def chunk_done(self, link: int, transfer: Transfer, moved_bytes: int) -> Transfer | None:
        following = self._controller.chunk_done(link, transfer, moved_bytes)
        self._write(
            "chunk_done", transfer.number, link=link, moved_bytes=moved_bytes, **_started(following)
        )
        return following

    def poll(self, link: int) -> Transfer | None:
        transfer = self._controller.poll(link)
        self._write("poll", link, **_started(transfer))
        return transfer

    def _lookups(self, answer: Answer) -> dict[str, Any]:
        """The answer about looked-up needs, copied because the controller reuses its lists."""
        outcomes, waits = answer
        return {
            "outcomes": tuple(outcomes),
            "keys": tuple(self._controller.admitted),
            "waits": tuple(waits or ()),
            "waiting": self._controller.waiting,
        }

    def _write(self, kind: str, argument: int, **answered: Any) -> None:
        self.log.append(Call(self._controller.calls, kind, argument, **answered, **self._decided()))

    def _decided(self) -> dict[str, Any]:
        """The keys that were queued, cancelled, dropped and evicted since the last call."""
        decided: dict[str, list[int]] = {
            name: [] for name in ("queued", "cancelled", "dropped", "evicted")
        }
        controller, ram = self._controller, self._controller.ram
        columns = controller.events_after(*self._told)
        self._told = controller.rows_alone, len(controller.many_events)
        rows = [np.asarray(columns[name]).tolist() for name in ("kind", "key", "value")]
        for kind, key, value in zip(*rows, strict=True):
            if kind != Event.ISSUE:
                decided[DECIDED[Event(kind)]].append(key)
            elif value != NONE:
                decided["evicted"].append(value)
        evictions = ram.evictions if ram is not None else []
        decided["ram_evicted"] = [key for _, key in evictions[self._num_ram_evictions :]]
        self._num_ram_evictions = len(evictions)
        return {name: tuple(keys) for name, keys in decided.items()}


def _started(transfer: Transfer | None) -> dict[str, Any]:
    if transfer is None:
        return {}
    return {
        "transfer": transfer.number,
        "key": transfer.key,
        "prefetch": transfer.prefetch,
        "left_bytes": transfer.left_bytes,
        "victims": tuple(transfer.victims),
    }


class RecordedWorkload:
    """Wraps a workload and records the times at which its schedule is asked for steps.

    ``asked_ns`` has these times. Where it is given, the schedule is asked at the given times
    instead of the driver's, so that a run gets the steps of a recorded one.
    """

    def __init__(self, workload: Workload, asked_ns: Sequence[int] | None = None) -> None:
        self._workload = workload
        self._given_ns = asked_ns
        self.asked_ns: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def start(self) -> RecordedSchedule:
        """Begin a run and a new record of its times."""
        self.asked_ns = []
        return RecordedSchedule(self._workload.start(), self._given_ns, self.asked_ns)


class RecordedSchedule:
    """A schedule that records the times at which it is asked, or repeats given times."""

    def __init__(
        self, schedule: Schedule, given_ns: Sequence[int] | None, asked_ns: list[int]
    ) -> None:
        self._schedule, self._given_ns, self._asked_ns = schedule, given_ns, asked_ns

    def next(self, now_ns: int) -> Step | int | None:
        """As ``Schedule.next``, but asked at the given times if there are some.

        A repeated run is told to begin, and to stop waiting for requests, at the recorded times.
        """
        index, given_ns = len(self._asked_ns), self._given_ns
        if given_ns is None:
            self._asked_ns.append(now_ns)
            return self._schedule.next(now_ns)
        if index == 0 and now_ns < given_ns[0]:
            return given_ns[0]
        self._asked_ns.append(given_ns[index])
        answer = self._schedule.next(given_ns[index])
        return max(given_ns[index + 1], now_ns) if isinstance(answer, int) else answer
