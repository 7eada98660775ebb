"""Finds where a curve turns and where two curves cross.

A knee is found among measured points, a crossing by bisection with runs of the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np

STEPS = 12
"""How often an interval is halved; 12 times shrink its (logarithmic) width to 1/4096."""


@dataclass(frozen=True)
class Crossing:
    """Where a difference changes its sign: near ``value``, between ``low`` and ``high``.

    If it has the same sign at both ends, ``value`` is None and ``sign`` is that sign.
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
    """Bisect, in the logarithm, for the sign change of ``difference`` between ``low`` and ``high``.

    Of several sign changes one is found; between equal ends there is none. ``tell`` is called after
    each evaluation. Raise ValueError unless ``0 < low <= high``.
    """
    if not 0 < low <= high:
        raise ValueError(f"need 0 < low <= high to bisect, got {low} and {high}")

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


def in_three_digits(value: float, is_up: bool) -> float:
    """``value`` in three digits, rounded up or down, for a sentence that must not promise too much.

    >>> in_three_digits(0.31252, True), in_three_digits(0.31252, False), in_three_digits(2, True)
    (0.313, 0.312, 2.0)
    """
    number = Decimal(repr(value))
    last = Decimal(1).scaleb(number.adjusted() - 2)
    return float(number.quantize(last, ROUND_CEILING if is_up else ROUND_FLOOR))


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """The index of the point farthest above the straight line from the first point to the last.

    None where no point lies above it. Before the knee more of ``x`` pays more than on average,
    after it less. Source: Satopaa et al., Kneedle, ICDCS workshops 2011, without smoothing.
    """
    if len(x) < 3 or x[-1] <= x[0] or y[-1] <= y[0]:
        return None
    run, rise = np.array(x, np.float64), np.array(y, np.float64)
    above = (rise - rise[0]) / (rise[-1] - rise[0]) - (run - run[0]) / (run[-1] - run[0])
    best = int(above.argmax())
    return best if above[best] > 1e-9 else None
