"""From a trace to the gates of a run: which steps, in which order, and what each gate offers.

Everything that can be computed for the whole trace in numpy is (need order, scores, forecasts); a step's lists of
Python ints are made when the step begins. Both drivers walk the same workload with one reused gate object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import FloatArray, IntArray
from sim.trace import DECODE, Trace, TraceSequence
from sim.types import Step

BATCHINGS = ("recorded", "sequential")
SPLITS = ("fit", "eval", "all")
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Needs:
    """Columns over the needs of a run: gate, expert, rows that chose it, sum of their weights, smallest score."""

    tick: IntArray
    expert: IntArray
    tokens: IntArray
    weight: FloatArray
    score: FloatArray


@dataclass(frozen=True)
class Union:
    """The needs of S sites by several rows: one list a site, in need order."""

    needs: list[list[int]]
    tokens: list[list[int]]
    scores: list[list[float]]
    weights: list[list[float]]


class Workload:
    """The gates of a run over ``trace``.

    ``split`` picks the sequences (``all``: every one). ``batching``: ``recorded`` keeps the trace's steps,
    ``sequential`` runs one sequence after another, in the order of their numbers. ``lookahead`` sites are forecast
    with ``norm`` (``raw`` or ``renormed``). ``exclude`` drops sequences by a flag of the trace's header.

    Raise ValueError for a choice that the trace cannot serve.
    """

    def __init__(self, trace: Trace, *, split: str = "eval", batching: str = "recorded", lookahead: int = 0,
                 norm: str = "raw", exclude: Sequence[str] = (), max_sequences: int | None = None) -> None:  # fmt: skip
        self.trace = trace
        self.sites, self.experts, self.top_k = trace.ids.shape[1], trace.header.model.experts, trace.ids.shape[2]
        self.split, self.batching, self.depth, self.norm = split, batching, lookahead, norm
        self.sequences = _chosen(trace, split, exclude, max_sequences)
        self._check_lookahead()
        self.row = self._order_rows()
        self.steps = self._cut_steps()

    def _check_lookahead(self) -> None:
        have = self.trace.header.lookahead
        if self.depth == 0:
            return
        name = self.trace.header.name
        if have is None or have.depth < self.depth:
            depth = have.depth if have else 0
            raise ValueError(
                f"trace {name} records lookahead for {depth} sites, but the predictor needs {self.depth}; "
                f"capture with lookahead={self.depth}, or choose predictor=none or fewer predictor.sites"
            )
        if self.norm not in have.norms:
            raise ValueError(f"trace {name} has lookahead norms {', '.join(have.norms)}, not {self.norm!r}")
        if not self.trace.lookahead:
            raise ValueError(
                f"trace {name} was read without its lookahead columns; read_trace(..., columns=['lookahead'])"
            )

    def _order_rows(self) -> IntArray:
        """Rows of the trace that take part, in the order of the run."""
        trace = self.trace
        chosen = np.array([s.sequence for s in self.sequences], dtype=np.int64)
        rows = np.flatnonzero(np.isin(trace.sequence, chosen))
        if self.batching not in BATCHINGS:
            raise ValueError(
                f"workload.batching={self.batching} is not built yet or unknown; allowed: {', '.join(BATCHINGS)}"
            )
        if self.batching == "sequential":
            rows = rows[np.lexsort((rows, trace.step[rows], trace.sequence[rows]))]
        elif not self.split_is_whole_steps(rows):
            raise ValueError(
                f"trace {trace.header.name} recorded steps that mix sequences of split={self.split} with others; "
                f"use workload.batching=sequential or trace.split=all"
            )
        return rows

    def split_is_whole_steps(self, rows: IntArray) -> bool:
        touched = np.isin(self.trace.step, np.unique(self.trace.step[rows]))
        return bool(touched.sum() == len(rows))

    def _cut_steps(self) -> list[Step]:
        step, sequence = self.trace.step[self.row], self.trace.sequence[self.row]
        new = np.flatnonzero((np.diff(step) != 0) | ((self.batching == "sequential") & (np.diff(sequence) != 0))) + 1
        starts = np.concatenate(([0], new)).tolist()
        stops = np.concatenate((new, [len(step)])).tolist()
        groups = [tuple(dict.fromkeys(sequence[a:b].tolist())) for a, b in zip(starts, stops, strict=True)]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, group in enumerate(groups):
            for number in group:
                first.setdefault(number, index)
                last[number] = index
        position, phase = self.trace.position[self.row], self.trace.phase[self.row]
        return [
            Step(i, a, b, group, int(position[a:b].max()) + 1, bool(phase[a] == DECODE),
                 tuple(s for s in group if first[s] == i), tuple(s for s in group if last[s] == i))
            for i, (a, b, group) in enumerate(zip(starts, stops, groups, strict=True))
        ]  # fmt: skip

    @cached_property
    def chosen(self) -> tuple[IntArray, FloatArray]:
        """Experts and weights [N, S, K] of the run's rows, each row in need order (dropped choices last, as -1)."""
        return _in_need_order(self.trace.ids[self.row], self.trace.weights[self.row])

    @cached_property
    def scores(self) -> FloatArray:
        """HOBBIT's eq. 2 score of ``chosen``, [N, S, K]."""
        return _scores(self.chosen[1])

    @cached_property
    def forecasts(self) -> tuple[IntArray, FloatArray]:
        """What each target site's rule selects from the lookahead: experts and weights [N, S, J, K], -1 where none."""
        lookahead = self.trace.lookahead[self.norm]
        rows, sites = len(self.row), self.sites
        experts = np.full((rows, sites, self.depth, self.top_k), -1, np.int16)
        weights = np.zeros(experts.shape, np.float32)
        for site in range(sites):
            for j in range(1, min(self.depth, sites - 1 - site) + 1):
                rule = self.trace.header.sites[site + j].rule
                if rule is None:
                    raise ValueError(
                        f"trace {self.trace.header.name} has no routing rule for site {site + j}, so lookahead scores "
                        f"cannot be turned into experts; choose predictor=none"
                    )
                scores = lookahead[self.row, site, j - 1]
                known = np.flatnonzero(np.isfinite(scores).all(axis=1))
                experts[known, site, j - 1], weights[known, site, j - 1] = rule.route(scores[known], self.top_k)
        return experts, weights

    @cached_property
    def forecast_scores(self) -> FloatArray:
        return _scores(self.forecasts[1])

    def union(self, step: Step) -> Union:
        """The needs of a step's rows at every site."""
        rows = slice(step.start, step.stop)
        experts, weights = self.chosen
        return _union(experts[rows], weights[rows], self.scores[rows], self.experts)

    def forecast_union(self, step: Step, j: int) -> Union:
        """What site + j is forecast to need, listed by the site that forecasts."""
        rows = slice(step.start, step.stop)
        experts, weights = self.forecasts
        return _union(
            experts[rows, :, j - 1], weights[rows, :, j - 1], self.forecast_scores[rows, :, j - 1], self.experts
        )

    def gate(self) -> StepGate:
        """A fresh gate object for one driver's walk through the steps."""
        return StepGate(self)

    @cached_property
    def needs(self) -> Needs:
        """Every need of the run, by tick, then in need order."""
        one = np.array([step.start for step in self.steps if step.rows == 1], dtype=np.int64)
        index = np.array([step.index for step in self.steps if step.rows == 1], dtype=np.int64)
        experts, weights = (column[one] for column in self.chosen)
        row, site, slot = np.nonzero(experts >= 0)
        tick = index[row] * self.sites + site
        columns = [np.stack([tick, experts[row, site, slot], np.ones_like(tick)])]
        floats = [np.stack([weights[row, site, slot], self.scores[one][row, site, slot]])]
        for step in self.steps:
            if step.rows > 1:
                union = self.union(step)
                count = [len(needs) for needs in union.needs]
                tick = np.repeat(step.index * self.sites + np.arange(self.sites), count)
                columns.append(np.stack([tick, _flat(union.needs, np.int64), _flat(union.tokens, np.int64)]))
                floats.append(np.stack([_flat(union.weights, np.float64), _flat(union.scores, np.float64)]))
        ints, reals = np.concatenate(columns, axis=1), np.concatenate(floats, axis=1)
        order = np.argsort(ints[0], kind="stable")
        return Needs(*ints[:, order], *reals[:, order])

    def schedule(self) -> list[list[int]]:
        """The experts each gate needs, by tick, in need order."""
        cuts = np.searchsorted(self.needs.tick, np.arange(1, len(self.steps) * self.sites))
        return [experts.tolist() for experts in np.split(self.needs.expert, cuts)]


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
        return self._gate.rows_of(self._gate.workload.forecasts[0])[:, self._j - 1]

    @property
    def weights(self) -> FloatArray:
        return self._gate.rows_of(self._gate.workload.forecasts[1])[:, self._j - 1]


class StepGate:
    """The gate object of both drivers: ``open`` a step, then ``visit`` its sites in order. Implements ``Gate``."""

    __slots__ = (
        "_depth", "_forecast_unions", "_forecasts", "_needs", "_num_sites", "_step", "_tokens", "_union",
        "needs", "routes", "site", "step", "tick", "token", "workload",
    )  # fmt: skip

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._num_sites, self._depth = workload.sites, workload.depth
        self.routes = [RoutedChoice(self, j) for j in range(workload.depth + 1)]
        self.tick = -1
        self.site = 0
        self.needs: Sequence[int] = ()

    def open(self, step: Step) -> None:
        self._step, self.step, self.token = step, step.index, step.token
        self._union: Union | None = None
        self._forecasts: list[Sequence[Sequence[int]]] | None = None
        self._forecast_unions: list[Union | None] = [None] * (self.workload.depth + 1)
        if step.rows == 1:
            self._needs: Sequence[Sequence[int]] = _without_dropped(self.workload.chosen[0][step.start])
            self._tokens: Sequence[Sequence[int]] | None = None
        else:
            self._union = self.workload.union(step)
            self._needs, self._tokens = self._union.needs, self._union.tokens

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        self.needs = self._needs[site]

    @property
    def tokens(self) -> Sequence[int]:
        return [1] * len(self.needs) if self._tokens is None else self._tokens[self.site]

    def routed(self, j: int) -> RoutedChoice | None:
        site = self.site
        target = site + j
        if target >= self._num_sites or j > self._depth:
            return None
        needs = (self._forecasts or self._forecast_needs())[j - 1][site]
        if not needs:
            return None
        choice = self.routes[j]
        choice.site, choice.needs = target, needs
        return choice

    def _forecast_needs(self) -> list[Sequence[Sequence[int]]]:
        """By distance, then by the site that forecasts; made when a step is first asked for one."""
        step, ahead = self._step, range(1, self._depth + 1)
        if step.rows > 1:
            needs = [self.forecast_of(j).needs for j in ahead]
        else:
            rows = self.workload.forecasts[0][step.start]
            needs = [_without_dropped(rows[:, j - 1]) for j in ahead]
        self._forecasts = [*needs]
        return self._forecasts

    def forecast_of(self, j: int) -> Union:
        union = self._forecast_unions[j]
        if union is None:
            union = self._forecast_unions[j] = self.workload.forecast_union(self._step, j)
        return union

    def _full_union(self) -> Union:
        if self._union is None:
            self._union = self.workload.union(self._step)
        return self._union

    @property
    def scores(self) -> Sequence[float]:
        return self._full_union().scores[self.site]

    def rows_of(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        return column[self._step.start : self._step.stop, self.site]

    @property
    def experts(self) -> IntArray:
        return self.rows_of(self.workload.chosen[0])

    @property
    def weights(self) -> FloatArray:
        return self.rows_of(self.workload.chosen[1])

    def _column(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        return column[self.workload.row[self._step.start : self._step.stop]]

    @property
    def row_sequence(self) -> IntArray:
        return self._column(self.workload.trace.sequence)

    @property
    def row_phase(self) -> IntArray:
        return self._column(self.workload.trace.phase)

    @property
    def row_position(self) -> IntArray:
        return self._column(self.workload.trace.position)

    @property
    def share(self) -> FloatArray | None:
        shares = self.workload.trace.active_shares
        return None if shares is None else shares[self.workload.row[self._step.start : self._step.stop], self.site]

    def lookahead(self, j: int) -> FloatArray | None:
        if j > self.workload.depth or self.site + j >= self.workload.sites:
            return None
        scores = self._column(self.workload.trace.lookahead[self.workload.norm][:, self.site, j - 1])
        return scores if np.isfinite(scores).all() else None


def _chosen(trace: Trace, split: str, exclude: Sequence[str], most: int | None) -> tuple[TraceSequence, ...]:
    if split not in SPLITS:
        raise ValueError(f"unknown trace.split={split}; allowed: {', '.join(SPLITS)}")
    chosen = [s for s in trace.header.sequences if split in ("all", s.split)]
    chosen = [s for s in chosen if not any(s.flags.get(flag) for flag in exclude)][:most]
    if not chosen:
        raise ValueError(f"trace {trace.header.name} has no sequences for split={split} without flags {list(exclude)}")
    return tuple(chosen)


def _without_dropped(rows: IntArray) -> list[list[int]]:
    """Rows [S, K] in need order as lists, without the -1 at their ends."""
    lists: list[list[int]] = rows.tolist()
    if rows[:, -1].min() >= 0:
        return lists
    return [[expert for expert in row if expert >= 0] for row in lists]


def _in_need_order(ids: IntArray, weights: FloatArray) -> tuple[IntArray, FloatArray]:
    """Each row by descending weight, then ascending id; -1 last, with weight 0."""
    weights = np.where(ids < 0, np.float32(0), weights)
    order = np.lexsort((ids, -weights, ids < 0), axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)


def _scores(weights: FloatArray) -> FloatArray:
    """Share of a row's weight ranked above each choice: 0 for the first (HOBBIT eq. 2, over the selected experts)."""
    wide = weights.astype(np.float64)
    total = wide.sum(-1, keepdims=True)
    return (np.cumsum(wide, -1) - wide) / np.where(total > 0, total, 1.0)


def _union(experts: IntArray, weights: FloatArray, scores: FloatArray, num_experts: int) -> Union:
    """The union of rows [R, S, K] at every site; one row keeps its own order."""
    rows, sites, _ = experts.shape
    if rows == 1:
        kept = experts[0] >= 0
        needs = [row[keep].tolist() for row, keep in zip(experts[0], kept, strict=True)]
        return Union(needs, [[1] * len(row) for row in needs],
                     [row[keep].tolist() for row, keep in zip(scores[0], kept, strict=True)],
                     [row[keep].tolist() for row, keep in zip(weights[0], kept, strict=True)])  # fmt: skip
    row, site, slot = np.nonzero(experts >= 0)
    expert = experts[row, site, slot]
    tokens = np.zeros((sites, num_experts), np.int64)
    mass = np.zeros((sites, num_experts))
    score = np.full((sites, num_experts), np.inf)
    np.add.at(tokens, (site, expert), 1)
    np.add.at(mass, (site, expert), weights[row, site, slot])
    np.minimum.at(score, (site, expert), scores[row, site, slot])
    order = np.argsort(-tokens, axis=1, kind="stable")
    count = (tokens > 0).sum(axis=1)
    picked = [order[s, : count[s]] for s in range(sites)]
    return Union([p.tolist() for p in picked],
                 [tokens[s, p].tolist() for s, p in enumerate(picked)],
                 [score[s, p].tolist() for s, p in enumerate(picked)],
                 [mass[s, p].tolist() for s, p in enumerate(picked)])  # fmt: skip


def _flat(lists: Sequence[Sequence[float]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.array([value for values in lists for value in values], dtype=dtype)
