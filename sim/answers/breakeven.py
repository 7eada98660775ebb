"""Where a curve turns and where two curves cross: knees of measured points, crossings by
bisection on the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

STEPS = 12
"""Halvings of an interval: its width shrinks to 1/4096."""


@dataclass(frozen=True)
class Crossing:
    """Where a difference changes its sign, between ``low`` and ``high`` (where it has the signs of
    the ends).

    ``value`` is None where it has one sign, ``sign``, at both ends.
    """

    value: float | None
    low: float
    high: float
    sign: int = 0


def crossing(
    difference: Callable[[float], float],
    low: float,
    high: float,
    steps: int = STEPS,
    tell: Callable[[], None] = lambda: None,
) -> Crossing:
    """Bisect, in the logarithm, for the sign change of ``difference`` between ``low`` and ``high``
    (both above 0).

    Exact for one sign change; of several it finds one. ``tell`` is called after each evaluation.
    """
    if not 0 < low < high:
        raise ValueError(f"need 0 < low < high to bisect, got {low} and {high}")

    def sign_at(value: float) -> int:
        found = difference(value)
        tell()
        return (found > 0) - (found < 0)

    first, last = sign_at(low), sign_at(high)
    if first == last:
        return Crossing(None, low, high, first)
    for _ in range(steps):
        middle = math.sqrt(low * high)
        sign = sign_at(middle)
        if sign == 0:
            return Crossing(middle, middle, middle)
        low, high = (middle, high) if sign == first else (low, middle)
    return Crossing(math.sqrt(low * high), low, high)


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Which point lies farthest above the straight line from the first to the last; None where none
    lies above.

    Before it more of ``x`` pays more than the average, after it less. Source: Satopaa et al.,
    Kneedle, ICDCS workshops 2011, without smoothing.
    """
    if len(x) < 3 or x[-1] <= x[0] or y[-1] <= y[0]:
        return None
    run, rise = np.array(x, np.float64), np.array(y, np.float64)
    above = (rise - rise[0]) / (rise[-1] - rise[0]) - (run - run[0]) / (run[-1] - run[0])
    best = int(above.argmax())
    return best if above[best] > 1e-9 else None
