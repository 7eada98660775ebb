"""95 % intervals over sequences, for every ratio that a run or a comparison reports.

A number of a run is a ratio of sums over its sequences: tokens over time, hits over lookups, one
system's time over another's. Sequences are few (2 to 32) and unequal, so a percentile bootstrap is
far too narrow: at 4 sequences it covers the truth in 80 of 100 cases. Instead:

- The interval is Student's t, on the logarithm of the ratio.
- Each sequence's squared error is divided by 1 - h, where h is its share of the sum.
- The degrees of freedom are Satterthwaite's.

Both corrections ("HC2": Bell and McCaffrey 2002; Imbens and Kolesar 2016) are worked out for errors
whose variance grows with a sequence's length. For n equal sequences the result is the usual t with
n - 1 degrees of freedom. Where one sequence is most of the sum, about one degree is left.

``tests/unit/sim/results/test_interval_coverage.py`` simulates what the intervals cover;
docs/metrics.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]
OVER = "95 % intervals are over the sequences of this trace, not over other gates or machines."
"""The caveat that every command prints beside intervals."""
LEVEL = 0.975
"""The quantile of the interval's upper end; its lower end is the mirror image."""
MIN_SEQUENCES = 4
"""Fewer sequences give an interval but no verdict: no simulation shows that one would be right."""
ROUNDING = 1e-14
"""Errors up to this share of the whole are rounding of sums and count as 0."""


def beside(intervals: Iterable[object], words: str) -> str:
    """``words``, which speak of intervals, where any is shown; else nothing: one sequence has none.

    >>> beside([None, (1.0, 2.0)], " [95 %]")
    ' [95 %]'
    >>> beside([None], " [95 %]")
    ''
    """
    return words if any(interval is not None for interval in intervals) else ""


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over sequences, and how sure it is.

    ``value`` is the ratio, ``error`` its standard error (with ``is_log``: that of its logarithm),
    ``freedom`` Satterthwaite's degrees of freedom, and ``sequences`` how many took part. The first
    three are arrays where the input had leading axes.
    """

    value: Any
    error: Any
    freedom: Any
    sequences: int
    is_log: bool

    def interval(self) -> tuple[Any, Any]:
        """The 95 % interval of the ratio; both ends are the ratio where nothing varies."""
        from scipy.special import stdtrit

        reach = np.where(self.error > 0, stdtrit(self.freedom, LEVEL) * self.error, 0.0)
        if self.is_log:
            return self.value * np.exp(-reach), self.value * np.exp(reach)
        return self.value - reach, self.value + reach

    def beside(self, log_error: float, freedom: float) -> Estimate:
        """The same ratio with one more error, a factor that is independent of the sequences.

        ``log_error`` is the root mean square of that factor's logarithm over ``freedom`` cases.
        Variances add up; the degrees of freedom are Satterthwaite's.
        """
        if not self.is_log:
            raise ValueError("an error that is a factor goes with a ratio's logarithm")
        own, other = self.error**2, log_error**2
        weight = own**2 / self.freedom + other**2 / freedom
        both = np.where(weight > 0, (own + other) ** 2 / np.where(weight > 0, weight, 1), 1)
        return replace(self, error=np.sqrt(own + other), freedom=both)

    def confidence_above(self, threshold: float) -> Any:
        """The confidence, from 0 to 1, that the truth is above ``threshold``.

        One half where the ratio is exactly ``threshold``.
        """
        from scipy.special import stdtr

        distance = np.log(self.value / threshold) if self.is_log else self.value - threshold
        with np.errstate(divide="ignore", invalid="ignore"):
            sure = stdtr(self.freedom, distance / self.error)
        return np.where(self.error > 0, sure, np.where(distance == 0, 0.5, distance > 0))


def estimate(above: Floats, below: Floats, is_log: bool = True) -> Estimate | None:
    """``sum(above) / sum(below)`` over the last axis, the sequences.

    With ``is_log`` no value may be below 0, and the error is symmetric for factors: half is as far
    as double. Without, ``above`` may have either sign, and the error is symmetric for differences.
    None for fewer than two sequences, where ``below`` is all 0, and with ``is_log`` also where
    ``above`` is all 0.
    """
    if above.ndim == 1:
        # A sequence that adds nothing to either sum says nothing about how the ratio varies.
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
        # The mean of its shares in both sums makes A over B exactly as sure as B over A.
        share = (above / total_above + share) / 2
    else:
        errors = (above - ratio * below) / total_below
        size = np.abs(above).sum(-1, keepdims=True) / total_below
    return from_errors(ratio[..., 0], errors, share, is_log, size)


def from_errors(
    value: Any, errors: Floats, share: Floats, is_log: bool, size: Any = 1.0
) -> Estimate:
    """The estimate of a ``value`` that was made of sums over two sequences or more.

    ``errors`` [..., sequences] is how much each sequence moves the value (with ``is_log``: its
    logarithm); they sum to 0. ``share`` [..., sequences] is each sequence's part of the sums; the
    shares sum to 1. ``size`` is the magnitude of the terms whose difference the errors are, by
    which rounding is told.
    """
    errors = np.where(np.abs(errors) <= ROUNDING * size, 0.0, errors)
    # A share of 1 would divide by 0; the error of such a sequence shows in the others' errors.
    scale = 1 / np.maximum(1 - share, np.finfo(float).eps)
    error = np.sqrt((scale * errors**2).sum(-1))
    return Estimate(value, error, _freedom(share, scale), errors.shape[-1], is_log)


def _freedom(share: Floats, scale: Floats) -> Any:
    """The degrees of freedom of ``sum(scale * errors ** 2)``: 2 E^2 / Var.

    It assumes that the variance of an error grows in proportion to its share. The errors are
    independent ones, from each of which its share of their sum was subtracted. With ``G`` the
    matrix of the quadratic form in the independent errors, the result is ``1 / sum(share_i share_j
    G_ij ** 2)``. It is written out here so that it takes no matrix.
    """
    pull = share * scale
    mean_pull = (share * pull).sum(-1)
    off_diagonal = 2 * (share * pull**2).sum(-1) - mean_pull**2
    diagonal = (share**2 * scale * (scale + 2 * mean_pull[..., None] - 4 * pull)).sum(-1)
    return 1 / (off_diagonal + diagonal)


def ratio_interval(above: Floats, below: Floats) -> Interval | None:
    """The 95 % interval of ``sum(above) / sum(below)``, where no value is below 0.

    None for fewer than two sequences. A ratio that is 0 in every sequence has the interval (0, 0).
    """
    found = estimate(above, below)
    if found is None:
        return (0.0, 0.0) if not above.any() and np.count_nonzero(below) >= 2 else None
    return _floats(found.interval())


def interval_beside(
    above: Floats, below: Floats, log_error: float, freedom: float
) -> Interval | None:
    """`ratio_interval` with the machine's error beside that over sequences (`Estimate.beside`)."""
    found = estimate(above, below)
    return None if found is None else _floats(found.beside(log_error, freedom).interval())


def share_interval(part: Floats, whole: Floats) -> Interval | None:
    """The 95 % interval of the share ``sum(part) / sum(whole)``, where ``part`` is 0 to ``whole``.

    It is computed from the odds, part over rest, so that it stays between 0 and 1. None for fewer
    than two sequences. A share that is 1 in every sequence has the interval (1, 1).
    """
    rest = whole - part
    if not rest.any():
        return (1.0, 1.0) if np.count_nonzero(part) >= 2 else None
    odds = ratio_interval(part, rest)
    return None if odds is None else (odds[0] / (1 + odds[0]), odds[1] / (1 + odds[1]))


def mean_interval(above: Floats, below: Floats) -> Interval | None:
    """The 95 % interval, symmetric, of ``sum(above) / sum(below)``; ``above`` has either sign."""
    found = estimate(above, below, is_log=False)
    return None if found is None else _floats(found.interval())


def _floats(ends: tuple[Any, Any]) -> Interval:
    return float(ends[0]), float(ends[1])


def ratio_intervals(parts: Mapping[str, tuple[Floats, Floats]]) -> dict[str, Interval | None]:
    """``ratio_interval`` of each named pair (numerator, denominator), each by sequence."""
    return {name: ratio_interval(above, below) for name, (above, below) in parts.items()}
