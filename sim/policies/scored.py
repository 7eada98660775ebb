"""The base class of caches that evict by a score. The scores of all keys lie in arrays, so that a
victim costs one pass of numpy over its pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sim.policies.pools import Pooled
from sim.values.types import Cause, Geometry, PoolPlan

Floats = NDArray[np.float64]
Within = slice | NDArray[np.intp]
"""The keys of a pool: a slice if they are consecutive (a view for numpy), else indices."""


class Scored(Pooled):
    """Lowest score first, ties by ``_tie``, then lowest key first.

    A subclass computes the scores; this class finds the victims.
    """

    def adopt(self, geometry: Geometry, plan: PoolPlan) -> PoolPlan:
        # Added to the scores: +inf for keys that are not resident, so that none is the minimum.
        self._absent = np.full(geometry.num_keys, np.inf)
        pool_of = np.asarray(plan.pool_of)
        self._keys = [np.flatnonzero(pool_of == pool) for pool in range(len(plan.capacity_bytes))]
        self._within = [as_slice(keys) for keys in self._keys]
        self._names: list[list[int]] = [keys.tolist() for keys in self._keys]
        return super().adopt(geometry, plan)

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        keys, within = self._names[pool], self._within[pool]
        score, tie = self._scores_of(pool), self._tie(within)
        is_masked = False
        while True:
            best = int(score.argmin())
            least = score.item(best)
            if least == math.inf:
                return
            if tie is not None:
                tied = np.flatnonzero(score == least)
                best = int(tied[tie[tied].argmin()])
            key = keys[best]
            if not blocked[key]:
                yield key
            elif not is_masked:
                # Mostly the first is free, and nobody asks for a second: then no mask is made.
                np.putmask(score, np.frombuffer(blocked, np.bool_)[within], np.inf)
                is_masked = True
            score[best] = np.inf

    def on_insert(self, key: int, cause: Cause) -> None:
        self._absent[key] = 0.0

    def on_evict(self, key: int) -> None:
        self._absent[key] = math.inf

    def _scores_of(self, pool: int) -> Floats:
        """A new array of the scores of a pool's keys: +inf for those that are not resident."""
        within = self._within[pool]
        score = self._score(within)
        score += self._absent[within]
        return score

    def _score(self, within: Within) -> Floats:
        """A new array of the finite scores of these keys; the lowest goes first."""
        raise NotImplementedError

    def _tie(self, within: Within) -> NDArray[np.generic] | None:
        """What decides among equal scores: the lowest of these goes first. None: the lowest key."""
        return None


def as_slice(keys: NDArray[np.intp]) -> Within:
    """Ascending ``keys``, as a slice where they follow each other: an array is read faster by it.

    >>> as_slice(np.array([3, 4, 5])), as_slice(np.array([3])), as_slice(np.array([3, 5, 6]))
    (slice(3, 6, None), slice(3, 4, None), array([3, 5, 6]))
    """
    first, last = int(keys[0]), int(keys[-1]) + 1
    return slice(first, last) if last - first == len(keys) else keys
