"""The second pass of screening sums blocks of steps; how many steps a block has changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sim.screening import times
from sim.screening.moves import first_pass
from sim.screening.times import second_pass
from sim.setup.execute import execute
from sim.study.trials import prepared

WORDS = ("system=lru", "trace.max_sequences=2", "workload.decode_tokens=5")


def test_blocks_of_any_length_end_every_step_when_the_run_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step has 16 gates: a block is one step, one step again, three, or all of them."""
    run = prepared(WORDS)
    ends = execute(prepared(WORDS)).frames.record.step_end_ns
    moves = first_pass(run.controller, run.workload)
    assert len(moves.steps) == len(ends) > 8
    for gates in (1, 16, 48, 1 << 15):
        monkeypatch.setattr(times, "BLOCK_GATES", gates)
        found = second_pass(moves, [run.durations, run.durations])
        assert np.array_equal(found.step_end_ns, np.stack([ends, ends], axis=1)), gates
        assert found.makespan_ns.tolist() == [ends[-1]] * 2
