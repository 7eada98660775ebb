"""Recorded columns: what the simulator's notes stand for, and that columns cannot be misaligned."""

from __future__ import annotations

import pytest

from sim.values.record import COLUMNS, NOTED, NotedRecord, Record, require_equal_lengths


def noted() -> NotedRecord:
    """Three calls, of which the first and the last are gates, and three lookups."""
    record = NotedRecord()
    record.gate_ns = [10, 30]
    notes = record.notes
    notes.gate_calls, notes.other_ns = [1, 3], [20]
    notes.first_rows, notes.lookups = [0, 2], 3
    notes.later, notes.arrivals = [(1, 2, 15)], [0, 12]
    return record


def test_columns_by_call_and_by_need_follow_from_the_notes() -> None:
    record = noted()
    assert record.call_ns == [10, 20, 30]
    assert record.lookup_ns == [10, 15, 30]
    assert record.ready_ns == [12, 15, 30]


def test_a_noted_record_equals_a_record_with_the_same_columns() -> None:
    record = noted()
    same = Record(gate_ns=[10, 30], **{name: getattr(record, name) for name in NOTED})
    assert set(NOTED) < set(COLUMNS)
    assert record == same
    assert record != Record(gate_ns=[10, 30])


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("call_ns", "gate_ns has 1, notes.gate_calls has 2"),
        ("lookup_ns", "gate_ns has 1, notes.first_rows has 2"),
    ],
)
def test_a_lost_gate_is_refused_by_the_names_of_the_columns(column: str, told: str) -> None:
    record = noted()
    record.gate_ns = [10]  # one value, which numpy would repeat for every gate
    with pytest.raises(RuntimeError, match=told):
        getattr(record, column)


def test_lookups_that_no_gate_has_are_refused() -> None:
    record = noted()
    record.notes.first_rows = [1, 2]
    with pytest.raises(RuntimeError, match=r"lookup_ns has 2, notes\.lookups has 3"):
        _ = record.ready_ns


def test_columns_of_one_length_have_that_length() -> None:
    assert require_equal_lengths({"one": [1, 2], "other": (3, 4)}) == 2
    with pytest.raises(RuntimeError, match="one has 2, other has 1"):
        require_equal_lengths({"one": [1, 2], "other": (3,)})
