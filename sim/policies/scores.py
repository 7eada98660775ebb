"""Caches that evict by a score of their own (`sim.policies.scored`).

What they share is exported from here, too: the file of `expected_reuse` is frozen, and has it from
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Gate
from sim.policies.quotas import Quotas
from sim.policies.scored import Floats as Floats
from sim.policies.scored import Scored as Scored
from sim.policies.scored import Within as Within
from sim.values.types import Geometry, PoolPlan

DISTANCES = ("ahead", "since")
CURRENT = ("last", "keep")
INITIAL_COUNTS = ("profile", "none")
KEPT = float(np.finfo(np.float64).max)
"""A score above every other, of keys that are kept longest."""


class FrequencyOverDistance(Scored):
    """Lowest ``f / d`` first, ties farthest site first, then lowest key.

    f is the number of the expert's token uses, whatever its precision, since the start of the run.
    ``initial_counts: profile`` starts from the uses in the trace's fit sequences, ``none`` from 0.
    Experts of an encoder always have 0, because they are loaded once a prompt.

    d is a distance among the S sites of the decoder, where i is the expert's site and I that of the
    last gate. (Before the first gate, and while an encoder runs, I is the last site.)

    - ``distance: ahead`` is the paper's text: d = (i - I) mod S, how soon site i comes.
    - ``distance: since`` is its printed formula: d = (I - i) mod S. It first evicts what comes
      next.
    - Where d is 0, ``current: last`` takes S instead, because the site has just been visited and
      comes last. ``current: keep`` evicts its experts after all others.

    Source: Yi et al., EdgeMoE, arXiv:2308.14352, section 3.3.3.
    """

    def __init__(
        self,
        distance: str = "ahead",
        current: str = "last",
        initial_counts: str = "profile",
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        for name, value, known in (
            ("distance", distance, DISTANCES),
            ("current", current, CURRENT),
            ("initial_counts", initial_counts, INITIAL_COUNTS),
        ):
            if value not in known:
                raise ValueError(f"unknown cache.{name}={value!r}; known: {', '.join(known)}")
        self._since, self._keeps, self._profiles = (
            distance == "since",
            current == "keep",
            initial_counts == "profile",
        )
        # The profile also tells where the encoder ends.
        self.needs_profile = True

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        assert self._profile is not None
        first, sites, planes = self._profile.encoder_sites, geometry.sites, len(geometry.precisions)
        self._first_decoder, self._plane, self._units = first, geometry.plane, geometry.units
        decoders = sites - first
        place = np.arange(sites) - first
        here = np.where(place < 0, decoders - 1, place)
        distance = (place[None, :] - here[:, None]) * (-1 if self._since else 1) % decoders
        by_key = np.tile(np.repeat(distance, geometry.units, axis=1), (1, planes))
        self._nearest = by_key == 0
        self._distance = np.where(self._nearest, decoders, by_key)
        uses = np.zeros((sites, geometry.units))
        if self._profiles:
            uses[:, :-1] = self._profile.uses
        uses[:first] = 0
        self._uses = np.tile(uses.ravel(), planes)
        self._site = sites - 1

    def _score(self, within: Within) -> Floats:
        score: Floats = self._uses[within] / self._distance[self._site][within]
        if self._keeps:
            score[self._nearest[self._site][within]] = KEPT
        return score

    def _tie(self, within: Within) -> NDArray[np.generic]:
        farthest: NDArray[np.int64] = -self._distance[self._site][within]
        return farthest

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        self._site = gate.site
        if gate.site < self._first_decoder:
            return
        tokens_of = dict(zip(gate.needs, gate.tokens, strict=True))
        for key in keys:
            expert = key % self._plane
            self._uses[expert :: self._plane] += tokens_of[expert % self._units]


class ActivationRatio(Scored):
    """Lowest ``(ratio + epsilon) * (1 - l / L)`` first, ties lowest key first.

    ``ratio`` is the expert's share of all token uses at its site l (of L sites) since the sequence
    began; with several sequences, since the last of them began. So active experts stay longer, and
    so do those of early sites.

    Source: Xue et al., MoE-Infinity, arXiv:2401.14361; epsilon as in its public code.
    """

    def __init__(
        self,
        epsilon: float = 1e-8,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        self.epsilon = number_within("epsilon", epsilon, 0.0, math.inf)

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._plane, self._units, self._num_sites = geometry.plane, geometry.units, geometry.sites
        self._planes = len(geometry.precisions)
        self._uses = np.zeros((geometry.sites, geometry.units))
        self._used = [0.0] * geometry.sites
        """By site, the sum of ``_uses``."""
        self._early: list[float] = (1 - np.arange(geometry.sites) / geometry.sites).tolist()
        self._scores = np.zeros(geometry.num_keys)
        self._rescore(range(geometry.sites))

    def _score(self, within: Within) -> Floats:
        return self._scores[within].copy()

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        tokens_of = dict(zip(gate.needs, gate.tokens, strict=True))
        site, units = gate.site, self._units
        uses = self._uses[site]
        for key in keys:
            tokens = tokens_of[key % units]
            uses[key % units] += tokens
            self._used[site] += tokens
        self._rescore((site,))

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._uses[:] = 0.0
            self._used = [0.0] * self._num_sites
            self._rescore(range(self._num_sites))

    def _rescore(self, sites: Sequence[int]) -> None:
        units = self._units
        for site in sites:
            first = site * units
            score = self._scores[first : first + units]
            np.divide(self._uses[site], max(self._used[site], 1.0), out=score)
            score += self.epsilon
            score *= self._early[site]
            for low in range(first + self._plane, self._planes * self._plane, self._plane):
                self._scores[low : low + units] = score


class VisitCount(Scored):
    """Most requests while resident first, ties lowest key first. An eviction forgets the key's
    count.

    Source: the public code of MoE-Infinity of June 2024 (EfficientMoE/MoE-Infinity at 5e096b4),
    which sorts by ``incache_visit_count`` descending: the opposite of LFU.
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._visits = np.zeros(geometry.num_keys)

    def _score(self, within: Within) -> Floats:
        return -self._visits[within]

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            self._visits[key] += 1

    def on_evict(self, key: int) -> None:
        super().on_evict(key)
        self._visits[key] = 0


class Random(Scored):
    """A resident key at random, each equally likely. The order is drawn anew after every eviction,
    by a generator of its own.
    """

    def __init__(
        self,
        seed: int = 0,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"cache.seed={seed!r} must be a whole number, 0 or more")
        self.seed = seed

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        self._generator = np.random.default_rng(self.seed)
        self._draws = self._generator.random(geometry.num_keys)

    def _score(self, within: Within) -> Floats:
        return self._draws[within].copy()

    def on_evict(self, key: int) -> None:
        super().on_evict(key)
        self._generator.random(out=self._draws)


def number_within(name: str, value: float, above: float, most: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not above < value <= most
        or value == math.inf
    ):
        raise ValueError(
            f"cache.{name}={value!r} must be a number above {above:g}"
            + (f" and at most {most:g}" if most < math.inf else "")
        )
    return float(value)
