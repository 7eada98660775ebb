"""The compute stream of a run: what it computed and when, and what it stood idle for.

Some devices return from a computation at its end; then all is known at once (``Stream``). Others
are given work ahead of its time, and tell when it ended once the run is over (``DeferredStream``).
"""

from __future__ import annotations

from collections.abc import Sequence

from real.driver.device import Device, Turn
from real.driver.timers import WAKE_NS
from sim.values.record import HOST_TIME, Record
from sim.values.types import HostCosts

IDLE, HOST, WORK, GATE, SITE = range(5)
Entry = tuple[int, int, int] | tuple[int, Sequence[int], int]


class Stream:
    """A stream whose work has ended when ``compute`` returns. Times are in ns since ``open``.

    ``host`` has the nominal host time after an idle interval.
    """

    is_deferred = False

    def __init__(self, device: Device, record: Record, host: HostCosts) -> None:
        self._device, self._record, self._host = device, record, host
        self.free_ns = 0
        """When the stream finished its last piece of work.

        Where work is deferred this is the latest time that is known.
        """
        self._behind_ns = 0
        """How late that was by nominal times; on a padded device the next work catches it up."""
        self.computed: list[tuple[int, int, int]] = []
        """Key, start and end of all that was computed."""

    # ---- what it does

    def compute(
        self,
        keys: Sequence[int],
        rows: Sequence[int],
        nominal_ns: int = 0,
        *,
        is_under_way: bool = False,
    ) -> None:
        """Compute the works of some keys, one after another, each for its number of tokens.

        ``nominal_ns``: how long each takes; where work is deferred nobody asks for it.
        ``is_under_way``: the time since the stream was free was spent on them, not by the host.
        """
        for key, count in zip(keys, rows, strict=True):
            now, left_ns = self._device.now_ns(), nominal_ns
            due_ns = self._due_ns(nominal_ns)
            if self._device.is_padded:
                left_ns = max(0, due_ns - now)
            elif not is_under_way:
                self.host_until(now)
            start_ns = self._device.now_ns()
            self._device.compute(key, count, left_ns)
            self.free_ns = self._device.now_ns()
            self.computed.append((key, start_ns, self.free_ns))
            self._fall_behind(due_ns)

    def read_out(self) -> None:
        """Wait until all that was computed has ended."""

    def approach_gate(self, sync_ns: int) -> int:
        """Wait until a gate's choice is there and nominal time has passed; return when it is due."""
        due_ns = self._due_ns(sync_ns)
        self._device.sleep_until(due_ns, Turn.GATE)
        return due_ns

    def reach_gate(self, now_ns: int, due_ns: int) -> None:
        self.host_until(now_ns)
        self._fall_behind(due_ns)
        self._record.gate_ns.append(self.free_ns)

    def end_site(self) -> None:
        self._record.end_ns.append(self.free_ns)

    def finish(self) -> None:
        """Complete the record's columns. The device is closed."""

    # ---- what it waits for

    def pass_host_time(self, nominal_ns: int) -> None:
        if nominal_ns:
            due_ns = self._due_ns(nominal_ns)
            self._device.sleep_until(due_ns, Turn.NEED_DONE)
            self.host_until(self._device.now_ns())
            self._fall_behind(due_ns)

    def host_until(self, now_ns: int) -> None:
        """Count the time since the stream was free as the host's own."""
        self._add_idle(now_ns, HOST_TIME)

    def stand_idle(self, ready_ns: int, cause: int) -> None:
        """Count the time until ``ready_ns`` as idle, if the stream was free before."""
        if cause >= 0:
            # The stream would have waited from ``ready_ns`` on, so only what is older is caught up.
            self._behind_ns = max(0, min(self._behind_ns, self.free_ns - ready_ns))
        if ready_ns > self.free_ns:
            wake_ns = self._host.waking_ns(ready_ns - self.free_ns)
            self._behind_ns = 0
            self._add_idle(ready_ns, cause)
            self.pass_host_time(wake_ns)

    def _due_ns(self, nominal_ns: int) -> int:
        return self.free_ns - self._behind_ns + nominal_ns

    def _fall_behind(self, due_ns: int) -> None:
        """Note how late the stream is for ``due_ns``, to catch up.

        Lateness of more than WAKE_NS is not caught up: this machine is too slow for it.
        """
        late_ns = self.free_ns - due_ns
        self._behind_ns = late_ns if self._device.is_padded and 0 <= late_ns <= WAKE_NS else 0

    def _add_idle(self, end_ns: int, cause: int) -> None:
        if end_ns > self.free_ns:
            self._record.idle_start_ns.append(self.free_ns)
            self._record.idle_end_ns.append(end_ns)
            self._record.idle_cause.append(cause)
            self.free_ns = end_ns


class DeferredStream(Stream):
    """A stream that is given work ahead of its time, on a device with host time of its own.

    What happens is noted in order, and told to the record when the device knows every end.
    """

    is_deferred = True

    def __init__(self, device: Device, record: Record, host: HostCosts) -> None:
        super().__init__(device, record, host)
        self._entries: list[Entry] = []

    def compute(
        self,
        keys: Sequence[int],
        rows: Sequence[int],
        nominal_ns: int = 0,
        *,
        is_under_way: bool = False,
    ) -> None:
        self._device.begin(keys, rows)
        self._entries.append((WORK, keys, is_under_way))

    def read_out(self) -> None:
        self._device.settle()
        self.free_ns = max(self.free_ns, self._device.now_ns())

    def approach_gate(self, sync_ns: int) -> int:
        self._device.settle()
        return 0

    def reach_gate(self, now_ns: int, due_ns: int) -> None:
        self._entries.append((GATE, now_ns, 0))
        self.free_ns = max(self.free_ns, now_ns)

    def end_site(self) -> None:
        self._entries.append((SITE, 0, 0))

    def pass_host_time(self, nominal_ns: int) -> None:
        """Do nothing: the ends of the work before and after tell the host's time."""

    def host_until(self, now_ns: int) -> None:
        self._entries.append((HOST, now_ns, 0))
        self.free_ns = max(self.free_ns, now_ns)

    def stand_idle(self, ready_ns: int, cause: int) -> None:
        # What was there at the gate, or before, keeps nothing waiting.
        if ready_ns > self.free_ns:
            self._entries.append((IDLE, ready_ns, cause))
            self.free_ns = ready_ns

    def finish(self) -> None:
        spans = iter(self._device.spans())
        self.free_ns = 0
        for kind, argument, other in self._entries:
            if not isinstance(argument, int):
                for key in argument:
                    start_ns, end_ns = next(spans)
                    if not other:
                        super().host_until(start_ns)
                    self.computed.append((key, max(start_ns, self.free_ns), end_ns))
                    self.free_ns = max(self.free_ns, end_ns)
            elif kind == SITE:
                super().end_site()
            else:
                self._add_idle(argument, other if kind == IDLE else HOST_TIME)
                if kind == GATE:
                    self._record.gate_ns.append(self.free_ns)
        self._entries.clear()


def stream_of(device: Device, record: Record, host: HostCosts) -> Stream:
    """The stream for a device that ends its work at once, or of one that defers it."""
    kind = DeferredStream if device.is_deferred else Stream
    return kind(device, record, host)
