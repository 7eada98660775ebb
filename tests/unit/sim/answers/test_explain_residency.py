"""What the words of an explanation go by, case by case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.explain_residency import _may_have_left

BEFORE: dict[str, Any] = {
    "kind": "demand",
    "outcome": "used",
    "staging_slots": 2,
    "destination": "staging",
    "demand_evicts": "masked",
    "payload": "Whole",
    "cache": "LRU",
}
"""A whole expert, loaded on demand into a pool that takes whatever was loaded."""


@pytest.mark.parametrize(
    ("changed", "may"),
    [
        ({}, False),
        ({"cache": "Popular"}, True),
        ({"cache": "Belady"}, True),
        ({"demand_evicts": "unmasked"}, True),
        ({"payload": "ActiveShare"}, True),
        ({"payload": "ActiveShare", "staging_slots": 0}, False),
        ({"kind": "prefetch"}, True),
        ({"kind": "prefetch", "destination": "pool"}, False),
        ({"kind": "prefetch", "destination": "pool", "cache": "Belady"}, False),
        ({"kind": "prefetch", "destination": "pool", "outcome": "dropped"}, True),
        ({"kind": "prefetch", "outcome": "dropped", "staging_slots": 0}, False),
    ],
)
def test_a_key_may_have_left_from_staging_where_no_row_would_tell(
    changed: dict[str, Any], may: bool
) -> None:
    told = BEFORE | changed
    run: Any = SimpleNamespace(
        choice=lambda part, name: {"loader": told}[part][name], mechanism=told.__getitem__
    )
    move: Any = SimpleNamespace(kind=told["kind"], outcome=told["outcome"])
    assert _may_have_left(run, move) == may
    assert not _may_have_left(run, None), "it was there from the start"
