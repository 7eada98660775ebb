"""The decision log: what it holds, and that a replay finds and names what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import pytest

from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import Cache, CacheName, Forecast, Loader, Need, PoolSpec, Scenario, Step
from sim.calls import Call, Difference, RecordedController, first_difference, replay
from sim.controller import Controller
from sim.engine import simulate
from sim.types import Outcome

HIT, LATE, MISS = int(Outcome.HIT), int(Outcome.LATE), int(Outcome.MISS)


def scenario(cache: CacheName = "lru", slots: int = 2) -> Scenario:
    """Two sites of 4 experts (5 keys a site), 0 and 6 resident; transfers 10, experts 1, dense work 1.

    Site 0 needs 0 and foresees 1 (key 6) and 2 (key 7) at site 1, which needs 2.
    """
    forecasts = (((Forecast(1), Forecast(2)),), (None,))
    step = Step(0, True, True, 1, 1, (1, 1), 0, ((Need(0),), (Need(2),)), forecasts)
    pools = (PoolSpec(slots, (0,), None, ((0, 0, 0), (0, 1, 1))),)
    return Scenario(2, 4, (1,), (10,), (1,), (0,), pools, (step,), cache=Cache(cache), loader=Loader(lookahead=1))


def wave() -> Scenario:
    """A prompt of three rows whose three needs have two slots."""
    step = Step(0, True, True, 3, 3, (1,), 0, ((Need(0), Need(1), Need(2)),), ((),))
    return Scenario(1, 4, (1,), (10,), (4,), (0,), (PoolSpec(2, (0,)),), (step,))


def record(chosen: Scenario) -> list[Call]:
    controller = RecordedController(controller_for(chosen))
    simulate(controller, ScenarioWorkload(chosen), ScenarioDurations(chosen))  # type: ignore[arg-type]
    return controller.log


def repeat(calls: list[Call], chosen: Scenario, controller: Controller | None = None) -> Difference | None:
    return replay(calls, controller or controller_for(chosen), ScenarioWorkload(chosen))  # type: ignore[arg-type]


def test_a_log_holds_every_call_with_its_answer() -> None:
    """The forecast masks 6 and queues 7; while 0 is pinned and 6 masked it finds no slot and is dropped.

    At the gate of site 1 nothing is masked any more: 7 is missed, and of 0 and 6 the less recent one goes.
    """
    assert record(scenario()) == [
        Call(1, "begin_sequence", 0),
        Call(2, "poll", 0),
        Call(3, "gate", 0, outcomes=(HIT,), keys=(0,), queued=(7,)),
        Call(4, "poll", 0, dropped=(7,)),
        Call(5, "gate", 1, outcomes=(MISS,), keys=(7,), waits=(7,)),
        Call(6, "poll", 0, transfer=0, key=7, victims=(6,)),
        Call(7, "transfer_done", 0, arrived=7),
        Call(8, "end_sequence", 0),
        Call(9, "poll", 0),
    ]


def test_a_log_holds_prefetches_as_they_are_issued_and_looked_up() -> None:
    """With a third slot, 7 loads from 1 to 11 and is needed at 3."""
    log = record(scenario(slots=3))
    assert log[3] == Call(4, "poll", 0, transfer=0, key=7, prefetch=True)
    assert log[4] == Call(5, "gate", 1, outcomes=(LATE,), keys=(7,), waits=(7,))


def test_a_log_holds_the_needs_left_to_later_waves() -> None:
    gate, _, arrival, done, second, third = record(wave())[2:8]
    assert (gate.outcomes, gate.waits, gate.waiting) == ((MISS, MISS), (0, 1), 1)
    assert (arrival.arrived, arrival.transfer, arrival.key) == (0, 1, 1)
    assert done == Call(6, "need_done", 0, outcomes=(MISS,), keys=(2,), waits=(2,))
    assert (second.kind, second.transfer, second.key, second.victims) == ("transfer_done", 2, 2, (0,))
    assert (third.arrived, third.transfer) == (2, -1)


def test_a_log_is_plain_data() -> None:
    for call in record(wave()) + record(scenario()):
        for value in astuple(call):
            assert type(value) in (int, str, bool, tuple)
            if type(value) is tuple:
                assert all(type(item) is int for item in value)


def test_a_recorded_controller_is_the_one_it_was_given() -> None:
    controller = controller_for(wave())
    recorded = RecordedController(controller)
    simulate(recorded, ScenarioWorkload(wave()), ScenarioDurations(wave()))  # type: ignore[arg-type]
    assert controller.calls == recorded.calls == len(recorded.log)
    assert controller.lookup_keys == [0, 1, 2]
    controller.check()


@pytest.mark.parametrize("build", [scenario, wave])
def test_a_fresh_controller_gives_the_same_answers(build: Callable[[], Scenario]) -> None:
    assert repeat(record(build()), build()) is None


def test_another_policy_is_found_at_its_first_other_answer() -> None:
    """Weighted, all weights 0: the smallest key goes, 0 instead of 6."""
    found = repeat(record(scenario()), scenario(), controller_for(scenario("weighted")))
    assert found is not None
    assert (found.number, found.names) == (6, ("victims",))
    assert str(found) == "call 6 poll(0): victims (6,) expected, got (0,)"


@pytest.mark.parametrize("index", range(9))
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
    [("outcomes", (LATE,)), ("keys", (1,)), ("waits", (0,)), ("waiting", 1), ("queued", ()), ("cancelled", (1,))],
)
def test_a_changed_answer_is_found_and_its_field_is_named(field: str, value: Any) -> None:
    calls = record(scenario())
    calls[2] = replace(calls[2], **{field: value})
    found = repeat(calls, scenario())
    assert found is not None
    assert (found.number, found.names) == (3, (field,))


@pytest.mark.parametrize(
    ("index", "change", "why"),
    [
        (1, {"kind": "pol"}, "call 2 pol(0): 'pol' is no call of a controller; known: begin_sequence, end_sequence"),
        (2, {"argument": 1}, "call 3 gate(1): the workload's next gate has tick 0"),
        (6, {"argument": 3}, r"call 7 transfer_done(3): transfer 3 is not in flight; in flight: [0]"),
        (3, {"kind": "need_done"}, "call 4 need_done(0): key 0 is not being computed while needs wait for admission"),
        (7, {"kind": "gate", "argument": 2}, "call 8 gate(2): the workload has no more gates"),
    ],
)
def test_a_call_that_cannot_be_made_is_named_with_the_reason(index: int, change: dict[str, Any], why: str) -> None:
    calls = record(scenario())
    calls[index] = replace(calls[index], **change)
    found = repeat(calls, scenario())
    assert found is not None
    assert (found.number, found.got) == (index + 1, None)
    assert str(found).startswith(why)


def test_a_need_done_for_a_key_that_is_not_pinned_cannot_be_made() -> None:
    calls = record(wave())
    calls[5] = replace(calls[5], argument=3)
    found = repeat(calls, wave())
    assert found is not None
    assert str(found) == "call 6 need_done(3): key 3 is not being computed while needs wait for admission"


def test_equal_logs_have_no_difference() -> None:
    assert first_difference(record(wave()), record(wave())) is None


def test_two_logs_part_at_the_first_call_that_differs_in_question_or_answer() -> None:
    one = record(wave())
    other = [*one[:3], replace(one[3], key=9, prefetch=True), replace(one[4], argument=7), *one[5:]]
    found = first_difference(one, other)
    assert found == Difference(one[3], other[3])
    assert str(found) == "call 4 poll(0): key 0 expected, got 9; prefetch False expected, got True"


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
