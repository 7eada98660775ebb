"""A transfer: as it is queued, and what it says of itself."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("prefetch", "urgent", "is_needed"),
    [(False, False, True), (True, False, False), (True, True, True)],
)
def test_a_demand_is_needed_and_a_prefetch_once_it_is_urgent(
    prefetch: bool, urgent: bool, is_needed: bool
) -> None:
    transfer = Transfer(7, prefetch, 100, 3)
    transfer.urgent = urgent
    assert transfer.is_needed == is_needed
