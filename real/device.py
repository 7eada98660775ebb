"""What a driver needs of a machine: a clock, one link, one compute stream. Never imports simpy, torch or hydra.

The seam between ``real.driver`` and the machines it runs on. A device acts and never decides: it is told which
transfers to carry, in which order, and what to compute; it tells when a transfer has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

TAIL = -1
"""The key of the work after the last site (final norm and LM head), which belongs to no expert and no layer."""


class Device(Protocol):
    """One link, which serves transfers one at a time in the order given, and one compute stream.

    Times are ns since ``open``. A nominal time is what a piece of work costs by the run's durations: a device without
    tensors takes it, a paced one pads its work to it, a free-running one ignores it.
    """

    def open(self, on_transfer_end: Callable[[int], None]) -> None:
        """Begin a run, with the clock at 0.

        ``on_transfer_end(number)`` is called once for each transfer, when it ends, in order of number. The call may
        come from the device's own thread, or from inside ``compute`` and ``wait``, never from inside ``transfer``.
        """

    def now_ns(self) -> int: ...

    def transfer(self, number: int, key: int, moved_bytes: int, nominal_ns: int) -> None:
        """Put a transfer behind those that are on the link already; return at once."""

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """Do the work of ``key`` for ``rows`` tokens; return at its end.

        ``key`` is an expert's variant, a layer's dense block, or ``TAIL``. Transfers that end at the very instant of
        the work's end have been handed over when this returns.
        """

    def wait(self, number: int) -> None:
        """Return when transfer ``number`` has ended and has been handed over; at once if that is past."""

    def service_ns(self, number: int) -> tuple[int, int]:
        """Start and end of a transfer's service on the link; -1 for what has not happened."""

    def close(self) -> None:
        """End the run. What is on the link is cut: nothing is handed over any more."""


class NullDevice:
    """A virtual clock; nothing is moved or computed, every piece of work takes its nominal time. One thread.

    Time passes inside ``compute`` and ``wait`` only. What ends at one instant is handed over in the contract's order
    (docs/design.md section 3): transfers first, by number, then what the driver does when ``compute`` returns.
    """

    def __init__(self) -> None:
        self._prepare()

    def _prepare(self) -> None:
        self._now_ns = 0
        self._link: deque[int] = deque()
        self._nominal_ns: list[int] = []
        self._start_ns: list[int] = []
        self._end_ns: list[int] = []

    def open(self, on_transfer_end: Callable[[int], None]) -> None:
        self._prepare()
        self._on_transfer_end = on_transfer_end

    def now_ns(self) -> int:
        return self._now_ns

    def transfer(self, number: int, key: int, moved_bytes: int, nominal_ns: int) -> None:
        """Raise ValueError if ``number`` is not the next one: the link serves in order of number."""
        if number != len(self._start_ns):
            raise ValueError(
                f"transfer {number} was started as the {len(self._start_ns)}th; start transfers by number, from 0"
            )
        self._nominal_ns.append(nominal_ns)
        self._start_ns.append(-1)
        self._end_ns.append(-1)
        self._link.append(number)
        if len(self._link) == 1:
            self._start_ns[number] = self._now_ns

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        end_ns = self._now_ns + nominal_ns
        # A hand-over may start a transfer that ends in time, too, so the link is looked at anew each time.
        while self._link and self._next_end_ns() <= end_ns:
            self._end_transfer()
        self._now_ns = end_ns

    def wait(self, number: int) -> None:
        """Raise ValueError if ``number`` was never started: nothing could end the wait."""
        if not 0 <= number < len(self._end_ns):
            raise ValueError(f"cannot wait for transfer {number}: {len(self._end_ns)} transfers were started")
        while self._end_ns[number] < 0:
            self._end_transfer()

    def service_ns(self, number: int) -> tuple[int, int]:
        return self._start_ns[number], self._end_ns[number]

    def close(self) -> None:
        self._link.clear()

    def _next_end_ns(self) -> int:
        number = self._link[0]
        return self._start_ns[number] + self._nominal_ns[number]

    def _end_transfer(self) -> None:
        self._now_ns = self._next_end_ns()
        number = self._link.popleft()
        self._end_ns[number] = self._now_ns
        if self._link:
            self._start_ns[self._link[0]] = self._now_ns
        self._on_transfer_end(number)
