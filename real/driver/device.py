"""The interface between the driver and a machine, and the null device, which has no machine.

A device acts and never decides. The driver (``real.driver.loop``) tells it which services to carry
on which engine of which link, what to compute, and how long each piece of work nominally takes. The
device calls the driver back (a *hand-over*) when each piece has ended. Every hand-over and every
call of the controller is made under the device's one lock.

This module never imports simpy, torch or hydra.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol

from real.driver.sharing import Sharing

TAIL = -1
"""The key of the work after the last site (final norm and LM head): no expert's, no layer's."""


class Turn(IntEnum):
    """What comes first among events of the same instant (contract C14)."""

    TRANSFERS = 0
    CPU_RESULTS = 1
    NEED_DONE = 2
    PREDICTIONS = 3
    SEQUENCE_END = 4
    GATE = 5
    ARRIVALS = 6
    """The arrivals of requests, and the beginnings of sequences."""


@dataclass(eq=False, slots=True)
class Service:
    """One service: an engine of a link moves bytes of one transfer. Times are in ns.

    They are the times of a service that shares the link with no other.

    - ``row``: the service's number in the run's record.
    - ``number``, ``key``: the transfer's.
    - ``due_ns(b)``: when b of the ``moved_bytes`` are through, counted from ``start_ns``.
    - ``latency_ns``: for so long after its start the service draws no bandwidth.
    - ``head_ns``: when the head is handed on to the next link, counted from ``start_ns`` (-1:
      never).
    - ``chunk_bytes``: the service may be cut after each so many bytes (0: nowhere).
    - ``there_bytes``: what a partial prefetch has brought into the same slot before. The transfer
      of this service completes it.
    - ``victims``: the keys that were evicted on the device for the transfer.
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
    victims: Sequence[int] = ()


class Listener(Protocol):
    """The driver, as a device sees it. Every method is called with the device's lock held."""

    def on_service_end(self, service: Service) -> None:
        """The service has moved all its bytes; its engine is free.

        The driver may give that engine its next service within this call.
        """

    def on_head(self, service: Service) -> None:
        """``head_ns`` of the service have passed; the rest of its bytes are still to come."""

    def on_chunk(self, service: Service, moved_bytes: int) -> None:
        """The chunk at which the service was to be cut has ended: the driver calls ``stop`` now."""

    def on_cpu_result(self, key: int) -> None: ...

    def on_prediction(self, tick: int) -> None: ...


class Device(Protocol):
    """Links with engines, one compute stream, one CPU worker and one predictor.

    Times are ns since ``open``. A *nominal* time is what a piece of work takes by the run's
    durations. A device without tensors lets that time pass on its clock, a padded device makes its
    work last that long, and a free-running device ignores it.

    ``compute``, ``wait`` and ``sleep_until`` belong to the main thread and are called without the
    lock. All other methods but ``open`` and ``close`` are called with it.
    """

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held around every call of the controller.

        The order in which threads take it is the order of events.
        """

    @property
    def is_padded(self) -> bool:
        """Whether computations last for their nominal times, on a clock that may run past them.

        Threads wake late. The driver of a padded device therefore asks for that much less time of
        the work that follows, and so catches up.
        """

    @property
    def is_deferred(self) -> bool:
        """Whether the stream is given work ahead of its time (``begin``, ``settle``, ``spans``).

        Such a device is not padded. Others end each work in ``compute``.
        """

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        """Begin a run with the clock at 0; link i has ``engines[i]`` engines."""

    def now_ns(self) -> int: ...

    def serve(self, service: Service) -> None:
        """Begin a service on an engine that is free.

        On a link with cut-through this service may begin while an outer link still serves the same
        transfer. It then ends after the service on the outer link.
        """

    def announce(
        self, link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> None:
        """Tell which transfer the link's next free engine will serve.

        The transfer is issued: its slot is claimed, and nothing overtakes it. So the device may
        begin to move it early. A device may ignore this, and announcing again changes nothing.
        """

    def ask_cut(self, service: Service, is_wanted: bool) -> None:
        """Ask for ``on_chunk`` at the first end of a chunk from now on, or withdraw that wish.

        The last chunk's end is the service's own, and is not reported. Asking again changes
        nothing.
        """

    def stop(self, service: Service) -> None:
        """End a service at the chunk that is being reported; its engine is free from then on."""

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        """Queue a need behind those that the CPU has been given already; return at once."""

    def predict(self, tick: int, nominal_ns: int) -> None:
        """Make the forecasts of gate ``tick``; return at once."""

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """Do the work of ``key`` for ``rows`` tokens; return at its end.

        ``key`` is an expert's variant, a layer's dense block, or ``TAIL``. Transfers and CPU
        results that end at the very instant of the work's end have been handed over when this
        returns.
        """

    def begin(self, keys: Sequence[int], rows: Sequence[int]) -> None:
        """Give the works of some keys to the stream, to be done in this order; return at once.

        ``rows``: for how many tokens each is. Nothing may overwrite what they read before
        ``settle`` has returned. Only deferred devices have this method and the next two.
        """

    def settle(self) -> None:
        """Return when all that was begun has ended; hand over what ends meanwhile."""

    def spans(self) -> list[tuple[int, int]]:
        """Start and end in ns of all that was begun, in order. Called when the run is over.

        No work begins before it was given or before the one before it has ended.
        """

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        """Return as soon as ``is_over()`` is true.

        It is asked under the lock, first at once and then after each hand-over. Raise RuntimeError
        with ``what()`` (called under the lock: a text of what is waited for) if nothing is under
        way that could end the wait.
        """

    def sleep_until(self, time_ns: int, turn: Turn) -> None:
        """Return at ``time_ns``, or at once if that is past.

        By then every event of that instant that comes before ``turn`` has been handed over.
        """

    def cut_off(self) -> None:
        """End the run: what is under way is cut, and nothing is handed over any more."""

    def close(self) -> None:
        """Give back what ``open`` took, whether the run ended or failed."""


Place = tuple[int, int, int, int]
"""A place in the order of events: the time, whose turn it is, and two ranks inside the turn."""
Event = tuple[Place, Callable[[], None]]


class Prompt:
    """A device that ends every work in ``compute``."""

    is_deferred = False

    def begin(self, keys: Sequence[int], rows: Sequence[int]) -> None:
        raise NotImplementedError(f"{type(self).__name__} ends its work in compute()")

    def settle(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} ends its work in compute()")

    def spans(self) -> list[tuple[int, int]]:
        raise NotImplementedError(f"{type(self).__name__} ends its work in compute()")


class NullDevice(Prompt):
    """A device on a virtual clock: nothing is moved or computed, all work takes its nominal time.

    It has one thread. Time passes only inside the main thread's methods, and ``wait`` returns
    before anything else happens. What ends at one instant is handed over in the order of
    contract C14. The next event is searched anew among all work under way, so no event
    is ever stale.
    """

    lock: AbstractContextManager[object] = nullcontext()
    is_padded = False

    def open(self, listener: Listener, engines: tuple[int, ...]) -> None:
        self._listener = listener
        self._now_ns = 0
        self._in_service: dict[tuple[int, int], Service] = {}  # by link and engine
        self._sharing = [Sharing(count) for count in engines]
        # By row: the service, and when its head is through.
        self._heads: dict[int, tuple[Service, int]] = {}
        # By row: the service, when the chunk ends, and the bytes through by then.
        self._chunks: dict[int, tuple[Service, int, int]] = {}
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

    def announce(
        self, link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]
    ) -> None: ...

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
        # A hand-over may begin work that ends before ``time_ns``, so each pass looks again.
        while (event := self._next_event()) is not None and event[0][:2] < (time_ns, turn):
            self._hand_over(event)
        self._now_ns = time_ns

    def _hand_over(self, event: Event) -> None:
        (self._now_ns, _, _, _), do = event
        do()

    def _next_event(self) -> Event | None:
        return min(self._events(), key=lambda event: event[0], default=None)

    def _events(self) -> list[Event]:
        """The next event of each piece of work under way."""
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
