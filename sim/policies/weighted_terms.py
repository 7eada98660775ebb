"""What HOBBIT's cache notes at every gate, and the scores that follow (`WeightedScore`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.policies.base import Gate
from sim.policies.scored import Floats, Scored, Within, as_slice
from sim.values.types import Geometry, PoolPlan


class Views:
    """By pool the quotients of its keys, and what marks absent ones, where slices make views of these.

    A view that is pickled becomes an array of its own. So these are made anew of what they are of.
    """

    def __init__(
        self,
        quotient: Floats,
        absent: Floats,
        experts: Sequence[Within],
        within: Sequence[Within],
    ) -> None:
        self._made_of = quotient, absent, experts, within
        self.by_pool = [
            (quotient[of_pool], absent[at])
            if isinstance(of_pool, slice) and isinstance(at, slice)
            else None
            for of_pool, at in zip(experts, within, strict=True)
        ]

    def __reduce__(self) -> tuple[type[Views], tuple[Any, ...]]:
        return Views, self._made_of


class WeightedTerms(Scored):
    """The sum of eq. 3, with ``weights`` of recency, uses, uses at high precision and distance.

    `sim.policies.weighted_score.WeightedScore` says what the terms are, and takes the settings: what
    is asked at every gate stands apart, so that it can be machine code (`make compiled`).
    """

    weights: tuple[float, ...]

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        sites, self._plane = geometry.sites, geometry.plane
        self._experts = [as_slice(keys % self._plane) for keys in self._keys]
        """By pool, the same keys at precision 0."""
        ahead = (np.arange(sites)[None, :] - np.arange(sites)[:, None] + sites) % sites
        far = self.weights[3] * (1 - ahead / sites)
        sites_of = [keys // geometry.units % sites for keys in self._keys]
        self._far = [[of_site[at] for at in sites_of] for of_site in far]
        """By the site of the last gate and by pool, the last term of each key."""
        # The part of a score that is divided by T, and the quotient, by expert.
        self._sum, self._quotient = np.zeros(self._plane), np.zeros(self._plane)
        self._views = Views(self._quotient, self._absent, self._experts, self._within)
        self._begin_sequence()
        self._token, self._site = 1, 0

    def _begin_sequence(self) -> None:
        self._uses, self._high_uses = [0] * self._plane, [0] * self._plane
        self._sum[:] = self._quotient[:] = 0.0

    def _scores_of(self, pool: int) -> Floats:
        quotient, absent = self._views.by_pool[pool] or (
            self._quotient[self._experts[pool]],
            self._absent[self._within[pool]],
        )
        score: Floats = quotient + self._far[self._site][pool]
        score += absent
        return score

    def first_victim(self, pool: int, incoming: int, blocked: bytearray) -> int:
        score = self._scores_of(pool)
        best = int(score.argmin())
        key = self._names[pool][best]
        if blocked[key] or score.item(best) == math.inf:
            return next(self.victims(pool, incoming, blocked), -1)
        return key

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        plane, sums, quotients = self._plane, self._sum, self._quotient
        w_lru, w_lfu, w_lhu, _ = self.weights
        uses, high_uses = self._uses, self._high_uses
        token, counts, self._site = gate.token, gate.tokens, gate.site
        if token != self._token:
            self._token = token
            np.divide(sums, token, out=quotients)
        if len(keys) < len(counts):
            counts = self._counts_of(keys, gate)
        recent = w_lru * token
        for place, key in enumerate(keys):
            expert, count = key % plane, counts[place]
            used = uses[expert] = uses[expert] + count
            if wanted[place] == 0:
                high_uses[expert] += count
            sums[expert] = whole = (recent + w_lfu * used) + w_lhu * high_uses[expert]
            quotients[expert] = whole / token

    def _counts_of(self, keys: Sequence[int], gate: Gate) -> list[int]:
        """How many of a gate's rows ask for each of these keys, of whatever precision."""
        plane, counts = self._plane, dict(zip(gate.keys, gate.tokens, strict=True))
        return [counts[key % plane] for key in keys]

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._begin_sequence()
