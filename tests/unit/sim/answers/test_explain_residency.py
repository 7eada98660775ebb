"""What is said of a key that was served from staging."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.answers.explain_residency import _not_kept

NAMES = cast(Any, SimpleNamespace(key=lambda key: "expert 1", gate=lambda tick: "tick 0"))


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("used", "was served from staging: Belady did not keep it."),
        ("late", "was served from staging: Belady did not keep it."),
        ("evicted_unused", "into staging, and left it unused."),
    ],
)
def test_a_prefetch_was_served_from_staging_if_a_need_used_it_late_or_not(
    outcome: str, told: str
) -> None:
    policies = {"cache": "Belady", "payload": "Whole"}
    run = cast(Any, SimpleNamespace(mechanism=policies.__getitem__, choice=lambda *words: "masked"))
    move = cast(Any, SimpleNamespace(kind="prefetch", outcome=outcome, key=1, tick=0))
    assert _not_kept(run, NAMES, move).endswith(told)


@pytest.mark.parametrize(
    ("evicts", "payload", "why"),
    [
        ("masked", "Whole", "LRU did not keep it"),
        ("masked", "WholeOrNothing", "LRU did not keep it"),
        ("masked", "Bands", "what had been moved of it was for that gate"),
        ("unmasked", "Whole", "everything that could have made room was pinned or forecast"),
        ("unmasked", "Bands", "what had been moved of it was for that gate"),
    ],
)
def test_a_demand_in_staging_says_why_no_slot_took_it(evicts: str, payload: str, why: str) -> None:
    policies = {"cache": "LRU", "payload": payload}
    run = cast(Any, SimpleNamespace(mechanism=policies.__getitem__, choice=lambda *words: evicts))
    move = cast(Any, SimpleNamespace(kind="demand", outcome="used", key=1, tick=0))
    assert _not_kept(run, NAMES, move) == (
        "Expert 1 had last come by a demand issued after tick 0, and was served from staging:"
        f" {why}."
    )
