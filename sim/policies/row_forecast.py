"""Forecasts made of likelinesses, by predictors that do not run a router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, FloatArray, IntArray

Floats = NDArray[np.float64]
COUNTS = ("top_k", "all")
Ranking = tuple[NDArray[np.int32], Floats]
"""The keys of a choice, in need order, and how likely each is."""


class RowForecast:
    """What rows are forecast to choose at ``site``. Implements ``Choice``.

    - ``experts`` [R, n]: the likeliest experts of each row, best first, -1 where a row names fewer.
    - ``weights`` [R, n]: their likelinesses, 0 or more, on the predictor's own scale; 0 beside -1.
    - ``needs``: the experts of all rows, best first. More rows come before fewer, then the larger
      sum of likelinesses, then the smaller id.
    - ``tokens``: how many rows name each need.
    - ``scores``: HOBBIT's eq. 2 with likelinesses in place of gate weights. It is the share of a
      row's named likeliness that ranks above the expert; over several rows the smallest.

    ``named``: ``needs`` and ``keys``, where the caller has made them already, for one row.
    """

    __slots__ = ("_ranking", "experts", "keys", "needs", "site", "tokens", "weights")

    def __init__(
        self,
        site: int,
        units: int,
        experts: IntArray,
        weights: FloatArray,
        named: tuple[list[int], list[int]] | None = None,
    ) -> None:
        self.site, self.experts, self.weights = site, experts, weights
        self._ranking: Ranking | None = None
        self.needs: Sequence[int]
        self.tokens: Sequence[int]
        self.keys: list[int]
        if named is not None:
            self.needs, self.keys = named
            self.tokens = [1] * len(self.needs)
            return
        if len(experts) == 1:
            row = experts[0].tolist()
            self.needs = [expert for expert in row if expert >= 0] if -1 in row else row
            self.tokens = [1] * len(self.needs)
        else:
            is_named = experts >= 0
            flat = experts[is_named].astype(np.int64)
            rows: NDArray[np.int64] = np.bincount(flat)
            sums = np.bincount(flat, weights[is_named])
            found = np.flatnonzero(rows)
            found = found[np.lexsort((-sums[found], -rows[found]))]
            self.needs, self.tokens = found.tolist(), rows[found].tolist()
        self.keys = [site * units + expert for expert in self.needs]

    @property
    def ranking(self) -> Ranking:
        """`ranking_of`, kept: a predictor may give the same forecast at many gates."""
        if self._ranking is None:
            self._ranking = _ranking(self)
        return self._ranking

    @property
    def scores(self) -> Sequence[float]:
        wide = self.weights.astype(np.float64)
        total = wide.sum(axis=1, keepdims=True)
        above = (np.cumsum(wide, axis=1) - wide) / np.where(total > 0, total, 1.0)
        least: dict[int, float] = {}
        for expert, score in zip(
            self.experts.ravel().tolist(), above.ravel().tolist(), strict=True
        ):
            least[expert] = min(score, least.get(expert, score))
        return [least[expert] for expert in self.needs]


@dataclass(frozen=True)
class Together:
    """The forecasts of several sites as one queue, likeliest first; of those that are as likely the
    first one named goes first.

    ``keys`` are those of all sites, ``choice`` is the number of each one's forecast. ``by_site``:
    the keys of each site.
    """

    keys: NDArray[np.int32]
    choice: NDArray[np.intp]
    by_site: Mapping[int, NDArray[np.int32]]

    @classmethod
    def of(cls, choices: Iterable[Choice], rankings: Iterable[Ranking]) -> Together:
        """Of as many choices as there are rankings."""
        ranked = list(rankings)
        if not ranked:
            return NOTHING
        order = (-np.concatenate([likely for _, likely in ranked])).argsort(kind="stable")
        choice = np.repeat(np.arange(len(ranked)), [len(keys) for keys, _ in ranked])
        by_site = {choice.site: keys for choice, (keys, _) in zip(choices, ranked, strict=False)}
        return cls(np.concatenate([keys for keys, _ in ranked])[order], choice[order], by_site)


NOTHING = Together(np.empty(0, np.int32), np.empty(0, np.intp), MappingProxyType({}))


class Forecasts(list[RowForecast]):
    """What is forecast at one gate, site by site, where the same may be forecast at many gates."""

    @cached_property
    def together(self) -> Together:
        return Together.of(self, map(ranking_of, self))


def forecasts_of(
    sites: Sequence[int], units: int, experts: IntArray, weights: FloatArray
) -> list[RowForecast]:
    """The forecasts of several sites, from their experts and weights [sites, R, n].

    One array for all of them costs about as much as one for each.
    """
    if experts.shape[1] != 1:
        return [
            RowForecast(site, units, experts[place], weights[place])
            for place, site in enumerate(sites)
        ]
    of_row = experts[:, 0].astype(np.int64)
    is_named = of_row >= 0
    needs: list[int] = of_row[is_named].tolist()
    keys: list[int] = (of_row + np.array(sites)[:, None] * units)[is_named].tolist()
    cuts = [0, *np.cumsum(is_named.sum(axis=1)).tolist()]
    return [
        RowForecast(
            site,
            units,
            experts[place],
            weights[place],
            (needs[cuts[place] : cuts[place + 1]], keys[cuts[place] : cuts[place + 1]]),
        )
        for place, site in enumerate(sites)
    ]


def ranking_of(choice: Choice) -> Ranking:
    """Of each need of a choice its key, and the sum of its weights over the rows, on the scale of
    the choice.
    """
    found: Ranking | None = getattr(choice, "ranking", None)
    return _ranking(choice) if found is None else found


def _ranking(choice: Choice) -> Ranking:
    """`ranking_of`, computed now."""
    return np.array(choice.keys, np.int32), np.array(_summed(choice), np.float64)


def _summed(choice: Choice) -> Sequence[float]:
    """The sums of `ranking_of`."""
    experts, weights, needs = choice.experts, choice.weights.tolist(), choice.needs
    if len(weights) == 1 and len(weights[0]) == len(needs):
        # A row's experts stand in need order.
        return weights[0]  # type: ignore[no-any-return]
    sums = dict.fromkeys(needs, 0.0)
    for row, likely in zip(experts.tolist(), weights, strict=True):
        for expert, weight in zip(row, likely, strict=True):
            if expert >= 0:
                sums[expert] += weight
    return list(sums.values())


def likeliest(likeliness: FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """The ``count`` likeliest experts of each row of [..., E], and their likelinesses.

    They stand by descending likeliness, then id. An expert of likeliness 0 is not named: -1 with
    likeliness 0 stands in its place, behind the others.
    """
    rows = likeliness.reshape(-1, likeliness.shape[-1])
    order = (-rows).argsort(axis=-1, kind="stable")[:, :count]
    weights = rows[np.arange(len(rows))[:, None], order]  # take_along_axis takes many times as long
    shape = (*likeliness.shape[:-1], order.shape[1])
    return np.where(weights > 0, order, -1).reshape(shape), weights.reshape(shape)


def check_count(experts: str | int) -> None:
    """Raise ValueError unless ``experts`` says how many a row may name."""
    if experts not in COUNTS and (
        not isinstance(experts, int) or isinstance(experts, bool) or experts < 1
    ):
        raise ValueError(
            f"predictor.experts={experts!r} must be a whole number >= 1, top_k (as many as the"
            " router selects) or all"
        )


def count_of(experts: str | int, top_k: int, num_experts: int) -> int:
    """How many experts a row may name."""
    if isinstance(experts, int):
        return min(experts, num_experts)
    return top_k if experts == "top_k" else num_experts
