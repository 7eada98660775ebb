"""Passes of one stream that tells neither phases nor sequences: what they are taken for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capture.importers.source import ImportFailure, Refuse
from sim.traces.trace import CHUNK, DECODE, PREFILL

SEQUENCES = ("one", "prompts")
"""What a prompt after decoded tokens may be: the same sequence goes on, or another one begins."""


def phases_of(
    refuse: Refuse, counts: NDArray[np.int64], lines: Sequence[int], sequences: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Phase and sequence of each row.

    ``counts`` and ``lines``: how many rows each pass has, and its line in the file. Raise
    ImportFailure where ``sequences`` is needed and not told, and where it changes nothing.
    """
    several = counts > 1
    after = several.copy()
    after[:1] = False
    after[1:] &= ~several[:-1]
    if after.any() and sequences is None:
        raise ImportFailure(
            f"{refuse.file}: line {lines[int(after.argmax())]} begins a prompt after decoded tokens,"
            " and the file does not tell whether that is another sequence; say sequences=prompts"
            " (it is) or sequences=one (the conversation goes on)"
        )
    if sequences is not None and not after.any():
        raise ImportFailure(
            f"sequences={sequences} changes nothing: no prompt of {refuse.file} comes after decoded"
            " tokens; leave it out"
        )
    begins = after if sequences == "prompts" else np.zeros(len(counts), np.bool_)
    first = begins.copy()
    first[:1] = True
    phase = np.where(several, np.where(first, PREFILL, CHUNK), DECODE)
    return np.repeat(phase, counts), np.repeat(np.cumsum(begins), counts)
