"""A run is simulated and measured."""

from __future__ import annotations

from itertools import count

import pytest

from helpers.bundled import Configure
from sim.setup import execute as module
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace


def test_the_time_of_the_bounds_is_told_apart_from_that_of_the_run(
    configure: Configure, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that advances by 2.5 s whenever it is read."""
    run = build(configure("system=lru", "trace.max_sequences=1"), "lru", bundled_trace)
    ticks = count(100.0, 2.5)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    assert execute(run).bounds_wall_s == 2.5
