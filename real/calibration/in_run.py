"""What a run shows that loops over single operations do not: computing, waking and serving inside it.

A loop finds caches warm, threads awake and the device busy. In a run every operation comes after
other work. So a gate takes longer than its operations do in a loop, the first work after a wait
longer still, and a service longer than a copy. These surpluses are the engine's, not the model's:
they hold for a gate, a wait and a service of any size. They are medians over a run's gates and
services, from the tables that every run writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from sim.answers.time_parts import Interval, Tables, intervals_of, services_of


@dataclass(frozen=True)
class InRun:
    """Medians of one run, in ns.

    - ``expert_bytes``, ``needs``: an expert's bytes, and how many experts a gate computes.
    - ``dense_params``: the parameters of a layer without its experts.
    - ``gate_ns``: from a gate to the next one, where nothing was waited for.
    - ``waited_ns``: from the last arrival to the next gate, where loads were waited for.
    - ``first_ns``, ``behind_ns``: services of ``expert_bytes`` that find the link idle, and those
      that follow another at once; None where there were none.
    """

    expert_bytes: int
    needs: int
    dense_params: int
    gate_ns: float
    waited_ns: float
    first_ns: float | None
    behind_ns: float | None


def in_run(tables: Tables, dense_params: int) -> InRun:
    """What a run of one precision shows.

    Raise ValueError unless loads are waited for together (``wait_all``), and there are gates of
    decode steps with and without waits.
    """
    if tables.wait != "wait_all":
        raise ValueError(
            f"a calibrating run waits for all of a gate's loads (wait_all), not {tables.wait}:"
            " choose system=lru"
        )
    gates = _inner(intervals_of(tables))
    needs = max((len(one.needs) for one in gates), default=0)
    whole = [one for one in gates if len(one.needs) == needs]
    free = [one.own_ns for one in whole if not one.has_waited]
    waited = [one.own_ns for one in whole if one.has_waited and not one.cpu_ns]
    served = services_of(tables.transfers)
    if not free or not waited or not served:
        raise ValueError(
            f"of {len(whole)} gates of decode steps {len(free)} waited for nothing and"
            f" {len(waited)} for loads: a calibrating run needs both; choose another budget"
        )
    size = max(one.moved_bytes for one in served)
    first, behind = (
        [one.ns for one in served if one.moved_bytes == size and one.is_first == is_first]
        for is_first in (True, False)
    )
    return InRun(
        size,
        needs,
        dense_params,
        median(free),
        median(waited),
        median(first) if first else None,
        median(behind) if behind else None,
    )


def _inner(intervals: Sequence[Interval]) -> list[Interval]:
    """The gates of a step but for its first and last, whose intervals have more in them."""
    found = []
    for before, one, after in zip(intervals, intervals[1:], intervals[2:], strict=False):
        if before.step == one.step == after.step:
            found.append(one)
    return found


@dataclass(frozen=True)
class Loops:
    """How long operations take in loops, in ns, and of what size.

    A layer of ``dense_params`` takes ``dense_ns``, an expert of ``expert_bytes`` and one row
    ``expert_ns``; ``fixed_ns`` of either does not depend on its size. ``gaps_ns`` are the host's
    before a gate, after it and at a site's end; ``issue_ns`` is the one after it. ``copy_ns`` are
    services by bytes.
    """

    dense_params: int
    dense_ns: float
    expert_bytes: int
    expert_ns: float
    fixed_ns: float
    gaps_ns: float
    issue_ns: float
    copy_ns: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Surplus:
    """What runs add to loops, in ns; none of it is below 0.

    ``operation_ns`` is added to each operation of the compute stream, ``service_ns`` to each
    service. ``wake_ns`` is what follows a wait.
    """

    operation_ns: float
    wake_ns: float
    service_ns: float


def surplus(runs: Sequence[InRun], loops: Loops) -> Surplus:
    """what these runs add to what loops have: medians over runs, each of which has one vote.

    A gate of n needs has n + 1 operations, its experts and the next dense work. What it takes
    beyond their times in loops and the host's gaps is shared equally among them.
    """
    sizes, times = zip(*loops.copy_ns, strict=True)
    operations, wakes, services = [], [], []
    for one in runs:
        dense_ns = _scaled(loops.dense_ns, loops.fixed_ns, one.dense_params / loops.dense_params)
        expert_ns = _scaled(loops.expert_ns, loops.fixed_ns, one.expert_bytes / loops.expert_bytes)
        beyond_ns = one.gate_ns - loops.gaps_ns - dense_ns - one.needs * expert_ns
        operations.append(beyond_ns / (one.needs + 1))
        wakes.append(one.waited_ns - one.gate_ns + loops.issue_ns)
        copy_ns = float(np.interp(one.expert_bytes, sizes, times))
        services += [
            mean(took - copy_ns for took in (one.first_ns, one.behind_ns) if took is not None)
        ]
    return Surplus(
        max(0.0, median(operations)), max(0.0, median(wakes)), max(0.0, median(services))
    )


def _scaled(ns: float, fixed_ns: float, ratio: float) -> float:
    fixed_ns = min(ns, fixed_ns)
    return fixed_ns + (ns - fixed_ns) * ratio
