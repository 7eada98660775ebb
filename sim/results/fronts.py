"""The front of speed and loss: which runs no other run beats in both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def front(speed: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points no other point beats: none has as much speed and as little loss, and more of
    either.

    NaN losses are on no front and beat nobody.
    """
    known = ~np.isnan(loss)
    found = np.zeros(len(speed), np.bool_)
    for i in np.flatnonzero(known):
        no_worse = known & (speed >= speed[i]) & (loss <= loss[i])
        found[i] = not (no_worse & ((speed > speed[i]) | (loss < loss[i]))).any()
    return found
