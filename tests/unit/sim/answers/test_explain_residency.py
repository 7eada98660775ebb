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
