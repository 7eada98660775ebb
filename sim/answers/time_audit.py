"""Where a simulated time differs from a recorded one, by cause: the causes sum to the difference.

Both runs are split alike (`sim.answers.time_parts`), gate by gate. Where a gate's needs came out
alike in both, its difference has the causes below; where they did not, its waits count as decided
otherwise.

| cause | difference of |
|---|---|
| link rate | the service of a load that the stream waited for, beyond its latency |
| link latency | what such a service takes longer where the link stood idle before it |
| queueing | the wait before that service |
| late prefetches | both, where the load was a prefetch |
| decided otherwise | waits of gates whose needs came out otherwise |
| cpu | the wait for the CPU |
| compute alone, after a wait, beside copies | dense layers and experts, by what the gate met |
| host alone, after a wait, beside copies | the stream's other time, by what the gate met |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sim.answers.time_parts import Interval, Service, Tables, intervals_of, services_of

CAUSES = (
    "link rate",
    "link latency",
    "queueing",
    "late prefetches",
    "decided otherwise",
    "cpu",
    "compute alone",
    "compute after a wait",
    "compute beside copies",
    "host alone",
    "host after a wait",
    "host beside copies",
)
PLACES = 3
"""How many steps and sites are named with each cause."""


@dataclass(frozen=True)
class Cause:
    """``ns`` is the simulated time less the recorded one, over all decode steps.

    ``steps`` and ``sites``: where it is largest, each with its ns.
    """

    name: str
    ns: float
    steps: tuple[tuple[int, float], ...]
    sites: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TimeAudit:
    """Times are in ns, over all decode steps."""

    tokens: int
    recorded_ns: int
    simulated_ns: int
    causes: tuple[Cause, ...]

    @property
    def difference_ns(self) -> int:
        return self.simulated_ns - self.recorded_ns


def audit_times(recorded: Tables, simulated: Tables) -> TimeAudit:
    """Compare a run's tables with those of its simulation.

    Raise ValueError where they do not have the same gates.
    """
    ours, theirs = intervals_of(simulated), intervals_of(recorded)
    places = [[(one.step, one.site) for one in of] for of in (theirs, ours)]
    if places[0] != places[1] or not theirs:
        raise ValueError(
            f"the recorded run has {len(theirs)} gates in decode steps, its simulation {len(ours)},"
            " and they must be the same: name the trace, the workload and the lengths that the run"
            " had (trace=.. workload=..)"
        )
    late_ns = [_latencies_ns(services_of(of.transfers)) for of in (recorded, simulated)]
    found: list[tuple[str, int, int, float]] = []
    for was, is_now in zip(theirs, ours, strict=True):
        for name, ns in _of_gate(was, is_now, late_ns[0], late_ns[1]):
            found.append((name, was.step, was.site, ns))
    return TimeAudit(
        len({one.step for one in theirs}),
        _total_ns(theirs),
        _total_ns(ours),
        tuple(_cause(name, found) for name in CAUSES),
    )


def _of_gate(
    was: Interval, now: Interval, was_late: Mapping[int, float], now_late: Mapping[int, float]
) -> Iterable[tuple[str, float]]:
    """The differences of one gate, by cause."""
    wait_ns = now.served_ns + now.queued_ns - was.served_ns - was.queued_ns
    if was.needs != now.needs:
        yield "decided otherwise", wait_ns
    elif was.is_prefetch or now.is_prefetch:
        yield "late prefetches", wait_ns
    else:
        latency_ns = (now_late.get(now.moved_bytes, 0.0) if now.is_first else 0.0) - (
            was_late.get(was.moved_bytes, 0.0) if was.is_first else 0.0
        )
        yield "link latency", latency_ns
        yield "link rate", now.served_ns - was.served_ns - latency_ns
        yield "queueing", now.queued_ns - was.queued_ns
    yield "cpu", now.cpu_ns - was.cpu_ns
    met = "after a wait" if was.has_waited else "alone"
    met = "beside copies" if was.beside else met
    compute_ns = now.compute_ns - was.compute_ns
    yield f"compute {met}", compute_ns
    yield f"host {met}", now.own_ns - was.own_ns - compute_ns


def _latencies_ns(services: Sequence[Service]) -> dict[int, float]:
    """By bytes: how much longer services take that find the link idle than those that do not.

    These are differences of medians, which a few slow services do not move.
    """
    took: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for one in services:
        took[one.moved_bytes, one.is_first].append(one.ns)
    return {
        size: median(took[size, True]) - median(took[size, False])
        for size in {size for size, _ in took}
        if (size, True) in took and (size, False) in took
    }


def _cause(name: str, found: Sequence[tuple[str, int, int, float]]) -> Cause:
    by_step: dict[int, float] = defaultdict(float)
    by_site: dict[int, float] = defaultdict(float)
    for cause, step, site, ns in found:
        if cause == name:
            by_step[step] += ns
            by_site[site] += ns
    return Cause(name, sum(by_step.values()), _largest(by_step), _largest(by_site))


def _largest(ns: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    order = sorted((at for at in ns if ns[at]), key=lambda at: (-abs(ns[at]), at))
    return tuple((at, ns[at]) for at in order[:PLACES])


def _total_ns(intervals: Sequence[Interval]) -> int:
    return sum(one.served_ns + one.queued_ns + one.cpu_ns + one.own_ns for one in intervals)
