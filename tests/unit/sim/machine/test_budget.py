"""What expert slots may hold: equal GiB for systems of any precision, or a share of all experts."""

from __future__ import annotations

import re

import pytest

from sim.answers.comparison import check_comparable, conditions_of
from sim.answers.whatif_questions import QUESTIONS
from sim.machine.budget import Budget, make_geometry
from sim.machine.model import Model
from sim.study.trials import prepared
from sim.values.types import CapacityError

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
        "slots_gib=0",
        "slots_gib=-2",
        "slots_gib=much",
        "slots_gib=10000000",
        "resident_share=0",
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
