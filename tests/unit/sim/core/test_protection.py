"""Pins and masks: the transitions of `sim.core.protection`, by their numbers there, and who may
evict what.
"""

from __future__ import annotations

import pytest

from sim.core.protection import Protection
from sim.core.slots import Slots
from sim.policies.recency import LRU
from sim.values.types import Geometry

GEOMETRY = Geometry(2, 3, 1, ("fp16",), (16.0,), (4,), 12)
"""Keys 0 1 2 of site 0 and 4 5 6 of site 1, of 4 B; room for three: 0, 1 and 2 are there, and LRU
would evict them in this order."""


def protection(spares_masked: bool = False) -> Protection:
    return Protection(Slots(GEOMETRY, LRU(initial="ascending"), 1), spares_masked)


def victims(one: Protection, must: bool, key: int = 4) -> list[int] | None:
    found = one.would_evict(key, must)
    return None if found is None else list(found)


def test_what_is_free_goes_in_the_order_of_the_policy() -> None:
    assert victims(protection(), must=False) == victims(protection(), must=True) == [0]


def test_what_is_pinned_goes_for_nobody() -> None:
    one = protection()
    one.begin_gate(0, [0, 1, 2])
    assert victims(one, must=False) is None
    assert victims(one, must=True) is None
    assert not one.could_claim(4)
    assert one.protects(0)
    assert not one.protects(4)


def test_a_prefetch_takes_nothing_masked_and_a_demand_takes_it_after_all_that_is_free() -> None:
    one = protection()
    one.mask(0, [0, 1])
    assert victims(one, must=False) == victims(one, must=True) == [2]
    one.mask(0, [0, 1, 2])
    assert victims(one, must=False) is None
    assert victims(one, must=True) == [0]


def test_where_masked_keys_are_spared_a_demand_takes_no_more_than_a_prefetch() -> None:
    one = protection(spares_masked=True)
    one.mask(0, [0, 1, 2])
    assert victims(one, must=True) is None
    assert one.claim(4, must=True) is None


def test_what_is_masked_stays_so_while_pins_change_and_no_longer() -> None:
    """Masks are written anew only where they change."""
    one = protection()
    one.mask(0, [1])
    assert victims(one, must=False) == [0]
    for key, first in ((0, 2), (2, None)):
        one.pin(key)
        assert victims(one, must=False) == (None if first is None else [first])
    one.begin_gate(0, [0])
    assert victims(one, must=False) == [1]
    one.mask(0, [1, 2])
    assert victims(one, must=False) is None
    one.forget_masks()
    one.keep_pins([])
    assert victims(one, must=False) == [0]


def test_a_masked_key_that_is_pinned_counts_as_pinned() -> None:
    one = protection()
    one.begin_gate(1, [0])
    one.mask(0, [0, 1, 2])
    assert victims(one, must=True) == [1]


def test_1_a_gate_releases_the_pins_of_the_one_before_and_the_masks_of_its_site() -> None:
    one = protection()
    one.mask(0, [1, 0])
    one.mask(1, [2])
    one.begin_gate(1, [])
    assert list(one.unmasked) == [2]
    one.begin_gate(0, [0])
    assert list(one.unmasked) == [1, 0]
    assert victims(one, must=False) == [1]
    one.begin_gate(1, [])
    assert list(one.unmasked) == []
    assert victims(one, must=False) == [0]


def test_2_and_3_needs_of_waves_are_pinned_and_released_one_by_one() -> None:
    one = protection()
    one.begin_gate(0, [])
    one.pin(0)
    assert victims(one, must=True) == [1]
    one.pin(1)
    assert victims(one, must=True) == [2]
    one.unpin(0)
    assert (victims(one, must=True), one.pins) == ([0], [1])


def test_4_a_forecast_replaces_the_last_one_for_its_site_only() -> None:
    one = protection()
    one.mask(0, [0])
    one.mask(1, [1])
    assert victims(one, must=False) == [2]
    one.mask(0, [2])
    assert victims(one, must=False) == [0]


def test_5_all_forecasts_can_be_forgotten() -> None:
    one = protection()
    one.mask(0, [0])
    one.mask(1, [1])
    assert victims(one, must=False) == [2]
    one.forget_masks()
    assert victims(one, must=False) == [0]


def test_6_of_the_pins_only_some_are_kept() -> None:
    one = protection()
    kept = [2]
    one.begin_gate(0, [0, 1, 2])
    assert victims(one, must=True) is None
    one.keep_pins(kept)
    assert victims(one, must=True) == [0]
    one.unpin(2)
    assert (one.pins, kept) == ([], [2])


@pytest.mark.parametrize("question", ["claim", "would_evict", "could_claim", "excess"])
def test_every_question_is_asked_of_the_states_as_they_are_now(question: str) -> None:
    """The maps that policies read are written after the last transition and before the answer."""
    one = protection()
    one.begin_gate(0, [0, 1])
    one.show()
    one.unpin(0)
    one.mask(0, [1])
    arguments = {
        "claim": (4, True),
        "would_evict": (4, True),
        "could_claim": (4,),
        "excess": ((0,),),
    }
    getattr(one, question)(*arguments.get(question, ()))
    slots = one._slots
    assert [key for key, pinned in enumerate(slots.pinned) if pinned] == [1]
    assert [key for key, blocked in enumerate(slots.blocked) if blocked] == [1]
