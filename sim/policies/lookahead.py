"""Lookahead predictors: they run the routers of later sites ahead of time, on this site's gate
input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sim.policies.base import Choice, FloatArray, Gate, IntArray, Predictor
from sim.policies.placements import DECODE
from sim.policies.requires import Requires
from sim.policies.row_forecast import check_count, count_of


class BestOf:
    """A forecast cut to its first ``count`` needs; the others are -1 with weight 0 in its rows.
    Implements ``Choice``.
    """

    def __init__(self, choice: Choice, count: int) -> None:
        self._choice, self._count = choice, count
        self.site = choice.site
        self.keys: list[int] = list(choice.keys[:count])

    @property
    def needs(self) -> Sequence[int]:
        return self._choice.needs[: self._count]

    @property
    def tokens(self) -> Sequence[int]:
        return self._choice.tokens[: self._count]

    @property
    def scores(self) -> Sequence[float]:
        return self._choice.scores[: self._count]

    @property
    def experts(self) -> IntArray:
        experts = self._choice.experts
        return np.where(np.isin(experts, self.needs), experts, -1)

    @property
    def weights(self) -> FloatArray:
        return np.where(self.experts >= 0, self._choice.weights, 0)


def _best_of(choices: Iterable[Choice], count: int) -> Iterator[BestOf]:
    """Each of these forecasts, cut to its first ``count`` needs."""
    return (BestOf(choice, count) for choice in choices)


class GateLookahead(Predictor):
    """Runs the routers of the next ``sites`` sites on this site's gate input.

    Forecasts come nearest site first and end after the last site. The loader's ``depth`` decides
    whether prefetching stops at the first site that lacks an expert. ``experts``: at most so many
    experts a site, the best (None: what the site's own rule selects). Without ``prompts`` nothing
    is forecast in a step that has rows of prompts.

    Source: Eliseev and Mazur, arXiv:2312.17238, speculative loading; Tang et al., HOBBIT,
    arXiv:2411.01433, sec. 3.3.
    """

    def __init__(self, sites: int, experts: int | None = None, prompts: bool = True) -> None:
        if not isinstance(sites, int) or isinstance(sites, bool) or sites < 1:
            raise ValueError(
                f"predictor.sites={sites!r} must be a whole number >= 1; or choose predictor=none"
            )
        if experts is not None and (
            not isinstance(experts, int) or isinstance(experts, bool) or experts < 1
        ):
            raise ValueError(
                f"predictor.experts={experts!r} must be a whole number >= 1, or null for the"
                " rule's own"
            )
        if not isinstance(prompts, bool):
            raise ValueError(
                f"predictor.prompts={prompts!r} must be true or false: whether prompts are"
                " forecast, too"
            )
        self.sites, self.experts, self.prompts = sites, experts, prompts
        self.as_routed = experts is None

    @property
    def requires(self) -> Requires:
        return Requires(lookahead_sites=self.sites)

    def predict(self, gate: Gate) -> Iterable[Choice]:
        if not self.prompts and (gate.row_phase != DECODE).any():
            return ()
        found = gate.forecasts(self.sites)
        return found if self.experts is None else _best_of(found, self.experts)

    def afresh(self) -> GateLookahead:
        """Itself: it remembers nothing of the gates."""
        return self


class ConfidentLookahead(Predictor):
    """Names the experts of the next site whose lookahead weight lies above a percentile.

    Weights are the softmax of the raw lookahead scores over all experts. An expert is named if its
    weight is *greater* than the ``percentile`` (0 to 100, interpolated linearly) of its row's E
    weights, and if it is among the ``experts`` best (``all``: no limit). The order is descending
    weight, then id. For several rows (a prompt) the forecast is what they select under the site's
    own rule, in the order of the number of rows: Fate's popularity.

    How many of these are loaded is the loader's decision, because a resident expert costs nothing:
    the budget ``n = T / t_expert`` is ``loader.prefetch_budget: within_layer``
    (`transfers_within`).

    Source: Fang et al., Fate, arXiv:2502.12224, sections 4.1 and 4.2. Not stated there: strictly
    above, interpolation.
    """

    def __init__(self, percentile: float = 75, experts: str | int = "all") -> None:
        if (
            not isinstance(percentile, int | float)
            or isinstance(percentile, bool)
            or not 0 <= percentile < 100
        ):
            raise ValueError(
                f"predictor.percentile={percentile!r} must be a number from 0 to below 100"
            )
        check_count(experts)
        self.percentile, self.experts = percentile, experts

    @property
    def requires(self) -> Requires:
        return Requires(lookahead_sites=1)

    def predict(self, gate: Gate) -> Iterable[Choice]:
        forecast = gate.routed(1)
        if forecast is None:
            return
        if len(forecast.experts) > 1:
            yield forecast
            return
        named = gate.ranked(self._above, 1)
        if named is None:
            # A prompt of one token: the trace keeps what it is forecast to choose, but no scores.
            yield forecast
        elif named.keys:
            yield named

    def _above(self, scores: FloatArray, top_k: int) -> tuple[IntArray, FloatArray]:
        wide = scores.astype(np.float64)
        weights = np.exp(wide - wide.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        order = np.argsort(-weights, axis=1, kind="stable")
        ranked = np.take_along_axis(weights, order, axis=1)
        count = count_of(self.experts, top_k, weights.shape[1])
        named = ranked > percentile_of(ranked, self.percentile)
        named[:, count:] = False
        return np.where(named, order, -1), np.where(named, ranked, 0.0)

    def afresh(self) -> ConfidentLookahead:
        """Itself: it remembers nothing of the gates."""
        return self


def percentile_of(ranked: FloatArray, percentile: float) -> FloatArray:
    """The percentile of each row of [R, E], interpolated linearly: [R, 1]. Rows are in descending
    order, so that nothing need be sorted; else it is numpy's ``percentile``.
    """
    last = ranked.shape[1] - 1
    place = last * (percentile / 100)
    below = int(place)
    share = place - below
    low, high = ranked[:, last - below, None], ranked[:, max(last - below - 1, 0), None]
    if share < 0.5:
        return np.asarray(low + (high - low) * share)
    return np.asarray(high - (high - low) * (1 - share))


def transfers_within(block_ns: int, expert_ns: int, top_k: int) -> int:
    """Fate's offline budget: how many experts can be moved while a block (attention, gate, MoE)
    runs.

    ``n = floor(T / t_expert)``, and at least ``top_k``, the needs of one token. Fate states neither
    the rounding nor the minimum.
    """
    if block_ns < 0 or expert_ns < 1 or top_k < 1:
        raise ValueError(
            f"need block_ns >= 0, expert_ns >= 1 and top_k >= 1, got {block_ns}, {expert_ns},"
            f" {top_k}"
        )
    return max(block_ns // expert_ns, top_k)
