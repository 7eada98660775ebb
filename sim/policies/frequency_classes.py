"""A cache that ages a key the slower, the more often it was asked for lately."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Gate
from sim.policies.quotas import Quotas
from sim.policies.scores import Floats, Scored, Within
from sim.values.types import Cause, Geometry, PoolPlan
from sim.values.units import require_number


class ClassLRU(Scored):
    """Largest ``age / 2^class`` first, ties least recent first (contract C143).

    A key's age is how often its pool was touched since the key itself was. A touch is a request, or
    an arrival without one. Its class is ``floor(log2(count))``, at most ``classes - 1``, and 0
    where the count is 0.

    A count grows by one with each request, and all counts are halved, rounded down, every
    ``half_life_steps`` steps of the run. Evictions and sequences forget nothing.

    Source: llama.cpp's GPU expert cache (ggml-org/llama.cpp, pull request 31233): eight classes, a
    half-life of 128 tokens.
    """

    def __init__(
        self,
        half_life_steps: int = 128,
        classes: int = 8,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        require_number("cache.half_life_steps", half_life_steps, minimum=1, whole=True)
        require_number("cache.classes", classes, minimum=1, whole=True)
        self.half_life_steps, self.classes = half_life_steps, classes

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._count = np.zeros(geometry.num_keys, np.int64)
        self._stamp = np.zeros(geometry.num_keys, np.int64)
        self._clocks = [0] * len(plan.capacity_bytes)
        self._has_place = bytearray(geometry.num_keys)
        self._halvings = 0

    def _score(self, within: Within) -> Floats:
        stamps = self._stamp[within]
        # A power of two divides a float64 without rounding.
        classes = np.frexp(np.maximum(self._count[within], 1))[1] - 1
        score: Floats = np.ldexp(
            (stamps - stamps.max()).astype(np.float64), -np.minimum(classes, self.classes - 1)
        )
        return score

    def _tie(self, within: Within) -> NDArray[np.generic]:
        stamps: NDArray[np.int64] = self._stamp[within]
        return stamps

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        halvings = gate.step // self.half_life_steps
        if halvings != self._halvings:
            self._count >>= min(halvings - self._halvings, 63)
            self._halvings = halvings
        for key in keys:
            self._count[key] += 1
            self._touch(key)

    def on_insert(self, key: int, cause: Cause) -> None:
        super().on_insert(key, cause)
        if not self._has_place[key]:
            self._touch(key)

    def on_evict(self, key: int) -> None:
        super().on_evict(key)
        self._has_place[key] = 0

    def _touch(self, key: int) -> None:
        pool = self._pool_of[key]
        self._clocks[pool] += 1
        self._stamp[key] = self._clocks[pool]
        self._has_place[key] = 1
