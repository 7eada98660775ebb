"""Prefetches that wait as keys, each thing that happens to them by hand."""

from __future__ import annotations

import numpy as np

from sim.core.ranked import Ranked
from sim.core.transfer import Transfer

KEYS = np.array([7, 1, 5, 8])
"""Of sites 2, 0, 1 and 2."""
ALL = np.ones(len(KEYS), np.bool_)


def made(place: int, *, is_cancelled: bool = False) -> Transfer:
    transfer = Transfer(int(KEYS[place]), True, 1, 9)
    transfer.cancelled = is_cancelled
    return transfer


def ranked(*cancelled: int) -> Ranked:
    """All keys, of which those at some places were cancelled: one unmade, then one made, and so on."""
    one = Ranked(KEYS, np.array([2, 0, 1, 2]), call=9)
    for nth, place in enumerate(cancelled):
        if nth % 2:
            one.make(place, made(place, is_cancelled=True))
        else:
            one.cancel(np.array([place]))
    return one


def test_keys_leave_in_order_and_what_was_cancelled_is_left_out() -> None:
    one = ranked(1, 2)
    assert one.left().tolist() == [7, 8]
    assert (one.take(), one.take(), one.take()) == (0, 3, -1)
    assert not one.is_left


def test_keys_that_are_cancelled_are_left_until_somebody_looks() -> None:
    one = ranked(0, 1, 2, 3)
    assert one.is_left
    assert one.rest.tolist() == KEYS.tolist()
    assert not one.skip_cancelled()
    assert not one.is_left


def test_a_key_of_a_site_waits_unmade_until_it_is_made_or_cancelled_or_leaves() -> None:
    one = ranked(3)
    assert one.unmade_of(2).tolist() == [0]
    assert [one.unmade_place(key) for key in (7, 5, 8, 6)] == [0, 2, -1, -1]
    one.take()
    assert one.unmade_of(2).tolist() == []
    assert (one.unmade_place(7), one.unmade_place(5)) == (-1, 2)
    assert one.unmade_of(1).tolist() == [2]
    one.make(2, made(2))
    assert one.unmade_of(1).tolist() == []
    assert one.left().tolist() == [1, 5]


def test_keys_leave_together_up_to_the_first_that_is_made_or_may_not() -> None:
    one = ranked(1)
    one.make(3, made(3))
    assert one.take_while(ALL).tolist() == [7, 5]
    assert one.take_while(ALL[3:]).tolist() == []
    assert one.left().tolist() == [8]
    assert ranked().take_while(KEYS > 1).tolist() == [7]
    assert ranked().take_while(ALL).tolist() == KEYS.tolist()
