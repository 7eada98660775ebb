"""What expert slots may hold: equal GiB for systems of any precision, or a share of all experts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.answers.comparison import check_comparable, conditions_of
from sim.answers.whatif_questions import QUESTIONS
from sim.machine.budget import Budget, all_slot_bytes, held_bits, make_geometry
from sim.machine.link_parts import Unpack
from sim.machine.model import Model
from sim.study.trials import prepared
from sim.values.types import CapacityError, Geometry

GIB = 2**30
FEW = ("trace.max_sequences=1", "workload.decode_tokens=2", "outputs=summary")
SYSTEMS = ("lru", "hobbit", "edgemoe")
"""Systems with FP16, with two precisions, and with FP32 slots."""


# Contracts: C83
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_budget_in_gib_is_the_same_for_systems_of_any_precision(system: str) -> None:
    run = prepared([f"system={system}", "budget.slots_gib=12.5", *FEW])
    geometry = run.controller.geometry
    assert geometry.capacity_bytes == 12.5 * GIB
    experts = geometry.sites * geometry.experts
    assert run.resident_share == geometry.capacity_bytes / (experts * geometry.slot_sizes[0])


def test_runs_of_the_same_gib_may_be_compared_where_those_of_the_same_share_may_not() -> None:
    lru, fate = (
        conditions_of(prepared([f"system={name}", "budget.slots_gib=12.5", *FEW]))
        for name in ("lru", "fate")
    )
    assert fate.share == 1 > lru.share, "in INT4 all experts take less"
    check_comparable(("lru", "fate"), lru, fate)
    shared = conditions_of(prepared(["system=fate", "budget.resident_share=0.5", *FEW]))
    with pytest.raises(
        ValueError, match=r"bytes for experts=.* or both the same budget\.slots_gib"
    ):
        check_comparable(("lru", "fate"), lru, shared)


def test_no_more_is_taken_than_all_experts_need() -> None:
    assert Budget(0.5, 3).capacity_bytes(2 * GIB) == 2 * GIB
    assert Budget(0.5, 3).share_of(2 * GIB) == 1
    assert Budget(0.5, 1).share_of(4 * GIB) == 0.25
    assert Budget(0.3).capacity_bytes(10) == 3
    assert Budget(0.3).share_of(10) == 0.3


def test_a_share_of_whole_slots_loses_none_to_rounding() -> None:
    """In floats 0.3 * 24 is less than 7.2, which would lose a slot.

    Three tenths of 24 layers of 60 experts were 431 of them.
    """
    assert 0.3 * 24 < 7.2
    assert Budget(0.3).capacity_bytes(24 * 60 * 17_301_504) == 432 * 17_301_504


@pytest.mark.parametrize(
    "words",
    [
        "slots_gib=much",
        "resident_share=2",
    ],
)
def test_what_is_no_budget_is_refused_with_its_name_and_value(words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"budget.{words.split('=')[0]}")) as refused:
        prepared([f"budget.{words}", *FEW])
    assert words.split("=")[1] in str(refused.value)


def test_what_is_too_little_is_refused_with_the_gib_that_work() -> None:
    with pytest.raises(CapacityError, match=r"; budget\.slots_gib=") as refused:
        prepared(["system=lru", "budget.slots_gib=0.5", *FEW])
    enough = float(str(refused.value).rpartition("slots_gib=")[2].removesuffix(" works"))
    assert enough == 0.6594, "rounded up to four digits, not to three or five"
    prepared(["system=lru", f"budget.slots_gib={enough}", *FEW])
    with pytest.raises(CapacityError):
        prepared(["system=lru", f"budget.slots_gib={enough - 0.01}", *FEW])


@pytest.mark.parametrize("name", ["memory", "bits"])
def test_what_if_a_share_were_another_holds_for_a_run_that_was_given_gib(name: str) -> None:
    question = QUESTIONS[name]
    base = ["system=lru", "budget.slots_gib=12.5", *FEW]
    run = prepared(base)
    value = question.values[0]
    (words,) = question.words(value, run).values()
    other = prepared([*base, *words])
    assert other.config["budget"]["slots_gib"] is None
    assert other.resident_share != run.resident_share


# Contracts: C145
@pytest.mark.parametrize(
    ("dense", "layers"),
    [
        ({}, (0, 1, 2)),
        ({"leading_dense_layers": 2}, (2, 3, 4)),
        ({"dense_layers_per_site": 1}, (1, 3, 5)),
    ],
)
def test_a_geometry_knows_the_numbers_of_its_layers(
    dense: dict[str, int], layers: tuple[int, ...]
) -> None:
    """Layers without experts stand before those with them."""
    sizes = {"hidden": 8, "expert_intermediate": 4, "heads": 2, "kv_heads": 1, "head_dim": 4}
    model = Model(
        "layered",
        sites=3,
        experts=4,
        top_k=2,
        vocab=10,
        source="paper",
        dense_intermediate=8 if dense else 0,
        **sizes,
        **dense,
    )
    geometry = make_geometry(model, ("fp16",), Budget(1.0))
    assert geometry.layers == layers
    assert tuple(map(geometry.layer_of, range(3))) == layers


def test_a_budget_takes_the_ends_of_its_range_and_nothing_beyond() -> None:
    for share in (1e-9, 1):
        assert Budget(share).resident_share == share
    for given_gib in (1e-9, 1e6):
        assert Budget(0.5, given_gib).slots_gib == given_gib
    words = "must be above 0 and at most 1: a share of all experts' bytes"
    for share in (0, 1.001):
        with pytest.raises(ValueError, match=rf"^budget\.resident_share={share} {words}$"):
            Budget(share)
    with pytest.raises(
        ValueError,
        match=r"^budget\.slots_gib=0 must be above 0: GiB for expert slots; null: a resident_share$",
    ):
        Budget(0.5, 0)
    with pytest.raises(ValueError, match=r"^budget\.slots_gib=1000001 must be from 0 to 1e\+06; g"):
        Budget(0.5, 1_000_001)


# Contracts: C83
def test_a_geometry_has_the_sizes_of_its_variants_and_half_of_all_experts_bytes() -> None:
    """Three experts of a site have weights: 9 of 768 B. Keys count five places a site, the fourth
    of an expert without weights; (int4, site 2, expert 0) does not exist.
    """
    found = make_geometry(
        small(null_experts=1),
        ("fp16", "int4"),
        Budget(0.5),
        frozenset({(1, 2, 0)}),
        recorded={"int4": (192, 192, 192)},
        device_of=(0,) * 15,
    )
    assert found == Geometry(
        3,
        4,
        2,
        ("fp16", "int4"),
        (16.0, 4.0),
        (768, 192),
        9 * 768 // 2,
        missing=frozenset({3, 8, 13, 18, 23, 28, 25}),
        null_experts=1,
        layers=(0, 1, 2),
        device_of=(0,) * 15,
    )
    assert all_slot_bytes(found) == 9 * 768


@pytest.mark.parametrize("variant", [(2, 0, 0), (0, 3, 0), (0, 0, 4), (0, -1, 0), (0, 0), 7])
def test_a_variant_that_could_not_exist_is_no_missing_one(variant: Any) -> None:
    """Its key was another variant's, or none's."""
    with pytest.raises(ValueError, match=r"^precision: `missing` names .*, below \(2, 3, 4\)$"):
        make_geometry(small(null_experts=1), ("fp16", "int4"), Budget(0.5), frozenset({variant}))


@pytest.mark.parametrize(
    ("given", "variants", "by_site", "held", "all_bytes"),
    [
        # Recorded sizes that differ, of the lower precision or of the higher one.
        (
            {"recorded": {"int4": (192, 200, 190)}},
            (384, 200),
            ((384,) * 3, (192, 200, 190)),
            (),
            12 * 384,
        ),
        (
            {"recorded": {"int8": (380, 390, 385)}},
            (390, 192),
            ((380, 390, 385), (192,) * 3),
            (),
            4 * (380 + 390 + 385),
        ),
        # What a store has replaces them all, and slots hold it as it is.
        (
            {"stored_bytes": (400, 210), "recorded": {"int4": (1, 2, 3)}, "held_bits": 16.0},
            (400, 210),
            None,
            (),
            12 * 400,
        ),
        # Slots hold 8 bits of each weight, or 16, and never less than what moves.
        ({"held_bits": 4.0}, (384, 192), None, (), 12 * 384),
        ({"held_bits": 8.0}, (384, 192), None, (384, 384), 12 * 384),
        ({"held_bits": 16.0}, (384, 192), None, (768, 768), 12 * 768),
        (
            {"held_bits": 8.0, "recorded": {"int8": (500, 390, 385)}},
            (500, 192),
            ((500, 390, 385), (192,) * 3),
            (500, 384),
            12 * 500,
        ),
    ],
    ids=str,
)
def test_slots_have_the_sizes_of_a_store_of_a_record_or_of_what_is_written_out(
    given: dict[str, Any],
    variants: tuple[int, ...],
    by_site: tuple[tuple[int, ...], ...] | None,
    held: tuple[int, ...],
    all_bytes: int,
) -> None:
    found = make_geometry(small(), ("int8", "int4"), Budget(1), **given)
    assert (found.variant_bytes, found.site_bytes, found.held_bytes, found.capacity_bytes) == (
        variants,
        by_site,
        held,
        all_bytes,
    )
    assert all_slot_bytes(found) == all_bytes


def test_slots_hold_what_the_system_or_a_link_writes_out() -> None:
    first, second = machine().links
    unpacking = machine(links=(first, replace(second, unpack=Unpack(1.0, 8.0))))
    found = [
        held_bits(name, on) for name in (None, "int4", "fp16") for on in (machine(), unpacking)
    ]
    assert found == [0, 8, 4, 8, 16, 16]
    with pytest.raises(
        ValueError, match=r"^unknown precision\.held='int3'; known: fp32, .*, floe, or null$"
    ):
        held_bits("int3", machine())
