"""The gate object with which both drivers walk through the steps of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import FloatArray, Gate, Graded, IntArray, RowRule, ScoreRule
from sim.policies.row_forecast import RowForecast, forecasts_of
from sim.traces.gate_inputs import GateInputs
from sim.traces.trace import Trace
from sim.values.types import Step
from sim.workload.choices import Choices, Rows
from sim.workload.unions import Union

Scalar = TypeVar("Scalar", bound=np.generic)
_HAS_KEYS = attrgetter("keys")


class GateSource(Protocol):
    """What a gate reads of the workload that it walks through.

    ``phase`` tells prompt from decode for each row of the trace. ``norm`` names the lookahead
    scores that forecasts read. ``gate_inputs``: None where no predictor reads them.
    """

    trace: Trace
    phase: NDArray[np.uint8]
    norm: str
    gate_inputs: GateInputs | None
    choices: Choices

    def place(self, row: int) -> int:
        """Where a scheduled row stands in `choices`."""

    def places(self, step: Step) -> Rows:
        """Where the rows of a step stand in `choices`."""


class Walker(Gate, Protocol):
    """A gate that walks through the steps of a workload: what an engine asks of `StepGate`."""

    def open(self, step: Step) -> None:
        """Begin a step; none of its sites is visited yet."""

    def visit(self, site: int) -> None:
        """Become the gate at this site of the step."""


class RoutedChoice:
    """A forecast for ``site``, made ``j`` sites before it. Implements ``Choice``.

    The object is reused: it reads what its gate has found for the step.
    """

    __slots__ = ("_from", "_gate", "_j", "site")

    def __init__(self, gate: StepGate, site: int, j: int) -> None:
        self._gate, self._j, self._from = gate, j, site - j
        self.site = site

    @property
    def keys(self) -> list[int]:
        gate, j = self._gate, self._j
        return (gate.keys_ahead or gate.look_ahead())[j - 1][self._from]

    @property
    def needs(self) -> Sequence[int]:
        first = self.site * self._gate.units
        return [key - first for key in self.keys]

    @property
    def tokens(self) -> Sequence[int]:
        return self._gate.forecast_of(self._j).tokens[self._from]

    @property
    def scores(self) -> Sequence[float]:
        return self._gate.forecast_scores(self._j)[self._from]

    def variants(self, rule: ScoreRule) -> list[int]:
        gate, j = self._gate, self._j
        by_site = gate.variants_ahead[j] if gate.rule is rule else None
        return (by_site or gate.name_variants(rule, j))[self._from]

    @property
    def experts(self) -> IntArray:
        return self._gate.at_site(self._gate.workload.choices.forecasts[0])[:, self._j - 1]

    @property
    def weights(self) -> FloatArray:
        return self._gate.at_site(self._gate.workload.choices.forecasts[1])[:, self._j - 1]


class StepGate:
    """The gate of both drivers: ``open`` a step, then ``visit`` its sites in order.

    One object serves the whole run. Implements ``Gate``.
    """

    __slots__ = (
        "_ahead",
        "_choices",
        "_forecast_scores",
        "_forecast_unions",
        "_graded",
        "_keys",
        "_once",
        "_ranked",
        "_routes",
        "_row",
        "_rows",
        "_scores",
        "_step",
        "_tokens",
        "_union",
        "keys",
        "keys_ahead",
        "rule",
        "site",
        "step",
        "tick",
        "token",
        "tokens",
        "units",
        "variants_ahead",
        "workload",
    )

    def __init__(self, workload: GateSource) -> None:
        self.workload = workload
        self._choices = workload.choices
        self.units = self._choices.units
        by_distance = [
            [RoutedChoice(self, site + j, j) for site in range(self._choices.sites)]
            for j in range(1, self._choices.depth + 1)
        ]
        self._routes = [
            [choices[site] for choices in by_distance[:reach]]
            for site, reach in enumerate(self._choices.reach)
        ]
        self.tick = -1
        self.site = 0
        self.keys: list[int] = []
        self.tokens: list[int] = []
        self._once = [[1] * self._choices.top_k] * self._choices.sites
        self.variants_ahead: list[list[list[int]] | None] = []
        """The variants that ``rule`` names of the step's forecasts: by distance, from 1 on, then by the
        site that forecasts. None: not asked yet."""

    def open(self, step: Step) -> None:
        self._step, self.step, self.token = step, step.index, step.token
        self._rows: Rows | None = None
        self._union: Union | None = None
        self._ahead: list[list[RoutedChoice]] | None = None
        self.keys_ahead: list[list[list[int]]] | None = None
        """By distance, from 1 on, then by the site that forecasts; None: not asked yet."""
        self._forecast_unions: dict[int, Union] = {}
        self._ranked: dict[tuple[RowRule, int], dict[int, RowForecast]] = {}
        self._scores: list[list[float]] | None = None
        self._forecast_scores: dict[int, list[list[float]]] = {}
        self.rule: ScoreRule | None = None
        self._graded: list[Graded] | None = None
        # The place of a step's only row in the choices; -1 where there are several.
        self._row = self.workload.place(step.start) if step.stop - step.start == 1 else -1
        if self._row >= 0:
            self._keys = self._choices.keys(self._row)
            # What a whole row needs it needs once, so that all of them share these lists.
            is_whole = self._choices.is_whole[self._row]
            self._tokens = self._once if is_whole else [[1] * len(keys) for keys in self._keys]
        else:
            union = self._full_union()
            self._keys, self._tokens = union.keys, union.tokens

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        self.keys = self._keys[site]
        self.tokens = self._tokens[site]

    @property
    def needs(self) -> Sequence[int]:
        first = self.site * self.units
        return [key - first for key in self.keys]

    @property
    def scores(self) -> Sequence[float]:
        if self._scores is None:
            self._scores = self._row_scores() or self._full_union().scores
        return self._scores[self.site]

    def _row_scores(self) -> list[list[float]]:
        """The scores of a step of one row that chose everywhere; [] for other steps."""
        if self._row < 0 or not self._choices.is_whole[self._row]:
            return []
        scores: list[list[float]] = self._choices.scores[self._row].tolist()
        return scores

    def graded(self, rule: ScoreRule) -> Graded:
        if self.rule is not rule or self._graded is None:
            self._begin_rule(rule)
            self._graded = self._grade(rule)
        return self._graded[self.site]

    def _begin_rule(self, rule: ScoreRule) -> None:
        if self.rule is not rule:
            self.rule, self._graded = rule, None
            self.variants_ahead = [None] * (self._choices.depth + 1)

    def _grade(self, rule: ScoreRule) -> list[Graded]:
        """What a rule says of the step's choices, by site."""
        row = self._row
        if row >= 0 and self._choices.is_whole[row]:
            numbers, variants = self._choices.graded(rule)
            return list(zip(numbers[row].tolist(), variants[row].tolist(), strict=True))
        return self._full_union().graded(rule, self._choices.plane)

    def name_variants(self, rule: ScoreRule, j: int) -> list[list[int]]:
        """Fill ``variants_ahead`` for the step's forecasts ``j`` sites ahead."""
        self._begin_rule(rule)
        row = self._row
        found: list[list[int]]
        if row >= 0 and self._choices.is_whole_forecast[row]:
            found = self._choices.forecast_variants(rule)[row, :, j - 1].tolist()
        else:
            graded = self.forecast_of(j).graded(rule, self._choices.plane)
            found = [variants for _, variants in graded]
        self.variants_ahead[j] = found
        return found

    def forecasts(self, sites: int) -> Sequence[RoutedChoice]:
        """What the rules of the next ``sites`` select, nearest first, up to the first without."""
        found = (self._ahead or self._forecasts())[self.site]
        return found if sites >= self._choices.depth else found[:sites]

    def routed(self, j: int) -> RoutedChoice | None:
        found = self.forecasts(j)
        return found[j - 1] if len(found) == j else None

    def _forecasts(self) -> list[list[RoutedChoice]]:
        """The step's forecasts by forecasting site, nearest first; made at the first request."""
        self._require_lookahead()
        found = self._routes
        if self._row < 0 or not self._choices.is_whole_forecast[self._row]:
            found = [list(takewhile(_HAS_KEYS, choices)) for choices in found]
        self._ahead = found
        return found

    def look_ahead(self) -> list[list[list[int]]]:
        """Fill ``keys_ahead``, at the first request in a step."""
        if self._row >= 0:
            found = self._choices.forecast_keys(self._row)
        else:
            found = [self.forecast_of(j).keys for j in range(1, self._choices.depth + 1)]
        self.keys_ahead = found
        return found

    def forecast_scores(self, j: int) -> list[list[float]]:
        """The scores of the step's forecasts ``j`` sites ahead, by forecasting site."""
        found = self._forecast_scores.get(j)
        if found is None:
            row = self._row
            if row >= 0 and self._choices.is_whole_forecast[row]:
                found = self._choices.own_scores[row, :, j - 1].tolist()
            else:
                found = self.forecast_of(j).scores
            self._forecast_scores[j] = found
        return found

    def forecast_of(self, j: int) -> Union:
        """The union of the step's forecasts ``j`` sites ahead."""
        if j not in self._forecast_unions:
            self._forecast_unions[j] = self._choices.forecast_union(self._rows_of_step(), j)
        return self._forecast_unions[j]

    def _full_union(self) -> Union:
        if self._union is None:
            self._union = self._choices.union(self._rows_of_step())
        return self._union

    def _rows_of_step(self) -> Rows:
        if self._rows is None:
            self._rows = self.workload.places(self._step)
        return self._rows

    def at_site(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """The values of the step's rows at this site in a ``column`` [N, S, ...] of `Choices`."""
        return column[self._rows_of_step(), self.site]

    @property
    def experts(self) -> IntArray:
        return self.at_site(self._choices.experts_in_order)

    @property
    def weights(self) -> FloatArray:
        return self.at_site(self._choices.weights_in_order)

    def _trace_rows(self) -> IntArray:
        return self._choices.row[self._rows_of_step()]

    @property
    def row_sequence(self) -> IntArray:
        return self.workload.trace.sequence[self._trace_rows()]

    @property
    def row_phase(self) -> IntArray:
        return self.workload.phase[self._trace_rows()]

    @property
    def row_position(self) -> IntArray:
        return self.workload.trace.position[self._trace_rows()]

    @property
    def row_token(self) -> IntArray:
        return self.workload.trace.token[self._trace_rows()]

    @property
    def gate_input(self) -> FloatArray | None:
        kept = self.workload.gate_inputs
        return None if kept is None else kept.of(self._trace_rows(), self.site)

    @property
    def logits(self) -> FloatArray | None:
        """The router's logits of every expert [R, E]; None where the trace has none."""
        logits = self.workload.trace.logits
        return None if logits is None else logits[self._trace_rows(), self.site]

    @property
    def preferences(self) -> FloatArray | None:
        rule, logits = self.workload.trace.header.sites[self.site].rule, self.logits
        return None if rule is None or logits is None else rule.preferences(logits)

    @property
    def share(self) -> FloatArray | None:
        """Active shares of channels [R, K, P], in the order of ``experts``; None without any, as of
        a token that was recorded in a prompt.
        """
        of_trace = self.workload.trace.active_shares
        if of_trace is None or not self._choices.has_shares[self._rows_of_step()].any():
            return None
        shares = of_trace[self._trace_rows(), self.site]
        in_order: FloatArray = shares[
            np.arange(len(shares))[:, None], self.at_site(self._choices.order)
        ]
        return in_order

    def _require_lookahead(self) -> None:
        if not self._choices.depth:
            raise RuntimeError(
                "no policy asked for lookahead scores; declare"
                " requires = Requires(lookahead_sites=...)"
            )

    def lookahead(self, j: int) -> FloatArray | None:
        self._require_lookahead()
        if j > self._choices.reach[self.site]:
            return None
        scores = self.workload.trace.lookahead[self.workload.norm][
            self._trace_rows(), self.site, j - 1
        ]
        return scores if np.isfinite(scores).all() else None

    def ranked(self, rule: RowRule, j: int) -> RowForecast | None:
        found = self._ranked.get((rule, j))
        if found is None:
            found = self._ranked[rule, j] = self._rank(rule, j)
        return found.get(self.site)

    def _rank(self, rule: RowRule, j: int) -> dict[int, RowForecast]:
        """What a rule names by the lookahead scores of the step, by the site that forecasts."""
        self._require_lookahead()
        scores = self.workload.trace.lookahead[self.workload.norm][self._trace_rows(), :, j - 1]
        has = np.isfinite(scores).all(axis=(0, 2)) & (np.array(self._choices.reach) >= j)
        sites = np.flatnonzero(has)
        if not len(sites):
            return {}
        rows = scores[:, sites].swapaxes(0, 1)
        count, num_experts = rows.shape[1:]
        experts, weights = rule(rows.reshape(-1, num_experts), self._choices.top_k)
        shape = (len(sites), count, -1)
        found = forecasts_of(
            (sites + j).tolist(), self.units, experts.reshape(shape), weights.reshape(shape)
        )
        return dict(zip(sites.tolist(), found, strict=True))
