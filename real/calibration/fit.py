"""Fits a machine's figures to what was measured: a line for the link, a roofline for experts.

The figures serve every model; beside them stands how far they are off where they were fitted.
Tables keep measured times as they are. The link's table serves every model; those of experts and
layers serve the model that they were measured with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from real.calibration.facts import Facts, Points
from real.calibration.in_run import Loops, Surplus, surplus
from sim.machine.link_parts import Scattered

LEAST_NS = 1.0
Experts = dict[str, Points]


@dataclass(frozen=True)
class Line:
    """``overhead_ns + argument / per_s``.

    ``residual`` is the median relative error over the points, ``worst`` the greatest.
    """

    overhead_ns: float
    per_s: float
    residual: float
    worst: float

    def ns(self, argument: float) -> float:
        return self.overhead_ns + argument / self.per_s * 1e9


@dataclass(frozen=True)
class Figures:
    """The figures that a hardware file needs.

    ``expert_residual`` and ``expert_worst`` are relative errors of the roofline over all numbers of
    rows, for plain weights.
    """

    link: Line
    memory_bytes_per_s: float
    flops_per_s: float
    launch_ns: float
    expert_launches: int
    dequantises: bool
    expert_residual: float
    expert_worst: float
    cpu_bytes_per_s: float | None
    cpu_round_trip_ns: float


def fit_line(points: Points) -> Line:
    """A line through points, by least squares of relative errors.

    The line goes through the origin where the overhead would be below 0, or larger arguments would
    take less time.
    """
    x, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    ones = np.ones(len(y))
    overhead, slope = np.linalg.lstsq(np.stack([ones, x], axis=1) / y[:, None], ones, rcond=None)[0]
    if len(points) == 1 or overhead < 0 or not slope > 0:
        overhead, slope = 0.0, float(ones @ (x / y) / ((x / y) @ (x / y)))
    line = Line(float(overhead), float(1e9 / slope), 0.0, 0.0)
    off = [abs(line.ns(a) / b - 1) for a, b in points]
    return Line(line.overhead_ns, line.per_s, float(np.median(off)), max(off))


def figures(
    facts: Facts, params: float, precisions: Sequence[str], kernel_launches: int
) -> Figures:
    """Fit all figures.

    ``params`` are those of one expert. ``kernel_launches`` is how many operations an expert of
    plain weights takes.
    """
    plain = precisions[0]
    times = dict(facts.experts[plain])
    launches_ns = min(kernel_launches * facts.operation, 0.9 * times[1])
    memory = facts.expert_bytes[plain] / (times[1] - launches_ns) * 1e9
    most = max(times)
    flops = 2 * most * params / max(LEAST_NS, times[most] - launches_ns) * 1e9
    # If an expert of few bits takes longer than a plain one, its weights are written out before
    # each use.
    others = [facts.experts[name] for name in precisions[1:] if name in facts.experts]
    dequantises = any(dict(points)[1] > times[1] for points in others)
    base = Figures(
        fit_line(facts.copy),
        memory,
        max(flops, 1e6),
        facts.operation,
        kernel_launches,
        dequantises,
        0.0,
        0.0,
        _cpu_rate(facts, plain),
        _round_trip_ns(facts),
    )
    size = facts.expert_bytes[plain]
    off = [abs(roofline_ns(base, size, params, rows) / ns - 1) for rows, ns in facts.experts[plain]]
    return Figures(
        **{**vars(base), "expert_residual": float(np.median(off)), "expert_worst": max(off)}
    )


def roofline_ns(found: Figures, num_bytes: int, params: float, rows: int) -> float:
    """The ns of an expert of plain weights, by the figures."""
    work = max(2 * rows * params / found.flops_per_s, num_bytes / found.memory_bytes_per_s) * 1e9
    return work + found.expert_launches * found.launch_ns


def _cpu_rate(facts: Facts, plain: str) -> float | None:
    """Bytes per second of an expert of one row on the CPU, without the round trip.

    As runs have it, where one was made: in a loop the CPU's cores never rest.
    """
    if not facts.on_cpu:
        return None
    (_, took), *_ = facts.on_cpu
    took = facts.cpu_in_run or took
    return facts.expert_bytes[plain] / max(LEAST_NS, took - _round_trip_ns(facts)) * 1e9


def _round_trip_ns(facts: Facts) -> float:
    """The ns of two hand-overs between threads; the smallest service is about one of them."""
    if not facts.on_cpu or not facts.copy:
        return 0.0
    return min(2 * facts.copy[0][1], 0.5 * facts.on_cpu[0][1])


def fixed_ns(facts: Facts, plain: str, params: Mapping[str, float]) -> float:
    """The part of an operation that its size does not change.

    A straight line goes through a layer's dense work, the head and an expert of plain weights, by
    parameters (``params``: dense, tail, expert). It is 0 where they do not tell.
    """
    took = {"dense": facts.dense, "tail": facts.tail, "expert": dict(facts.experts[plain])[1]}
    points = [(int(params[name]), ns) for name, ns in took.items() if ns and params.get(name)]
    if len(points) < 2:
        return 0.0
    return min(fit_line(sorted(points)).overhead_ns, *(ns for _, ns in points))


def loops_of(facts: Facts, plain: str, params: Mapping[str, float]) -> Loops:
    """What loops over single operations have, without what runs add."""
    return Loops(
        int(params["dense"]),
        facts.dense,
        facts.expert_bytes[plain],
        dict(facts.experts[plain])[1],
        fixed_ns(facts, plain, params),
        sum(facts.host.get(part, 0) for part in ("sync", "issue", "post")),
        facts.host.get("issue", 0),
        facts.copy,
        joint_ns(facts, plain),
    )


def joint_ns(facts: Facts, plain: str) -> float:
    """How much less an expert takes where it is given together with others.

    0 where the engine gives each by itself. No more than what loops over the shortest operation
    leave of it.
    """
    if len(facts.together) < 2:
        return 0.0
    (first, alone), *_, (count, all_of_them) = facts.together
    each = (all_of_them - alone) / (count - first)
    shortest = min(ns for ns in (facts.dense, dict(facts.experts[plain])[1]) if ns)
    return max(0.0, min(alone - each, shortest - LEAST_NS))


def surplus_of(facts: Facts, plain: str, params: Mapping[str, float]) -> Surplus | None:
    """What the facts' runs add to their loops; None where there were no runs."""
    return surplus(facts.runs, loops_of(facts, plain, params)) if facts.runs else None


def experts_of(facts: Facts, plain: str, params: Mapping[str, float], added: Surplus) -> Experts:
    """Experts' times by precision and rows, without what runs add.

    The host launches an expert of one row in a loop no faster than its launches take, so that loops
    tell precisions of few bits hardly apart. In a run the host's part is the same for all, and the
    device's own clock tells the rest. A precision that only a run of parts has takes what its gates
    leave for it.
    """
    found = {name: list(of) for name, of in facts.experts.items()}
    if plain in facts.device:
        host_ns = dict(found[plain])[1] - facts.device[plain]
        for name in found.keys() & facts.device.keys() - {plain}:
            one = max(LEAST_NS, host_ns + facts.device[name])
            found[name] = [(rows, one if rows == 1 else ns) for rows, ns in found[name]]
    loops = loops_of(facts, plain, params)
    for run in facts.parts:
        if run.dense_params != loops.dense_params:
            raise ValueError(
                f"a run of parts has layers of {run.dense_params} parameters, but"
                f" {loops.dense_params} were measured: calibrate with a run of this model"
            )
        left_ns = run.gate_ns - (loops.gaps_ns if added.gaps_ns is None else added.gaps_ns)
        left_ns -= loops.work_ns(0, run.dense_params, loops.expert_bytes)
        each = left_ns / run.needs - added.operation_ns * (run.needs + 1) / run.needs
        found[run.precision] = [(1, max(LEAST_NS, each))]
    return found


def choose_ns(facts: Facts, rates: Sequence[Sequence[Any]], added: Surplus) -> float:
    """How long choosing rows takes, by the runs of parts: what a service has beyond a copy's
    overhead, the search of slots, and its bytes at their rate. 0 where there were no such runs.
    """
    least, overhead_ns = facts.copy[0]
    beyond = [
        run.part_ns
        - overhead_ns
        - added.longer_ns(least)
        - added.slot_ns * run.slots
        - Scattered(run.form, run.threads, run.piece_bytes, rates).time_ns(run.part_bytes)
        for run in facts.parts
    ]
    return max(0.0, median(beyond)) if beyond else 0.0


def tables_us(points: Mapping[str, Points]) -> dict[str, list[list[float]]]:
    """Tables as a hardware file has them: arguments and microseconds."""
    return {name: [[a, round(ns / 1e3, 3)] for a, ns in of] for name, of in points.items()}
