"""Judges predictions: errors beside the noise, the order of systems, wrong picks, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median, stdev

import numpy as np

LEVEL = 0.9
"""The level of the intervals whose coverage is counted."""
COVERAGE = (0.80, 0.98)
"""The share of runs that intervals of that level should hold, for so few runs: least and most."""


@dataclass(frozen=True)
class Case:
    """One system at one budget: its predicted makespan and those measured, one a repeat, in ns.

    The same by step.
    """

    system: str
    share: float
    predicted_ns: int
    measured_ns: tuple[int, ...]
    predicted_steps: tuple[int, ...]
    measured_steps: tuple[tuple[int, ...], ...]

    @property
    def median_ns(self) -> float:
        return median(self.measured_ns)

    @property
    def error(self) -> float:
        """The predicted makespan over the median of the measured ones, less 1."""
        return self.predicted_ns / self.median_ns - 1

    @property
    def step_error(self) -> float:
        """The median over steps of the relative error against the median of the repeats."""
        measured = np.median(np.array(self.measured_steps), axis=0)
        return float(
            np.median(np.abs(np.array(self.predicted_steps) / np.maximum(measured, 1) - 1))
        )

    @property
    def noise(self) -> float:
        """The standard deviation of the repeats over their mean; 0 for a single one."""
        return (
            stdev(self.measured_ns) / mean(self.measured_ns) if len(self.measured_ns) > 1 else 0.0
        )

    @property
    def step_noise(self) -> float:
        """The median over steps and pairs of repeats of their relative difference; 0 for one."""
        steps = np.array(self.measured_steps, dtype=float)
        pairs = [np.abs(a / np.maximum(b, 1) - 1) for a, b in combinations(steps, 2)]
        return float(np.median(pairs)) if pairs else 0.0


@dataclass(frozen=True)
class Ranking:
    """How well the systems at one budget are ordered.

    - ``told_apart``: pairs that differ by more than the noise, which nobody knows of what ran once.
      ``right``: those of them that are predicted in the right order.
    - ``tau``: Kendall's over those pairs: a pair of one predicted time is neither right nor wrong.
      None without any pair.
    - ``regret``: how much slower the simulator's pick (``picked``) really is than the fastest; 0 if
      it is the fastest.
    """

    share: float
    told_apart: int
    right: int
    tau: float | None
    picked: str
    fastest: str
    regret: float


def rankings(cases: Sequence[Case]) -> list[Ranking]:
    """One ranking for each budget with at least two systems."""
    found = []
    for share in sorted({case.share for case in cases}):
        here = [case for case in cases if case.share == share]
        if len(here) < 2:
            continue
        apart = right = wrong = 0
        for a, b in combinations(here, 2):
            noise = 2 * max(a.noise, b.noise)
            if min(len(a.measured_ns), len(b.measured_ns)) < 2:
                continue
            if abs(a.median_ns - b.median_ns) > noise * min(a.median_ns, b.median_ns):
                apart += 1
                sign = (a.predicted_ns - b.predicted_ns) * (a.median_ns - b.median_ns)
                right, wrong = right + (sign > 0), wrong + (sign < 0)
        picked = min(here, key=lambda case: (case.predicted_ns, case.system))
        fastest = min(here, key=lambda case: (case.median_ns, case.system))
        tau = (right - wrong) / apart if apart else None
        regret = picked.median_ns / fastest.median_ns - 1
        found.append(Ranking(share, apart, right, tau, picked.system, fastest.system, regret))
    return found


def intervals(cases: Sequence[Case]) -> list[tuple[float, float] | None]:
    """Where each case's makespan should lie with ``LEVEL``, in ns, by the errors of *other* cases.

    Half the width is a quantile of the other cases' absolute errors, one a repeat: of n errors the
    ``ceil((n + 1) level)``-th (split conformal prediction). None where there are too few others for
    that.
    """
    found: list[tuple[float, float] | None] = []
    for case in cases:
        errors = sorted(
            abs(run / other.predicted_ns - 1)
            for other in cases
            if other is not case
            for run in other.measured_ns
        )
        rank = int(np.ceil((len(errors) + 1) * LEVEL))
        if rank > len(errors):
            found.append(None)
            continue
        half = errors[rank - 1]
        found.append((case.predicted_ns * (1 - half), case.predicted_ns * (1 + half)))
    return found


def coverage(cases: Sequence[Case]) -> float | None:
    """The share of all runs that lie in their case's interval; None where no case has one."""
    hits = [
        interval[0] <= run <= interval[1]
        for case, interval in zip(cases, intervals(cases), strict=True)
        if interval is not None
        for run in case.measured_ns
    ]
    return mean(hits) if hits else None


def as_row(case: Case) -> Mapping[str, float | str | int]:
    """A case in seconds and shares, as it is reported."""
    return {
        "system": case.system,
        "resident_share": case.share,
        "repeats": len(case.measured_ns),
        "predicted_s": case.predicted_ns / 1e9,
        "measured_s": case.median_ns / 1e9,
        "error": case.error,
        "noise": case.noise,
        "step_error": case.step_error,
        "step_noise": case.step_noise,
    }
