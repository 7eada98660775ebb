"""A cache that learns, while it runs, which experts follow which, and evicts what it expects back
last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sim.policies.base import Gate
from sim.policies.quotas import Quotas
from sim.policies.requires import Given
from sim.policies.scores import Floats, Scored, Within, number_within
from sim.values.types import Geometry, PoolPlan
from sim.values.units import require_number, require_range

LEAST = 0.001
"""What is added to every likeliness: nothing is asked for less often than once in 1000 visits."""
ONCE = 0.1
"""How many uses an expert has that was never asked for."""
NEXT_PROMPT = 2 / LEAST
"""The wait for an encoder's expert that this prompt has passed: beyond every other wait."""


class ExpectedReuse(Scored):
    """Longest expected wait first, ties lowest key first (contract C164).

    The wait of a key, in visits of its site: ``1 / p + distance_weight * d``.

    - ``d``, above 0 and at most 1, is how much of a pass through the model lies before the next
      visit of the key's site.
    - ``p`` is how likely a visit asks for the expert: ``(1 - followers_share) * u +
      followers_share * f``.
    - ``u`` is the share of visits that asked for it, of late: ``half_life_visits`` ago counts half.
    - ``f``, at most 1, is ``b * sqrt(product of lifts)``. ``b`` is the share of all visits that
      asked for the expert. There is a lift for each expert that the last visit asked for (of
      several rows for the first top-k in need order): ``(followed + prior_visits * b) / ((visits +
      prior_visits) * b)``. It is how much more often than ever the expert was asked for just after
      that one. Nothing of this is forgotten.

    A visit is a gate. A prompt of n tokens is n visits at once, of which no table learns. No trace
    or fit is needed. Source: this project's own search (docs/policy_search.md).
    """

    def __init__(
        self,
        half_life_visits: float = 8.0,
        followers_share: float = 0.5,
        prior_visits: float = 3.0,
        distance_weight: float = 3.0,
        scope: str = "global",
        shares: Sequence[float] = (),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        self.half_life_visits = number_within("half_life_visits", half_life_visits, 0.0, math.inf)
        require_range("cache.followers_share", followers_share, 0, 1, "a share")
        require_number("cache.distance_weight", distance_weight)
        self.followers_share, self.distance_weight = followers_share, distance_weight
        self.prior_visits = number_within("prior_visits", prior_visits, 0.0, math.inf)
        self._encoder_sites = 0

    def prepare(self, given: Given) -> None:
        super().prepare(given)
        self._encoder_sites = given.shape.encoder_sites

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        sites, units = geometry.sites, geometry.units
        self._units, self._plane, self._top_k = units, geometry.plane, geometry.top_k
        self._decay = 0.5 ** (1 / self.half_life_visits)
        self._uses = np.zeros((sites, units))
        self._followed = np.zeros((sites, units, units))
        self._visits, self._total = np.zeros((sites, units)), np.zeros((sites, units))
        self._seen = [0] * sites
        self._asked: list[list[int]] = [[] for _ in range(sites)]
        self._before: list[int] = []
        self._tick, self._step, self._positions = -1, -1, 1.0
        # Negative waits: the lowest score goes first.
        self._waits = np.full(geometry.num_keys, -1 / LEAST)
        self._ahead = np.tile(
            np.repeat(-self._distances(sites), units, axis=1), (1, len(geometry.precisions))
        )
        self._site = sites - 1

    def _distances(self, sites: int) -> Floats:
        """By site of the last gate, the part of every site's wait that comes from its place."""
        first = self._encoder_sites
        here, there = np.arange(sites)[:, None], np.arange(sites)[None, :]
        passes = ((there - here - 1) % (sites - first) + 1) / (sites - first)
        passes[:first] = ((there - here) / sites)[:first]
        distances: Floats = self.distance_weight * passes
        distances[(there < first) & (there <= here)] = NEXT_PROMPT
        return distances

    def _score(self, within: Within) -> Floats:
        score: Floats = self._waits[within] + self._ahead[self._site][within]
        return score

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        if not keys:
            return
        site, uses = gate.site, self._uses[gate.site]
        asked = [key % self._units for key in keys]
        if gate.step != self._step:
            self._step, self._positions = gate.step, _positions(gate)
        decay = self._decay if self._positions == 1 else self._decay**self._positions
        if gate.tick != self._tick:
            self._tick, self._site = gate.tick, site
            self._before, self._asked[site] = self._asked[site][: self._top_k], asked
            uses *= decay
            if self._positions == 1:
                self._visits[site][self._before] += 1
                self._seen[site] += 1
        else:  # a later wave of the gate
            asked = [expert for expert in asked if expert not in self._asked[site]]
            self._asked[site] = self._asked[site] + asked
        if self._positions == 1:
            uses[asked] += 1 - decay
            self._learn(site, asked)
            likely = self._mixed(site, uses + LEAST)
        else:
            tokens = dict(zip(gate.needs, gate.tokens, strict=True))
            for expert in asked:
                uses[expert] += (1 - decay) * min(1.0, tokens.get(expert, 1) / self._positions)
            self._asked[site] = []
            likely = uses + LEAST
        for first in range(site * self._units, len(self._waits), self._plane):
            self._waits[first : first + self._units] = -1 / likely

    def _learn(self, site: int, asked: Sequence[int]) -> None:
        self._total[site][asked] += 1
        followed = self._followed[site]
        for expert in self._before:
            followed[expert][asked] += 1

    def _mixed(self, site: int, late: Floats) -> Floats:
        """How likely the next visit asks for each expert, by late uses and by what follows."""
        asked, prior = self._asked[site][: self._top_k], self.prior_visits
        base = (self._total[site] + ONCE) / (self._seen[site] + 1)
        expected = (self._visits[site][asked] + prior)[:, None] * base
        lifts = (self._followed[site][asked] + prior * base) / expected
        after = np.minimum(base * np.sqrt(lifts.prod(axis=0)), 1.0)
        mixed: Floats = (1 - self.followers_share) * late + self.followers_share * after
        return mixed

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._asked = [[] for _ in self._asked]


def _positions(gate: Gate) -> float:
    """How many tokens of each sequence a gate has, on average."""
    rows = len(gate.experts)
    return 1.0 if rows == 1 else rows / len(set(gate.row_sequence.tolist()))
