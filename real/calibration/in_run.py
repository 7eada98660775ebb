"""What a run shows that loops over single operations do not: computing, waking and serving inside it.

A loop finds caches warm, threads awake and the device busy. In a run every operation comes after
other work. So a gate takes longer than its operations do in a loop, the first work after a wait
longer still, and a service longer than a copy. These surpluses are the engine's, not the model's:
they hold for a gate, a wait and a service of any size. They are medians over a run's gates and
services, from the tables that every run writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

import numpy as np

from sim.answers.time_parts import Interval, Service, Tables, intervals_of, services_of

FEWEST = 0.1
"""Waits of about one length count where they are this share of a run's."""
LEAST_GAIN_NS = 1.0
"""What fits no more than this much better is no better."""


@dataclass(frozen=True)
class InRun:
    """Medians of one run, in ns.

    - ``expert_bytes``, ``needs``: an expert's bytes, and how many experts a gate computes.
    - ``dense_params``: the parameters of a layer without its experts.
    - ``gate_ns``: from a gate to the next one, where nothing was waited for.
    - ``waits``: how long loads were waited for, and how much longer than ``gate_ns`` it then took
      from the last arrival to the next gate. Waits of up to twice a length make one point.
    - ``first_ns``, ``behind_ns``: services of ``expert_bytes`` that find the link idle, and those
      that follow another at once; None where there were none.
    - ``slots``: how many the device had.
    """

    expert_bytes: int
    needs: int
    dense_params: int
    gate_ns: float
    waits: Sequence[Sequence[float]]
    first_ns: float | None
    behind_ns: float | None
    slots: int = 0


def in_run(tables: Tables, dense_params: int, slots: int = 0) -> InRun:
    """What a run of one precision shows, on a device with so many ``slots``.

    A gate counts beside gates of its own step, because a machine's pace drifts during a run. Raise
    ValueError unless loads are waited for together (``wait_all``), and there are gates of decode
    steps with and without waits.
    """
    if tables.wait != "wait_all":
        raise ValueError(
            f"a calibrating run waits for all of a gate's loads (wait_all), not {tables.wait}:"
            " choose system=lru"
        )
    gates = _inner(intervals_of(tables))
    needs = max((len(one.needs) for one in gates), default=0)
    whole = [one for one in gates if len(one.needs) == needs]
    waited = [one for one in whole if one.has_waited and not one.cpu_ns]
    served = services_of(tables.transfers)
    free_ns = _free_ns(whole)
    if not free_ns or not waited or not served:
        raise ValueError(
            f"of {len(whole)} gates of decode steps {sum(not one.has_waited for one in whole)}"
            f" waited for nothing and {len(waited)} for loads: a calibrating run needs both; choose"
            " another budget"
        )
    size = max(one.moved_bytes for one in served)
    first, behind = _medians(served, size)
    gate_ns = median(free_ns.values())
    longer = [
        (one.served_ns + one.queued_ns, one.own_ns - free_ns.get(one.step, gate_ns))
        for one in waited
    ]
    return InRun(size, needs, dense_params, gate_ns, by_length(longer), first, behind, slots)


def _free_ns(gates: Sequence[Interval]) -> dict[int, float]:
    """By step, the median of its gates that waited for nothing."""
    took: dict[int, list[int]] = defaultdict(list)
    for one in gates:
        if not one.has_waited:
            took[one.step].append(one.own_ns)
    return {step: median(of) for step, of in took.items()}


def _medians(served: Sequence[Service], size: int) -> list[float | None]:
    """Of services of ``size`` bytes: those that find the link idle, and those behind another."""
    of = [
        [one.ns for one in served if (one.moved_bytes, one.is_first) == (size, is_first)]
        for is_first in (True, False)
    ]
    return [median(one) if one else None for one in of]


def by_length(waits: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Medians of waits of about one length, by powers of two, by ascending length.

    Lengths that a share of less than FEWEST of the waits has are left out, unless all of them are.
    """
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for length, ns in waits:
        groups[length.bit_length()].append((length, ns))
    many = [of for _, of in sorted(groups.items()) if len(of) >= FEWEST * len(waits)] or [
        list(waits)
    ]
    return [(median(at for at, _ in of), median(ns for _, ns in of)) for of in many]


@dataclass(frozen=True)
class InParts:
    """What a run shows whose experts come in part, as scattered rows. Times are medians in ns.

    - ``precision``, ``needs``, ``dense_params``, ``gate_ns``, ``slots``: as in `InRun`.
    - ``form``, ``threads``, ``piece_bytes``: how rows were gathered (`sim.machine.Scattered`).
    - ``part_bytes``, ``part_ns``: a service of the most frequent part, and how long it took.
    """

    precision: str
    needs: int
    dense_params: int
    gate_ns: float
    form: str
    threads: int
    piece_bytes: int
    part_bytes: int
    part_ns: float
    slots: int


def in_parts(
    tables: Tables, precision: str, dense_params: int, slots: int, gather: tuple[str, int, int]
) -> InParts:
    """What a run of one precision shows whose experts come in part.

    ``gather``: form, threads and bytes of a piece. Raise ValueError where no gate of a decode step
    waited for nothing.
    """
    gates = _inner(intervals_of(tables))
    needs = max((len(one.needs) for one in gates), default=0)
    free_ns = _free_ns([one for one in gates if len(one.needs) == needs])
    served = services_of(tables.transfers)
    sizes = [one.moved_bytes for one in served]
    if not free_ns or len(set(sizes)) < 2:
        raise ValueError(
            f"{len(free_ns)} steps have gates that waited for nothing, and services have"
            f" {len(set(sizes))} sizes: a run of parts needs gates with all they need, and parts"
        )
    size = max(sorted(set(sizes)), key=sizes.count)
    part_ns = mean(ns for ns in _medians(served, size) if ns is not None)
    gate_ns = median(free_ns.values())
    return InParts(precision, needs, dense_params, gate_ns, *gather, size, part_ns, slots)


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
    services by bytes. Where experts are given together, each but the first takes ``joint_ns`` less.
    """

    dense_params: int
    dense_ns: float
    expert_bytes: int
    expert_ns: float
    fixed_ns: float
    gaps_ns: float
    issue_ns: float
    copy_ns: Sequence[tuple[int, float]]
    joint_ns: float = 0.0

    def work_ns(self, needs: int, dense_params: int, expert_bytes: int) -> float:
        """A gate's dense work and needs, of such sizes, each by itself."""
        dense_ns = _scaled(self.dense_ns, self.fixed_ns, dense_params / self.dense_params)
        expert_ns = _scaled(self.expert_ns, self.fixed_ns, expert_bytes / self.expert_bytes)
        return dense_ns + needs * expert_ns


@dataclass(frozen=True)
class Surplus:
    """What runs add to loops, in ns.

    ``operation_ns`` is added to each operation of the compute stream; below 0 where operations are
    given together, and wait for no launch of their own. ``wakes`` are what follows waits, by their
    length. A service has ``service_ns`` more, ``byte_ns`` for each byte and ``slot_ns`` for each
    slot of the device. ``gaps_ns`` are the host's of a gate where operations are given together;
    None: as loops have them. ``read_ns`` is what each byte of weights adds to an operation there:
    a loop finds part of them in caches.
    """

    operation_ns: float
    wakes: Sequence[tuple[float, float]]
    service_ns: float
    byte_ns: float
    slot_ns: float
    gaps_ns: float | None = None
    read_ns: float = 0.0

    def longer_ns(self, moved_bytes: int) -> float:
        """What a service of so many bytes has more, but for the slots."""
        return self.service_ns + self.byte_ns * moved_bytes


NOTHING = Surplus(0.0, [], 0.0, 0.0, 0.0)


def surplus(runs: Sequence[InRun], loops: Loops) -> Surplus:
    """What these runs add to what loops have: medians over runs, each of which has one vote.

    A gate of n needs has n + 1 operations, its experts and the next dense work. What it takes
    beyond their times in loops and the host's gaps is shared equally among them. Where an engine
    gives operations together, they take what they do so. The rest of a gate goes with the bytes of
    its weights, and what these do not explain is the host's. While the stream waits the host is
    through with what follows a gate, so a wait hides that.
    """
    beyond = [
        (one.gate_ns - loops.work_ns(one.needs, one.dense_params, one.expert_bytes), one.needs + 1)
        for one in runs
    ]
    if loops.joint_ns:
        operation_ns = -loops.joint_ns
        left_ns = [ns + count * loops.joint_ns for ns, count in beyond]
        read = [one.needs * one.expert_bytes + 2 * one.dense_params for one in runs]
        # One run cannot tell the host from the bytes, and the host hides behind the device's work.
        read_ns, gaps_ns = _least([(size, 1) for size in read], left_ns)
        issue_ns = gaps_ns
    else:
        gaps_ns, issue_ns, read_ns = None, loops.issue_ns, 0.0
        operation_ns = max(0.0, median((ns - loops.gaps_ns) / count for ns, count in beyond))
    wakes = [(int(length), max(0.0, ns + issue_ns)) for one in runs for length, ns in one.waits]
    return Surplus(operation_ns, _wakes(wakes), *_services(runs, loops), gaps_ns, read_ns)


def _wakes(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """One point for each length of a wait, whatever the number of runs that have it."""
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for length, ns in points:
        groups[length.bit_length()].append((length, ns))
    return [
        (median(at for at, _ in of), median(ns for _, ns in of)) for _, of in sorted(groups.items())
    ]


def _services(runs: Sequence[InRun], loops: Loops) -> tuple[float, float, float]:
    """What every service has more, what each byte and what each slot adds to it.

    Least squares without anything below 0. Of what fits equally well the least is told, and what
    every service has before what bytes or slots add: one run cannot tell them apart.
    """
    sizes, times = zip(*loops.copy_ns, strict=True)
    beyond = [
        mean(took for took in (one.first_ns, one.behind_ns) if took is not None)
        - float(np.interp(one.expert_bytes, sizes, times))
        for one in runs
    ]
    if loops.joint_ns:
        # A copy of many bytes takes its time by them: nothing is handed over between threads.
        byte_ns, service_ns, slot_ns = _least(
            [(one.expert_bytes, 1, one.slots) for one in runs], beyond
        )
    else:
        service_ns, byte_ns, slot_ns = _least(
            [(1, one.expert_bytes, one.slots) for one in runs], beyond
        )
    return service_ns, byte_ns, slot_ns


def _least(rows: Sequence[tuple[float, ...]], times_ns: Sequence[float]) -> list[float]:
    """By column of ``rows`` what one of it takes, by least squares without anything below 0.

    Of what fits equally well the fewest columns are told, and the first ones of these.
    """
    table, beyond = np.array(rows, float), np.array(times_ns)
    columns = range(table.shape[1])
    best, told = float(np.linalg.norm(beyond)), [0.0] * len(columns)
    for used in (of for count in columns for of in combinations(columns, count + 1)):
        some = table[:, used]
        if np.linalg.matrix_rank(some) < len(used):
            continue
        found = np.linalg.lstsq(some, beyond, rcond=None)[0]
        off = float(np.linalg.norm(some @ found - beyond))
        if (found >= 0).all() and off < best - LEAST_GAIN_NS:
            each = dict(zip(used, found.tolist(), strict=True))
            best, told = off, [each.get(column, 0.0) for column in columns]
    return told


def _scaled(ns: float, fixed_ns: float, ratio: float) -> float:
    fixed_ns = min(ns, fixed_ns)
    return fixed_ns + (ns - fixed_ns) * ratio
