"""The gate object that both drivers walk through the steps of a workload with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.choices import Rows, Union, need_order
from sim.policies.base import FloatArray, IntArray
from sim.types import Step

if TYPE_CHECKING:
    from sim.workload import Workload

Scalar = TypeVar("Scalar", bound=np.generic)


class RoutedChoice:
    """A forecast for one site; reused from gate to gate."""

    __slots__ = ("_gate", "_j", "needs", "site")

    def __init__(self, gate: StepGate, j: int) -> None:
        self._gate, self._j = gate, j
        self.site = 0
        self.needs: Sequence[int] = ()

    @property
    def tokens(self) -> Sequence[int]:
        return self._gate.forecast_of(self._j).tokens[self.site - self._j]

    @property
    def scores(self) -> Sequence[float]:
        return self._gate.forecast_of(self._j).scores[self.site - self._j]

    @property
    def experts(self) -> IntArray:
        return self._gate.at_site(self._gate.workload.choices.forecasts[0])[:, self._j - 1]

    @property
    def weights(self) -> FloatArray:
        return self._gate.at_site(self._gate.workload.choices.forecasts[1])[:, self._j - 1]


class StepGate:
    """The gate object of both drivers: ``open`` a step, then ``visit`` its sites in order. Implements ``Gate``."""

    __slots__ = (
        "_ahead", "_choices", "_depth", "_forecast_unions", "_is_single", "_needs", "_rows", "_step", "_tokens",
        "_union", "needs", "routes", "site", "step", "tick", "token", "workload",
    )  # fmt: skip

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._choices, self._depth = workload.choices, workload.depth
        self.routes = [RoutedChoice(self, j) for j in range(workload.depth + 1)]
        self.tick = -1
        self.site = 0
        self.needs: Sequence[int] = ()

    def open(self, step: Step) -> None:
        self._step, self.step, self.token = step, step.index, step.token
        self._rows: Rows | None = None
        self._union: Union | None = None
        self._ahead: list[list[list[int]]] | None = None
        self._forecast_unions: dict[int, Union] = {}
        self._is_single = step.stop - step.start == 1
        if self._is_single:
            self._needs = self._choices.lists(self.workload.place(step.start))
            self._tokens: list[list[int]] | None = None
        else:
            union = self._full_union()
            self._needs, self._tokens = union.needs, union.tokens

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        self.needs = self._needs[site]

    @property
    def tokens(self) -> Sequence[int]:
        return [1] * len(self.needs) if self._tokens is None else self._tokens[self.site]

    @property
    def scores(self) -> Sequence[float]:
        return self._full_union().scores[self.site]

    def routed(self, j: int) -> RoutedChoice | None:
        if j > self._depth:
            return None
        # Sites that have none so far ahead have an empty list there.
        needs = (self._ahead or self._look_ahead())[j - 1][self.site]
        if not needs:
            return None
        choice = self.routes[j]
        choice.site, choice.needs = self.site + j, needs
        return choice

    def _look_ahead(self) -> list[list[list[int]]]:
        """By distance, then by the site that forecasts; made when a step is first asked for one."""
        if self._is_single:
            ahead = self._choices.forecast_lists(self.workload.place(self._step.start))
        else:
            ahead = [self.forecast_of(j).needs for j in range(1, self._depth + 1)]
        self._ahead = ahead
        return ahead

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
        """The step's rows of a column of `Choices`, at this site."""
        return column[self._rows_of_step(), self.site]

    @property
    def experts(self) -> IntArray:
        return self.at_site(self._choices.chosen[0])

    @property
    def weights(self) -> FloatArray:
        return self.at_site(self._choices.chosen[1])

    def _trace_rows(self) -> IntArray:
        return self._choices.row[self._rows_of_step()]

    @property
    def row_sequence(self) -> IntArray:
        return self.workload.trace.sequence[self._trace_rows()]

    @property
    def row_phase(self) -> IntArray:
        return self.workload.trace.phase[self._trace_rows()]

    @property
    def row_position(self) -> IntArray:
        return self.workload.trace.position[self._trace_rows()]

    @property
    def share(self) -> FloatArray | None:
        """Active shares of channels [R, K, P], in the order of ``experts``."""
        trace = self.workload.trace
        if trace.active_shares is None:
            return None
        rows = self._trace_rows()
        order = need_order(trace.ids[rows, self.site], trace.weights[rows, self.site])
        return np.take_along_axis(trace.active_shares[rows, self.site], order[..., None], 1)

    def lookahead(self, j: int) -> FloatArray | None:
        if j > self._choices.reach[self.site]:
            return None
        scores = self.workload.trace.lookahead[self.workload.norm][self._trace_rows(), self.site, j - 1]
        return scores if np.isfinite(scores).all() else None
