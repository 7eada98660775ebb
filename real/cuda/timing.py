"""How long work of the device takes: rounds of calls between two timed events, and their summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from real.cuda.runtime import Runtime
from sim.values.units import part_of

Work = Callable[[], object]


@dataclass(frozen=True)
class Timed:
    """One operator at one shape: its median and 95th percentile of ns a call.

    ``read_bytes`` are those it must read; ``share`` is its speed over a copy's (above).
    """

    operator: str
    shape: str
    median_ns: float
    p95_ns: float
    read_bytes: int
    share: float

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.median_ns * 1e9


def summarise(
    operator: str, shape: str, call_ns: Sequence[float], read_bytes: int, copy_bytes_per_s: float
) -> Timed:
    """Summarise the durations of single calls."""
    ranked = sorted(call_ns)
    middle = median(ranked)
    p95 = ranked[min(len(ranked) - 1, part_of(len(ranked), 0.95))]
    return Timed(
        operator, shape, middle, p95, read_bytes, read_bytes / middle * 1e9 / copy_bytes_per_s
    )


def timed_calls(
    runtime: Runtime, works: Sequence[Work], repeats: int = 20, *, in_graph: bool = True
) -> list[float]:
    """How long one of ``works`` takes, in ns: one number for each round of all of them.

    Each work has memory of its own. A round is a captured graph, or is launched by the host.
    """
    stream = runtime.stream("bench")

    def round_of_all() -> None:
        for work in works:
            work()

    again: Work
    if in_graph:
        graph = runtime.capture(stream, round_of_all)
        again = partial(runtime.replay, graph, stream)
    else:
        again = partial(runtime.run, stream, round_of_all)
    found = []
    for _ in range(repeats + 2):
        begin, end = (runtime.event(timed=True) for _ in range(2))
        runtime.record(begin, stream)
        again()
        runtime.record(end, stream)
        runtime.synchronize(end)
        found.append(runtime.elapsed_ns(begin, end) / len(works))
    return found[2:]
