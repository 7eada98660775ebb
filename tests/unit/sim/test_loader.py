"""The loader's switches: what is built, what is refused and by which name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from sim.loader import Loader, Transfer
from sim.types import PrefetchOutcome


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", "first_missing"), ("queue", "replace"), ("promote", False), ("cancel_stale", False),
        ("demand_first", False), ("in_flight", 2), ("wait", "as_ready"), ("prefetch_budget", "until_next_gate"),
        ("prefetch_budget", 0), ("prefetch_budget", 3), ("low_for_high", True),
    ],
)  # fmt: skip
def test_every_built_switch_can_be_set(name: str, value: Any) -> None:
    assert asdict(Loader(**{name: value})) == asdict(Loader()) | {name: value}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("chunk_bytes", 1 << 20, "None"), ("destination", "staging", "pool"), ("slot_claim", "queue", "issue"),
        ("retention", "after_batch", "strict"), ("replay_unit", "access", "union"),
    ],
)  # fmt: skip
def test_what_is_not_built_yet_is_refused_by_name(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^loader\.{name}={value} is not built yet; allowed: {allowed}$"):
        Loader(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("depth", "deep", "all, first_missing"), ("queue", "lifo", "append, replace"), ("in_flight", 3, "1, 2"),
        ("in_flight", 0, "1, 2"), ("wait", "later", "wait_all, as_ready"), ("destination", "disk", "pool"),
        ("prefetch_budget", -1, "all, until_next_gate, or a count >= 0"),
        ("prefetch_budget", "some", "all, until_next_gate, or a count >= 0"),
        ("prefetch_budget", 1.5, "all, until_next_gate, or a count >= 0"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_refused_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^loader\.{name}={value} is unknown; allowed: {allowed}$"):
        Loader(**{name: value})


def test_a_transfer_is_queued_without_a_number_and_unused_until_something_else_is_known() -> None:
    transfer = Transfer(7, True, 100, 3)
    assert (transfer.key, transfer.prefetch, transfer.moved_bytes, transfer.call) == (7, True, 100, 3)
    assert (transfer.number, transfer.awaited, list(transfer.victims)) == (-1, False, [])
    assert transfer.outcome == PrefetchOutcome.UNUSED_AT_END
