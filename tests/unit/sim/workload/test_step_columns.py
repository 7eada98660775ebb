"""The columns of a run's steps: which steps of several rows are united in one table."""

from __future__ import annotations

import pytest

from sim.values.types import Step
from sim.values.units import MIB
from sim.workload import columns
from sim.workload.columns import BLOCK_CELLS, StepColumns


def of_rows(*counts: int) -> list[Step]:
    return [Step(at, 0, rows, (0,), 1, False, (), (), (0, 1)) for at, rows in enumerate(counts)]


def test_steps_are_united_in_tables_of_limited_cells_and_a_large_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At two sites with three experts and one choice a step of n rows has 2 x (3 + n) cells."""
    assert BLOCK_CELLS * 8 == 8 * MIB
    monkeypatch.setattr(columns, "BLOCK_CELLS", 20)
    made = StepColumns()
    made.sites, made.experts, made.top_k = 2, 3, 1

    def blocks(*counts: int) -> list[list[int]]:
        return [[step.index for step in block] for block in made._blocks(of_rows(*counts))]

    # Cells: 10, none for a single row, 10, 10, 12, 22, 20.
    assert blocks(2, 1, 2, 2, 3, 8, 7) == [[0, 2], [3], [4], [5], [6]]
    assert blocks(8) == [[0]]
    assert blocks(1, 1) == []
