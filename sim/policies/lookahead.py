"""Forecasts from the routers of later sites, run ahead of time on this site's gate input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sim.policies.base import Choice, FloatArray, Gate, IntArray, Predictor
from sim.policies.placements import DECODE
from sim.policies.requires import Requires
from sim.policies.row_forecast import RowForecast, check_count, count_of


class BestOf:
    """The first ``count`` needs of a forecast, others left out of its rows (-1, weight 0).
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


class GateLookahead(Predictor):
    """The routers of the next ``sites`` sites, fed with this site's gate input.

    Forecasts come nearest site first and end where the trace has none (after the last site).
    Whether the walk stops at the first site that lacks an expert is the loader's ``depth``.
    ``experts``: at most so many experts a site, the best (None: what the site's own rule selects).
    Without ``prompts`` nothing is forecast in a step that holds a prompt's rows.

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
        return found if self.experts is None else (BestOf(choice, self.experts) for choice in found)

    def afresh(self) -> GateLookahead:
        """There is nothing to forget."""
        return self


class ConfidentLookahead(Predictor):
    """Of the next site's lookahead, every expert whose weight lies above a percentile of the
    weights of that site.

    Weights are the softmax of the raw lookahead scores over all experts; an expert is named if its
    weight is *greater* than the ``percentile`` (0 to 100, interpolated linearly) of its row's E
    weights, and is among the ``experts`` best (``all``: no limit). Best first: by descending
    weight, then id. Of several rows (prefill) it is what these select under the site's own rule, by
    the number of rows, as Fate's popularity.

    How many of these may be loaded is not the predictor's to say: what is resident costs nothing,
    so the budget ``n = T / t_expert`` is the loader's ``prefetch_budget: within_layer``
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
        scores = gate.lookahead(1)
        if scores is None:
            # A prompt of one token, of which only what it is forecast to choose was kept.
            yield forecast
            return
        wide = scores.astype(np.float64)
        weights = np.exp(wide - wide.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        num_experts = weights.shape[1]
        order = np.argsort(-weights, axis=1, kind="stable")
        ranked = np.take_along_axis(weights, order, axis=1)
        count = count_of(self.experts, forecast.experts.shape[1], num_experts)
        named = ranked > np.percentile(weights, self.percentile, axis=1, keepdims=True)
        named[:, count:] = False
        if named.any():
            yield RowForecast(
                forecast.site,
                num_experts + 1,
                np.where(named, order, -1),
                np.where(named, ranked, 0.0),
            )

    def afresh(self) -> ConfidentLookahead:
        """There is nothing to forget."""
        return self


def transfers_within(block_ns: int, expert_ns: int, top_k: int) -> int:
    """Fate's offline budget: how many experts can be moved while a block (attention, gate, MoE)
    runs.

    ``n = floor(T / t_expert)``, at least ``top_k``, the needs of one token (Fate leaves both
    roundings open).
    """
    if block_ns < 0 or expert_ns < 1 or top_k < 1:
        raise ValueError(
            f"need block_ns >= 0, expert_ns >= 1 and top_k >= 1, got {block_ns}, {expert_ns},"
            f" {top_k}"
        )
    return max(block_ns // expert_ns, top_k)
