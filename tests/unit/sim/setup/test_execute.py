"""A run is simulated and measured."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
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


class Bar:
    """A bar, and a console, that keep what they are told."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.seen.append("ended")

    def add_task(self, name: str, total: int) -> str:
        self.seen.append((name, total))
        return "task"

    def update(self, task: str, completed: int) -> None:
        self.seen.append((task, completed))

    def status(self, text: str) -> Bar:
        self.seen.append(text)
        return self


@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("bounds", [None, "none", "max", "relaxation"])
def test_a_run_is_simulated_packed_and_shown_where_that_is_asked_for(
    is_shown: bool, bounds: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    bar = Bar(seen)

    def simulate(*given: Any, packed: bool) -> str:
        controller, workload, durations, *report = given
        assert (controller, durations, packed) == ("controller", "durations", True)
        for one in report:
            one(2)
        return f"record of {len(workload.steps)}"

    def shown(*columns: object, console: object) -> Bar:
        assert (len(columns), console) == (5, bar)
        return bar

    monkeypatch.setattr(module, "simulate", simulate)
    monkeypatch.setattr(module, "Shown", shown)
    monkeypatch.setattr(module, "Frames", lambda *given, kv_room: (*given, kv_room))
    monkeypatch.setattr(module, "summarise", lambda *given: {"of": given})
    monkeypatch.setattr(module, "lower_bounds", lambda *given: given)
    run: Any = SimpleNamespace(
        system="lru",
        controller="controller",
        workload=SimpleNamespace(steps=[1, 2, 3]),
        durations="durations",
        hardware=SimpleNamespace(link_names=("pcie",)),
        kv_room="room",
        config={} if bounds is None else {"bounds": bounds},
    )
    progress: Any = bar if is_shown else None
    result = execute(run, progress)
    frames = ("controller", run.workload, "durations", "record of 3", ("pcie",), "room")
    asked = None if bounds in (None, "none") else (run.workload, "durations", "controller", bounds)
    assert result.frames == frames
    assert result.summary == {"of": (run, frames, asked)}
    steps = [("lru: steps", 3), ("task", 2), "ended"] if is_shown else []
    slow = is_shown and bounds == "relaxation"
    assert seen == [*steps, *(["lru: what nobody can beat", "ended"] if slow else [])]
