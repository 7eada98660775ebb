"""The memory ledger, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.machine.ledger import Ledger, check_ledger, make_ledger, overflow_bytes


@dataclass(frozen=True)
class Limits:
    tokens: int = 1
    rows: int = 1
    kept_tokens: int = 0


def check_memory(model: Any, hardware: Any, limits: Limits, **sizes: int) -> Ledger:
    """The ledger of a run that fits."""
    ledger = make_ledger(model, hardware, limits, **sizes)
    check_ledger(ledger, hardware, limits)
    return ledger


# Contracts: C82
def test_the_ledger_holds_the_longest_context_the_widest_step_and_all_slots() -> None:
    """Dense weights take 1776 B, keys and values 48 B for each of 200 tokens, and of 5 held ones.

    Activations take 7 rows * 2 B * (4 * 8 + 2 * 2 * 16).
    """
    ledger = check_memory(
        small(),
        machine(),
        Limits(200, 7, 5),
        slot_bytes=5_000,
        staging_bytes=70,
        overflow_bytes=300,
        parts_bytes=11,
        draft_bytes=13,
    )
    assert vars(ledger) == {
        "dense_bytes": 1_776,
        "kv_bytes": 9_600,
        "activation_bytes": 1_344,
        "slot_bytes": 5_000,
        "staging_bytes": 70,
        "overflow_bytes": 300,
        "reserved_bytes": 1 << 28,
        "parts_bytes": 11,
        "draft_bytes": 13,
        "prefix_bytes": 5 * 48,
    }
    parts = 1_776, 9_600, 1_344, 5_000, 70, 300, 1 << 28, 11, 13, 240
    assert ledger.total_bytes == sum(parts)


def test_of_streamed_layers_only_the_slots_are_on_the_device() -> None:
    """Three layers have 240 parameters at 2 B: 1776 - 3 * 480 = 336 B belong to no layer."""
    held = [
        check_memory(small(), machine(), Limits(), slot_bytes=0, dense_slots=n).dense_bytes
        for n in (0, 1, 2)
    ]
    assert held == [1_776, 336 + 480, 336 + 960]


# Contracts: C82
def test_memory_is_enough_to_the_last_byte_and_one_more_is_refused_by_its_parts() -> None:
    rest = (1 << 30) - (1 << 28) - 1_776 - 48 - 2 * (32 + 64)
    assert check_memory(small(), machine(), Limits(), slot_bytes=rest).total_bytes == 1 << 30
    parts = r"dense 0\.00, kv 0\.00, activation 0\.00, slot 0\.75, reserved 0\.25 GiB"
    with pytest.raises(
        ValueError, match=rf"holds 1 GiB, but the run needs 1\.00 GiB \({parts}\); lower budget"
    ):
        check_memory(small(), machine(), Limits(), slot_bytes=rest + 1)


def test_a_refusal_for_memory_says_how_much_fits() -> None:
    """3 GiB of slots, beside 0.25 GiB reserved, are asked of 1 GiB: 0.75 GiB fit."""
    with pytest.raises(
        ValueError,
        match=r"lower budget\.resident_share or slots_gib \(0\.75 GiB of slots fit\), or say"
        r" budget=fit, or set hardware\.memory_gib",
    ):
        check_memory(small(), machine(), Limits(), slot_bytes=3 << 30)
    with pytest.raises(ValueError, match=r"\(0\.00 GiB of slots fit\) and run fewer"):
        check_memory(small(), machine(reserved_gib=0.9999999), Limits(), slot_bytes=100)


@pytest.mark.parametrize(
    ("union", "arriving", "pool", "over"),
    [(30, 0, 100, 30), (30, 80, 100, 40), (120, 0, 100, 140), (120, 500, 100, 240)],
    ids=[
        "the last union has been trimmed",
        "beside what arrives 10 of it stay",
        "20 of it never fit",
        "all stays",
    ],
)
def test_what_pools_hold_over_their_capacity_is_the_union_and_what_stays_of_the_last(
    union: int, arriving: int, pool: int, over: int
) -> None:
    assert overflow_bytes(union, arriving, pool) == over
