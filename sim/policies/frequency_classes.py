"""Caches that weigh how often a key was asked for against how long ago that was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Gate
from sim.policies.quotas import Quotas
from sim.policies.scored import Floats, Scored, Within
from sim.policies.scores import number_within
from sim.values.types import Cause, Geometry, PoolPlan
from sim.values.units import require_number


class Touched(Scored):
    """A cache that knows when each key was last touched, by the touches of its pool.

    A touch is a request, or an arrival without one (contract C46).
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._stamp = np.zeros(geometry.num_keys, np.int64)
        self._clocks = [0] * len(plan.capacity_bytes)
        self._has_place = bytearray(geometry.num_keys)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
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


class LFRU(Touched):
    """Lowest ``count / age`` first, ties lowest key first (contract C147).

    A key's age is how often its pool was touched since the key itself was, at least 1. Its count is
    the number of its requests since the start of the run; evictions and sequences forget nothing.

    Source: Zhang, arXiv:2608.07911; shijiuzhang/moe-cache-eval, ``moe_controller/simulation.py``.
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        super()._prepare(geometry, plan)
        self._count = np.zeros(geometry.num_keys, np.int64)

    def _score(self, within: Within) -> Floats:
        score: Floats = self._count[within] / np.maximum(self._ages(within), 1)
        return score

    def _ages(self, within: Within) -> NDArray[np.int64]:
        """Of the keys of a pool. Its clock is the stamp of the last touch."""
        stamps = self._stamp[within]
        ages: NDArray[np.int64] = stamps.max() - stamps
        return ages

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            self._count[key] += 1
        super().on_requests(keys, wanted, outcomes, gate)


class ClassLRU(LFRU):
    """Largest ``age / 2^class`` first, ties least recent first (contract C143).

    Age and count are those of `LFRU`, but the age may be 0, and all counts are halved, rounded
    down, every ``half_life_steps`` steps of the run. The class is ``floor(log2(count))``, at most
    ``classes - 1``, and 0 where the count is 0.

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
        self._halvings = 0

    def _score(self, within: Within) -> Floats:
        # A power of two divides a float64 without rounding.
        classes = np.frexp(np.maximum(self._count[within], 1))[1] - 1
        ages = self._ages(within).astype(np.float64)
        score: Floats = np.ldexp(-ages, -np.minimum(classes, self.classes - 1))
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
        super().on_requests(keys, wanted, outcomes, gate)


class DecayedLFU(Touched):
    """Smallest decayed count of requests first, ties least recent first.

    A request counts 1, and ``decay`` times as much after each further step, whether or not the key
    is resident.
    """

    def __init__(
        self,
        decay: float = 0.98,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        self.decay = number_within("decay", decay, 0.0, 1.0)

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        super()._prepare(geometry, plan)
        self._count = np.zeros(geometry.num_keys)
        self._step = 0

    def _score(self, within: Within) -> Floats:
        return self._count[within].copy()

    def _tie(self, within: Within) -> NDArray[np.generic]:
        stamps: NDArray[np.int64] = self._stamp[within]
        return stamps

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        if gate.step != self._step:
            self._count *= self.decay ** (gate.step - self._step)
            self._step = gate.step
        for key in keys:
            self._count[key] += 1
        super().on_requests(keys, wanted, outcomes, gate)
