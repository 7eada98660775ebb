"""Uncertainty: 95 % intervals by resampling sequences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = (2.5, 97.5)

Floats = NDArray[np.float64]


def ratio_intervals(parts: Mapping[str, tuple[Floats, Floats]], seed: int) -> dict[str, tuple[float, float] | None]:
    """The 95 % interval of each ``sum(numerator) / sum(denominator)`` over sequences; None for fewer than two.

    Every metric sees the same resamples, so that intervals of one run, and of runs on the same sequences with the same
    seed, are comparable.
    """
    intervals: dict[str, tuple[float, float] | None] = {}
    for name, (above, below) in parts.items():
        if len(above) < 2 or not below.any():
            intervals[name] = None
            continue
        pick = resamples(len(above), seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = above[pick].sum(axis=1) / below[pick].sum(axis=1)
        low, high = np.percentile(drawn[np.isfinite(drawn)], LEVEL)
        intervals[name] = (float(low), float(high))
    return intervals


def resamples(count: int, seed: int) -> NDArray[np.int64]:
    """Indices of sequences drawn with replacement, [RESAMPLES, count]."""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
