"""The choices of token-rows, the forecasts for them, and their unions, all in need order.

Need order is defined in contracts C7, C8. What numpy can compute for all rows at once is
computed once. A step's lists of Python ints are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.policies.base import ASK, FloatArray, Graded, IntArray, ScoreRule
from sim.policies.requires import end_of_stack
from sim.traces.forecasts import DealtForecasts, deal, prompt_rows
from sim.traces.routing import RoutingRule, need_order, reorder, shares_above
from sim.traces.trace import DECODE, Trace

Rows = slice | NDArray[np.int64]
"""Selects rows of a `Choices`: consecutive ones by a slice, others by their indices."""
ALL = slice(None)
ROWS_AT_ONCE = 4096
CELLS_AT_ONCE = 1 << 16
"""Of rows and experts so many scores are routed at once: what is made on the way stays in the cache."""
Number = TypeVar("Number", bound=np.number[Any])


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
        expert: list[int] = self._needs.expert.tolist()
        return [expert[start:stop] for start, stop in pairwise(self._cuts)]

    @cached_property
    def keys(self) -> list[list[int]]:
        """``needs`` as keys of precision 0."""
        key: list[int] = (
            self._needs.expert + (self._needs.tick + self._ahead) * self._units
        ).tolist()
        return [key[start:stop] for start, stop in pairwise(self._cuts)]

    @cached_property
    def tokens(self) -> list[list[int]]:
        tokens: list[int] = self._needs.tokens.tolist()
        return [tokens[start:stop] for start, stop in pairwise(self._cuts)]

    @cached_property
    def scores(self) -> list[list[float]]:
        score: list[float] = self._needs.score.tolist()
        return [score[start:stop] for start, stop in pairwise(self._cuts)]

    def graded(self, rule: ScoreRule, plane: int) -> list[Graded]:
        """What a rule says of each site's needs, and the keys of the variants that it names."""
        said = rule(self._needs.score)
        keys = self._needs.expert + (self._needs.tick + self._ahead) * self._units
        said_list, variants = said.tolist(), variants_of(keys, said, plane).tolist()
        return [(said_list[at], variants[at]) for at in starmap(slice, pairwise(self._cuts))]


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

    @cached_property
    def forecast_scores(self) -> FloatArray:
        """The scores (HOBBIT eq. 2) of ``forecasts``, [N, S, J, K]."""
        return self._forecast[2]

    @cached_property
    def _forecast(self) -> tuple[IntArray, FloatArray, FloatArray]:
        experts, weights = self._selected()
        scores = shares_above(weights)
        dealt = list(self._dealt_prompts())
        if dealt:
            places = np.concatenate([of_prompt for of_prompt, _ in dealt])
            ids, likely, shares = (
                np.concatenate([getattr(rows, name) for _, rows in dealt])
                for name in ("experts", "weights", "scores")
            )
            reorder(need_order(ids, likely), ids, likely, shares)
            experts[places], weights[places], scores[places] = ids, likely, shares
        return experts, weights, scores

    def _dealt_prompts(self) -> Iterator[tuple[NDArray[np.int64], DealtForecasts]]:
        """The rows of each prompt (as indices of this object) and the forecasts dealt to them."""
        frame, trace = self.trace.prompt_forecasts.get(self.norm), self.trace
        if frame is None or not self.whole:
            return
        prompt = trace.valid[self.row] & (trace.phase[self.row] != DECODE)
        rows = prompt_rows(trace.step[self.row], trace.sequence[self.row], np.flatnonzero(prompt))
        frame = frame.filter(pl.col("sequence").is_in(sorted(self.whole)))
        for pair, dealt in deal(frame, self.sites, self.depth, self.top_k).items():
            places = rows.get(pair)
            if places is not None and len(places) == len(dealt.experts):
                yield places, dealt

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
            known = np.isfinite(scores).all(axis=-1)
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
        """The keys of the variants that a rule names by all ``forecast_scores``."""
        if rule not in self._forecast_variants:
            said = rule(self.forecast_scores)
            self._forecast_variants[rule] = variants_of(self._forecast_keys, said, self.plane)
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
        of_j = rows, slice(None), j - 1
        experts, weights, scores = (
            self.forecasts[0][of_j],
            self.forecasts[1][of_j],
            self.forecast_scores[of_j],
        )
        needs = _merged(experts, weights, scores, np.zeros(1, np.int64), self.sites, self.experts)
        return Union(needs, self.sites, self.units, j)

    def needs(self, rows: Rows, first: NDArray[np.int64], gates: int, sites: slice = ALL) -> Needs:
        """The needs of ``rows`` at some ``sites``, where rows of the same gate are united.

        A row's gate at the n-th of these sites has the number ``first + n``, below ``gates``.
        ``first`` has one value for each row, or one for all.
        """
        (experts, weights), scores = self.chosen, self.scores
        return _merged(
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
        return _apart(
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
        ahead: list[list[list[int]]] = self._forecast_keys[row].swapaxes(0, 1).tolist()
        return ahead if self.is_whole_forecast[row] else [_without_dropped(keys) for keys in ahead]

    @cached_property
    def _chosen_keys(self) -> IntArray:
        experts = self.experts_in_order
        first = np.arange(self.sites, dtype=np.int32)[:, None] * np.int32(self.units)
        return np.where(experts < 0, np.int32(-1), experts + first)

    @cached_property
    def _forecast_keys(self) -> IntArray:
        experts = self.forecasts[0]
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
        """By row, whether there is a forecast wherever there can be one."""
        can = np.arange(1, self.depth + 1) <= np.array(self.reach)[:, None]
        return [bool(least >= 0) for least in self.forecasts[0][:, can, -1].min(axis=1, initial=0)]


def variants_of(keys: IntArray, said: IntArray, plane: int) -> IntArray:
    """The keys of precision 0 at the precisions that a rule has said; ASK stays."""
    return np.where(said == ASK, ASK, keys + said * np.int32(plane))


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
    return SiteChoice(experts, weights, _merged(*rows, np.zeros(1, np.int64), 1, num_experts))


def _without_dropped(keys: list[list[int]]) -> list[list[int]]:
    return [[key for key in row if key >= 0] for row in keys]


def _apart(
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


def _merged(
    experts: IntArray,
    weights: FloatArray,
    scores: FloatArray,
    first: NDArray[np.int64],
    gates: int,
    num_experts: int,
) -> Needs:
    """The needs of rows [R, S, K], united gate by gate; a single row keeps its own order."""
    apart = _apart(experts, weights, lambda: scores, first)
    if len(experts) == 1:
        return apart
    cell = apart.tick * num_experts + apart.expert
    tokens = np.bincount(cell, minlength=gates * num_experts)
    weight: NDArray[np.float64] = np.bincount(cell, apart.weight, minlength=gates * num_experts)  # type: ignore[assignment]
    lowest = np.full(gates * num_experts, np.inf)
    np.minimum.at(lowest, cell, apart.score)
    found = np.flatnonzero(tokens)
    found = found[np.lexsort((-tokens[found], found // num_experts))]
    score = lowest[found]
    return Needs(
        found // num_experts, found % num_experts, tokens[found], weight[found], lambda: score
    )
