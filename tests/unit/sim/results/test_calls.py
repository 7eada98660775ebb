"""The decision log: what it holds, and that a replay finds and names what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import pytest

from differential import test_prefixes_by_hand
from differential.by_hand import foresee, gate, machine, sequence, token
from differential.features import FEATURES, PREFIXES, random_feature, random_mixture
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import (
    Cache,
    CacheName,
    Forecast,
    Link,
    Loader,
    Need,
    Placement,
    PoolSpec,
    RamTier,
    Scenario,
    Step,
)
from sim.core.controller import Controller
from sim.engine.simulate import simulate
from sim.results.calls import (
    KINDS,
    Call,
    Difference,
    RecordedController,
    RecordedWorkload,
    first_difference,
    replay,
)
from sim.values.types import Outcome

HIT, LATE, MISS, CPU = int(Outcome.HIT), int(Outcome.LATE), int(Outcome.MISS), int(Outcome.CPU)


def keys_and_values() -> Scenario:
    """What the second prompt finds comes from RAM and from disk."""
    return test_prefixes_by_hand.scenario((0, 1, 2), links=2)


def scenario(cache: CacheName = "lru", slots: int = 2) -> Scenario:
    """Two sites of 4 experts (5 keys a site), with 0 and 6 resident.

    Transfers take 10, experts 1, dense work 1. Site 0 needs 0 and foresees 1 (key 6) and 2 (key 7)
    at site 1, which needs 2.
    """
    forecasts = (((Forecast(1), Forecast(2)),), (None,))
    step = Step(0, True, True, 1, 1, (1, 1), 0, ((Need(0),), (Need(2),)), forecasts)
    pools = (PoolSpec(slots, (0,), None, ((0, 0, 0), (0, 1, 1))),)
    return Scenario(
        2,
        4,
        (1,),
        (10,),
        (1,),
        (0,),
        pools,
        (step,),
        cache=Cache(cache),
        loader=Loader(lookahead=1),
    )


def wave() -> Scenario:
    """A prompt of three rows, with three needs for two slots."""
    step = Step(0, True, True, 3, 3, (1,), 0, ((Need(0), Need(1), Need(2)),), ((),))
    return Scenario(1, 4, (1,), (10,), (4,), (0,), (PoolSpec(2, (0,)),), (step,))


def on_cpu() -> Scenario:
    """One absent need, which is computed on the CPU."""
    return machine(*sequence(gate(0)), placement=Placement(cpu=frozenset({(0, 0)}), cpu_ns=5))


def foretold_late() -> Scenario:
    """The forecast is ready 1 ns after its gate."""
    return replace(scenario(slots=3), prediction_ns=1)


def through_two_links() -> Scenario:
    """4 bytes over two links, 2 ns a byte; the outer link hands on after its first byte."""
    links = (Link(0, 2), Link(0, 2, head_bytes=1))
    return machine(*sequence(gate(0)), variant_bytes=(4,), service_ns=(8,), links=links)


def in_chunks() -> Scenario:
    """Two sites of 9 keys, with 4 bytes an expert and 10 ns a byte.

    A prefetch of 11 is on its way when site 1 needs 10.
    """
    return machine(
        token(gate(0), gate(1), ahead={0: (foresee(2),)}),
        initial=((0, 0, 0),),
        variant_bytes=(4,),
        service_ns=(40,),
        links=(Link(0, 10),),
        loader=Loader(lookahead=1, chunk_bytes=1),
    )


def through_ram() -> Scenario:
    """Two needs, one after another, through a RAM with room for one."""
    return machine(
        *sequence(gate(0), gate(1)),
        links=(Link(0, 1), Link(0, 1)),
        ram=RamTier(1, (PoolSpec(1, (0,)),)),
    )


BY_HAND = (
    scenario,
    wave,
    on_cpu,
    foretold_late,
    through_two_links,
    in_chunks,
    through_ram,
    keys_and_values,
)


def record(chosen: Scenario) -> list[Call]:
    return record_with_times(chosen)[0]


def record_with_times(chosen: Scenario) -> tuple[list[Call], list[int]]:
    """The log of a run, and the times at which its steps were asked for."""
    controller, workload = (
        RecordedController(controller_for(chosen)),
        RecordedWorkload(ScenarioWorkload(chosen)),
    )  # type: ignore[arg-type]
    simulate(controller, workload, ScenarioDurations(chosen, workload._workload))  # type: ignore[arg-type]
    return controller.log, workload.asked_ns


def repeat(
    calls: list[Call], chosen: Scenario, controller: Controller | None = None
) -> Difference | None:
    return replay(calls, controller or controller_for(chosen), ScenarioWorkload(chosen))  # type: ignore[arg-type]


def test_a_log_holds_every_call_with_its_answer() -> None:
    """The forecast masks 6 and queues 7.

    While 0 is pinned and 6 masked, 7 finds no slot and is dropped. At the gate of site 1 nothing is
    masked any more: 7 is missed, and of 0 and 6 the less recent one is evicted. Links are polled
    while something is pending there.
    """
    assert record(scenario()) == [
        Call(1, "begin_sequence", 0),
        Call(2, "gate", 0, outcomes=(HIT,), keys=(0,), queued=(7,)),
        Call(3, "poll", 0, dropped=(7,)),
        Call(4, "gate", 1, outcomes=(MISS,), keys=(7,), waits=(7,)),
        Call(5, "poll", 0, transfer=0, key=7, left_bytes=1, victims=(6,), evicted=(6,)),
        Call(6, "transfer_done", 0, link=0, arrived=7),
        Call(7, "end_sequence", 0),
    ]


def test_a_log_holds_prefetches_as_they_are_issued_and_looked_up() -> None:
    """With a third slot, 7 loads from 1 to 11 and is needed at 3."""
    log = record(scenario(slots=3))
    assert log[2] == Call(3, "poll", 0, transfer=0, key=7, prefetch=True, left_bytes=1)
    assert log[3] == Call(4, "gate", 1, outcomes=(LATE,), keys=(7,), waits=(7,))


def test_a_log_holds_the_needs_left_to_later_waves() -> None:
    """0 is computed from 11 to 15 while 1 loads.

    Its end admits 2, which loads when the link is free.
    """
    begin, gate, poll, arrival, done, second, third, end = record(wave())
    assert (begin.kind, poll.transfer, end.kind) == ("begin_sequence", 0, "end_sequence")
    assert (gate.outcomes, gate.waits, gate.waiting) == ((MISS, MISS), (0, 1), 1)
    assert (arrival.arrived, arrival.transfer, arrival.key) == (0, 1, 1)
    assert done == Call(5, "need_done", 0, outcomes=(MISS,), keys=(2,), waits=(2,))
    assert (second.kind, second.transfer, second.key, second.victims) == (
        "transfer_done",
        2,
        2,
        (0,),
    )
    assert (third.arrived, third.transfer) == (2, -1)


def test_a_log_holds_the_results_of_the_cpu() -> None:
    assert record(on_cpu()) == [
        Call(1, "begin_sequence", 0),
        Call(2, "gate", 0, outcomes=(CPU,), keys=(0,)),
        Call(3, "cpu_done", 0),
        Call(4, "end_sequence", 0),
    ]


def test_a_log_holds_predictions_when_they_are_there() -> None:
    """Site 0's is ready at 2: 7 is queued, and needed at 3. Site 1's is ready at 4."""
    assert record(foretold_late())[1:7] == [
        Call(2, "gate", 0, outcomes=(HIT,), keys=(0,)),
        Call(3, "prediction_ready", 0, queued=(7,)),
        Call(4, "poll", 0, transfer=0, key=7, prefetch=True, left_bytes=1),
        Call(5, "gate", 1, outcomes=(LATE,), keys=(7,), waits=(7,)),
        Call(6, "prediction_ready", 1),
        Call(7, "transfer_done", 0, link=0, arrived=7),
    ]


def test_a_log_holds_every_hop_and_what_is_handed_on_early() -> None:
    """Link 1 serves from 1 to 9, link 0 from 3 to 11; only then does the key arrive."""
    assert record(through_two_links())[2:7] == [
        Call(3, "poll", 1, transfer=0, key=0, left_bytes=4),
        Call(4, "head_done", 0, link=1),
        Call(5, "poll", 0, transfer=0, key=0, left_bytes=4),
        Call(6, "transfer_done", 0, link=1),
        Call(7, "transfer_done", 0, link=0, arrived=0),
    ]


def test_a_log_holds_what_is_cut_and_what_is_left_of_it() -> None:
    """The prefetch is cut at 11, after a byte.

    The demand of 10 goes first, then the 3 bytes that are left.
    """
    assert record(in_chunks())[1:6] == [
        Call(2, "gate", 0, outcomes=(HIT,), keys=(0,), queued=(11,)),
        Call(3, "poll", 0, transfer=0, key=11, prefetch=True, left_bytes=4),
        Call(4, "gate", 1, outcomes=(MISS,), keys=(10,), waits=(10,)),
        Call(5, "chunk_done", 0, link=0, moved_bytes=1, transfer=1, key=10, left_bytes=4),
        Call(
            6,
            "transfer_done",
            1,
            link=0,
            arrived=10,
            transfer=0,
            key=11,
            prefetch=True,
            left_bytes=3,
        ),
    ]


def test_a_log_holds_what_leaves_the_ram_tier() -> None:
    log = record(through_ram())
    assert [call.ram_evicted for call in log if call.ram_evicted] == [(0,)]
    assert next(call for call in log if call.ram_evicted) == Call(
        8, "poll", 1, transfer=1, key=1, left_bytes=1, ram_evicted=(0,)
    )


def test_the_runs_by_hand_make_every_call_there_is() -> None:
    assert {call.kind for build in BY_HAND for call in record(build())} == set(KINDS)


def test_a_log_is_plain_data() -> None:
    for call in (call for build in BY_HAND for call in record(build())):
        for value in astuple(call):
            assert type(value) in (int, str, bool, tuple)
            if type(value) is tuple:
                assert all(type(item) is int for item in value)


def test_a_recorded_controller_is_the_one_it_was_given() -> None:
    controller, workload = controller_for(wave()), ScenarioWorkload(wave())
    recorded = RecordedController(controller)
    simulate(recorded, workload, ScenarioDurations(wave(), workload))  # type: ignore[arg-type]
    assert controller.calls == recorded.calls == len(recorded.log)
    assert controller.lookup_keys == [0, 1, 2]
    controller.check()


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
