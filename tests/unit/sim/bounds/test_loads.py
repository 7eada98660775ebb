"""The fewest loads of long request streams; paper cases are in test_bounds.py, brute force in
tests/property/test_invariants.py.
"""

from __future__ import annotations

import numpy as np

from sim.bounds.loads import SPARE_ENDS, Intervals, fewest_loads


def test_items_that_alternate_in_a_slot_too_few_are_kept_as_often_as_belady_keeps_them() -> None:
    """Three items in turn. Later two of three requests are kept, and every second one where its
    gate pins what it needs.
    """
    gates = 2_001
    tick, item = np.arange(gates), np.arange(gates) % 3
    assert fewest_loads(tick, item, 3, ()) == 3
    assert fewest_loads(tick, item, 3, (0, 1)) == 1
    assert fewest_loads(tick, item, 2, ()) == 3 + (gates - 3) // 3
    assert fewest_loads(tick, item, 2, (), np.ones(gates, np.bool_)) == 3 + (gates - 3) // 2
    assert fewest_loads(tick, item, 1, (), np.ones(gates, np.bool_)) == gates


def test_an_item_that_a_gate_needs_twice_takes_one_slot_there() -> None:
    tick, item = np.array([0, 0, 1, 2]), np.array([5, 5, 6, 5])
    whole = np.ones(4, np.bool_)
    assert fewest_loads(tick, item, 2, (), whole) == 3
    assert fewest_loads(tick, item, 1, (), whole) == 4


def test_what_has_passed_does_not_pile_up() -> None:
    """Else a bound would take longer than in proportion to its tokens."""
    kept = Intervals(10_000)
    for gate in range(9_999):
        kept.end(gate)
        kept.add([gate + 1], 4)
        assert len(kept._ends) <= SPARE_ENDS + 4
    kept.end(9_999)
    assert kept.ended == 9_999


def test_those_that_end_last_are_dropped_however_many_end_together() -> None:
    kept = Intervals(5)
    kept.add([2, 4, 4, 4, 3], 3)
    for gate in range(5):
        kept.end(gate)
    assert kept.ended == 3
    assert kept._at == [0] * 5


def test_nothing_asked_for_is_nothing_loaded() -> None:
    none = np.zeros(0, np.int64)
    assert fewest_loads(none, none, 3, (1, 2)) == 0
