"""95 % intervals over sequences: the one place that says how sure a ratio is.

A number of a run is a ratio of sums over its sequences: tokens over time, hits over lookups, one
system's time over another's. Sequences are few (2 to 32) and unequal, so a percentile bootstrap is
far too narrow: at 4 sequences it covers the truth in 80 of 100 cases. Used here instead: Student's
t on the logarithm of the ratio, with each sequence's squared error divided by 1 - h (h: the
sequence's share of the sum), and Satterthwaite's degrees of freedom (Bell and McCaffrey 2002;
Imbens and Kolesar 2016, "HC2"). Both corrections are worked out for errors whose variance grows
with a sequence's length. For n equal sequences this is the usual t with n - 1 degrees of freedom; a
sequence that is most of the sum leaves about one.

``tests/unit/sim/results/test_interval_coverage.py`` simulates what the intervals cover;
docs/metrics.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]
OVER = "95 % intervals are over the sequences of this trace, not over other gates or machines."
"""What every printer says beside intervals."""
LEVEL = 0.975
"""The quantile of either end."""
MIN_SEQUENCES = 4
"""Fewer sequences give an interval but no verdict: no simulation shows that one would be right."""
ROUNDING = 1e-14
"""Errors up to this share of the whole are the rounding of sums, and none."""


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over sequences and how sure it is.

    ``value``: the sums' ratio. ``error``: its standard error, of its logarithm where ``is_log``.
    ``freedom``: Satterthwaite's degrees of freedom. ``sequences``: how many have a part in it.
    Arrays where the input had leading axes.
    """

    value: Any
    error: Any
    freedom: Any
    sequences: int
    is_log: bool

    def interval(self) -> tuple[Any, Any]:
        """The 95 % interval of the ratio; the ratio twice where nothing varies."""
        from scipy.special import stdtrit

        reach = np.where(self.error > 0, stdtrit(self.freedom, LEVEL) * self.error, 0.0)
        if self.is_log:
            return self.value * np.exp(-reach), self.value * np.exp(reach)
        return self.value - reach, self.value + reach

    def confidence_above(self, threshold: float) -> Any:
        """How sure it is, from 0 to 1, that the truth is above ``threshold``; one half where it
        is exactly there.
        """
        from scipy.special import stdtr

        distance = np.log(self.value / threshold) if self.is_log else self.value - threshold
        with np.errstate(divide="ignore", invalid="ignore"):
            sure = stdtr(self.freedom, distance / self.error)
        return np.where(self.error > 0, sure, np.where(distance == 0, 0.5, distance > 0))


def estimate(above: Floats, below: Floats, is_log: bool = True) -> Estimate | None:
    """``sum(above) / sum(below)`` over the last axis, sequences; None for fewer than two, or where
    ``below`` is all 0.

    ``is_log``: neither has a value below 0, and the error is symmetric on the scale of factors
    (half is as far as double); None, too, where ``above`` is all 0. Otherwise ``above`` may be of
    either sign, and the error is symmetric as it is.
    """
    if above.ndim == 1:
        # A sequence without any part in the ratio tells nothing of how it varies.
        kept = (above != 0) | (below != 0)
        above, below = above[kept], below[kept]
    total_above, total_below = above.sum(-1, keepdims=True), below.sum(-1, keepdims=True)
    if (
        above.shape[-1] < 2
        or not np.all(total_below > 0)
        or (is_log and not np.all(total_above > 0))
    ):
        return None
    ratio = total_above / total_below
    share = below / total_below
    if is_log:
        errors, size = above / total_above - share, np.ones(1)
        # The mean of both sums' shares, so that A over B is exactly as sure as B over A.
        share = (above / total_above + share) / 2
    else:
        errors = (above - ratio * below) / total_below
        size = np.abs(above).sum(-1, keepdims=True) / total_below
    return from_errors(ratio[..., 0], errors, share, is_log, size)


def from_errors(
    value: Any, errors: Floats, share: Floats, is_log: bool, size: Any = 1.0
) -> Estimate:
    """``value`` as it follows from sums over sequences, at least two.

    ``errors`` [..., sequences]: by how much each sequence moves it (its logarithm, where
    ``is_log``); they sum to 0. ``share`` [..., sequences]: each sequence's part of the sums; it
    sums to 1. ``size``: how large what was subtracted to give the errors is; rounding is measured
    by it.
    """
    errors = np.where(np.abs(errors) <= ROUNDING * size, 0.0, errors)
    # A sequence that is all of a sum shows its error in the others only.
    scale = 1 / np.maximum(1 - share, np.finfo(float).eps)
    error = np.sqrt((scale * errors**2).sum(-1))
    return Estimate(value, error, _freedom(share, scale), errors.shape[-1], is_log)


def _freedom(share: Floats, scale: Floats) -> Any:
    """Degrees of freedom of ``sum(scale * errors ** 2)``: 2 E^2 / Var, if an error's variance grows
    as its share.

    The errors are what is left of independent ones when each gives its share of their sum: with
    ``G`` the quadratic form in the independent ones this is ``1 / sum(share_i share_j G_ij ** 2)``,
    written out so that it takes no matrix.
    """
    pull = share * scale
    mean_pull = (share * pull).sum(-1)
    off_diagonal = 2 * (share * pull**2).sum(-1) - mean_pull**2
    diagonal = (share**2 * scale * (scale + 2 * mean_pull[..., None] - 4 * pull)).sum(-1)
    return 1 / (off_diagonal + diagonal)


def ratio_interval(above: Floats, below: Floats) -> Interval | None:
    """The 95 % interval of ``sum(above) / sum(below)``, both none below 0; None for fewer than two
    sequences.

    What is 0 in every sequence is 0 for certain, as far as these sequences tell.
    """
    found = estimate(above, below)
    if found is None:
        return (0.0, 0.0) if not above.any() and np.count_nonzero(below) >= 2 else None
    return _floats(found.interval())


def share_interval(part: Floats, whole: Floats) -> Interval | None:
    """The 95 % interval of ``sum(part) / sum(whole)``, ``part`` from 0 to ``whole``: never below 0
    or above 1.

    It is that of the odds, part over rest. What is all of the whole is so for certain, as far as
    these sequences tell.
    """
    rest = whole - part
    if not rest.any():
        return (1.0, 1.0) if np.count_nonzero(part) >= 2 else None
    odds = ratio_interval(part, rest)
    return None if odds is None else (odds[0] / (1 + odds[0]), odds[1] / (1 + odds[1]))


def mean_interval(above: Floats, below: Floats) -> Interval | None:
    """The 95 % interval of ``sum(above) / sum(below)`` where ``above`` may be of either sign:
    symmetric about it.
    """
    found = estimate(above, below, is_log=False)
    return None if found is None else _floats(found.interval())


def _floats(ends: tuple[Any, Any]) -> Interval:
    return float(ends[0]), float(ends[1])


def ratio_intervals(parts: Mapping[str, tuple[Floats, Floats]]) -> dict[str, Interval | None]:
    """``ratio_interval`` of each (numerator, denominator), by name; of sequences in one order."""
    return {name: ratio_interval(above, below) for name, (above, below) in parts.items()}
