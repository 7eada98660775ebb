"""What a driver needs of a machine: a clock, links, a compute stream, a CPU. Never imports simpy,
torch or hydra.

The seam between ``real.driver.loop`` and the machines it runs on. A device acts and never decides:
it is told which services to carry on which engine of which link, what to compute and how long
things nominally take; it tells when each has ended. Every hand-over and every call of the
controller is made under the device's one lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

from real.driver.sharing import Sharing

TAIL = -1
"""The key of the work after the last site (final norm and LM head), which belongs to no expert
and no layer.
"""


class Turn(IntEnum):
    """What comes first of what happens at one instant (contract C14)."""

    TRANSFERS = 0
    CPU_RESULTS = 1
    NEED_DONE = 2
    PREDICTIONS = 3
    SEQUENCE_END = 4
    GATE = 5
    ARRIVALS = 6
    """Sequences that begin, too."""


@dataclass(eq=False)
class Service:
    """One service of a transfer by an engine of a link. Times in ns, as if nothing else shared the
    link.

    ``due_ns(b)`` is when b of its ``moved_bytes`` are through, counted from ``start_ns``. For the
    first ``latency_ns`` it draws no bandwidth. ``head_ns`` is when the head is handed on, counted
    likewise (-1: never). ``chunk_bytes``: where it may be cut (0: nowhere). ``number`` and ``key``
    are the transfer's; ``row`` counts the run's services. ``there_bytes``: what a partial prefetch
    has brought before, which the transfer completes in the same slot.
    """

    row: int
    link: int
    engine: int
    number: int
    key: int
    moved_bytes: int
    start_ns: int
    due_ns: Callable[[int], int]
    latency_ns: int = 0
    head_ns: int = -1
    chunk_bytes: int = 0
    there_bytes: int = 0


class Listener(Protocol):
    """The driver, as a device sees it. Every method is called with the device's lock held."""

    def on_service_end(self, service: Service) -> None:
        """All of it is through. The engine is free, and may be given the next service in this
        call.
        """

    def on_head(self, service: Service) -> None:
        """``head_ns`` of the service are past, and the rest is still to come."""

    def on_chunk(self, service: Service, moved_bytes: int) -> None:
        """The chunk has ended at which the service was to be cut: it calls ``stop`` now."""

    def on_cpu_result(self, key: int) -> None: ...

    def on_prediction(self, tick: int) -> None: ...


class Device(Protocol):
    """Links with engines, one compute stream, one CPU worker and one predictor.

    Times are ns since ``open``. A nominal time is what a piece of work costs by the run's
    durations: a device without tensors takes it, a paced one pads its work to it, a free-running
    one ignores it.

    ``compute``, ``wait`` and ``sleep_until`` are the main thread's and are called without the lock;
    all other methods but ``open`` and ``close`` are called with it.
    """

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held around every call of the controller; the order in which it is taken is the order
        of events.
        """

    @property
    def is_padded(self) -> bool:
        """Whether computations are made to last for their nominal times, on a clock that may run
        past them.

        The driver then asks for less, to catch up by as much as threads wake late.
        """

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Begin a run, with the clock at 0, on links of so many engines."""

    def now_ns(self) -> int: ...

    def serve(self, service: Service) -> None:
        """Begin a service on an engine that is free.

        It ends after that of the same transfer on an outer link, where that has only handed it on.
        """

    def announce(self, link: int, number: int, key: int, moved_bytes: int) -> None:
        """What has been issued behind the services of a link will be served next, by the engine
        that is free first.

        Its slot is claimed, and nothing overtakes it. Announcing again changes nothing, nor need a
        device listen.
        """

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        """Report the first end of a chunk after now, if it comes before the service's own; or do so
        no more.

        Asking again changes nothing.
        """

    def stop(self, service: Service) -> None:
        """End a service at the chunk that is being reported; its engine is free then."""

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        """Put a need behind those that the CPU has been given already; return at once."""

    def predict(self, tick: int, nominal_ns: int) -> None:
        """Make the forecasts of a gate; return at once."""

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """Do the work of ``key`` for ``rows`` tokens; return at its end.

        ``key`` is an expert's variant, a layer's dense block, or ``TAIL``. Transfers and CPU
        results that end at the very instant of the work's end have been handed over when this
        returns.
        """

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        """Return as soon as ``is_over``, which is asked under the lock, at first and after each
        hand-over.

        Raise RuntimeError with what is waited for (``what``, under the lock) if nothing is under
        way that could end it.
        """

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        """Return at ``time_ns``, or at once if it is past, when all that comes before ``turn``
        has been handed over.
        """

    def cut_off(self) -> None:
        """The run is over. What is under way is cut: nothing is handed over any more."""

    def close(self) -> None:
        """Give back what ``open`` took, whether or not the run got to its end."""


Place = tuple[int, int, int, int]
"""A place in the order of events: when, whose turn, and two ranks inside the turn."""
Event = tuple[Place, Callable[[], None]]


class NullDevice:
    """A virtual clock; nothing is moved or computed, every piece of work takes its nominal time.
    One thread.

    Time passes inside the main thread's methods only, and ``wait`` returns before anything else
    happens. What ends at one instant is handed over in the contract's order
    (contract C14). The next event is looked for among all that is under way, so no event is ever
    stale.
    """

    lock: AbstractContextManager[object] = nullcontext()
    is_padded = False

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        self._listener = listener
        self._now_ns = 0
        self._in_service: dict[tuple[int, int], Service] = {}  # by link and engine
        self._sharing = [Sharing(count) for count in engines]
        self._heads: dict[int, tuple[Service, int]] = {}  # by row, with its time
        self._chunks: dict[
            int, tuple[Service, int, int]
        ] = {}  # by row, with its time and the bytes through by then
        self._cpu: deque[tuple[int, int]] = deque()  # (end, key)
        self._predictions: deque[tuple[int, int]] = deque()  # (due, tick)

    def now_ns(self) -> int:
        return self._now_ns

    # ---- what is begun

    def serve(self, service: Service) -> None:
        """Raise ValueError if the engine is not free."""
        place = service.link, service.engine
        if place in self._in_service:
            raise ValueError(f"engine {service.engine} of link {service.link} is not free")
        self._in_service[place] = service
        work_ns = service.due_ns(service.moved_bytes) - service.latency_ns
        self._sharing[service.link].begin(
            service.engine, service.start_ns, service.latency_ns, work_ns
        )
        if service.head_ns >= 0:
            self._heads[service.row] = (service, service.start_ns + service.head_ns)

    def announce(self, link: int, number: int, key: int, moved_bytes: int) -> None: ...

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        if not is_wanted:
            self._chunks.pop(service.row, None)
            return
        if service.row in self._chunks:
            return
        last_ns = service.start_ns + service.due_ns(service.moved_bytes)
        for moved_bytes in range(service.chunk_bytes, service.moved_bytes, service.chunk_bytes):
            end_ns = service.start_ns + service.due_ns(moved_bytes)
            if self._now_ns < end_ns < last_ns:
                self._chunks[service.row] = (service, end_ns, moved_bytes)
                return

    def stop(self, service: Service) -> None:
        del self._in_service[service.link, service.engine]
        self._sharing[service.link].end(service.engine, self._now_ns)
        self._heads.pop(service.row, None)
        self._chunks.pop(service.row, None)

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        free_ns = self._cpu[-1][0] if self._cpu else self._now_ns
        self._cpu.append((max(free_ns, self._now_ns) + nominal_ns, key))

    def predict(self, tick: int, nominal_ns: int) -> None:
        self._predictions.append((self._now_ns + nominal_ns, tick))

    # ---- the main thread

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        self._pass_to(self._now_ns + nominal_ns, Turn.NEED_DONE)

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        while not is_over():
            event = self._next_event()
            if event is None:
                raise RuntimeError(f"{what()}, but nothing is under way")
            self._hand_over(event)

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        self._pass_to(max(time_ns, self._now_ns), turn)

    def cut_off(self) -> None:
        self._in_service.clear()
        self._heads.clear()
        self._chunks.clear()
        self._cpu.clear()
        self._predictions.clear()

    def close(self) -> None:
        self.cut_off()

    # ---- the event list

    def _pass_to(self, time_ns: int, turn: Turn) -> None:
        # A hand-over may begin what ends in time, too, so the next event is looked for anew each
        # time.
        while (event := self._next_event()) is not None and event[0][:2] < (time_ns, turn):
            self._hand_over(event)
        self._now_ns = time_ns

    def _hand_over(self, event: Event) -> None:
        (self._now_ns, _, _, _), do = event
        do()

    def _next_event(self) -> Event | None:
        return min(self._events(), key=lambda event: event[0], default=None)

    def _events(self) -> list[Event]:
        """The end of everything that is under way."""
        events: list[Event] = []
        for (link, engine), service in self._in_service.items():
            end_ns = self._sharing[link].end_ns(engine)
            events.append((self._place_of(end_ns, service), partial(self._end, service)))
        for service, time_ns in self._heads.values():
            events.append((self._place_of(time_ns, service), partial(self._head, service)))
        for service, time_ns, _ in self._chunks.values():
            events.append((self._place_of(time_ns, service), partial(self._chunk, service)))
        if self._cpu:
            events.append(((self._cpu[0][0], Turn.CPU_RESULTS, 0, 0), self._cpu_result))
        if self._predictions:
            due_ns, tick = self._predictions[0]
            events.append(((due_ns, Turn.PREDICTIONS, tick, 0), self._prediction))
        return events

    @staticmethod
    def _place_of(time_ns: int, service: Service) -> Place:
        return time_ns, Turn.TRANSFERS, service.number, -service.link

    def _end(self, service: Service) -> None:
        self.stop(service)
        self._listener.on_service_end(service)

    def _head(self, service: Service) -> None:
        del self._heads[service.row]
        self._listener.on_head(service)

    def _chunk(self, service: Service) -> None:
        _, _, moved_bytes = self._chunks.pop(service.row)
        self._listener.on_chunk(service, moved_bytes)

    def _cpu_result(self) -> None:
        _, key = self._cpu.popleft()
        self._listener.on_cpu_result(key)

    def _prediction(self) -> None:
        _, tick = self._predictions.popleft()
        self._listener.on_prediction(tick)
