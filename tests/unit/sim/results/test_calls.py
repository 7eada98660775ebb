"""The decision log: what it holds."""

from __future__ import annotations

from dataclasses import astuple

from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from helpers.logged_runs import (
    BY_HAND,
    foretold_late,
    in_chunks,
    on_cpu,
    record,
    scenario,
    through_ram,
    through_two_links,
    wave,
)
from sim.engine.simulate import simulate
from sim.results.calls import KINDS, Call, RecordedController
from sim.values.types import Outcome

HIT, LATE, MISS, CPU = int(Outcome.HIT), int(Outcome.LATE), int(Outcome.MISS), int(Outcome.CPU)


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
