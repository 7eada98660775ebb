"""The measures of experiments: the numbers that they draw from their runs.

They are ratios of times with paired intervals, shares, and orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.machine.hardware import Hardware
from sim.reproduce.measured import Measured
from sim.reproduce.rules import Value
from sim.results.intervals import ratio_interval
from sim.traces.trace import DECODE, PREFILL, Trace

Floats = NDArray[np.float64]
Group = Mapping[str, Measured]
"""The arms of one group, by name."""


@dataclass(frozen=True)
class Given:
    """What a measure is given.

    ``groups`` have the runs by arm. ``arms`` are the names of arms (or numbers) that the experiment
    lists for its measure. ``take`` says how the groups make one number.
    """

    groups: Sequence[Group]
    arms: tuple[Any, ...]
    take: str


def take(points: Sequence[float], how: str) -> float:
    """One number for the points of several groups: their maximum (max, any) or mean."""
    return float(max(points) if how in ("max", "any") else np.mean(points))


def _paired(
    given: Given,
    read: Callable[[Measured], Sequence[float]],
    shape: Callable[[Any], Any] = lambda ratio: ratio,
) -> Value:
    """``shape`` of the ratio theirs / ours, by group, with the 95 % intervals.

    Both are summed over the same sequences. The experiment names ours first, then theirs. ``shape``
    must be increasing. The interval of a single sequence is unlimited.
    """
    ours, theirs = (str(arm) for arm in given.arms[:2])
    points, intervals = [], []
    for group in given.groups:
        a, b = np.array(read(group[ours]), np.float64), np.array(read(group[theirs]), np.float64)
        points.append(float(shape(b.sum() / a.sum())) if a.sum() else float("nan"))
        low, high = ratio_interval(b, a) or (0.0, float("inf"))
        intervals.append((float(shape(low)), float(shape(high))))
    if given.take == "max":
        best = int(np.argmax(points))
        return Value(points[best], (points[best],), (intervals[best],))
    if given.take == "range":
        return Value(take(points, "mean"), tuple(points), tuple(intervals))
    middle = (
        float(np.mean([low for low, _ in intervals])),
        float(np.mean([high for _, high in intervals])),
    )
    return Value(take(points, given.take), (), (middle,))


def _reduction(ratio: Any) -> Any:
    """How much ours is below theirs, as a share of theirs; ``ratio`` is theirs / ours."""
    return 1 - 1 / ratio if ratio else -float("inf")


def _faster(given: Given, read: Callable[[Measured], Sequence[float]]) -> Value:
    """Whether ours takes less time in every group (with ``take: any``, in at least one)."""
    ours, theirs = (str(arm) for arm in given.arms[:2])
    points = [
        float(np.sum(read(group[theirs])) / np.sum(read(group[ours]))) for group in given.groups
    ]
    agrees = any if given.take == "any" else all
    return Value(
        take(points, "max" if given.take == "any" else "mean"),
        tuple(points),
        (),
        agrees(p > 1 for p in points),
    )


def _mean_of(given: Given, read: Callable[[Measured], float]) -> Value:
    return Value(take([read(group[str(given.arms[0])]) for group in given.groups], given.take))


def _s_per_token(run: Measured) -> float:
    return sum(run.decode_ns) / sum(run.tokens) / 1e9


def _equal_times(given: Given) -> Value:
    """Whether two arms take equal times in every group, to the nanosecond."""
    one, other = (str(arm) for arm in given.arms)
    points = [sum(group[other].decode_ns) / sum(group[one].decode_ns) for group in given.groups]
    same = all(group[one].decode_ns == group[other].decode_ns for group in given.groups)
    return Value(float(np.mean(points)), (), (), same)


def _best(given: Given, score: Callable[[Measured], float]) -> Value:
    """Whether the first arm's score exceeds every other's in every group.

    The point is the smallest ratio of its score to the best of the others.
    """
    first, *others = (str(arm) for arm in given.arms)
    leads = [
        score(group[first]) / max(score(group[other]) for other in others) for group in given.groups
    ]
    return Value(min(leads), tuple(leads), (), min(leads) > 1)


def _ever_faster(given: Given) -> Value:
    """Whether each arm takes less time than the arm before it, in every group.

    The points are the ratios of their times.
    """
    names = [str(arm) for arm in given.arms]
    steps = [
        sum(group[slow].decode_ns) / sum(group[fast].decode_ns)
        for group in given.groups
        for slow, fast in pairwise(names)
    ]
    return Value(min(steps), tuple(steps), (), min(steps) > 1)


def _dynamic_order(given: Given) -> Value:
    """Whether gains have the published order of machines and of models.

    It is Orin above 4090 above 4090 with CPU in the mean over models, and Mixtral above Phi in the
    mean over machines. The groups are each machine's Mixtral and Phi, in that order of machines.
    """
    gains = np.array(_paired(Given(given.groups, given.arms, "range"), _decode).points)
    by_machine, by_model = gains.reshape(3, 2).mean(axis=1), gains.reshape(3, 2).mean(axis=0)
    holds = bool(by_machine[0] > by_machine[1] > by_machine[2] and by_model[0] > by_model[1])
    return Value(float(gains.mean()), tuple(gains.tolist()), (), holds)


def _host_growth(given: Given) -> Value:
    """By how many bits the host's time after a prompt's gate is larger in the first arm.

    Time that is exponential in the number of experts grows by 8 bits with 8 more experts.
    """
    many, few = (given.groups[0][str(arm)] for arm in given.arms)
    bits = (
        log2(many.host_ns_per_prefill_gate / few.host_ns_per_prefill_gate)
        if few.host_ns_per_prefill_gate
        else 0.0
    )
    # The host's other time is the same for both arms, so the growth seen is smaller than 8 bits.
    return Value(bits, (), (), bits > 3)


def _penalty_better_in_first(given: Given) -> Value:
    """Whether the ratio of two arms' miss penalties is lower in the first group than in the second.

    The arms are LRU and LFU.
    """
    ours, theirs = (str(arm) for arm in given.arms)
    points = [sum(group[ours].penalty) / sum(group[theirs].penalty) for group in given.groups]
    return Value(points[0] / points[1], tuple(points), (), points[0] < points[1])


def _hit_gain(given: Given) -> Value:
    """By what share our number of hits exceeds theirs."""
    return _paired(
        Given(given.groups, (given.arms[1], given.arms[0]), given.take),
        lambda run: run.found,
        lambda ratio: ratio - 1,
    )


def _decode(run: Measured) -> list[float]:
    return run.decode_ns


def _prefill(run: Measured) -> list[float]:
    return run.prefill_ns


MEASURES: dict[str, Callable[[Given], Value]] = {
    "decode_speedup": lambda given: _paired(given, _decode),
    "prefill_speedup": lambda given: _paired(given, _prefill),
    "prefill_reduction": lambda given: _paired(given, _prefill, _reduction),
    "penalty_reduction": lambda given: _paired(given, lambda run: run.penalty, _reduction),
    "decode_faster": lambda given: _faster(given, _decode),
    "prefill_faster": lambda given: _faster(given, _prefill),
    "decode_fastest": lambda given: _best(given, lambda run: 1 / _s_per_token(run)),
    "most_hits": lambda given: _best(given, lambda run: sum(run.found) / sum(run.asked)),
    "equal_times": _equal_times,
    "dynamic_order": _dynamic_order,
    "ever_faster": _ever_faster,
    "host_growth": _host_growth,
    "penalty_better_in_first": _penalty_better_in_first,
    "hit_gain": _hit_gain,
    "s_per_token": lambda given: _mean_of(given, _s_per_token),
    "tokens_per_s": lambda given: _mean_of(given, lambda run: 1 / _s_per_token(run)),
    "prefill_tokens_per_s": lambda given: _mean_of(
        given, lambda run: sum(run.prompt_tokens) / sum(run.prefill_ns) * 1e9
    ),
    "loading_share": lambda given: _mean_of(given, lambda run: run.loading_share),
    "link_s_per_gate": lambda given: _mean_of(given, lambda run: run.link_ns_per_gate / 1e9),
    "s_per_transfer": lambda given: _mean_of(given, lambda run: run.ns_per_transfer / 1e9),
    "prefetches_per_gate": lambda given: _mean_of(given, lambda run: run.prefetches_per_gate),
    "device_gb": lambda given: _mean_of(given, lambda run: run.device_bytes / 1e9),
    "covered_share": lambda given: _mean_of(
        given, lambda run: 1 - sum(run.missed) / sum(run.asked)
    ),
}
"""The measures of runs, by the name in an experiment's ``measure``."""


# ---- of a trace alone


def lookahead_top1(trace: Trace, depths: Sequence[int]) -> Value:
    """How often the best forecast ``depths`` sites ahead is among the experts used there.

    This is the mean over decoded rows, sites and depths.
    """
    scores, ids = trace.lookahead["raw"], trace.ids
    rows = np.flatnonzero(trace.phase == DECODE)
    found = []
    for depth in depths:
        for site in range(ids.shape[1] - depth):
            best = scores[rows, site, depth - 1].argmax(axis=1)
            found.append(float((ids[rows, site + depth] == best[:, None]).any(axis=1).mean()))
    return Value(float(np.mean(found)))


def prompt_union_share(trace: Trace) -> Value:
    """The share of a layer's experts that a prompt activates, in the mean of prompts and layers."""
    shares = [
        len(np.unique(ids)) / trace.header.model.experts for ids in _by_prompt_and_site(trace)
    ]
    return Value(float(np.mean(shares)))


def unpopular_tokens_share(trace: Trace) -> Value:
    """The share of a prompt's choices that go to its least popular 30 % of experts.

    Experts that the prompt activates at a layer count. The mean is over prompts and layers.
    """
    shares = []
    for ids in _by_prompt_and_site(trace):
        count = np.sort(np.unique(ids, return_counts=True)[1])
        shares.append(float(count[: round(0.3 * len(count))].sum() / count.sum()))
    return Value(float(np.mean(shares)))


def _by_prompt_and_site(trace: Trace) -> list[NDArray[Any]]:
    evaluated = {s.sequence for s in trace.header.sequences if s.split == "eval"}
    rows = {
        int(s): np.flatnonzero((trace.sequence == s) & (trace.phase == PREFILL)) for s in evaluated
    }
    return [trace.ids[at, site] for at in rows.values() for site in range(trace.ids.shape[1])]


def stacked_gates(hardware: Hardware, hidden: int, experts: int) -> Value:
    """The time of four layers' gates, at once and one after another, over the time of one gate.

    Times follow from the machine's launches and memory. The value holds if four gates at once take
    less than 10 % more than one. One after another they take four times as long.
    """
    gate_bytes, compute = hidden * experts * 2, hardware.compute
    one = compute.operation_ns(2 * hidden * experts, gate_bytes, 1)
    stacked = compute.operation_ns(2 * hidden * experts * 4, gate_bytes * 4, 1) / one
    return Value(stacked, (stacked, 4.0), (), stacked < 1.1)


TRACE_MEASURES: dict[str, Callable[..., Value]] = {
    "lookahead_top1": lookahead_top1,
    "prompt_union_share": lambda trace, _: prompt_union_share(trace),
    "unpopular_tokens_share": lambda trace, _: unpopular_tokens_share(trace),
}
