"""The rows, gates and needs of a run's steps, as columns.

Everything here is read off the steps that exist, in the order of the run. How steps come about is
`sim.workload.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import FloatArray, IntArray
from sim.values.types import Step
from sim.workload.choices import Choices, Rows
from sim.workload.unions import Needs

GROWING = (
    "row",
    "chosen",
    "experts_in_order",
    "scores",
    "forecasts",
    "needs",
    "gate_step",
    "gate_site",
    "num_gates",
    "_first_gates",
    "_places",
)
"""Cached properties that depend on ``steps``: dropped, to be computed anew, when steps change."""
BLOCK_CELLS = 1 << 20
Scalar = TypeVar("Scalar", bound=np.generic)


class StepColumns:
    """The columns of the ``steps`` that exist: some steps may still be to come.

    A subclass sets the attributes, and calls ``_forget`` whenever ``steps`` change.
    """

    steps: list[Step]
    choices: Choices
    sites: int
    experts: int
    top_k: int
    _place: list[int] | None
    """The index in ``choices`` of each row of the run; None: the same index."""

    def _forget(self) -> None:
        """Drop what was computed from the steps."""
        for name in GROWING:
            vars(self).pop(name, None)

    # ---- rows, in the order of the run

    def place(self, row: int) -> int:
        """The index in ``choices`` of a row of the run."""
        return row if self._place is None else self._place[row]

    def places(self, step: Step) -> Rows:
        """The indices in ``choices`` of the rows of a step."""
        rows = slice(step.start, step.stop)
        return rows if self._place is None else np.array(self._place[rows])

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        return np.array(self._place, np.int64)

    def _by_run(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """A ``column`` of ``choices`` in the order of the run's rows."""
        return column if self._place is None else column[self._places]

    @cached_property
    def row(self) -> IntArray:
        """The trace's row of each row of the run; a step has the rows ``start .. stop``."""
        return self._by_run(self.choices.row)

    @cached_property
    def chosen(self) -> tuple[IntArray, FloatArray]:
        """Experts and weights [N, S, K] of the run's rows, each row in need order.

        Dropped choices come last, as expert -1 with weight 0.
        """
        return self.experts_in_order, self._by_run(self.choices.weights_in_order)

    @cached_property
    def experts_in_order(self) -> IntArray:
        """The experts of ``chosen``."""
        return self._by_run(self.choices.experts_in_order)

    @cached_property
    def scores(self) -> FloatArray:
        """The scores (HOBBIT eq. 2) of the choices in ``chosen``, [N, S, K]."""
        return self._by_run(self.choices.scores)

    @cached_property
    def forecasts(self) -> tuple[IntArray, FloatArray]:
        """Forecast experts and weights [N, S, J, K], -1 where nothing is forecast.

        They are what the target site's rule selects from the lookahead scores.
        """
        experts, weights = self.choices.forecasts
        return self._by_run(experts), self._by_run(weights)

    # ---- gates and their needs

    @cached_property
    def _first_gates(self) -> NDArray[np.int64]:
        """The tick of each step's first gate, and last the number of all gates."""
        return np.cumsum([0, *(len(step.sites) for step in self.steps)])

    @cached_property
    def num_gates(self) -> int:
        return int(self._first_gates[-1])

    @cached_property
    def gate_step(self) -> NDArray[np.int64]:
        """The step of each gate, by tick."""
        return np.repeat(np.arange(len(self.steps)), np.diff(self._first_gates))

    @cached_property
    def gate_site(self) -> NDArray[np.int64]:
        """The site of each gate, by tick."""
        return np.fromiter(
            chain.from_iterable(step.sites for step in self.steps), np.int64, self.num_gates
        )

    @cached_property
    def needs(self) -> Needs:
        """Every need of the run, by tick, then in need order."""
        if not self.steps:
            raise RuntimeError(
                "where sequences arrive over time there are no steps, and no needs, before the run"
            )
        stacks: dict[tuple[int, ...], list[Step]] = {}
        for step in self.steps:
            stacks.setdefault(step.sites, []).append(step)
        parts = []
        for steps in stacks.values():
            single = [step for step in steps if step.rows == 1]
            parts += [self._needs_of(single, self.choices.needs_apart)] if single else []
            parts += [self._needs_of(of, self.choices.needs) for of in self._blocks(steps)]
        if len(parts) == 1:
            return parts[0]
        # Column by column: together they may take most of a run's memory.
        order = np.argsort(np.concatenate([part.tick for part in parts]), kind="stable")

        def joined(name: str) -> NDArray[Any]:
            found: NDArray[Any] = np.concatenate([getattr(part, name) for part in parts])[order]
            return found

        makers = [part.make_score for part in parts]
        return Needs(
            joined("tick"),
            joined("expert"),
            joined("tokens"),
            joined("weight"),
            lambda: np.concatenate([make() for make in makers])[order],
        )

    def _needs_of(
        self,
        steps: Sequence[Step],
        needs_of: Callable[[Rows, NDArray[np.int64], int, slice], Needs],
    ) -> Needs:
        """The needs of steps that visit the same sites, which are consecutive."""
        # Gates are numbered within these steps first, and renumbered to ticks at the end.
        sites = steps[0].sites
        first = np.arange(len(steps) + 1) * len(sites)
        counts = np.array([step.rows for step in steps])
        before = np.array([step.start for step in steps]) - (np.cumsum(counts) - counts)
        rows = np.repeat(before, counts) + np.arange(counts.sum())
        found = needs_of(
            rows if self._place is None else self._places[rows],
            np.repeat(first[:-1], counts),
            int(first[-1]),
            slice(sites[0], sites[-1] + 1),
        )
        first_ticks = self._first_gates[[step.index for step in steps]]
        ticks = np.add.outer(first_ticks, np.arange(len(sites))).ravel()
        return replace(found, tick=ticks[found.tick])

    def _blocks(self, steps: Sequence[Step]) -> Iterator[list[Step]]:
        """Those steps of several rows, in blocks whose tables of unions take a few MB."""
        block: list[Step] = []
        room = BLOCK_CELLS
        for step in steps:
            if step.rows == 1:
                continue
            cells = self.sites * (self.experts + step.rows * self.top_k)
            if block and cells > room:
                yield block
                block, room = [], BLOCK_CELLS
            block.append(step)
            room -= cells
        if block:
            yield block
