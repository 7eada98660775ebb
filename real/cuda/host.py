"""A runtime whose device is the host itself: rehearses what runs on a GPU where there is none.

The calling thread does everything at once, on the host's clock. That shows that all but the calls
of a GPU work. It shows nothing of a GPU's speed, nor of the order of its streams: the tests have a
runtime for that, which refuses disorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from real.driver.machine import available_bytes, memory_bytes

T = TypeVar("T")
Uses = Sequence[Tensor] | Callable[[], Sequence[Tensor]]


@dataclass(eq=False)
class HostEvent:
    time_ns: int = 0


class HostRuntime:
    """Implements ``real.cuda.runtime.Runtime``. A stream is its name."""

    name = "host"
    device = torch.device("cpu")

    def __init__(self) -> None:
        self._lock = Lock()
        self._allocated_bytes = 0
        self._current: Any = "default"

    def stream(self, name: str) -> str:
        return name

    def make_current(self, stream: Any) -> Any:
        before, self._current = self._current, stream
        return before

    def event(self, *, timed: bool = False) -> HostEvent:
        return HostEvent()

    def record(self, event: HostEvent, stream: Any) -> None:
        event.time_ns = time.perf_counter_ns()

    def wait(self, stream: Any, event: HostEvent) -> None: ...

    def query(self, event: HostEvent) -> bool:
        return True

    def synchronize(self, event: HostEvent) -> None: ...

    def elapsed_ns(self, first: HostEvent, last: HostEvent) -> int:
        return max(1, last.time_ns - first.time_ns)

    def allocate(self, num_bytes: int) -> Tensor:
        with self._lock:
            self._allocated_bytes += num_bytes
        return torch.empty(num_bytes, dtype=torch.uint8)

    def allocated_bytes(self) -> int:
        """All bytes ever allocated: torch does not tell when memory is given back."""
        return self._allocated_bytes

    def memory(self) -> tuple[int, int]:
        """Of main memory; what this process has taken so far counts as taken, too."""
        total, left = memory_bytes() or 0, available_bytes() or 0
        return total, total - left

    def register(self, memory: Tensor) -> None: ...

    def unregister(self, memory: Tensor) -> None: ...

    def mapped(self, memory: Tensor) -> Tensor:
        return memory

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        target.copy_(source)

    def memory_of(self, memory: Tensor) -> Tensor:
        return memory

    def move(self, target: Tensor, source: Tensor, num_bytes: int, stream: Any) -> None:
        self.copy(target[:num_bytes], source[:num_bytes], stream)

    def run(
        self,
        stream: Any,
        work: Callable[[], T],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> T:
        return work()

    def stamp(self, clock: Tensor, stream: Any) -> None:
        clock.view(torch.int64)[0] = time.perf_counter_ns()

    def spin_until(self, clock: Tensor, due_ns: int, stream: Any) -> None:
        due = int(clock.view(torch.int64)[0]) + due_ns
        while time.perf_counter_ns() < due:
            time.sleep(0)

    def capture(
        self,
        stream: Any,
        work: Callable[[], Any],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> Callable[[], Any]:
        work()
        return work

    def replay(
        self,
        graph: Callable[[], Any],
        stream: Any,
        *,
        reads: Uses = (),
        writes: Uses = (),
    ) -> None:
        graph()

    def host_writes(self, memory: Tensor) -> None: ...
