"""Calibration of a weighted-score cache: which weights cost a calibration set least (HOBBIT,
arXiv:2411.01433, section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.core.controller import Controller
from sim.results.hits import ALWAYS, SKIPS, skip_codes
from sim.values.types import Outcome
from sim.values.units import require_number
from sim.workload.steps import Workload

Weights = Mapping[str, float]
MOST_PARTS = 20
"""The finest grid: of four weights it has 1771 points."""
NOT_LOADED = (int(Outcome.MISS), int(Outcome.PROMOTED))


@dataclass(frozen=True)
class Fit:
    """The points of the grid and the penalty of each, least penalty first. Points of equal penalty
    stand in the order of the grid.
    """

    points: tuple[dict[str, float], ...]
    penalties: tuple[float, ...]

    @property
    def best(self) -> dict[str, float]:
        return self.points[0]

    def near_best(self, tolerance: float = 0.01) -> int:
        """How many points cost at most ``1 + tolerance`` times the best: how flat the optimum
        is.
        """
        return sum(penalty <= self.penalties[0] * (1 + tolerance) for penalty in self.penalties)


def simplex(step: float, terms: Sequence[str]) -> Iterator[dict[str, float]]:
    """All weights of ``terms`` that are multiples of ``step`` and sum to 1, in lexicographic order.

    Raise ValueError if 1 is no whole multiple of ``step``, or of more than ``MOST_PARTS``.
    """
    require_number("step", step)
    parts = round(1 / step) if step > 0 else 0
    if not 1 <= parts <= MOST_PARTS or abs(parts * step - 1) > 1e-9:
        raise ValueError(
            f"step={step:g} must divide 1 into 1 to {MOST_PARTS} parts, such as 0.1 or 0.25"
        )
    for shares in _divisions(parts, len(terms)):
        yield {term: share / parts for term, share in zip(terms, shares, strict=True)}


def _divisions(parts: int, among: int) -> Iterator[tuple[int, ...]]:
    """All ways to divide equal parts among so many, in lexicographic order."""
    if among == 1:
        yield (parts,)
        return
    for first in range(parts + 1):
        for others in _divisions(parts - first, among - 1):
            yield (first, *others)


def fit_weights(points: Iterable[Weights], penalty: Callable[[Weights], float]) -> Fit:
    """Ask ``penalty`` for every point, and rank the points by it."""
    found = [(penalty(point), place, dict(point)) for place, point in enumerate(points)]
    found.sort(key=lambda item: item[:2])
    return Fit(tuple(point for *_, point in found), tuple(cost for cost, *_ in found))


def miss_penalty(controller: Controller, workload: Workload) -> float:
    """The mean penalty of a run's decoded needs, over all that count in a hit ratio
    (``sim.results.hits``).

    A miss, or a promoted prefetch, costs 1 at the highest precision and bits / highest bits at
    another; everything else costs nothing. Raise ValueError where no need counts.
    """
    bits = np.array(controller.geometry.bits) / controller.geometry.bits[0]
    outcome = np.array(controller.lookup_outcomes)
    wanted = (
        np.array(controller.lookup_wanted)
        if controller.lookup_wanted
        else np.zeros(len(outcome), np.int64)
    )
    needs, steps = workload.needs, workload.gate_step
    decode = np.array([step.gives_tokens for step in workload.steps])[steps[needs.tick]]
    counts = decode & (skip_codes(controller.selector, needs.score) != SKIPS.index(ALWAYS))
    if not counts.any():
        raise ValueError("no decoded need to calibrate on; take sequences that decode")
    missed = counts & np.isin(outcome, NOT_LOADED)
    return float(bits[wanted[missed]].sum() / counts.sum())


def override(weights: Weights) -> str:
    """The weights as an override of the command line."""
    return (
        "cache.weights={" + ",".join(f"{term}:{weight:g}" for term, weight in weights.items()) + "}"
    )


def table(fit: Fit, rows: int) -> Sequence[tuple[str, float]]:
    """The first ``rows`` points, each as an override with its penalty."""
    return [
        (override(point), cost)
        for point, cost in list(zip(fit.points, fit.penalties, strict=True))[:rows]
    ]
