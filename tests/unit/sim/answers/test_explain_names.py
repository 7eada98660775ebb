"""Names of sites, gates and keys in sentences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.explain_names import Names


def run_of(**more: Any) -> Any:
    """Two sites of four experts and a block each; ticks from 3 on are gates of step 1."""
    plain: dict[str, Any] = {
        "plane": 10,
        "units": 5,
        "sites": 2,
        "experts": 4,
        "precision_names": {0: "fp16"},
        "config": {},
        "is_gate": lambda tick: tick >= 3,
        "gate": lambda tick: (1, 1, 7),
    }
    return SimpleNamespace(**plain | more)


@pytest.mark.parametrize(
    ("tick", "told"),
    [(-1, "the start"), (0, "tick 0"), (2, "tick 2"), (3, "tick 3 (step 1, layer 4 (site 1))")],
)
def test_a_tick_is_named_by_its_step_and_site_where_it_is_a_gate(tick: int, told: str) -> None:
    assert Names(run_of(), [0, 4]).gate(tick) == told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "the dense block of site 1"),
        ({"workload": None}, "the dense block of site 1"),
        ({"workload": {"requests": None}}, "the dense block of site 1"),
        ({"workload": {"requests": {"rate": 2}}}, "the keys and values of site 1"),
    ],
)
def test_the_key_after_the_experts_is_what_else_a_site_moves(
    config: dict[str, Any], told: str
) -> None:
    assert Names(run_of(config=config), None).key(9) == told


def test_a_key_has_its_precision_where_several_are_in_play_and_lists_end_with_a_count() -> None:
    one, two = Names(run_of(), [0, 4]), Names(run_of(precision_names={0: "fp16", 1: "int4"}), None)
    assert (one.key(3), one.key(5)) == ("layer 0 expert 3", "layer 4 (site 1) expert 0")
    assert one.key(15) == "layer 4 (site 1) expert 0 at precision 1"
    assert (two.key(5), two.key(15)) == ("site 1 expert 0 fp16", "site 1 expert 0 int4")
    assert two.keys([0, 1, 2, 13]).endswith("site 0 expert 3 int4")
    assert one.keys([0, 1, 2, 3, 5, 6]).endswith("layer 0 expert 3 and 2 more")
