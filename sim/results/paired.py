"""The paired comparison of two systems over sequences: which is faster, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.results.intervals import MIN_SEQUENCES, Floats, estimate

FASTER, SLOWER, CANNOT_TELL = "faster", "slower", "cannot tell"
TOO_FEW = f"cannot tell: fewer than {MIN_SEQUENCES} independent sequences"
"""The verdict where too few sequences stand behind an interval. Those of a batch are one."""


@dataclass(frozen=True)
class Paired:
    """How many times as fast one system is as another on the same sequences.

    ``speedup`` is the other's time over its own (above 1: faster). ``interval`` is the 95 %
    interval of the speedup over sequences, ``p_faster`` the confidence (0 to 1) that it is faster.
    Both are None for fewer than two sequences. ``sequences`` counts those that took any time; all
    that share steps in either run are one (`in_common`).
    """

    speedup: float
    interval: tuple[float, float] | None
    p_faster: float | None
    sequences: int

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``cannot tell`` where the interval contains 1, or ``TOO_FEW``."""
        if self.interval is None or self.sequences < MIN_SEQUENCES:
            return TOO_FEW
        low, high = self.interval
        if low > 1:
            return FASTER
        return SLOWER if high < 1 else CANNOT_TELL

    @property
    def is_decided(self) -> bool:
        """Whether the verdict says which is faster."""
        return self.verdict in (FASTER, SLOWER)

    def __str__(self) -> str:
        """``1.29x [1.25, 1.33]``."""
        low_high = (
            "no interval"
            if self.interval is None
            else f"{self.interval[0]:.2f}, {self.interval[1]:.2f}"
        )
        return f"{self.speedup:.2f}x [{low_high}]"


def paired(ours: Floats, theirs: Floats) -> Paired:
    """Compare the times, by sequence, of two runs of the same sequences in the same order.

    Only each sequence's own difference counts, so a sequence that is slow for both does not blur
    the comparison. Raise ValueError where the numbers of sequences differ, or a run took no time.
    """
    if len(ours) != len(theirs):
        raise ValueError(
            f"a paired comparison needs the same sequences, got {len(ours)} and {len(theirs)}"
        )
    if not ours.sum() > 0 or not theirs.sum() > 0:
        raise ValueError(
            f"a ratio of times needs times above 0, got {ours.sum():g} and {theirs.sum():g} ns"
            " in all"
        )
    speedup = float(theirs.sum() / ours.sum())
    found = estimate(*in_common(theirs, ours))
    if found is None:
        return Paired(speedup, None, None, 1)
    low, high = found.interval()
    return Paired(
        speedup, (float(low), float(high)), float(found.confidence_above(1.0)), found.sequences
    )


def paired_rates(ours: tuple[Floats, Floats], theirs: tuple[Floats, Floats]) -> Paired:
    """`paired` of two runs, each by its time and its tokens (`sim.results.latency.decode_time_and_tokens`),
    whose ratio is that of their tokens over time.

    A sequence without a prompt counts from the end of its first step. A step that checks drafts
    gives several tokens, so runs with other drafts count other numbers of tokens.
    """
    (time, tokens), (their_time, their_tokens) = ours, theirs
    return paired(time * (their_tokens.sum() / tokens.sum()), their_time)


def in_common(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """The times of two runs by what neither divides: where they batch differently, a batch of the
    one may be several of the other, or end within one.

    Sequences go first come first served, so those of a batch follow each other: its time at the
    first of them, and then 0 (`sim.results.latency.by_batch`).
    """
    is_first = (one > 0) & (other > 0)
    if (is_first == ((one > 0) | (other > 0))).all():
        return one, other
    begin = np.array([0, *np.flatnonzero(is_first)[1:]])
    return np.add.reduceat(one, begin), np.add.reduceat(other, begin)


def paired_all(times: Floats) -> list[list[Paired | None]]:
    """`paired` of every two rows of ``times`` [systems, sequences], as [ours][theirs]; None of a
    row with itself. Raise ValueError for a row that took no time.
    """
    if not (times.sum(1) > 0).all():
        raise ValueError("a ratio of times needs times above 0, got a system without any")
    times = times[:, times.any(0)]
    if (times == 0).any() or times.shape[1] < 2:
        # A sequence that took two systems no time says nothing of these two alone.
        return [
            [None if i == j else paired(times[i], times[j]) for j in range(len(times))]
            for i in range(len(times))
        ]
    shape = (len(times), *times.shape)
    ours = np.broadcast_to(times[:, None, :], shape)
    theirs = np.broadcast_to(times[None, :, :], shape)
    found = estimate(theirs, ours)
    assert found is not None
    (low, high), sure = found.interval(), found.confidence_above(1.0)
    speedup = theirs.sum(-1) / ours.sum(-1)
    return [
        [
            None
            if i == j
            else Paired(
                float(speedup[i, j]),
                (float(low[i, j]), float(high[i, j])),
                float(sure[i, j]),
                found.sequences,
            )
            for j in range(len(times))
        ]
        for i in range(len(times))
    ]
