"""HOBBIT's cache, which evicts by a sum of four terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sim.policies.base import Gate
from sim.policies.quotas import Quotas
from sim.policies.scores import Floats, Scored, as_slice
from sim.values.types import Geometry, PoolPlan


class WeightedScore(Scored):
    """Lowest ``p`` first, ties lowest key first.

    ``p = ((w_lru*R + w_lfu*F) + w_lhu*H) / T + w_fld * (1 - ((l_t - l_i + L) mod L) / L)``.

    Of an expert, whatever its precision: R is the token of its last use, F its token uses, H its
    token uses at high precision, all in this sequence; l_t is its site. T is the number of tokens
    so far, l_i the site of the last gate, L the number of sites. With only one weight above 0 the
    score is one of HOBBIT's terms: LRU, LFU, LHU (least used at high precision) or FLD (farthest
    site).

    Source: Tang et al., HOBBIT, arXiv:2411.01433, section 3.4, eq. 3.
    """

    TERMS = ("lru", "lfu", "lhu", "fld")

    def __init__(
        self,
        weights: Mapping[str, float],
        scope: str = "precision",
        shares: Sequence[float] = (0.8, 0.2),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        numbers = [
            w for w in weights.values() if isinstance(w, int | float) and not isinstance(w, bool)
        ]
        numbers = [w for w in numbers if 0 <= w < math.inf]
        if set(weights) != set(self.TERMS) or len(numbers) != len(self.TERMS):
            raise ValueError(
                f"cache.weights need {', '.join(self.TERMS)}, each a number >= 0; got"
                f" {dict(weights)}"
            )
        self.weights = tuple(float(weights[term]) for term in self.TERMS)

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
        self._begin_sequence()
        self._token, self._site = 1, 0

    def _begin_sequence(self) -> None:
        self._uses, self._high_uses = [0] * self._plane, [0] * self._plane
        self._sum[:] = self._quotient[:] = 0.0

    def _scores_of(self, pool: int) -> Floats:
        score: Floats = self._quotient[self._experts[pool]] + self._far[self._site][pool]
        score += self._absent[self._within[pool]]
        return score

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
            tokens_of = dict(zip(gate.keys, counts, strict=True))
            counts = [tokens_of[key % plane] for key in keys]
        recent = w_lru * token
        for key, precision, count in zip(keys, wanted, counts, strict=True):
            expert = key % plane
            used = uses[expert] = uses[expert] + count
            if precision == 0:
                high_uses[expert] += count
            sums[expert] = whole = (recent + w_lfu * used) + w_lhu * high_uses[expert]
            quotients[expert] = whole / token

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._begin_sequence()
