"""Made-up sequences, to measure how often confidence intervals cover the truth.

They vary in how unequal sequences are, and in how a system's time varies on them.
"""

from __future__ import annotations

import numpy as np

from sim.results.coverage import TAILS, Draw, covered
from sim.results.intervals import Floats

SIZES: dict[str, Draw] = {
    "equal": lambda random, shape: np.ones(shape),
    "lognormal .5": lambda random, shape: random.lognormal(0, 0.5, shape),
    "lognormal 1": lambda random, shape: random.lognormal(0, 1, shape),
    "one in four is 8x": lambda random, shape: np.where(random.random(shape) < 0.25, 8.0, 1.0),
    "pareto 2.5": lambda random, shape: random.pareto(2.5, shape) + 1,
}
"""Distributions of the length of sequences."""
SKEWED: dict[str, Draw] = {
    "exponential": TAILS["exponential"],
    "one in five is 1.5x": lambda random, shape: np.where(random.random(shape) < 0.2, 1.5, 1.0),
}
"""Distributions of a factor that only one system has, so that the difference is not symmetric."""


def bootstrap_coverage(size: Draw, tail: Draw, sequences: int, trials: int, seed: int) -> float:
    """How often an interval of a percentile bootstrap contains the truth; it was used before."""
    random = np.random.default_rng(seed)
    usual = size(random, (trials, sequences))
    theirs, ours = (usual * tail(random, usual.shape) for _ in range(2))
    picks = random.integers(sequences, size=(1000, sequences))
    low, high = np.percentile(
        theirs[:, picks].sum(-1) / ours[:, picks].sum(-1), (2.5, 97.5), axis=1
    )
    return float(np.mean((low <= 1) & (high >= 1)))


def coverage(
    size: Draw, tail: Draw, sequences: int, trials: int, seed: int, one_sided: bool = False
) -> float:
    """How often the interval of two equal systems' ratio contains the truth.

    ``one_sided``: only one system varies.
    """
    random = np.random.default_rng(seed)
    shape = (trials, sequences)
    usual = size(random, shape)
    theirs = usual * tail(random, shape)
    if not one_sided:
        return covered(theirs, usual * tail(random, shape), 1.0)
    return covered(theirs, usual, float(tail(random, (1, 4_000_000)).mean()))


def coverage_of_texts(sequences: int, each: int, alike: float, trials: int, seed: int) -> float:
    """How often the interval of two equal systems' ratio contains the truth where ``each`` sequences
    in a row are of one text.

    Both systems vary by 5 %. The share ``alike`` of that variance is the text's, the rest the
    sequence's.
    """
    random = np.random.default_rng(seed)
    usual = SIZES["lognormal .5"](random, (trials, sequences))

    def times() -> Floats:
        text = random.normal(size=(trials, sequences // each)).repeat(each, 1)
        own = random.normal(size=usual.shape)
        return usual * np.exp(0.05 * (np.sqrt(alike) * text + np.sqrt(1 - alike) * own))

    return covered(times(), times(), 1.0)
