"""The Pareto front of speed and loss: the runs that no other run beats in both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def front(speed: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points are on the front.

    A point is beaten by one that is no slower and loses no more, and is better in one of the two.
    Points with NaN losses are on no front and beat nobody.
    """
    known = ~np.isnan(loss)
    found = np.zeros(len(speed), np.bool_)
    for i in np.flatnonzero(known):
        no_worse = known & (speed >= speed[i]) & (loss <= loss[i])
        found[i] = not (no_worse & ((speed > speed[i]) | (loss < loss[i]))).any()
    return found
