"""A replay of a decision log finds what is wrong with it, and names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from differential.features import FEATURES, PREFIXES, random_feature, random_mixture
from differential.production import ScenarioWorkload, controller_for
from differential.scenario import (
    Scenario,
)
from helpers.logged_runs import (
    BY_HAND,
    foretold_late,
    on_cpu,
    record,
    record_with_times,
    repeat,
    scenario,
    through_two_links,
    wave,
)
from sim.results.calls import KINDS
from sim.results.replay import Difference, first_difference, replay
from sim.values.types import Outcome

HIT, LATE, MISS, CPU = int(Outcome.HIT), int(Outcome.LATE), int(Outcome.MISS), int(Outcome.CPU)


@pytest.mark.parametrize("build", BY_HAND)
def test_a_fresh_controller_gives_the_same_answers(build: Callable[[], Scenario]) -> None:
    assert repeat(record(build()), build()) is None


@pytest.mark.alike
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_a_fresh_controller_gives_the_same_answers_whatever_the_features(ties: bool) -> None:
    """Where requests arrive over time, the steps are asked for at the recorded times."""
    chosen = [random_feature(name, 1, ties) for name in FEATURES] + [
        random_mixture(seed, ties) for seed in range(16)
    ]
    chosen += [
        random_feature(name, seed, ties) for name in ("chunks", PREFIXES) for seed in range(8)
    ]
    kinds = set()
    for each in chosen:
        log, asked_ns = record_with_times(each)
        kinds |= {call.kind for call in log}
        assert replay(log, controller_for(each), ScenarioWorkload(each), asked_ns) is None  # type: ignore[arg-type]
    assert kinds == set(KINDS)


def test_another_policy_is_found_at_its_first_other_answer() -> None:
    """With all weights 0 the weighted score evicts the smallest key, 0 instead of 6."""
    found = repeat(record(scenario()), scenario(), controller_for(scenario("weighted")))
    assert found is not None
    assert (found.number, found.names) == (5, ("victims", "evicted"))
    assert (
        str(found)
        == "call 5 poll(0): victims (6,) expected, got (0,); evicted (6,) expected, got (0,)"
    )


@pytest.mark.parametrize("index", range(7))
def test_a_dropped_call_is_found_where_it_is_missing(index: int) -> None:
    calls = record(scenario())
    found = repeat(calls[:index] + calls[index + 1 :], scenario())
    if index == len(calls) - 1:
        assert found is None
        return
    assert found is not None
    assert found.number == index + 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outcomes", (LATE,)),
        ("keys", (1,)),
        ("waits", (0,)),
        ("waiting", 1),
        ("queued", ()),
        ("cancelled", (1,)),
    ],
)
def test_a_changed_answer_is_found_and_its_field_is_named(field: str, value: Any) -> None:
    calls = record(scenario())
    calls[1] = replace(calls[1], **{field: value})
    found = repeat(calls, scenario())
    assert found is not None
    assert (found.number, found.names) == (2, (field,))


@pytest.mark.parametrize(
    ("build", "index", "change", "why"),
    [
        (
            scenario,
            0,
            {"kind": "pol"},
            "call 1 pol(0): 'pol' is no call of a controller; known: begin_sequence, end",
        ),
        (scenario, 1, {"argument": 1}, "call 2 gate(1): the workload's next gate has tick 0"),
        (
            scenario,
            5,
            {"argument": 3},
            "call 6 transfer_done(3) on link 0: transfer 3 is not in flight there; in flight: [0]",
        ),
        (
            scenario,
            2,
            {"kind": "need_done"},
            "call 3 need_done(0): key 0 is not being computed while needs wait for",
        ),
        (
            scenario,
            6,
            {"kind": "gate", "argument": 2},
            "call 7 gate(2): the workload has no more gates",
        ),
        (
            wave,
            4,
            {"argument": 3},
            "call 5 need_done(3): key 3 is not being computed while needs wait for admission",
        ),
        (
            on_cpu,
            2,
            {"argument": 1},
            "call 3 cpu_done(1): key 1 is not being computed on the CPU; on it: [0]",
        ),
        (
            foretold_late,
            2,
            {"argument": 1},
            "call 3 prediction_ready(1): no prediction of gate 1 is being made; made: [0]",
        ),
        (
            through_two_links,
            3,
            {"link": 0},
            "call 4 head_done(0) on link 0: transfer 0 is not in flight there; in flight: []",
        ),
        (
            through_two_links,
            5,
            {"kind": "chunk_done"},
            "call 6 chunk_done(0) on link 1: transfer 0 would not be cut",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_call_that_cannot_be_made_is_named_with_the_reason(
    build: Callable[[], Scenario], index: int, change: dict[str, Any], why: str
) -> None:
    calls = record(build())
    calls[index] = replace(calls[index], **change)
    found = repeat(calls, build())
    assert found is not None
    assert (found.number, found.got) == (index + 1, None)
    assert str(found).startswith(why)


def test_equal_logs_have_no_difference() -> None:
    assert first_difference(record(wave()), record(wave())) is None


def test_two_logs_part_at_the_first_call_that_differs_in_question_or_answer() -> None:
    one = record(wave())
    other = [*one[:3], replace(one[3], key=9, prefetch=True), replace(one[4], argument=7), *one[5:]]
    found = first_difference(one, other)
    assert found == Difference(one[3], other[3])
    assert (
        str(found)
        == "call 4 transfer_done(0) on link 0: key 1 expected, got 9; prefetch False expected, got"
        " True"
    )


def test_of_two_logs_the_shorter_one_is_named() -> None:
    calls = record(wave())
    short = first_difference(calls, calls[:-1])
    assert str(short) == f"{calls[-1]}: the compared log ends before it"
    long = first_difference(calls[:-1], calls)
    assert str(long) == f"{calls[-1]}: the recorded log ends before it"
    assert short is not None
    assert long is not None
    assert short.number == long.number == len(calls)
    assert short.names == long.names == ()
