"""Where needs are computed, and what moves for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.policies.payloads import Whole
from sim.policies.placements import AbsentOnCpu, Load
from sim.types import Place

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
    ("up_to", "places"), [(1, "load load cpu"), (2, "load cpu cpu"), (4, "load cpu cpu"), (5, "cpu cpu cpu")]
)
def test_what_many_rows_chose_is_loaded_all_the_same(up_to: int, places: str) -> None:
    found = AbsentOnCpu(up_to_tokens=up_to).place(GATE, [14, 12, 17], DEVICE, QUEUED)
    assert [Place(place).name.lower() for place in found] == places.split()


def test_rows_are_those_of_the_needs_that_are_asked_about() -> None:
    """A wave asks about some needs of its gate only, each by its own key."""
    assert list(AbsentOnCpu(up_to_tokens=2).place(GATE, [17, 14], DEVICE, QUEUED)) == [Place.CPU, Place.LOAD]
    assert list(AbsentOnCpu(up_to_tokens=2).place(GATE, [], DEVICE, QUEUED)) == []


@pytest.mark.parametrize("value", [0, -1, 1.5, "some", True])
def test_a_number_of_rows_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"placement\.up_to_tokens="):
        AbsentOnCpu(up_to_tokens=value)


def test_a_whole_payload_is_never_asked() -> None:
    assert Whole().whole
    with pytest.raises(NotImplementedError):
        Whole().moved_bytes(0, GATE, 0)
    with pytest.raises(NotImplementedError):
        Whole().missing_bytes(0, GATE, 0, 1)
