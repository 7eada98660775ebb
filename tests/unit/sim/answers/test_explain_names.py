"""Names of keys in sentences about a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.explain_names import Names


def run(**other: Any) -> Any:
    """Two sites of three experts and a dense block, two precisions."""
    usual = {
        "units": 4,
        "sites": 2,
        "own_sites": 2,
        "plane": 8,
        "experts": 3,
        "precision_names": {0: "fp16"},
        "config": {},
        "is_gate": lambda tick: tick == 5,
        "gate": lambda tick: (1, 0, None),
    }
    return SimpleNamespace(**{**usual, **other})


@pytest.mark.parametrize(
    ("key", "named", "other"),
    [
        (0, "site 0 expert 0", {}),
        (6, "site 1 expert 2", {}),
        (6, "site 1 expert 2 fp16", {"precision_names": {0: "fp16", 1: "int4"}}),
        (14, "site 1 expert 2 int4", {"precision_names": {0: "fp16", 1: "int4"}}),
        (14, "site 1 expert 2 at precision 1", {}),
        (3, "the dense block of site 0", {}),
        (7, "the keys and values of site 1", {"config": {"workload": {"requests": "f"}}}),
        (7, "the dense block of site 1", {"config": {"workload": {"requests": None}}}),
    ],
)
def test_a_key_is_named_by_its_site_expert_and_precision(
    key: int, named: str, other: dict[str, Any]
) -> None:
    assert Names(run(**other), None).key(key) == named


def test_a_site_is_named_by_its_layer_where_that_is_known() -> None:
    names = Names(run(), (0, 3))
    assert (names.site(0), names.site(1)) == ("layer 0", "layer 3 (site 1)")


def test_a_site_of_a_draft_layer_is_named_so_whether_the_trace_has_it_or_not() -> None:
    """One site of the model, one of a draft layer: the second of this run's two."""
    for layers in (None, [3], [3, 4]):
        assert Names(run(own_sites=1), layers).key(6) == "draft layer 1 (site 1) expert 2"


def test_a_gate_is_named_by_its_step_and_what_is_before_the_first_by_the_start() -> None:
    names = Names(run(), None)
    assert names.gate(5) == "tick 5 (step 1, site 0)"
    assert (names.gate(0), names.gate(-1)) == ("tick 0", "the start")


def test_of_many_keys_four_are_named() -> None:
    names = Names(run(), None)
    four = ", ".join(map(names.key, (0, 1, 2, 4)))
    assert names.keys((0, 1, 2, 4)) == four
    assert names.keys((0, 1, 2, 4, 5, 6)) == f"{four} and 2 more"
