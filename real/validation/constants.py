"""Durations as a machine takes them, learnt from recorded runs.

A recorded run says when each piece of work began and ended. Pieces are alike if they are of one
kind (a layer's dense work in a decode step, an expert at a precision, a service on a link ..) and
have the same nominal duration. The median of each such group is learnt.

Time in which the stream neither computed nor waited is the host's. The place where it stands says
which part: before a gate (sync), after it (issue), after a wait (wake), at a site's end (post). A
gap between two experts of a gate is part of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import polars as pl

from real.driver.recording import Recording, Service, lengths_of
from sim.core.controller import Controller
from sim.machine.durations import Durations
from sim.results.frames import Frames
from sim.values.types import HostCosts, Outcome, Step

Kind = tuple[str, int | str, bool]
"""What was done; the link's number or the precision's name; whether it was in a decode step.

Systems number their precisions each for itself.
"""
Pair = tuple[Kind, int, int]
"""A kind, a nominal duration and the measured one, in ns."""
HOST_PARTS = ("sync", "issue", "wake", "post")
"""The parts of host time, in the order of ``HostCosts``; none has a nominal duration."""


@dataclass
class Constants:
    """What was learnt, by kind of work.

    For each kind: the nominal durations in ascending order, and the median of what such a piece
    took, both in ns.
    """

    medians: dict[Kind, tuple[list[int], list[float]]] = field(default_factory=dict)

    @property
    def host(self) -> HostCosts:
        sync_ns, issue_ns, wake_ns, post_ns = (
            self.takes((f"{part}_ns", 0, True), 0) for part in HOST_PARTS
        )
        return HostCosts(sync_ns, issue_ns, wake_ns, post_ns)

    @classmethod
    def learn(cls, pairs: Iterable[Pair]) -> Constants:
        """Learn from the pieces of work of any number of runs."""
        groups: dict[Kind, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for kind, nominal_ns, measured_ns in pairs:
            groups[kind][nominal_ns].append(measured_ns)
        return cls(
            {
                kind: (sorted(of), [median(of[nominal]) for nominal in sorted(of)])
                for kind, of in groups.items()
            }
        )

    def takes(self, kind: Kind, nominal_ns: int) -> int:
        """How long such a piece of work takes here, in ns.

        Between two nominal durations that were seen it is interpolated along a straight line;
        beyond the last it goes in proportion. A kind that was never seen takes its nominal time.
        """
        if kind not in self.medians:
            return nominal_ns
        nominal, measured = self.medians[kind]
        if nominal[0] <= nominal_ns <= nominal[-1]:
            return round(float(np.interp(nominal_ns, nominal, measured)))
        end = 0 if nominal_ns < nominal[0] else -1
        return (
            round(measured[end] * nominal_ns / nominal[end])
            if nominal[end]
            else round(measured[end])
        )


class MeasuredDurations:
    """A run's durations as a machine takes them. Implements ``Durations``."""

    def __init__(self, nominal: Durations, constants: Constants, precisions: Sequence[str]) -> None:
        self._nominal, self._constants, self._precisions = nominal, constants, precisions
        self.host = constants.host
        self.prediction_ns = nominal.prediction_ns

    def dense_ns(self, step: Step) -> Sequence[int]:
        return [
            self._constants.takes(("dense", 0, step.decode), ns)
            for ns in self._nominal.dense_ns(step)
        ]

    def tail_ns(self, step: Step) -> int:
        return self._constants.takes(("tail", 0, step.decode), self._nominal.tail_ns(step))

    def expert_ns(self, precision: int, site: int, tokens: int, rows: int = 0) -> int:
        kind = ("expert", self._precisions[precision], tokens == 1)
        return self._constants.takes(kind, self._nominal.expert_ns(precision, site, tokens, rows))

    def cpu_ns(self, precision: int, site: int, tokens: int) -> int:
        kind = ("cpu", self._precisions[precision], tokens == 1)
        return self._constants.takes(kind, self._nominal.cpu_ns(precision, site, tokens))

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return self._constants.takes(("hop", link, True), self._nominal.hop_ns(link, moved_bytes))

    def latency_ns(self, link: int) -> int:
        return self._nominal.latency_ns(link)


def pairs_of(recording: Recording, frames: Frames, nominal: Durations) -> list[Pair]:
    """Every piece of work of a recorded run that has a duration of its own.

    ``frames``: the run's tables. ``nominal``: its nominal durations.
    """
    controller = frames.controller
    lengths = lengths_of(recording, controller.loader.wait)
    pairs = _stream(recording, frames, nominal)
    pairs += _on_cpu(frames, nominal, lengths.cpu)
    pairs += _services(recording, controller, nominal, lengths.service, lengths.cut)
    return pairs


@dataclass(frozen=True)
class Need:
    """A looked-up need: how many rows chose it, and since when it could be computed."""

    tokens: int
    ready_ns: int


def _needs(frames: Frames) -> tuple[list[dict[int, Need]], list[bool]]:
    """By gate: the loaded needs by their serving key, and whether the CPU computed others."""
    loaded = [dict[int, Need]() for _ in frames.record.gate_ns]
    on_cpu, skipped = (Outcome.CPU.name.lower(), Outcome.SKIP.name.lower())
    cpu = [False] * len(loaded)
    for (tick,) in frames.lookups.filter(pl.col("outcome") == on_cpu).select("tick").rows():
        cpu[tick] = True
    lookups = frames.lookups.filter(~pl.col("outcome").is_in([on_cpu, skipped]))
    if frames.controller.loader.wait == "wait_all":
        # The needs that one call admitted are computed when the last of them has come.
        lookups = lookups.with_columns(pl.col("ready_ns").max().over("tick", "gate_ns"))
    for tick, key, tokens, ready_ns in lookups.select("tick", "key", "tokens", "ready_ns").rows():
        loaded[tick][key] = Need(tokens, ready_ns)
    return loaded, cpu


def _stream(recording: Recording, frames: Frames, nominal: Durations) -> list[Pair]:
    """What the compute stream did, and the host's gaps, step by step and site by site."""
    streams = frames.controller.loader.dense_slots > 0
    loaded, cpu = _needs(frames)
    computed, pairs, tick = iter(recording.computed), list[Pair](), 0
    firsts: list[tuple[int, int, int]] = []
    for step in recording.steps:
        by_site, free_ns = nominal.dense_ns(step), 0
        for place, site in enumerate(step.sites):
            _, start_ns, end_ns = next(computed)
            pairs.append((("dense", 0, step.decode), by_site[site], end_ns - start_ns))
            if place and not streams and not cpu[tick - 1]:
                pairs.append((("post_ns", 0, True), 0, start_ns - free_ns))
            free_ns = recording.record.gate_ns[tick]
            pairs.append((("sync_ns", 0, True), 0, free_ns - end_ns))
            for nth in range(len(loaded[tick])):
                key, start_ns, end_ns = next(computed)
                need = loaded[tick][key]
                gap_ns = 0
                if nth == 0:
                    firsts.append((free_ns, need.ready_ns, start_ns))
                elif need.ready_ns > free_ns:
                    pairs.append((("wake_ns", 0, True), 0, start_ns - need.ready_ns))
                else:
                    gap_ns = start_ns - free_ns
                pairs.append(_expert(frames, nominal, key, need.tokens, end_ns - start_ns + gap_ns))
                free_ns = end_ns
            tick += 1
        _, start_ns, end_ns = next(computed)
        pairs.append((("tail", 0, step.decode), nominal.tail_ns(step), end_ns - start_ns))
    return pairs + _after_gates(firsts)


def _expert(frames: Frames, nominal: Durations, key: int, tokens: int, measured_ns: int) -> Pair:
    g = frames.controller.geometry
    precision = g.precision_of(key)
    return (
        ("expert", g.precisions[precision], tokens == 1),
        nominal.expert_ns(precision, g.site_of(key), tokens),
        measured_ns,
    )


def _after_gates(firsts: Sequence[tuple[int, int, int]]) -> list[Pair]:
    """Gaps before the first need of a gate, of (gate, when the need was there, its start).

    Where the need was there at the gate, the gap is the issue. Where it came after the issue was
    over, the gap from its arrival is the wake.
    """
    issues = [start_ns - gate_ns for gate_ns, ready_ns, start_ns in firsts if ready_ns <= gate_ns]
    issue_ns = round(median(issues)) if issues else 0
    wakes = [
        start_ns - ready_ns
        for gate_ns, ready_ns, start_ns in firsts
        if ready_ns > gate_ns + issue_ns
    ]
    pairs: list[Pair] = [(("issue_ns", 0, True), 0, ns) for ns in issues]
    return pairs + [(("wake_ns", 0, True), 0, ns) for ns in wakes]


def _on_cpu(frames: Frames, nominal: Durations, cpu: Sequence[int]) -> list[Pair]:
    """The needs that the CPU computed, in order of submission, which is the order of lookups."""
    g = frames.controller.geometry
    submitted = (
        frames.lookups.filter(pl.col("outcome") == Outcome.CPU.name.lower())
        .select("key", "tokens")
        .rows()
    )
    pairs: list[Pair] = []
    # The run's end may leave some of them undone.
    for (key, tokens), measured_ns in zip(submitted, cpu, strict=False):
        precision = g.precision_of(key)
        nominal_ns = nominal.cpu_ns(precision, g.site_of(key), tokens)
        pairs.append((("cpu", g.precisions[precision], tokens == 1), nominal_ns, measured_ns))
    return pairs


def _services(
    recording: Recording,
    controller: Controller,
    nominal: Durations,
    service: dict[Service, int],
    cut: dict[Service, tuple[int, int]],
) -> list[Pair]:
    """Whole services of links with one engine, but for those that wrote back."""
    record, pairs, seen = recording.record, list[Pair](), defaultdict[tuple[int, int], int](int)
    for number, link, moved in zip(
        record.service_number, record.service_link, record.service_bytes, strict=True
    ):
        this = (number, link, seen[number, link])
        seen[number, link] += 1
        alone = controller.route.engines[link] == 1 and not controller.issued[number].write_back
        if this in service and this not in cut and alone:
            pairs.append((("hop", link, True), nominal.hop_ns(link, moved), service[this]))
    return pairs
