"""A log's lookups in the order in which they make experts recent, and what LRU then has, in closed
form.

Least recently used first, an expert is there when a batch begins if it and all that was asked for
since it was, each expert once, fit the budget (the stack property; experts of several sizes keep
it, for what goes first went first before). So a *frontier* stands before each batch: the oldest
place, in the order of lookups, that is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.checking.cache_walk import CacheWalk
from sim.policies.recency import LRU

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MIXED = 2
"""Of a need: some of its lookups deviate. 0 and 1: none of them, all of them."""


@dataclass(frozen=True)
class Near:
    """An expert before a batch that deviates, or that one expert more or less before it would
    change.

    ``place``: where it was last asked for (-1: nowhere); ``begin``: the batch's first place.
    """

    need: int
    tick: int
    site: int
    expert: int
    place: int
    begin: int


class LookupOrder:
    """A log's lookups by *place*: in the order in which they make experts recent, batch by
    batch.
    """

    def __init__(self, walk: CacheWalk) -> None:
        """Raise ValueError unless the contract is LRU over one pool that begins empty, looked up
        row by row.
        """
        policy = walk.policy
        steps_of_rows = not all(walk.is_one_row(tick) for tick in range(len(walk.keys)))
        if type(policy) is not LRU or len(walk.pools) > 1 or policy.initial != "empty":
            raise ValueError("in closed form: LRU over one pool that begins empty")
        if steps_of_rows and not policy.goes_by_rows:
            raise ValueError("in closed form: steps of one row, or recency by rows")
        replayer, log = walk.replayer, walk.replayer.log
        self.units, self.budget_bytes = replayer.units, walk.pools[0]
        rank = (log.row - log.row.min()) * log.trace.header.model.top_k + log.slot
        one_row = np.array([walk.is_one_row(tick) for tick in range(len(walk.keys))])
        place_in = {
            (tick, key): place
            for tick, keys in enumerate(walk.keys)
            if one_row[tick]
            for place, key in enumerate(keys)
        }
        keys, alone = replayer.keys, np.flatnonzero(one_row[replayer.tick])
        rank[alone] = [
            place_in[need]
            for need in zip(replayer.tick[alone].tolist(), keys[alone].tolist(), strict=True)
        ]
        self.lookup: Ints = np.lexsort((rank, replayer.tick))
        """The log's lookup at each place; all else is by place."""
        order = self.lookup
        self.tick, self.key, self.row = replayer.tick[order], keys[order], log.row[order]
        self.site, self.expert, self.slot = log.site[order], log.expert[order], log.slot[order]
        self.flag: Bools = log.resident[order]
        self.reads: Bools = log.loaded_bytes[order] > 0
        self.one_row: Bools = one_row[self.tick]
        self.site_bytes = list(log.expert_bytes)
        self.size: Ints = np.array(log.expert_bytes, np.int64)[self.site]
        self.begin: Ints = np.searchsorted(self.tick, np.arange(len(walk.keys) + 1))
        """The first place of each batch, and the end."""
        self.before, self.after = self._neighbours()
        self._take_needs(log.tells_bytes)
        found = self.place_of_need >= self.frontier(0)[self.tick_of_need]
        told = {
            (tick, key): there
            for tick, (keys, flags) in enumerate(zip(walk.keys, walk.found, strict=True))
            for key, there in zip(keys, flags, strict=True)
        }
        needs = zip(self.tick_of_need.tolist(), self.key_of_need.tolist(), strict=True)
        if [told[need] for need in needs] != found.tolist():
            raise ValueError("in closed form: no batch may need more than the budget")
        self.found: Bools = found

    def __len__(self) -> int:
        return len(self.lookup)

    def _neighbours(self) -> tuple[Ints, Ints]:
        """The places of the same expert before (-1) and after (the end) each place."""
        order = np.argsort(self.key, kind="stable")
        same = np.diff(self.key[order], prepend=-1) == 0
        before, after = np.full(len(order), -1), np.full(len(order), len(order))
        before[order[same]] = order[np.flatnonzero(same) - 1]
        after[before[before >= 0]] = np.flatnonzero(before >= 0)
        return before, after

    def _take_needs(self, tells_bytes: bool) -> None:
        """An expert of a batch, whichever of its rows chose it."""
        cells = self.tick * (int(self.key.max()) + 1) + self.key
        _, first, need, count = np.unique(
            cells, return_index=True, return_inverse=True, return_counts=True
        )
        self.need: Ints = need
        """The need of each place."""
        self.tick_of_need, self.key_of_need, self.lookups_of_need = (
            self.tick[first],
            self.key[first],
            count,
        )
        self.place_of_need = self.before[first]
        self.absent_of_need: Ints = np.bincount(need, ~self.flag).astype(np.int64)
        self.reads_of_need: Ints = np.bincount(need, self.reads).astype(np.int64)
        # What is flagged in two ways is at odds whatever was read.
        is_absent, is_there = self.absent_of_need == count, self.absent_of_need == 0
        agrees = np.where(self.reads_of_need > 0, is_absent, is_there)
        self.at_odds: Bools = ~agrees if tells_bytes else np.zeros(len(count), np.bool_)
        self.tells_bytes = tells_bytes

    @cached_property
    def deviates(self) -> Bools:
        """Of each place, whether its flag is not the contract's."""
        return np.asarray(self.flag != self.found[self.need], np.bool_)

    @cached_property
    def deviating(self) -> Ints:
        """Of each need how many of its lookups deviate."""
        return np.bincount(self.need, self.deviates).astype(np.int64)

    @cached_property
    def state(self) -> Ints:
        """Of each need: 0, 1 or `MIXED`."""
        return np.where(
            self.deviating == 0, 0, np.where(self.deviating == self.lookups_of_need, 1, MIXED)
        )

    @cached_property
    def _frontiers(self) -> dict[int, Ints]:
        return {}

    def frontier(self, more_bytes: int) -> Ints:
        """Before each batch: the first place such that what was last asked for from there on, and
        ``more_bytes``, fit the budget. An expert last asked for at a place is there if that is not
        before this one."""
        if more_bytes not in self._frontiers:
            self._frontiers[more_bytes] = self._walk_frontier(self.budget_bytes - more_bytes)
        return self._frontiers[more_bytes]

    def _walk_frontier(self, budget_bytes: int) -> Ints:
        size, before = self.size.tolist(), self.before.tolist()
        counted = [0] * len(size)
        held = first = 0
        found = []
        for start, stop in zip(self.begin[:-1].tolist(), self.begin[1:].tolist(), strict=True):
            while held > budget_bytes and first < start:
                held -= counted[first]
                first += 1
            found.append(first)
            for place in range(start, stop):
                counted[place] = size[place]
                held += size[place]
                last = before[place]
                if last >= first:
                    held -= counted[last]
                if last >= 0:
                    counted[last] = 0
        return np.array(found, np.int64)

    def near(self, size: int) -> tuple[list[Near], list[Near], list[Near]]:
        """The needs that deviate or are near a frontier: those that ``size`` bytes more before them
        would make absent, those that as much less would make present, and the others that deviate.
        """
        place, tick = self.place_of_need, self.tick_of_need
        lost = self.found & (place < self.frontier(size)[tick])
        gained = ~self.found & (place >= 0) & (place >= self.frontier(-size)[tick])
        others = (self.state > 0) & ~lost & ~gained
        return self._needs(lost), self._needs(gained), self._needs(others)

    def _needs(self, which: Bools) -> list[Near]:
        return [
            Near(
                need,
                tick := int(self.tick_of_need[need]),
                key // self.units,
                key % self.units,
                int(self.place_of_need[need]),
                int(self.begin[tick]),
            )
            for need, key in ((n, int(self.key_of_need[n])) for n in np.flatnonzero(which).tolist())
        ]
