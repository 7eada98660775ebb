"""Issues copies before their services begin, so that the link does not wait for the host.

With ``in_flight: 2`` the controller issues a transfer while another is in service. The transfer's
slot is claimed, and nothing overtakes or cuts it. So its copy can be given to the stream behind the
one under way. Its service still begins when the other has ended, as on every device, and then only
waits for the copy's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from real.cuda.copies import CopyEngine, Source
from real.cuda.runtime import Event, Runtime
from real.cuda.slots import DeviceSlots, Slot


@dataclass(eq=False)
class Ahead:
    """A copy to be issued behind that of transfer ``behind``; ``end``: its event, once issued."""

    slot: Slot
    key: int
    moved_bytes: int
    behind: int
    end: Event | None = None


class Feeder:
    """Feeds the one engine of link 0.

    ``news`` is the device's condition, on the device's lock. ``is_over()``: whether the run is over
    or closed. ``home(key)``: where a variant rests.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: DeviceSlots,
        engine: CopyEngine,
        home: Callable[[int], Source],
        news: Condition,
        is_over: Callable[[], bool],
    ) -> None:
        self._runtime, self._slots, self._engine, self._home = runtime, slots, engine, home
        self._news, self._is_over = news, is_over
        self._ahead: dict[int, Ahead] = {}
        self._last_issued = -1

    def announce(self, number: int, key: int, moved_bytes: int, behind: int) -> None:
        """Queue a transfer's copy behind that of transfer ``behind``. The lock is held."""
        if number not in self._ahead:
            self._ahead[number] = Ahead(self._slots.place(key), key, moved_bytes, behind)
            self._news.notify_all()

    def was_issued(self, number: int) -> None:
        """Note that an unannounced copy has been issued, and its end's event recorded."""
        with self._news:
            self._last_issued = number
            self._news.notify_all()

    def loop(self) -> None:
        """Issue announced copies, each as soon as the one before it is: the feeder's thread."""
        while True:
            with self._news:
                while (number := self._next()) is None and not self._is_over():
                    self._news.wait()
                if number is None or self._is_over():
                    return
                ahead = self._ahead[number]
            self._engine.begin(ahead.slot, is_paced=False)
            self._engine.copy(ahead.slot, self._home(ahead.key), 0, ahead.moved_bytes)
            end = self._slots.end_write(ahead.slot, self._engine.stream)
            with self._news:
                ahead.end, self._last_issued = end, number
                self._news.notify_all()

    def _next(self) -> int | None:
        """The transfer that may be issued now, or None. The lock is held."""
        ready = (
            number
            for number, one in self._ahead.items()
            if one.end is None and one.behind == self._last_issued
        )
        return next(ready, None)

    def await_end(self, number: int, patience_s: float) -> bool:
        """Wait for the end of an announced copy, or of the run; False if it was not announced."""
        with self._news:
            ahead = self._ahead.get(number)
            if ahead is None:
                return False
            while ahead.end is None and not self._is_over():
                if not self._news.wait(patience_s):
                    raise RuntimeError(
                        f"transfer {number} was announced, but its copy is not issued"
                    )
            del self._ahead[number]
        if ahead.end is not None:
            self._runtime.synchronize(ahead.end)
        return True
