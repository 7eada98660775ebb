"""How often a 95 % interval covers the truth, by simulation, on sequences of given lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.results.intervals import Floats, estimate

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
TAILS: dict[str, Draw] = {
    "5 %": lambda random, shape: random.lognormal(0, 0.05, shape),
    "20 %": lambda random, shape: random.lognormal(0, 0.2, shape),
    "t with 3 degrees": lambda random, shape: np.exp(
        np.clip(0.05 * random.standard_t(3, shape), -3, 3)
    ),
    "exponential": lambda random, shape: 0.8 + 0.2 * random.exponential(1, shape),
}
"""Distributions of the factor between a system's time on a sequence and its usual time."""
TRIALS, SEED = 4000, 1


@dataclass(frozen=True)
class Coverage:
    """The lowest and the highest share of simulated trials, over `TAILS`, whose interval has the
    truth in it; ``trials`` of each were drawn.
    """

    lowest: float
    highest: float
    trials: int


def covered(theirs: Floats, ours: Floats, truth: float) -> float:
    """The share of trials, rows of [trials, sequences], whose interval contains ``truth``."""
    found = estimate(theirs, ours)
    assert found is not None
    low, high = found.interval()
    return float(np.mean((low <= truth * (1 + 1e-12)) & (truth * (1 - 1e-12) <= high)))


def coverage_at(lengths: Floats, trials: int = TRIALS, seed: int = SEED) -> Coverage | None:
    """What intervals cover on two or more sequences of these ``lengths``, where two systems differ
    by chance alone; None for fewer that took any time. The same arguments give the same answer.
    """
    if np.count_nonzero(lengths) < 2:
        return None
    random = np.random.default_rng(seed)
    shape = (trials, len(lengths))
    shares = [
        covered(lengths * tail(random, shape), lengths * tail(random, shape), 1.0)
        for tail in TAILS.values()
    ]
    return Coverage(min(shares), max(shares), trials)
