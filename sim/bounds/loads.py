"""The fewest loads that any cache makes: Belady's rule, with nothing said of which cache it is."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import IntArray

SPARE_ENDS = 256
"""How many ends that have passed may wait on the heap before they are taken off it."""


def fewest_loads(
    tick: IntArray,
    item: IntArray,
    slots: int,
    initial: Iterable[int],
    whole: NDArray[np.bool_] | None = None,
    over: IntArray | None = None,
) -> int:
    """The fewest loads, prefetched or not, that serve all requests from ``slots`` equal slots.

    ``tick`` and ``item`` are the gate and the item of each request, by ascending gate. Keeping an
    item from one request to the next saves a load and takes a slot at every gate boundary in
    between. The most such intervals that fit are found by dropping, whenever too many overlap,
    those that end last (Belady's rule).

    - ``whole``, by request: whether the needs of its gate are pinned together until the next gate.
      They then take slots at their own gate's boundary in any case. Elsewhere (unions served in
      waves) nothing is known to stay, and only kept items count.
    - ``over``, by request: how many items its gate may leave behind even if that is more than
      ``slots`` (``retention: after_batch``).

    The result is a lower bound for every run. A run's residents at a boundary never exceed the
    slots, and each need that was not resident at its gate's boundary is loaded at least once.
    """
    if not len(item):
        return 0
    first = np.flatnonzero(np.diff(tick, prepend=tick[0] - 1))
    gate = np.repeat(np.arange(len(first)), np.diff(first, append=len(tick)))
    ends, first_use = _next_gates(gate, item)
    # An item that its own gate needs once more is no interval, and is pinned once.
    is_last = ends != gate
    pinned = np.add.reduceat(is_last, first, dtype=np.int64)
    room = np.full(len(first), slots) if over is None else np.maximum(slots, over[first])
    if whole is None:
        pinned[:] = 0
    else:
        pinned[~whole[first] | (pinned > room)] = 0
    kept = is_last & (ends >= 0)
    stop = np.cumsum(np.add.reduceat(kept, first, dtype=np.int64))
    found = Intervals(len(first))
    found.add([first_use[what] for what in initial if what in first_use], slots)
    coming = ends[kept].tolist()
    begin = 0
    for at, (end, pins, fit) in enumerate(
        zip(stop.tolist(), pinned.tolist(), room.tolist(), strict=True)
    ):
        found.end(at)
        if pins:
            # Those that begin here are pinned items', which nothing takes at this boundary.
            found.trim(fit - pins)
            found.add(coming[begin:end])
        else:
            found.add(coming[begin:end], fit)
        begin = end
    return len(item) - found.ended


def _next_gates(gate: IntArray, item: IntArray) -> tuple[IntArray, dict[int, int]]:
    """The gate of each request's next request of the same item (-1: none), and each item's first."""
    order = np.argsort(item, kind="stable")
    is_same = np.diff(item[order]) == 0
    ends = np.full(len(item), -1, np.int64)
    ends[order[:-1][is_same]] = gate[order[1:][is_same]]
    starts = order[np.append(True, ~is_same)]
    return ends, dict(zip(item[starts].tolist(), gate[starts].tolist(), strict=True))


class Intervals:
    """Intervals that are kept, told by the gate at which they end: of two that end at one gate it
    never matters which is dropped.
    """

    def __init__(self, gates: int) -> None:
        self.ended = 0
        """How many intervals were kept to their end."""
        self._at = [0] * gates
        self._alive = 0
        self._ends: list[int] = []
        """A heap of the negated gates at which intervals end, the last first."""

    def add(self, ends: list[int], most: int | None = None) -> None:
        """Keep an interval for each of ``ends``, then ``most`` of all at most."""
        at, heap = self._at, self._ends
        for end in ends:
            if not at[end]:
                heappush(heap, -end)
            at[end] += 1
        self._alive += len(ends)
        if most is not None and self._alive > most:
            self.trim(most)

    def trim(self, most: int) -> None:
        """Drop those that end last until no more than ``most`` are kept."""
        at, heap = self._at, self._ends
        while self._alive > most:
            last = -heap[0]
            dropped = min(at[last], self._alive - most)
            at[last] -= dropped
            self._alive -= dropped
            if not at[last]:
                heappop(heap)

    def end(self, gate: int) -> None:
        """Gate ``gate`` is reached: the intervals that end there have been kept."""
        here = self._at[gate]
        self._at[gate] = 0
        self._alive -= here
        self.ended += here
        if len(self._ends) > 2 * self._alive + SPARE_ENDS:
            self._ends[:] = [end for end in self._ends if end < -gate]
            heapify(self._ends)
