"""A device opened without a driver, to time single services and computations as a run makes them.

What is timed is what a run would wait for: from the hand-over of a service to its end, reported
under the lock, with the hand-overs between threads. A tight loop over a copy or a product would
leave these out, and find everything cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from real.calibration.facts import Points
from real.driver.device import Service
from real.setup.prepare import Prepared


class DeviceBench:
    """The device of ``prepared``, open. Implements ``real.driver.device.Listener``."""

    def __init__(self, prepared: Prepared) -> None:
        self.device: Any = prepared.device
        controller = prepared.run.controller
        self.geometry = controller.geometry
        self.key, self.other, *more = controller.slots.initial
        """Two variants that are resident.

        The second is computed from, while all the others are written in turn.
        """
        self._written = [self.key, *more]
        self._engines = controller.route.engines
        self._ended_ns: dict[int, int] = {}
        self._cpu_ns: list[int] = []
        self._rows = 0

    @contextmanager
    def opened(self) -> Iterator[DeviceBench]:
        self.device.open(self, self._engines)
        try:
            yield self
        finally:
            self.device.cut_off()
            self.device.close()

    # ---- what the device hands over

    def on_service_end(self, service: Service) -> None:
        self._ended_ns[service.row] = self.device.now_ns()

    def on_head(self, service: Service) -> None: ...

    def on_chunk(self, service: Service, moved_bytes: int) -> None: ...

    def on_cpu_result(self, key: int) -> None:
        self._cpu_ns.append(self.device.now_ns())

    def on_prediction(self, tick: int) -> None: ...

    # ---- what is timed

    def begin(self, moved_bytes: int) -> Service:
        """Begin a service on link 0."""
        with self.device.lock:
            # Each service has a transfer number of its own, since the device counts what it has
            # moved of each transfer. Each reads another place of the store, since a drive keeps
            # what it read last.
            key = self._written[self._rows % len(self._written)]
            service = Service(
                self._rows, 0, 0, self._rows, key, moved_bytes, self.device.now_ns(), lambda b: 0
            )
            self._rows += 1
            self.device.serve(service)
        return service

    def has_ended(self, service: Service) -> bool:
        with self.device.lock:
            return service.row in self._ended_ns

    def await_end_ns(self, service: Service) -> int:
        """Wait for a service's end; return how long it took."""
        self.device.wait(
            lambda: service.row in self._ended_ns, lambda: f"service {service.row} has not ended"
        )
        return int(self._ended_ns[service.row] - service.start_ns)

    def service_ns(self, moved_bytes: int) -> int:
        return self.await_end_ns(self.begin(moved_bytes))

    def compute_ns(self, key: int, rows: int) -> int:
        began_ns = self.device.now_ns()
        self.device.compute(key, rows, 0)
        return int(self.device.now_ns() - began_ns)

    @property
    def gives_together(self) -> bool:
        """Whether the device computes what it is given at once in one launch."""
        return bool(getattr(self.device, "is_deferred", False))

    def together_ns(self, count: int) -> int:
        """The ns of so many resident experts of one row, given at once, until all have ended."""
        keys = [self.other, *self._written][:count]
        began_ns = self.device.now_ns()
        self.device.begin(keys, (1,) * count)
        self.device.settle()
        return int(self.device.now_ns() - began_ns)

    def on_cpu_ns(self, key: int, rows: int) -> int:
        """The ns of an expert on the CPU, from its hand-over to that of its result."""
        count = len(self._cpu_ns)
        with self.device.lock:
            began_ns = self.device.now_ns()
            self.device.compute_on_cpu(key, rows, 0)
        self.device.wait(lambda: len(self._cpu_ns) > count, lambda: "the CPU has not answered")
        return int(self._cpu_ns[-1] - began_ns)

    def overlapped_ns(
        self, moved_bytes: int, compute_ns: Callable[[], int]
    ) -> tuple[int, list[int]]:
        """The ns of a service while experts are computed one after another, and theirs.

        ``compute_ns`` computes one. Only experts count that the service covered whole.
        """
        took: list[int] = []
        service = self.begin(moved_bytes)
        while True:
            one = compute_ns()
            if self.has_ended(service):
                return self.await_end_ns(service), took
            took.append(one)


def medians(arguments: Sequence[int], measure: Callable[[int], int], repeats: int) -> Points:
    """The median of ``repeats`` measurements at each argument, after one that is not counted."""
    return [(a, median([measure(a) for _ in range(repeats + 1)][1:])) for a in arguments]
