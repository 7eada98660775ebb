"""A transfer: as it is queued, and what it says of itself."""

from __future__ import annotations

from sim.core.transfer import Transfer
from sim.values.types import PrefetchOutcome


def test_a_transfer_is_queued_without_a_number_and_unused_until_something_else_is_known() -> None:
    transfer = Transfer(7, True, 100, 3)
    assert (transfer.key, transfer.prefetch, transfer.moved_bytes, transfer.call) == (
        7,
        True,
        100,
        3,
    )
    assert (transfer.number, transfer.waits, list(transfer.victims)) == (-1, True, [])
    assert transfer.outcome == PrefetchOutcome.UNUSED_AT_END
    assert (transfer.hops, transfer.parent, transfer.urgent) == (((0, 3),), -1, False)


def test_a_transfer_remembers_which_call_queued_it_on_which_link() -> None:
    transfer = Transfer(7, True, 100, 3, link=2)
    transfer.later_hops += ((1, 8),)
    assert transfer.hops == ((2, 3), (1, 8))


def test_a_demand_is_needed_and_a_prefetch_is_urgent_once_it_is_needed() -> None:
    demand, prefetch = Transfer(7, False, 100, 3), Transfer(7, True, 100, 3)
    assert (demand.is_needed, demand.urgent) == (True, False)
    assert (prefetch.is_needed, prefetch.urgent) == (False, False)
    prefetch.is_needed = True
    assert prefetch.urgent
