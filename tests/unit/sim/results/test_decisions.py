"""The table of decisions, of calls that are made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.results.decisions import Decisions
from sim.values.types import Event

NAMES = ["hit", "late", "miss"]
EVENTS = [
    (1, Event.QUEUE_PREFETCH, 5, -1),
    (2, Event.ISSUE, 2, 0),
    (3, Event.EVICT, 7, 2),
    (6, Event.CANCEL, 5, -1),
    (9, Event.DROP_NO_SLOT, 8, -1),
    (9, Event.ISSUE, 6, -1),
]
ROWS = [
    (1, "queue_prefetch", -1, 5, None, None),
    (2, "lookup", 0, 1, None, "hit"),
    (2, "lookup", 0, 2, None, "miss"),
    (2, "issue", 0, 2, 0, None),
    (3, "evict", 0, 7, None, None),
    (4, "lookup", 0, 9, None, "late"),
    (6, "lookup", 1, 4, None, "hit"),
    (6, "cancel", 1, 5, None, None),
    (8, "lookup", 1, 3, None, "miss"),
    (9, "lookup", 1, 6, None, "miss"),
    (9, "drop_no_slot", 1, 8, None, None),
    (9, "issue", 1, 6, None, None),
]


def decided(events: list[Any], tick: list[int], keys: list[int], outcomes: list[int]) -> Decisions:
    """Gates at calls 2 and 6. Of the first one's needs one is admitted later, of the second's two."""
    columns = zip(*events, strict=True) if events else ([], [], [], [])
    controller: Any = SimpleNamespace(
        gate_calls=[2, 6],
        wave_calls=[4, 1, 7, 0, 8, 1, 9, 1] if tick else [],
        event_columns=dict(zip(("call", "kind", "key", "value"), map(list, columns), strict=True)),
    )
    needs = np.array(tick, np.int64), np.array(keys, np.int64), np.array(outcomes, np.uint8)
    return Decisions(controller, *needs, NAMES)


@pytest.fixture
def table() -> Decisions:
    return decided(EVENTS, [0, 0, 0, 1, 1, 1], [1, 2, 9, 4, 3, 6], [0, 2, 1, 0, 2, 2])


def test_lookups_stand_in_their_own_call_before_what_they_led_to(table: Decisions) -> None:
    assert table.table.rows() == ROWS
    assert table.table.columns == ["call", "kind", "tick", "key", "victim", "outcome"]


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [(4, [4, 2, 6]), (5, [6, 6]), (12, [12]), (100, [12]), (3, [1, 5, 2, 4])],
)
def test_parts_are_cut_between_calls_and_are_the_table(
    table: Decisions, rows: int, lengths: list[int]
) -> None:
    """Ten calls: three parts begin at 0, 3 and 6; two at 0 and 5; four at 0, 2, 5 and 7."""
    parts = [part.rows() for part in table.parts(rows)]
    assert [row for part in parts for row in part] == ROWS
    assert [len(part) for part in parts] == lengths


def test_where_nothing_was_decided_there_is_one_part_without_rows() -> None:
    (part,) = decided([], [], [], []).parts(10)
    assert part.rows() == []
    only = decided(EVENTS[:1], [], [], [])
    assert only.table.rows() == ROWS[:1]
