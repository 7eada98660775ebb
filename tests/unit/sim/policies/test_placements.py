"""Placements: where needs are computed."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.policies import placements
from sim.policies.placements import AbsentOnCpu, CpuByCost, CpuForSmallBatches, Load, SkipAbsent
from sim.policies.requires import Given, Shape
from sim.traces.trace import CHUNK, DECODE, PREFILL
from sim.values.types import Place

QUEUED: Any = SimpleNamespace(bytes_ahead=lambda link: 0)
DEVICE: Any = SimpleNamespace(has=lambda *key: False, expert_of=lambda key: key % 10)
GATE: Any = SimpleNamespace(needs=[4, 2, 7], tokens=[5, 2, 1])
"""Five rows chose expert 4, two chose 2, one chose 7."""


def test_everything_is_loaded_and_that_is_known_without_asking() -> None:
    assert Load().constant == Place.LOAD
    assert list(Load().place(GATE, [14, 12, 17], DEVICE, QUEUED)) == [Place.LOAD] * 3


def test_what_is_absent_is_computed_on_the_cpu() -> None:
    assert AbsentOnCpu().constant is None
    assert list(AbsentOnCpu().place(GATE, [14, 12, 17], DEVICE, QUEUED)) == [Place.CPU] * 3


@pytest.mark.parametrize(
    ("up_to", "places"),
    [(1, "load load cpu"), (2, "load cpu cpu"), (4, "load cpu cpu"), (5, "cpu cpu cpu")],
)
def test_what_many_rows_chose_is_loaded_all_the_same(up_to: int, places: str) -> None:
    found = AbsentOnCpu(up_to_tokens=up_to).place(GATE, [14, 12, 17], DEVICE, QUEUED)
    assert [Place(place).name.lower() for place in found] == places.split()


def test_rows_are_those_of_the_needs_that_are_asked_about() -> None:
    """A wave asks about some needs of its gate only, each by its own key."""
    assert list(AbsentOnCpu(up_to_tokens=2).place(GATE, [17, 14], DEVICE, QUEUED)) == [
        Place.CPU,
        Place.LOAD,
    ]
    assert list(AbsentOnCpu(up_to_tokens=2).place(GATE, [], DEVICE, QUEUED)) == []


@pytest.mark.parametrize("value", [0, -1, 1.5, "some", True])
def test_a_number_of_rows_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"placement\.up_to_tokens="):
        AbsentOnCpu(up_to_tokens=value)


@pytest.mark.parametrize(
    ("phases", "place"),
    [
        ((DECODE,), "CPU"),
        ((DECODE, DECODE), "CPU"),
        ((PREFILL,), "LOAD"),
        ((DECODE, PREFILL), "LOAD"),
        ((CHUNK,), "LOAD"),
    ],
)
def test_prompts_are_the_gpus_where_only_decoding_may_use_the_cpu(
    phases: tuple[int, ...], place: str
) -> None:
    """HOBBIT section 5.4. One row of a prompt makes the gate a prompt's."""
    gate: Any = SimpleNamespace(needs=[4], tokens=[1], row_phase=np.array(phases))
    assert list(AbsentOnCpu(when="decode").place(gate, [14], DEVICE, QUEUED)) == [Place[place]]
    assert list(AbsentOnCpu(when="always").place(gate, [14], DEVICE, QUEUED)) == [Place.CPU]


# Contracts: C146
@pytest.mark.parametrize(
    ("rows", "options", "place"),
    [
        (31, {}, "CPU"),
        (32, {}, "LOAD"),
        (3, {"min_rows": 3}, "LOAD"),
        (1, {"min_rows": 0}, "LOAD"),
        # 128 experts of which a token chooses 8: 32 * 16 rows; 3 of 100: 32 * 33.33.
        (511, {"scale": "experts"}, "CPU"),
        (512, {"scale": "experts"}, "LOAD"),
        (1066, {"scale": "experts", "experts": 100, "top_k": 3}, "CPU"),
        (1067, {"scale": "experts", "experts": 100, "top_k": 3}, "LOAD"),
    ],
)
def test_batches_from_a_number_of_rows_on_are_the_gpus(
    rows: int, options: dict[str, Any], place: str
) -> None:
    """Whatever the phase, and however few of the rows chose the expert."""
    options = {"experts": 128, "top_k": 8} | options
    shape = Shape(1, options.pop("experts"), options.pop("top_k"))
    placement = CpuForSmallBatches(**options)
    placement.prepare(Given(shape))
    gate: Any = SimpleNamespace(needs=[4], tokens=[1], experts=np.zeros((rows, 1), int))
    assert list(placement.place(gate, [14], DEVICE, QUEUED)) == [Place[place]]
    assert placement.uses_cpu


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_rows": -1}, r"placement\.min_rows=-1"),
        ({"min_rows": 1.5}, r"placement\.min_rows=1\.5"),
        ({"scale": "rows"}, r"unknown placement\.scale=rows; known: none, experts"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CpuForSmallBatches(**options)


def test_a_decoded_row_is_called_as_in_traces() -> None:
    assert placements.DECODE == DECODE


def test_what_is_absent_is_left_out() -> None:
    assert SkipAbsent().constant is None
    assert list(SkipAbsent().place(GATE, [14, 12], DEVICE, QUEUED)) == [Place.SKIP] * 2


@pytest.mark.parametrize(
    "placement", [Load(), AbsentOnCpu(), CpuByCost(7, 70, "sum"), SkipAbsent()]
)
def test_a_placement_says_whether_it_needs_a_cpu(placement: Any) -> None:
    assert placement.uses_cpu == isinstance(placement, AbsentOnCpu | CpuByCost)


# Fiddler


def fiddler(tokens: list[int], objective: str, *held: int) -> list[str]:
    """The answers where a token costs 7 on the CPU and a load costs 70.

    Expert i, with ``tokens[i]`` rows, has the key 10 + i; ``held`` are resident.
    """
    gate: Any = SimpleNamespace(site=3, needs=list(range(len(tokens))), tokens=tokens)
    device: Any = SimpleNamespace(
        expert_of=lambda key: key % 10, has=lambda p, site, expert: site == 3 and expert in held
    )
    places = CpuByCost(7, 70, objective).place(
        gate, [10 + expert for expert in gate.needs], device, QUEUED
    )
    return [Place(place).name for place in places]


@pytest.mark.parametrize(
    ("tokens", "place"), [(1, "CPU"), (9, "CPU"), (10, "LOAD"), (11, "LOAD"), (500, "LOAD")]
)
def test_the_sum_goes_to_the_cpu_below_ten_tokens_and_at_ten_to_the_gpu(
    tokens: int, place: str
) -> None:
    """9 x 7 = 63 < 70, but 10 x 7 = 70 is a tie, which efeslab/fiddler gives to the GPU."""
    assert fiddler([tokens], "sum") == [place]
    assert fiddler([30, tokens, 1], "sum") == ["LOAD", place, "CPU"]


@pytest.mark.parametrize(
    ("tokens", "places"),
    [
        # All on the CPU: 7 x 9 = 63 < 70, the least that a load costs.
        ([4, 3, 2], "CPU CPU CPU"),
        # CPU alone 140; one load (12): max(70, 7 x 8 = 56) = 70; two loads 140.
        ([12, 5, 3], "LOAD CPU CPU"),
        # One load: max(70, 140) = 140; two: max(140, 70) = 140, a tie: more loads; three: 210.
        ([10, 10, 10], "LOAD LOAD CPU"),
        # A tie of one token's cost and a load's.
        ([10], "LOAD"),
        ([9], "CPU"),
    ],
)
def test_the_maximum_balances_both_sides(tokens: list[int], places: str) -> None:
    assert fiddler(tokens, "max") == places.split()


def test_what_is_resident_costs_neither_side_anything() -> None:
    """Of the other two one load is best, max(7 x 4, 70) = 70.

    If all three counted, the first would be loaded, for max(7 x 14, 70) = 98.
    """
    assert fiddler([50, 10, 4], "max", 0)[1:] == ["LOAD", "CPU"]
    assert fiddler([50, 10, 4], "max") == ["LOAD", "CPU", "CPU"]


@given(st.lists(st.integers(1, 40), max_size=7), st.frozensets(st.integers(0, 6)))
def test_the_maximum_is_the_least_of_all_assignments(
    tokens: list[int], held: frozenset[int]
) -> None:
    """Oracle: Fiddler's enumeration of all 2^n; of the best, one with the most loads."""
    absent = [expert for expert in range(len(tokens)) if expert not in held]

    def cost(loaded: tuple[bool, ...]) -> tuple[int, int]:
        cpu = sum(
            7 * tokens[expert] for expert, on_gpu in zip(absent, loaded, strict=True) if not on_gpu
        )
        return max(cpu, 70 * sum(loaded)), -sum(loaded)

    places = fiddler(tokens, "max", *held)
    found = tuple(places[expert] == "LOAD" for expert in absent)
    assert cost(found) == min(map(cost, product((False, True), repeat=len(absent))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 70, "mean"), r"unknown placement\.objective=mean; known: sum, max"),
        ((-7, 70, "sum"), r"placement\.cpu_per_token"),
        ((7, "much", "sum"), r"placement\.load"),
        ((7, 70, "sum", -1.0), r"placement\.us_per_assignment"),
    ],
)
def test_costs_that_make_no_sense_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CpuByCost(*arguments)


def test_a_decision_takes_its_time_for_every_assignment_up_to_an_hour() -> None:
    placement = CpuByCost(7, 70, "sum", 3600e6 / 2**10)
    assert placement.decision_us(9) == 1800e6
    assert placement.decision_us(10) == 3600e6
    with pytest.raises(
        ValueError,
        match=re.escape(
            "placement.us_per_assignment=3.51562e+06: 2^11 assignments take 7.2e+03 s after every"
            " gate; set it to 0 (the decision needs no enumeration)"
        ),
    ):
        placement.decision_us(11)
    assert CpuByCost(7, 70, "sum").decision_us(1000) == 0.0


def test_an_unknown_when_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown placement\.when=prefill; known: always, decode"):
        AbsentOnCpu(when="prefill")
