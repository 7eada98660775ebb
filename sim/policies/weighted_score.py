"""HOBBIT's cache, which evicts by a sum of four terms. Its scores fall with every gate, for all keys.

So no order of the keys lasts, and a victim would cost a pass over its pool. But the keys of one
precision at one site, a *row*, have one distance: of these the least in ``_value`` has the least
score, whenever it is asked for. For each row a *floor* is known, which no value of a resident key
is below. A use only raises values and an eviction only takes one away, so that floors need no care
until a row looks best by its floor. Then the row's keys are looked at, and the floor is raised to
what is found. A victim costs a look at the floors, and at the keys of one row or two.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.policies.quotas import Quotas
from sim.policies.scores import Within, as_slice
from sim.values.types import Cause, Geometry, PoolPlan


class Row(NamedTuple):
    """The keys of a pool at one site and precision, ascending; ``experts``: the same at precision
    0.
    """

    keys: NDArray[np.intp]
    within: Within
    experts: Within


class Floors(list["array[float]"]):
    """By pool, a floor for each row; ``views`` are the same numbers as numpy reads them.

    What has been found out by looking is no part of what the policy knows. So a copy begins with
    floors of 0, which nothing is below.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(array("d", bytes(8 * number)) for number in rows)
        self.views = [np.frombuffer(floors) for floors in self]

    def __reduce__(self) -> tuple[type[Floors], tuple[list[int]]]:
        return Floors, ([len(floors) for floors in self],)


class WeightedScore(Pooled):
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
        # The part of a score that is over T, by expert. An array's items are set faster through
        # the array than through numpy, which reads the same memory.
        self._values = array("d", bytes(8 * self._plane))
        self._value = np.frombuffer(self._values)
        # Added to the values: +inf for keys that are not resident, so that none is the least.
        self._absent = np.full(geometry.num_keys, np.inf)
        self._prepare_rows(geometry, plan)
        distance = (np.arange(sites)[None, :] - np.arange(sites)[:, None] + sites) % sites
        far = self.weights[3] * (1 - distance / sites)
        self._far = [[of_site[at] for at in self._sites] for of_site in far]
        self._begin_sequence()
        self._token, self._site = np.array(1.0), 0

    def _prepare_rows(self, geometry: Geometry, plan: PoolPlan) -> None:
        """The rows of each pool, in the order of their keys."""
        pool_of, pools = np.asarray(plan.pool_of), len(plan.capacity_bytes)
        self._keys = [np.flatnonzero(pool_of == pool) for pool in range(pools)]
        self._rows: list[list[Row]] = []
        self._sites: list[NDArray[np.intp]] = []
        """By pool, the site of each row."""
        self._row_of = [0] * geometry.num_keys
        for keys in self._keys:
            _, firsts = np.unique(keys // geometry.units, return_index=True)
            parts = np.split(keys, firsts[1:])
            self._rows.append([Row(k, as_slice(k), as_slice(k % self._plane)) for k in parts])
            self._sites.append(keys[firsts] // geometry.units % geometry.sites)
            for row, part in enumerate(parts):
                for key in part.tolist():
                    self._row_of[key] = row
        self._floors = Floors([len(rows) for rows in self._rows])

    def _begin_sequence(self) -> None:
        self._uses, self._high_uses = [0] * self._plane, [0] * self._plane
        self._value[:] = 0.0
        self._tokens = 0
        for floor in self._floors.views:
            floor[:] = 0.0

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        first = self._first(pool)
        if first < 0:
            return
        # Mostly the first is free, and nobody asks for a second.
        if not blocked[first]:
            yield first
        keys = self._keys[pool]
        score = (self._value[keys % self._plane] + self._absent[keys]) / self._token
        score += np.repeat(self._far[self._site][pool], [len(row.keys) for row in self._rows[pool]])
        score[np.frombuffer(blocked, np.bool_)[keys] | (keys == first)] = np.inf
        while score.item(best := int(score.argmin())) < math.inf:
            yield keys.item(best)
            score[best] = np.inf

    def _first(self, pool: int) -> int:
        """The key of the lowest score in a pool, whether it is blocked or not; -1 if it is empty."""
        rows, floors, token = self._rows[pool], self._floors[pool], self._token
        floor, far = self._floors.views[pool], self._far[self._site][pool]
        while True:
            bounds = floor / token
            bounds += far
            row = int(bounds.argmin())
            known = floors[row]
            if known == math.inf:
                return -1
            keys, within, experts = rows[row]
            values = self._value[experts] + self._absent[within]
            least = values.item(values.argmin())
            if least == known:
                # Values that differ may round to one score: then the lowest key goes first.
                values /= token
                values += far[row]
                return keys.item(values.argmin())
            floors[row] = least

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        plane, values = self._plane, self._values
        w_lru, w_lfu, w_lhu, _ = self.weights
        uses, high_uses = self._uses, self._high_uses
        token, counts = gate.token, gate.tokens
        self._token[()], self._site = token, gate.site
        if len(keys) < len(counts):
            tokens_of = dict(zip(gate.keys, counts, strict=True))
            counts = [tokens_of[key % plane] for key in keys]
        recent = w_lru * token
        for key, precision, count in zip(keys, wanted, counts, strict=True):
            expert = key % plane
            used = uses[expert] = uses[expert] + count
            if precision == 0:
                high_uses[expert] += count
            values[expert] = (recent + w_lfu * used) + w_lhu * high_uses[expert]
        if token < self._tokens:
            self._lower_floors(keys)
        else:
            self._tokens = token

    def _lower_floors(self, keys: Sequence[int]) -> None:
        """The values of these keys may have fallen: their sequence has fewer tokens than one that
        runs beside it.
        """
        for key in keys:
            for variant in range(key % self._plane, len(self._row_of), self._plane):
                self._lower_floor(variant)

    def _lower_floor(self, key: int) -> None:
        floors, row = self._floors[self._pool_of[key]], self._row_of[key]
        value = self._values[key % self._plane]
        if value < floors[row]:
            floors[row] = value

    def on_insert(self, key: int, cause: Cause) -> None:
        self._absent[key] = 0.0
        self._lower_floor(key)

    def on_evict(self, key: int) -> None:
        self._absent[key] = np.inf

    def on_sequence(self, sequence: int, begins: bool) -> None:
        if begins:
            self._begin_sequence()
