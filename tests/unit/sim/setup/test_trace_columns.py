"""A run reads those columns of its trace that its policies go by, whichever policy asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from sim.setup.build import build

Configure = Callable[..., DictConfig]
SHORT = ("trace.max_sequences=1", "workload.decode_tokens=2", "budget.resident_share=0.4")


@pytest.mark.parametrize(
    ("system", "shares", "lookahead"),
    [("lru", False, 0), ("floe", True, 0), ("mixtral_offloading", False, 1)],
)
def test_large_columns_are_read_for_the_one_policy_that_goes_by_them(
    system: str, shares: bool, lookahead: int, configure: Configure
) -> None:
    trace = build(configure(f"system={system}", *SHORT), system).trace
    assert (trace.active_shares is not None) == shares
    assert len(trace.lookahead) >= lookahead
    if system == "lru":
        assert not trace.lookahead
