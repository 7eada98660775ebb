"""A small leaderboard, made once for all tests that look at it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sim.board.entries import Board, Left, boards_of, entered
from sim.study.cells import plan_cells
from sim.study.plan import make_plan
from sim.study.worker import run_cell

STUDY: dict[str, Any] = {
    "question": "Which cache is fastest?",
    "base": [
        "system=lru",
        "trace.split=eval",
        "trace.max_sequences=4",
        "workload.decode_tokens=4",
        "bounds=max",
    ],
    "grid": [
        {
            "cache": ["lru", "fifo", "belady", "popular"],
            "budget.resident_share": [0.25, 0.5],
        },
        {"precision": ["int4"], "budget.slots_gib": [21]},
    ],
}
"""Two boards of caches, of which ``popular`` is refused; on the second one a lossy entrant, too."""


@cache
def small() -> tuple[tuple[Board, ...], tuple[Left, ...]]:
    """Its boards, and what is on none."""
    cells = [entered(cell) for cell in plan_cells(make_plan("x", STUDY, "x.yaml"))]
    boards, left = boards_of([run_cell("x", cell, "") for cell in cells])
    return tuple(boards), tuple(left)


def plain(value: Any) -> Any:
    """A copy as JSON keeps it."""
    return json.loads(json.dumps(value))
