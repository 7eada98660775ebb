"""What several checks of a trace read: its decoded rows, what they select, and which sites are
stuck.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capture.statistics.codes import selection_codes
from sim.traces.trace import DECODE, Trace

Ints = NDArray[np.int64]
SHORTEST_LOOPING = 32
"""Fewest decoded tokens of a sequence that is searched for loops.

In a shorter one half a dozen common words would decide.
"""
MOST_SELECTED = 0.5
"""Where a token selects more than this share of the experts, routing is not searched for loops.

Chance alone would make it alike.
"""
SERIOUS_SHARE = 0.05
"""A finding is serious where it concerns at least this share of the decoded tokens (or rows)."""
STUCK_SHARE = 0.99
"""A site is stuck where this share of its rows select the same experts."""


def decoded_rows(trace: Trace) -> dict[int, Ints]:
    """The valid decoded rows of each sequence, in order; sequences without any are left out."""
    rows = np.flatnonzero(trace.valid & (trace.phase == DECODE))
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    numbers, starts = np.unique(trace.sequence[rows], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True)) if len(rows) else {}


def selection_bits(ids: NDArray[np.int16], experts: int) -> NDArray[np.uint64]:
    """The experts that each row of ``ids`` [N, S, K] selects, as bits [N, S * words].

    A site takes as many 64-bit words as its ``experts`` need.
    """
    bits = np.zeros((*ids.shape[:2], -(-experts // 64)), np.uint64)
    chosen = np.where(ids >= 0, ids, 0).astype(np.int64)
    one = np.where(ids >= 0, np.uint64(1) << (chosen % 64).astype(np.uint64), np.uint64(0))
    for slot in range(ids.shape[2]):
        place = (chosen[..., slot] // 64)[..., None]
        word = np.take_along_axis(bits, place, -1) | one[..., slot, None]
        np.put_along_axis(bits, place, word, -1)
    return bits.reshape(len(ids), -1)


def telling_sites(trace: Trace) -> Ints:
    """The sites that are not stuck; a stuck site says nothing about repetition."""
    return np.setdiff1d(
        np.arange(trace.ids.shape[1]), list(stuck_sites(selection_codes(trace.ids)))
    )


def stuck_sites(codes: NDArray[np.uint64]) -> dict[int, float]:
    """The stuck sites, each with the share of its most common selection."""
    shares = {
        site: most_common(of_site[of_site > 0])
        for site, of_site in enumerate(codes.T)
        if of_site.any()
    }
    return {site: share for site, share in shares.items() if share >= STUCK_SHARE}


def most_common(values: NDArray[np.integer]) -> float:
    """Share of the values that equal the most common one."""
    return float(np.unique(values, return_counts=True)[1].max() / len(values))
