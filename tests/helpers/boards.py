"""A small leaderboard, made once for all tests that look at it, and a board by hand."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sim.board.entries import Board, Entry, Left, boards_of, entered
from sim.results.coverage import Coverage
from sim.results.labels import Labels
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


# ---- by hand


LOSSY = "lossy (experts at low precision)"


def entry(name: str, rate: float, times: list[float], gap: float | None, **labels: Any) -> Entry:
    row: Any = {
        "decode_tokens_per_s": rate,
        "hit_ratio": 0.876543,
        "decode_ns": times,
        "overrides": f"system={name} 'x=[1]'",
    }
    ends = None if gap is None else [0.912345 * rate, 1.112345 * rate]
    summary = {"ci95": {"decode_tokens_per_s": ends}, "gap": gap}
    return Entry(name, "cache", row, summary, Labels(synthetic="SYNTHETIC <t>", **labels))


A = entry("a", 12.34567, [100.0, 210.0, 300.0, 430.0], 0.25678)
B = entry("b", 6.0, [200.0, 420.0, 600.0, 860.0], None, lossy=LOSSY)
C = entry("c x=<1>", 5.0, [110.0, 200.0, 310.0, 420.0], 0.0, knows_future="knows the future")
BOARD = Board("1_t_h", "t on h", {}, (A, B, C), Coverage(0.9412, 0.9561, 4000))
