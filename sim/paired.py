"""Which of two systems is faster: one paired bootstrap over sequences, for every comparison that is printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.intervals import LEVEL, resamples

Floats = NDArray[np.float64]
FASTER, SLOWER, CANNOT_TELL = "faster", "slower", "cannot tell"


@dataclass(frozen=True)
class Paired:
    """How many times as fast one is as the other on the same sequences.

    ``speedup`` is the other's time over one's own (above 1: faster), ``interval`` its 95 % bootstrap interval over
    sequences, None where there are fewer than two. ``p_faster``: the share of the resamples in which one is faster, a
    tie counting half; None likewise.
    """

    speedup: float
    interval: tuple[float, float] | None
    p_faster: float | None

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, or ``cannot tell`` where the interval contains 1 or there is none."""
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return CANNOT_TELL
        return FASTER if self.interval[0] > 1 else SLOWER

    def __str__(self) -> str:
        """``1.29x [1.25, 1.33]``."""
        low_high = "one sequence" if self.interval is None else f"{self.interval[0]:.2f}, {self.interval[1]:.2f}"
        return f"{self.speedup:.2f}x [{low_high}]"


def paired(ours: Floats, theirs: Floats, seed: int) -> Paired:
    """Compare the times, by sequence, of two runs of the same sequences in the same order.

    Both see the same resamples, so that what makes a sequence slow for both does not blur the difference.
    Raise ValueError where the sequences are not as many, or either took no time.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"a paired comparison needs the same sequences, got {len(ours)} and {len(theirs)}")
    if not ours.sum() > 0 or not theirs.sum() > 0:
        raise ValueError(f"a ratio of times needs times above 0, got {ours.sum():g} and {theirs.sum():g} ns in all")
    speedup = float(theirs.sum() / ours.sum())
    if len(ours) < 2:
        return Paired(speedup, None, None)
    pick = resamples(len(ours), seed)
    our_sums, their_sums = ours[pick].sum(axis=1), theirs[pick].sum(axis=1)
    # A resample of sequences that take no time in either says nothing.
    kept = (our_sums > 0) & (their_sums > 0)
    our_sums, their_sums = our_sums[kept], their_sums[kept]
    low, high = np.percentile(their_sums / our_sums, LEVEL)
    wins = np.mean(our_sums < their_sums) + np.mean(our_sums == their_sums) / 2
    return Paired(speedup, (float(low), float(high)), float(wins))
