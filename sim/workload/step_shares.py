"""What each sequence has of a step: its rows, its context, its drafts, and what it found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.values.types import Found, Share
from sim.workload.batching import Part


def shares_of(parts: Sequence[Part], tokens: Sequence[int]) -> tuple[Share, ...]:
    """The shares of a composed step, whose sequences have so many ``tokens`` at their last rows;
    empty where there is one.
    """
    if len(parts) == 1:
        return ()
    return tuple(
        Share(part.count, so_far, part.count - 1 if part.decode else 0)
        for part, so_far in zip(parts, tokens, strict=True)
    )


def recorded_shares(
    group: Sequence[int], sequence: NDArray[np.int32], tokens: NDArray[np.int64]
) -> tuple[Share, ...]:
    """The shares of a recorded step, whose rows are of this ``sequence`` and have so many
    ``tokens``; ``group`` are its sequences, in order. Empty where there is one.
    """
    if len(group) == 1:
        return ()
    mine = [sequence == number for number in group]
    return tuple(Share(int(rows.sum()), int(tokens[rows].max())) for rows in mine)


def drafters_of(parts: Sequence[Part]) -> tuple[int, ...]:
    """How many of a step's sequences check one draft or more, two or more, and so on."""
    drafts = [part.count - 1 for part in parts if part.decode]
    return tuple(sum(count > nth for count in drafts) for nth in range(max(drafts, default=0)))


def found_of(parts: Sequence[Part]) -> Found | None:
    """What the sequences that begin in a step need not read; None where none begins."""
    begun = [part.found for part in parts if part.begins]
    return Found(*map(sum, zip(*begun, strict=True))) if begun else None
