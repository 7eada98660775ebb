"""FloE's compact transfer: host threads gather the neurons a token needs, a stream copies them over.

An expert rests on the host as pairs, one row for each neuron: its gate column and its down row side
by side. Threads gather kept rows in groups into pinned buffers, and each group is given to the link
as soon as it is there. So one group is copied while the next ones are gathered. Small groups lose
to the cost of a copy's call, large ones to the wait for the first group; the choice of ``columns``
is FloE's Fig. 7.

Source: FloE (arXiv:2505.05950), section on compact asynchronous transfer: groups of 50 columns, 16
KiB each for Mixtral.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.copies import Crewed, Feed, Fetching, Piece, Submit
from real.cuda.lanes import Lane
from real.cuda.runtime import Runtime

BUFFERS = 2
"""Pinned buffers for each thread: one is filled while the other is copied."""


def arena_bytes(threads: int, columns: int, row_bytes: int) -> int:
    """How many bytes of a pinned arena a gatherer takes."""
    return ring_bytes(BUFFERS * threads, columns * row_bytes)


class Gatherer:
    """``submit`` gives work to ``threads`` workers, for which there are ``BUFFERS`` buffers each.

    A buffer holds ``columns`` rows of ``row_bytes``.
    """

    def __init__(
        self,
        runtime: Runtime,
        arena: PinnedArena,
        submit: Submit,
        threads: int,
        columns: int,
        row_bytes: int,
    ) -> None:
        for name, value in (("threads", threads), ("columns", columns), ("row_bytes", row_bytes)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._runtime, self._columns, self._row_bytes = runtime, columns, row_bytes
        ring = StagingRing(runtime, arena, BUFFERS * threads, columns * row_bytes)
        self._crewed = Crewed(ring, submit)

    def gather(self, pairs: Tensor, kept: Tensor, target: Tensor, lane: Lane) -> Feed:
        """Bring rows ``kept`` of ``pairs`` to the first rows of ``target``, in the lane's order.

        ``kept`` is int64 on the host, ``pairs`` uint8 [I, row bytes] in any host memory, ``target``
        uint8 [C, row bytes] on the device. Raise ValueError for rows that are not there, and for
        more rows than ``target`` holds.
        """
        check_rows(pairs, kept, target, self._row_bytes)

        def copy(rows: Tensor, held: Tensor) -> None:
            self._runtime.copy(rows, held, lane.stream)

        return Fetching(lane, self._crewed, self._groups(pairs, kept, target), copy)

    def _groups(self, pairs: Tensor, kept: Tensor, target: Tensor) -> Iterator[Piece]:
        source, rows = pairs.numpy(), kept.numpy()
        for begin in range(0, len(rows), self._columns):
            end = min(begin + self._columns, len(rows))
            yield target[begin:end], partial(_take, source, rows[begin:end])


def _take(source: np.ndarray, rows: np.ndarray, held: Tensor) -> None:
    """Gather rows into a buffer. numpy does so without Python's lock."""
    # All rows are in range, so "clip" changes none; but with "raise", the default, numpy gathers
    # into a buffer of its own first.
    np.take(source, rows, axis=0, out=held.view(len(rows), -1).numpy(), mode="clip")


def check_rows(pairs: Tensor, kept: Tensor, target: Tensor, row_bytes: int) -> None:
    """Raise ValueError for rows that are not there, too many for the target, or of another size."""
    count = len(kept)
    if count and not 0 <= int(kept.min()) <= int(kept.max()) < len(pairs):
        raise ValueError(f"rows {int(kept.min())} to {int(kept.max())} are kept of {len(pairs)}")
    if count > len(target):
        raise ValueError(f"{count} rows are kept, but the buffer holds {len(target)}")
    if pairs.shape[1] != row_bytes or target.shape[1] != row_bytes:
        raise ValueError(
            f"rows are of {pairs.shape[1]} and {target.shape[1]} B, not of {row_bytes}"
        )
