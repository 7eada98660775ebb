"""The choices of token-rows, the forecasts for them, and their unions, all in need order.

Need order is defined in contracts C7, C8. What numpy can compute for all rows at once is
computed once. A step's lists of Python ints are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import FloatArray, IntArray, ScoreRule
from sim.policies.requires import end_of_stack
from sim.traces.routing import RoutingRule, all_of, need_order, reorder, shares_above
from sim.traces.trace import Trace
from sim.workload.prompt_forecasts import PromptForecasts
from sim.workload.unions import Needs, Union, apart, merged, variants_of

Rows = slice | NDArray[np.int64]
"""Selects rows of a `Choices`: consecutive ones by a slice, others by their indices."""
ALL = slice(None)
ROWS_AT_ONCE = 4096
CELLS_AT_ONCE = 1 << 16
"""Of rows and experts so many scores are routed at once: what is made on the way stays in the cache."""
Number = TypeVar("Number", bound=np.number[Any])


class Choices:
    """The choices of N token-rows at S sites, and their forecasts up to ``depth`` sites ahead.

    ``row`` has the indices of these rows in the trace, in any order. Forecasts come from the
    lookahead scores of ``norm``. The prompts of the sequences in ``whole`` are read whole. So their
    rows can be dealt the forecasts that the trace keeps as cells (`sim.traces.forecasts`).
    """

    def __init__(
        self, trace: Trace, row: IntArray, depth: int, norm: str, whole: Collection[int] = ()
    ) -> None:
        self.trace, self.row, self.depth, self.norm, self.whole = (
            trace,
            row,
            depth,
            norm,
            frozenset(whole),
        )
        self.sites, self.experts, self.top_k = (
            trace.ids.shape[1],
            trace.header.model.experts,
            trace.ids.shape[2],
        )
        self.units = self.experts + 1
        self.plane: int = self.sites * self.units
        self._graded: dict[ScoreRule, tuple[IntArray, IntArray]] = {}
        self._forecast_variants: dict[ScoreRule, IntArray] = {}
        header = trace.header
        ends = header.encoder_sites, self.sites - header.draft_sites, self.sites
        self.reach = tuple(min(depth, end_of_stack(s, *ends) - 1 - s) for s in range(self.sites))
        """By site, how many sites ahead its forecasts go: they end with its stack."""

    @property
    def chosen(self) -> tuple[IntArray, FloatArray]:
        """Experts and weights [N, S, K], each row in need order.

        Dropped choices come last, as expert -1 with weight 0.
        """
        return self.experts_in_order, self.weights_in_order

    @cached_property
    def experts_in_order(self) -> IntArray:
        return self._in_order(self.trace.ids, -1)

    @cached_property
    def weights_in_order(self) -> FloatArray:
        return self._in_order(self.trace.weights, 0)

    def _in_order(self, values: NDArray[Number], dropped: int) -> NDArray[Number]:
        found = np.empty(self.order.shape, values.dtype)
        for part, rows in self._parts():
            put = values[rows]
            put[self.trace.ids[rows] < 0] = dropped
            reorder(self.order[part], put)
            found[part] = put
        return found

    @cached_property
    def order(self) -> NDArray[np.integer]:
        """The places of each row's choices, in need order, [N, S, K]. Many runs never ask for weights, and
        places take less.
        """
        found = np.empty((len(self.row), self.sites, self.top_k), np.min_scalar_type(self.top_k))
        for part, rows in self._parts():
            ids = self.trace.ids[rows]
            weights = np.where(ids < 0, np.float32(0), self.trace.weights[rows])
            found[part] = need_order(ids, weights, self.trace.header.stands_in_order)
        return found

    def _parts(self, rows: int = ROWS_AT_ONCE) -> Iterator[tuple[slice, IntArray]]:
        """Some rows at a time, and their indices in the trace: what is made on the way is small."""
        for first in range(0, len(self.row), rows):
            part = slice(first, first + rows)
            yield part, self.row[part]

    @cached_property
    def scores(self) -> FloatArray:
        """The scores (HOBBIT eq. 2) of the choices in ``chosen``, [N, S, K]."""
        return shares_above(self.weights_in_order)

    @cached_property
    def forecasts(self) -> tuple[IntArray, FloatArray]:
        """Forecast experts and weights [N, S, J, K], -1 where nothing is forecast.

        They are what the target site's rule selects from the lookahead scores.
        """
        return self._forecast[0], self._forecast[1]

    @property
    def own_scores(self) -> FloatArray:
        """The scores (HOBBIT eq. 2) of what rows' own lookahead scores forecast, [N, S, J, K]."""
        return self._own[2]

    @cached_property
    def _forecast(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """`_own`, with the rows of whole prompts filled in, in place."""
        experts, weights, scores, _ = self._own
        dealt = list(self._prompts.dealt())
        if dealt:
            places = np.concatenate([of_prompt for of_prompt, _ in dealt])
            ids, likely, shares = (
                np.concatenate([getattr(rows, name) for _, rows in dealt])
                for name in ("experts", "weights", "scores")
            )
            reorder(need_order(ids, likely), ids, likely, shares)
            experts[places], weights[places], scores[places] = ids, likely, shares
        return experts, weights, scores

    @cached_property
    def _own(self) -> tuple[IntArray, FloatArray, FloatArray, list[bool]]:
        """What follows from the rows' own lookahead scores: experts, weights, scores, and by row
        whether it has a forecast wherever there can be one. Rows of whole prompts may have none.
        """
        experts, weights = self._selected()
        can = np.arange(1, self.depth + 1) <= np.array(self.reach)[:, None]
        last = experts[:, can, -1].min(axis=1, initial=0)
        return experts, weights, shares_above(weights), [bool(least >= 0) for least in last]

    @cached_property
    def _prompts(self) -> PromptForecasts:
        return PromptForecasts(self.trace, self.row, self.norm, self.depth, self.whole)

    def _selected(self) -> tuple[IntArray, FloatArray]:
        """What the rules select from the rows' own lookahead scores: experts and weights."""
        lookahead, header = self.trace.lookahead[self.norm], self.trace.header
        experts = np.full((len(self.row), self.sites, self.depth, self.top_k), -1, np.int16)
        weights = np.zeros(experts.shape, np.float32)
        # By rule, from where to where its experts are forecast: site and distance.
        asked: dict[RoutingRule, NDArray[np.bool_]] = {}
        for site, reach in enumerate(self.reach):
            for j in range(1, reach + 1):
                rule = header.sites[site + j].rule
                if rule is None:
                    raise ValueError(
                        f"trace {header.name} has no routing rule for site {site + j}, so lookahead"
                        " scores cannot be turned into experts; choose predictor=none"
                    )
                of_rule = asked.setdefault(rule, np.zeros((self.sites, self.depth), np.bool_))
                of_rule[site, j - 1] = True
        cells = self.sites * self.depth * self.experts
        for part, rows in self._parts(max(1, CELLS_AT_ONCE // cells)):
            scores = lookahead[rows, :, : self.depth]
            known = all_of(np.isfinite(scores))
            for rule, of_rule in asked.items():
                kept = known & of_rule
                experts[part][kept], weights[part][kept] = rule.route(scores[kept], self.top_k)
        return experts, weights

    def graded(self, rule: ScoreRule) -> tuple[IntArray, IntArray]:
        """What a rule says of all ``scores``, and the keys of the variants that it names."""
        if rule not in self._graded:
            said = rule(self.scores)
            self._graded[rule] = said, variants_of(self._chosen_keys, said, self.plane)
        return self._graded[rule]

    def forecast_variants(self, rule: ScoreRule) -> IntArray:
        """The keys of the variants that a rule names by all ``own_scores``."""
        if rule not in self._forecast_variants:
            said = rule(self.own_scores)
            self._forecast_variants[rule] = variants_of(self._own_keys, said, self.plane)
        return self._forecast_variants[rule]

    @cached_property
    def has_shares(self) -> NDArray[np.bool_]:
        """By row, whether the trace has active shares of it: of a token of a prompt it has none."""
        shares = self.trace.active_shares
        found = np.zeros(len(self.row), np.bool_)
        if shares is not None:
            for part, rows in self._parts():
                found[part] = np.isfinite(shares[rows]).any(axis=(1, 2, 3))
        return found

    def union(self, rows: Rows) -> Union:
        """What ``rows`` together need at every site."""
        return Union(self.needs(rows, np.zeros(1, np.int64), self.sites), self.sites, self.units)

    def forecast_union(self, rows: Rows, j: int) -> Union:
        """What ``rows`` together are forecast to need ``j`` sites on, listed by forecasting site.

        Rows without a forecast add nothing.
        """
        needs = self._prompts.needs(rows, j)
        if needs is None:
            experts, weights, scores = self._forecast
            of_j = rows, ALL, j - 1
            rows_alone = experts[of_j], weights[of_j], scores[of_j]
            needs = merged(*rows_alone, np.zeros(1, np.int64), self.sites, self.experts)
        return Union(needs, self.sites, self.units, j)

    def needs(self, rows: Rows, first: NDArray[np.int64], gates: int, sites: slice = ALL) -> Needs:
        """The needs of ``rows`` at some ``sites``, where rows of the same gate are united.

        A row's gate at the n-th of these sites has the number ``first + n``, below ``gates``.
        ``first`` has one value for each row, or one for all.
        """
        (experts, weights), scores = self.chosen, self.scores
        return merged(
            experts[rows][:, sites],
            weights[rows][:, sites],
            scores[rows][:, sites],
            first,
            gates,
            self.experts,
        )

    def needs_apart(
        self, rows: Rows, first: NDArray[np.int64], gates: int, sites: slice = ALL
    ) -> Needs:
        """The same as ``needs``, faster, for rows no two of which have a gate in common."""
        experts, weights = self.chosen
        return apart(
            experts[rows][:, sites],
            weights[rows][:, sites],
            lambda: self.scores[rows][:, sites],
            first,
        )

    def keys(self, row: int) -> list[list[int]]:
        """The needs of one row as keys of precision 0, by site, in need order."""
        keys: list[list[int]] = self._chosen_keys[row].tolist()
        return keys if self.is_whole[row] else _without_dropped(keys)

    def forecast_keys(self, row: int) -> list[list[list[int]]]:
        """What one row is forecast to need, as keys of precision 0 in need order.

        The outer list is by distance, from 1 on, the next by the site that forecasts. Lists beyond
        the ``reach`` of a site mean nothing.
        """
        if self.is_whole_forecast[row]:
            whole: list[list[list[int]]] = self._own_keys[row].swapaxes(0, 1).tolist()
            return whole
        keys = self._ahead_keys(self.forecasts[0][row]).swapaxes(0, 1).tolist()
        return [_without_dropped(of_site) for of_site in keys]

    @cached_property
    def _chosen_keys(self) -> IntArray:
        experts = self.experts_in_order
        first = np.arange(self.sites, dtype=np.int32)[:, None] * np.int32(self.units)
        return np.where(experts < 0, np.int32(-1), experts + first)

    @cached_property
    def _own_keys(self) -> IntArray:
        return self._ahead_keys(self._own[0])

    def _ahead_keys(self, experts: IntArray) -> IntArray:
        """Forecast ``experts`` [.., S, J, K] as keys of precision 0, -1 where there is none."""
        target = np.arange(self.sites)[:, None] + np.arange(1, self.depth + 1)
        return np.where(experts < 0, -1, experts + target[..., None] * self.units).astype(np.int32)

    @cached_property
    def is_whole(self) -> list[bool]:
        """By row, whether no choice was dropped."""
        return [
            bool(least >= 0) for least in self.experts_in_order[:, :, -1].min(axis=1, initial=0)
        ]

    @cached_property
    def is_whole_forecast(self) -> list[bool]:
        """By row, whether its own scores make a forecast wherever there can be one."""
        return self._own[3]


@dataclass(frozen=True)
class SiteChoice:
    """What R rows chose at one site, and their union.

    ``experts`` and ``weights`` are [R, K], each row in need order.
    """

    experts: IntArray
    weights: FloatArray
    needs: Needs


def choice_at_site(ids: IntArray, weights: FloatArray, num_experts: int) -> SiteChoice:
    """The choices of R rows at one site, ordered and united as `Choices` does it.

    ``ids`` and ``weights`` are [R, K]; id -1 is a dropped choice.
    """
    weights = np.where(ids < 0, np.float32(0), weights)
    order = need_order(ids, weights)
    experts, weights = np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)
    rows = experts[:, None], weights[:, None], shares_above(weights)[:, None]
    return SiteChoice(experts, weights, merged(*rows, np.zeros(1, np.int64), 1, num_experts))


def _without_dropped(keys: list[list[int]]) -> list[list[int]]:
    return [[key for key in row if key >= 0] for row in keys]
