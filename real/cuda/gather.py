"""FloE's compact transfer: host threads gather the neurons a token needs, streams copy them over.

An expert rests on the host as pairs, one row for each neuron: its gate column and its down row side
by side. Each thread gathers kept rows in groups into pinned buffers of its own, and gives each
group to its own stream at once. So one group is copied while the next is gathered. Small groups
lose to the cost of a copy's call, large ones to the wait for the first group; the choice of
``columns`` is FloE's Fig. 7.

Source: FloE (arXiv:2505.05950), section on compact asynchronous transfer: groups of 50 columns, 16
KiB each for Mixtral.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from real.cuda.arena import PinnedArena, StagingRing, ring_bytes
from real.cuda.runtime import Event, Runtime

BUFFERS = 2
"""Pinned buffers of each thread: one is filled while the other is copied."""


def arena_bytes(threads: int, columns: int, row_bytes: int) -> int:
    """How many bytes of a pinned arena a gatherer takes."""
    return threads * ring_bytes(BUFFERS, columns * row_bytes)


class Gatherer:
    """``threads`` workers, each with a stream and ``BUFFERS`` pinned buffers.

    A buffer holds ``columns`` rows of ``row_bytes``.
    """

    def __init__(
        self, runtime: Runtime, arena: PinnedArena, threads: int, columns: int, row_bytes: int
    ) -> None:
        for name, value in (("threads", threads), ("columns", columns), ("row_bytes", row_bytes)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._runtime, self._columns, self._row_bytes = runtime, columns, row_bytes
        self._streams = [runtime.stream(f"gather {number}") for number in range(threads)]
        self._rings = [
            StagingRing(runtime, arena, BUFFERS, columns * row_bytes) for _ in range(threads)
        ]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gather")

    def gather(
        self, pairs: Tensor, kept: Tensor, target: Tensor, after: Sequence[Event] = ()
    ) -> list[Event]:
        """Bring rows ``kept`` of ``pairs`` to the first rows of ``target``, behind the events
        ``after``.

        ``kept`` is int64 on the host, ``pairs`` uint8 [I, row bytes] in any host memory, ``target``
        uint8 [C, row bytes] on the device. Return when the last row has been gathered, with the
        events of the copies' ends, one for each stream. Raise ValueError for rows that are not
        there, and for more rows than ``target`` holds.
        """
        count = len(kept)
        check_rows(pairs, kept, target, self._row_bytes)
        begins = range(0, count, self._columns)
        jobs = [
            self._pool.submit(
                self._bring,
                number,
                begins[number :: len(self._streams)],
                pairs,
                kept,
                target,
                after,
            )
            for number in range(len(self._streams))
        ]
        # Wait for all of them even if one has failed: none may go on writing.
        failures = [error for job in jobs if (error := job.exception()) is not None]
        if failures:
            raise failures[0]
        return [job.result() for job in jobs]

    def _bring(
        self,
        number: int,
        begins: Sequence[int],
        pairs: Tensor,
        kept: Tensor,
        target: Tensor,
        after: Sequence[Event],
    ) -> Event:
        """Gather and copy one worker's groups. numpy gathers without Python's lock."""
        stream, ring = self._streams[number], self._rings[number]
        for event in after:
            self._runtime.wait(stream, event)
        source, rows = pairs.numpy(), kept.numpy()
        end = self._runtime.event()
        for begin in begins:
            count = min(self._columns, len(rows) - begin)
            buffer = ring.take()
            held = buffer[: count * self._row_bytes].view(count, self._row_bytes)
            # All rows are in range, so "clip" changes none; but with "raise", the default, numpy
            # gathers into a buffer of its own first.
            np.take(source, rows[begin : begin + count], axis=0, out=held.numpy(), mode="clip")
            self._runtime.copy(target[begin : begin + count], held, stream)
            copied = self._runtime.event()
            self._runtime.record(copied, stream)
            ring.give_back(buffer, copied)
        self._runtime.record(end, stream)
        return end

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


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


def kept_rows(v: Tensor, threshold: float) -> Tensor:
    """The neurons with |v| of at least the threshold: int64, ascending, on the host."""
    return (v.abs() >= threshold).nonzero()[:, 0].to(torch.int64).cpu()
