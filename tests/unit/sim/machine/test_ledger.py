"""The memory ledger, worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.machine.compute import Cpu
from sim.machine.ledger import Ledger, check_ledger, full_ledger, make_ledger, overflow_bytes
from sim.machine.link import Link
from sim.machine.link_parts import Pages
from sim.machine.parts import SharedMemory, Swap
from sim.values.units import GIB


@dataclass(frozen=True)
class Limits:
    tokens: int = 1
    rows: int = 1
    kept_tokens: int = 0

    def kv_bytes(self, by_window: Mapping[int, int]) -> int:
        return sum({0: self.tokens, 128: 100}[window] * size for window, size in by_window.items())


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
        "page_cache_bytes": 0,
    }
    parts = 1_776, 9_600, 1_344, 5_000, 70, 300, 1 << 28, 11, 13, 240
    assert ledger.total_bytes == sum(parts)


def test_a_page_cache_takes_the_memory_that_the_device_shares_with_it() -> None:
    """C82: a Jetson of 30 GiB read again what a page cache of 1,000 GiB held."""
    cache = Pages(capacity_gib=0.5, gb_per_s=20)
    links = {"near": Link(10.0, 0.5, 6.0, page_cache=cache)}
    drawn = {one: SharedMemory(99, ("compute", one)) for one in ("near", "cpu")}
    cpu = Cpu(1.0, 1.0, 10.0, 1.0, 20.0)
    apart, unified = (
        machine(links=links, cpu=cpu, shared_memory=shared)
        for shared in (drawn["cpu"], drawn["near"])
    )
    assert (apart.is_unified, unified.is_unified) == (False, True)
    assert check_memory(small(), apart, Limits(), slot_bytes=0).page_cache_bytes == 0
    assert check_memory(small(), unified, Limits(), slot_bytes=0).page_cache_bytes == 1 << 29
    with pytest.raises(ValueError, match=r"reserved 0\.25, page_cache 0\.50 GiB\); lower budget"):
        check_memory(small(), unified, Limits(), slot_bytes=1 << 28)


def test_of_streamed_layers_only_the_slots_are_on_the_device() -> None:
    """Three layers have 240 parameters at 2 B: 1776 - 3 * 480 = 336 B belong to no layer."""
    held = [
        check_memory(small(), machine(), Limits(), slot_bytes=0, dense_slots=n).dense_bytes
        for n in (0, 1, 2)
    ]
    assert held == [1_776, 336 + 480, 336 + 960]
    # A slot is as large as the largest block: 2,848 parameters, with a dense layer before it.
    leading = small(leading_dense_layers=1, dense_intermediate=100)
    ledger = make_ledger(leading, machine(), Limits(), slot_bytes=0, dense_slots=2)
    assert ledger.dense_bytes == 336 + 2 * 5_696


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
        r" budget=fit \(with flags= a larger --n-cpu-moe\), or set hardware\.memory_gib",
    ):
        check_memory(small(), machine(), Limits(), slot_bytes=3 << 30)
    with pytest.raises(ValueError, match="no budget of slots makes it fit; set hardware"):
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


def of_gib(**parts: float) -> Ledger:
    """A ledger of so many GiB, 0.25 of them reserved."""
    sizes = dict.fromkeys((field.name for field in fields(Ledger)), 0)
    for name, size in ({"reserved": 0.25} | parts).items():
        sizes[f"{name}_bytes"] = int(size * GIB)
    return Ledger(**sizes)


HEAD = "the device holds {} GiB, but the run needs {} GiB"
FEWER = " and run fewer or shorter requests at once (workload.together, workload.decode_tokens)"
KEYS = (
    "the key-value cache of 77 tokens takes {} GiB, but hardware.memory_gib=1 has {} GiB left for"
    " it without any slots ({} GiB); run fewer or shorter requests at once (workload.together,"
    " workload.prompt_tokens, workload.decode_tokens), with a shorter context"
    " (workload.context_tokens), or set hardware.memory_gib"
)


@pytest.mark.parametrize(
    ("parts", "swap_gib", "told"),
    [
        ({"dense": 0.25, "slot": 0.5}, 0, None),
        ({"dense": 0.25, "slot": 1.0}, 0.5, None),
        (
            {"dense": 0.25, "slot": 1.25, "staging": 0.25},
            0.5,
            f"{HEAD.format('1.5', '2.00')} (dense 0.25, slot 1.25, staging 0.25, reserved 0.25"
            " GiB); lower budget.resident_share or slots_gib (0.75 GiB of slots fit), or say"
            " budget=fit (with flags= a larger --n-cpu-moe), or set hardware.memory_gib",
        ),
        (
            {"dense": 0.25, "kv": 0.75, "slot": 0.5},
            0,
            KEYS.format("0.75", "0.50", "dense 0.25, kv 0.75, slot 0.50, reserved 0.25"),
        ),
        (
            {"dense": 0.75, "kv": 0.25},
            0,
            KEYS.format("0.25", "0.00", "dense 0.75, kv 0.25, reserved 0.25"),
        ),
        # Keys and values would just fit, without any slots.
        (
            {"dense": 0.25, "kv": 0.5, "slot": 0.5},
            0,
            f"{HEAD.format('1', '1.50')} (dense 0.25, kv 0.50, slot 0.50, reserved 0.25 GiB); lower"
            f" budget.resident_share or slots_gib (0.00 GiB of slots fit){FEWER}, or set"
            " hardware.memory_gib",
        ),
        # Nothing is left for them: a lower budget was no way out.
        (
            {"dense": 1.0, "kv": 0.25},
            0,
            f"{HEAD.format('1', '1.50')} (dense 1.00, kv 0.25, reserved 0.25 GiB): no budget of"
            " slots makes it fit; set hardware.memory_gib, or make the other parts smaller"
            " (++model.dense_bits=, loader.staging_slots)",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_in_full(
    parts: dict[str, float], swap_gib: float, told: str | None
) -> None:
    hardware = machine(swap=Swap(swap_gib, 4.0, 1.0, 1.0) if swap_gib else None)
    if told is None:
        check_ledger(of_gib(**parts), hardware, Limits())
        return
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_ledger(of_gib(**parts), hardware, Limits(77))


def test_what_a_machine_sets_aside_takes_the_place_of_what_was() -> None:
    whole, other = of_gib(slot=0.5), machine(reserved_gib=0.5)
    assert full_ledger(whole, other) == of_gib(slot=0.5, reserved=0.5)
