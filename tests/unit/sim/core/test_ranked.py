"""Prefetches that wait as keys, each thing that happens to them by hand."""

from __future__ import annotations

import numpy as np

from sim.core.ranked import Ranked
from sim.core.transfer import Transfer

KEYS = [7, 1, 5, 8]
"""Of sites 2, 0, 1 and 2."""


def ranked(*cancelled: int) -> Ranked:
    one = Ranked(KEYS, np.array([2, 0, 1, 2]), call=9)
    for key in cancelled:
        one.made[key] = Transfer(key, True, 1, 9)
        one.made[key].cancelled = True
    return one


def test_keys_leave_in_order_and_what_was_cancelled_is_left_out() -> None:
    one = ranked(1, 5)
    assert one.left() == [7, 8]
    assert (one.take(), one.take(), one.take()) == (7, 8, -1)
    assert not one.is_left


def test_keys_that_are_cancelled_are_left_until_somebody_looks() -> None:
    one = ranked(*KEYS)
    assert one.is_left
    assert not one.skip_cancelled()
    assert not one.is_left


def test_a_key_of_a_site_waits_unmade_until_it_is_made_or_leaves() -> None:
    one = ranked(8)
    assert one.unmade_of(2) == [7]
    one.take()
    assert one.unmade_of(2) == []
    assert one.unmade_of(1) == [5]


def test_keys_leave_together_up_to_the_first_that_is_made_or_may_not() -> None:
    one = ranked(1)
    one.made[8] = Transfer(8, True, 1, 9)
    assert one.take_while(lambda key: True) == [7, 5]
    assert one.take_while(lambda key: True) == []
    assert one.left() == [8]
    assert ranked().take_while(lambda key: key > 1) == [7]
