"""What keys and values take step by step: by hand, and against the limits that count otherwise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sim.traces.trace import Trace
from sim.workload.kv_room import KvRoom
from sim.workload.lengths import Lengths
from sim.workload.speculation import Speculation
from sim.workload.steps import Workload
from unit.sim.workload.test_lengths import make_trace

KV = 10


def room_of(trace: Trace, **options: Any) -> tuple[Workload, KvRoom]:
    workload = Workload(trace, **{"split": "all", "batching": "sequential"} | options)
    return workload, KvRoom(workload, {0: KV})


def told(workload: Workload, room: KvRoom) -> list[int]:
    return [room.tokens(step.index) for step in workload.steps]


# Contracts: C174
def test_a_sequence_holds_its_tokens_until_it_ends_and_then_all_of_them_come_back() -> None:
    workload, room = room_of(make_trace({0: (3, 2), 1: (2, 3)}))
    assert told(workload, room) == [3, 4, 5, 2, 3, 4, 5]
    assert [room.spare_bytes(step) for step in range(7)] == [20, 10, 0, 30, 20, 10, 0]
    assert [room.kv_bytes(step) for step in range(7)] == [30, 40, 50, 20, 30, 40, 50]


# Contracts: C174
def test_sequences_that_run_at_once_hold_what_each_has_and_the_longer_one_stays() -> None:
    """Two prompts of 3 and 2 in one step, then a token each; the first ends after its third."""
    trace = make_trace({0: (3, 1), 1: (2, 3)})
    workload, room = room_of(trace, batching="static", together=2)
    assert told(workload, room) == [5, 7, 4, 5]
    timed, of_timed = room_of(trace, batching="static", together=2, arrivals=[0, 0])
    schedule = timed.start()
    while schedule.next(0) is not None:
        pass
    assert told(timed, of_timed) == [5, 7, 4, 5]
    assert of_timed.spare_bytes(0) == (4 + 5 - 5) * KV


# Contracts: C152, C174
def test_tokens_that_came_before_are_held_from_the_first_step_on() -> None:
    workload, room = room_of(make_trace({0: (3, 2), 1: (2, 4)}), lengths=Lengths(context=100))
    assert told(workload, room) == [98, 99, 100, 96, 97, 98, 99, 100]


# Contracts: C151, C174
def test_a_wrong_draft_is_held_and_its_place_is_not_held_twice() -> None:
    """Every draft is wrong: a step checks two beside its token, and the sequence gets one."""
    drafts = Speculation(tokens=2, accepted=0.0)
    workload, room = room_of(make_trace({0: (3, 5)}), speculation=drafts)
    assert told(workload, room) == [3, 6, 7, 8, 8, 8]


# Contracts: C174, C188
def test_a_layer_with_a_window_holds_the_last_tokens_of_each_sequence() -> None:
    """10 B a token without a window, 3 within the last four: at most 5 + 5 and 4 + 4 tokens."""
    trace = make_trace({0: (3, 2), 1: (2, 3)})
    workload = Workload(trace, split="all", batching="static", together=2, windows=(4, 0, 4))
    room = KvRoom(workload, {0: 10, 4: 3})
    assert told(workload, room) == [5, 7, 9, 5]
    assert [room.kv_bytes(step) for step in range(4)] == [65, 70 + 21, 90 + 24, 50 + 12]
    assert [room.spare_bytes(step) for step in range(4)] == [49, 23, 0, 52]


# Contracts: C82, C174, C188
@pytest.mark.parametrize("batching", ["recorded", "sequential", "static", "continuous"])
def test_the_fullest_step_is_the_one_that_the_ledger_counts(batching: str) -> None:
    for seed in range(30):
        draw = random.Random(seed)
        lengths = {n: (draw.randint(1, 5), draw.randint(0, 6)) for n in range(draw.randint(1, 5))}
        options: dict[str, Any] = {"batching": batching}
        if batching not in ("recorded", "sequential"):
            options |= {"together": draw.randint(1, 3), "prefill_chunk": draw.choice([None, 1, 2])}
        if batching != "recorded":
            options["speculation"] = Speculation(draw.randint(0, 3), draw.random(), seed)
        options["lengths"] = Lengths(context=draw.choice([None, 11, 40]))
        window = draw.choice([2, 4, 9])
        options["windows"] = (0, window)
        workload, room = room_of(make_trace(lengths, seed), **options)
        in_window = KvRoom(workload, {window: 1})
        assert max(told(workload, room)) == workload.limits.tokens
        assert min(room.spare_bytes(step.index) for step in workload.steps) == 0
        held = [in_window.kv_bytes(step.index) for step in workload.steps]
        assert max(held) == workload.limits.tokens_in(window)
        assert min(in_window.spare_bytes(step.index) for step in workload.steps) == 0
        assert workload.steps[-1].ends
