"""What rows need together at every site, in need order (contracts C7, C8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import ASK, FloatArray, Graded, IntArray, ScoreRule

Value = TypeVar("Value", int, float)


@dataclass(frozen=True)
class Needs:
    """A table of needs, column by column.

    ``tick`` is the need's gate, ``expert`` its expert. ``tokens`` is how many rows of the gate
    chose the expert, ``weight`` the sum of their weights for it, ``score`` the smallest of their
    scores. ``make_score`` makes it, when somebody asks: few runs do.
    """

    tick: IntArray
    expert: IntArray
    tokens: IntArray
    weight: FloatArray
    make_score: Callable[[], FloatArray]

    @cached_property
    def score(self) -> FloatArray:
        return self.make_score()


class Union:
    """What one row or several need at each of S sites: lists by site, in need order."""

    def __init__(self, needs: Needs, sites: int, units: int, ahead: int = 0) -> None:
        """Split ``needs`` by site, which is what their ``tick`` holds here.

        The experts are those of the site ``ahead`` of it. A site has ``units`` keys.
        """
        self._needs, self._units, self._ahead = needs, units, ahead
        self._cuts: list[int] = np.searchsorted(needs.tick, np.arange(sites + 1)).tolist()

    @cached_property
    def needs(self) -> list[list[int]]:
        return self._by_site(self._needs.expert.tolist())

    @cached_property
    def keys(self) -> list[list[int]]:
        """``needs`` as keys of precision 0."""
        return self._by_site(self._all_keys().tolist())

    @cached_property
    def tokens(self) -> list[list[int]]:
        return self._by_site(self._needs.tokens.tolist())

    @cached_property
    def scores(self) -> list[list[float]]:
        return self._by_site(self._needs.score.tolist())

    def graded(self, rule: ScoreRule, plane: int) -> list[Graded]:
        """What a rule says of each site's needs, and the keys of the variants that it names."""
        said = rule(self._needs.score)
        variants: list[int] = variants_of(self._all_keys(), said, plane).tolist()
        said_list: list[int] = said.tolist()
        return list(zip(self._by_site(said_list), self._by_site(variants), strict=True))

    def _all_keys(self) -> IntArray:
        return self._needs.expert + (self._needs.tick + self._ahead) * self._units

    def _by_site(self, values: list[Value]) -> list[list[Value]]:
        return [values[start:stop] for start, stop in pairwise(self._cuts)]


def apart(
    experts: IntArray,
    weights: FloatArray,
    make_scores: Callable[[], FloatArray],
    first: NDArray[np.int64],
) -> Needs:
    """The needs of rows [R, S, K] that share no gate: each row keeps its own order."""
    gate = np.broadcast_to(
        first[:, None, None] + np.arange(experts.shape[1])[:, None], experts.shape
    )
    kept = experts >= 0
    tick = gate[kept]
    return Needs(
        tick,
        experts[kept].astype(np.int64),
        np.ones(len(tick), np.int64),
        weights[kept].astype(np.float64),
        lambda: make_scores()[kept],
    )


def merged(
    experts: IntArray,
    weights: FloatArray,
    scores: FloatArray,
    first: NDArray[np.int64],
    gates: int,
    num_experts: int,
) -> Needs:
    """The needs of rows [R, S, K], united gate by gate; a single row keeps its own order."""
    alone = apart(experts, weights, lambda: scores, first)
    if len(experts) == 1:
        return alone
    cell = alone.tick * num_experts + alone.expert
    tokens = np.bincount(cell, minlength=gates * num_experts)
    weight: NDArray[np.float64] = np.bincount(cell, alone.weight, minlength=gates * num_experts)  # type: ignore[assignment]
    lowest = np.full(gates * num_experts, np.inf)
    np.minimum.at(lowest, cell, alone.score)
    found = np.flatnonzero(tokens)
    found = found[np.lexsort((-tokens[found], found // num_experts))]
    score = lowest[found]
    return Needs(
        found // num_experts, found % num_experts, tokens[found], weight[found], lambda: score
    )


def variants_of(keys: IntArray, said: IntArray, plane: int) -> IntArray:
    """The keys of precision 0 at the precisions that a rule has said; ASK stays."""
    return np.where(said == ASK, ASK, keys + said * np.int32(plane))
