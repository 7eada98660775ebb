"""A run whose policy leaves a demand without a slot ends with a message that names both.

It does not end with a traceback of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.policies.recency import LRU
from sim.setup.execute import execute
from sim.study.trials import prepared


def nobody(self: LRU, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
    return iter(())


def test_a_policy_that_names_no_victim_is_named_with_the_expert_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = prepared(
        [
            "system=lru",
            "trace.max_sequences=1",
            "workload.decode_tokens=2",
            "budget.resident_share=0.25",
        ]
    )
    monkeypatch.setattr(LRU, "victims", nobody)
    with pytest.raises(
        ValueError,
        match=r"^LRU: `victims` names too few keys for site \d+ expert \d+ fp16: no demand can be .*\(at step \d+",
    ):
        execute(run)
