"""A run is simulated and measured."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from helpers.bundled import Configure
from sim.results.outputs import answer
from sim.setup import execute as module
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace


def test_the_time_of_the_bounds_is_told_apart_from_that_of_the_run(
    configure: Configure, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that advances by 2.5 s whenever it is read."""
    run = build(
        configure("system=lru", "bounds=max", "trace.max_sequences=1"), "lru", bundled_trace
    )
    ticks = count(100.0, 2.5)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    assert execute(run).bounds_wall_s == 2.5


@pytest.mark.thorough
def test_bounds_are_computed_where_they_are_asked_for(
    configure: Configure, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: every other number is the same, and the method that is asked for is the one used."""
    words = "system=lru", "trace.max_sequences=1"

    def ran(*bounds: str) -> dict[str, Any]:
        return execute(build(configure(*words, *bounds), "lru", bundled_trace)).summary

    bounded, relaxed = ran("bounds=max"), ran("bounds=relaxation")
    assert (bounded["bounds"]["method"], relaxed["bounds"]["method"]) == ("max", "relaxation")
    assert relaxed["bounds"]["relaxed_s"] > 0
    monkeypatch.setattr(module, "lower_bounds", lambda *_: pytest.fail("bounds were computed"))
    plain = ran()
    numbers = {name: value for name, value in plain["bounds"].items() if name != "method"}
    assert (set(numbers.values()), plain["gap"]) == ({None}, None)
    assert numbers.keys() | {"method"} == bounded["bounds"].keys()
    both = plain.keys() - {"bounds", "gap"}
    assert {name: plain[name] for name in both} == {name: bounded[name] for name in both}


def test_a_run_without_bounds_says_what_it_leaves_out_and_how_to_have_it(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = "system=lru", "trace.max_sequences=1"
    summary = execute(build(configure(*words), "lru", bundled_trace)).summary
    assert summary["bounds"]["method"] == "none: bounds=max or bounds=relaxation computes them"
    assert "; bounds=max computes what no cache or schedule can beat" in answer(summary)
    with pytest.raises(ValueError, match="unknown bounds=best; allowed: none, max, relaxation"):
        build(configure(*words, "bounds=best"), "lru", bundled_trace)
