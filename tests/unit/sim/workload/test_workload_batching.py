"""Workloads whose steps are composed: random traces against plain Python, and refusals."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.composed import (
    DEPTH,
    SITES,
    TOP_K,
    assert_needs,
    assert_steps,
    drive,
    in_need_order,
    make_trace,
    random_lengths,
    union_by_hand,
)
from helpers.composer import compose_by_rows
from sim.traces.trace import CHUNK, DECODE, PREFILL, Trace
from sim.values.types import Step
from sim.workload.batching import Request, arrival_times
from sim.workload.columns import BLOCK_CELLS
from sim.workload.steps import Limits, Workload

# Against plain Python


@pytest.mark.alike
@pytest.mark.parametrize("timed", [False, True], ids=["all there at 0", "arriving over time"])
@pytest.mark.parametrize(
    "cells", [BLOCK_CELLS, 200], ids=["unions in one block", "unions in blocks"]
)
def test_steps_unions_and_needs_are_those_of_the_rows_one_by_one(
    timed: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.workload.columns.BLOCK_CELLS", cells)
    for seed in range(100):
        draw = random.Random(seed)
        lengths = random_lengths(draw)
        trace = make_trace(lengths, seed, padding=draw.choice((0, 2)))
        arrivals = [draw.choice((0, 3, 3, 9, 30)) for _ in lengths] if timed else None
        batching, together = draw.choice(("static", "continuous")), draw.randint(1, 4)
        chunk = draw.choice((None, 1, 3))
        workload = Workload(
            trace,
            split="all",
            batching=batching,
            together=together,
            prefill_chunk=chunk,
            arrivals=arrivals,
        )
        assert workload.is_timed == timed
        arrivals = arrivals or [0] * len(lengths)
        assert workload.arrivals_ns == dict(zip(sorted(lengths), arrivals, strict=True))
        before = list(workload.steps)
        told, rows = drive(workload, lambda step: 2 + len(step))
        requests = [
            Request(n, *lengths[n], at) for n, at in zip(sorted(lengths), arrivals, strict=True)
        ]
        assert rows == compose_by_rows(
            requests, batching, together, chunk, lambda step: 2 + len(step)
        ), f"seed {seed}"
        assert workload.steps == [step for step in told if isinstance(step, Step)]
        assert before == ([] if workload.is_timed else workload.steps)
        assert_steps(workload)
        assert_needs(workload)
        assert max(step.rows for step in workload.steps) <= workload.limits.rows
        most = most_tokens_held(workload)
        assert (
            workload.limits.tokens >= most if workload.is_timed else workload.limits.tokens == most
        )


def most_tokens_held(workload: Workload) -> int:
    """The most tokens that sequences which have begun and not ended hold, counted row by row."""
    held: Counter[int] = Counter()
    most = 0
    for step in workload.steps:
        held.update(workload.trace.sequence[workload.row[step.start : step.stop]].tolist())
        most = max(most, held.total())
        for number in step.ends:
            del held[number]
    return most


def test_sequential_is_static_with_one() -> None:
    trace = make_trace({0: (2, 2), 3: (0, 2), 4: (3, 0)})
    sequential, static = (
        Workload(trace, split="all", batching=name) for name in ("sequential", "static")
    )
    assert sequential.steps == static.steps
    assert sequential.row.tolist() == static.row.tolist()
    assert {len(step.sequences) for step in sequential.steps} == {1}


def test_a_forecast_of_a_composed_step_is_the_union_of_those_of_its_rows() -> None:
    """In chunked prefill some rows have no forecast, and count for nothing."""
    for seed in range(40):
        trace = make_trace({0: (2, 6), 1: (3, 3), 2: (4, 2)}, seed)
        workload = Workload(
            trace,
            split="all",
            batching="continuous",
            together=3,
            prefill_chunk=2,
            lookahead=DEPTH,
            arrivals=[0, 4, 4],
        )
        drive(workload, len)
        assert any(len(step.sequences) > 1 and not step.decode for step in workload.steps)
        gate = workload.gate()
        for step in workload.steps:
            gate.open(step)
            rows = workload.row[step.start : step.stop]
            for site in step.sites:
                gate.visit(site)
                for j in range(1, DEPTH + 1):
                    known = [row for row in rows if trace.phase[row] == DECODE and site + j < SITES]
                    routes = [forecast_of(trace, row, site, j) for row in known]
                    choice = gate.routed(j)
                    if not known:
                        assert choice is None
                        continue
                    # A single row keeps its own order. Beside rows without a forecast it is a union
                    # of one.
                    union = union_by_hand(routes if len(rows) == 1 else [*routes, []])
                    assert choice is not None
                    assert (choice.site, list(choice.needs)) == (
                        site + j,
                        [need[0] for need in union],
                    )
                    assert list(choice.tokens) == [need[1] for need in union]
                    assert list(choice.scores) == pytest.approx([need[3] for need in union])
                    assert choice.experts.shape == (len(rows), TOP_K)
                    assert (gate.lookahead(j) is None) == (len(known) < len(rows))


def forecast_of(trace: Trace, row: int, site: int, j: int) -> list[tuple[int, float, float]]:
    rule = trace.header.sites[site + j].rule
    assert rule is not None
    return in_need_order(*rule.route(trace.lookahead["raw"][row, site, j - 1], TOP_K))


# Runs over time


def timed(**choices: Any) -> Workload:
    """Prompts of 2 and 1 rows with two tokens each; the second arrives at 5."""
    trace = make_trace({0: (2, 2), 1: (1, 2)})
    given: dict[str, Any] = {
        "split": "all",
        "batching": "continuous",
        "together": 2,
        "arrivals": [0, 5],
    } | choices
    return Workload(trace, **given)


def test_steps_depend_on_how_long_they_take_and_a_new_start_forgets_those_of_the_last_run() -> None:
    workload = timed()
    assert workload.steps == []
    slow = drive(workload, lambda step: 10)[1]
    assert slow == [[(0, 0), (0, 1)], [(1, 0)], [(0, 2), (1, 1)], [(0, 3), (1, 2)]]
    assert_needs(workload)
    quick = drive(workload, lambda step: 1)[1]
    assert quick == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3)], 5, [(1, 0)], [(1, 1)], [(1, 2)]]
    assert_steps(workload)
    assert_needs(workload)
    workload.start()
    assert workload.steps == []


def test_what_is_computed_from_steps_is_of_those_there_are() -> None:
    workload = timed()
    schedule = workload.start()
    for count in range(1, 4):
        schedule.next(10 * count)
        assert len(workload.steps) == count
        assert (
            len(workload.chosen[0])
            == len(workload.scores)
            == len(workload.row)
            == workload.steps[-1].stop
        )
        assert_needs(workload)


def test_the_schedule_of_an_earlier_run_cannot_go_on() -> None:
    workload = timed()
    earlier, later = workload.start(), workload.start()
    later.next(0)
    with pytest.raises(RuntimeError, match="another run of this workload has started"):
        earlier.next(0)
    untimed = timed(arrivals=None)
    one, other = untimed.start(), untimed.start()
    assert one.next(0) == other.next(0) == untimed.steps[0]


def test_a_poisson_process_gives_each_sequence_its_arrival_by_number() -> None:
    workload = timed(arrivals=None, arrivals_per_s=100.0, arrival_seed=3)
    assert workload.is_timed
    assert workload.arrivals_ns == dict(enumerate(arrival_times(2, 100.0, 3)))
    assert 0 < workload.arrivals_ns[0] < workload.arrivals_ns[1]
    assert workload.start().next(0) == workload.arrivals_ns[0]
    first = timed(arrivals=None, arrivals_per_s=100.0).arrivals_ns
    assert tuple(first.values()) == arrival_times(2, 100.0) == arrival_times(2, 100.0, 0)


def test_what_gates_will_need_is_not_known_before_a_timed_run() -> None:
    workload = timed()
    drive(workload, len)
    with pytest.raises(
        ValueError, match=r"sequences arrive over time.*workload\.arrivals_per_s=null"
    ):
        workload.experts_by_gate()
    with pytest.raises(RuntimeError, match="no steps, and no needs, before the run"):
        _ = timed().needs


# Limits


@pytest.mark.parametrize(
    ("choices", "limits"),
    [
        ({"batching": "sequential"}, Limits(tokens=9, rows=5, kept_tokens=0)),
        ({"batching": "static", "together": 2}, Limits(6 + 9, 7, 0)),
        ({"batching": "static", "together": 9}, Limits(6 + 9, 8, 0)),
        ({"batching": "continuous", "together": 2, "prefill_chunk": 3}, Limits(8 + 9, 4, 0)),
        ({"batching": "continuous", "together": 2, "arrivals": [0, 0, 1]}, Limits(8 + 9, 7, 0)),
        ({"batching": "continuous", "together": 9, "arrivals": [0, 0, 1]}, Limits(8 + 9 + 2, 8, 0)),
        (
            {"batching": "continuous", "together": 2, "prefill_chunk": 3, "arrivals": [0, 0, 1]},
            Limits(8 + 9, 4, 0),
        ),
    ],
)
def test_limits_hold_the_most_tokens_that_run_at_once_and_the_most_rows(
    choices: dict[str, Any], limits: Limits
) -> None:
    """Prompts of 2, 5 and 1 rows, with 6, 4 and 1 decoded: 8, 9 and 2 tokens.

    In a group the second ends when the first has 6; in chunks both end at once. Where the time is
    not known the longest ones may run together.
    """
    assert (
        Workload(make_trace({0: (2, 6), 1: (5, 4), 2: (1, 1)}), split="all", **choices).limits
        == limits
    )


@pytest.mark.parametrize(
    ("choices", "in_windows"),
    [
        ({}, {3: 3, 6: 6}),
        ({"batching": "static", "together": 2}, {3: 6, 6: 12}),
        ({"batching": "static", "together": 2, "arrivals": [0, 0, 1]}, {3: 6, 6: 12}),
        ({"batching": "continuous", "together": 9, "arrivals": [0, 0, 1]}, {3: 8, 6: 14}),
    ],
)
def test_limits_hold_the_most_tokens_in_each_window(
    choices: dict[str, Any], in_windows: dict[int, int]
) -> None:
    """Of 8, 9 and 2 tokens; the third runs beside others only where time is not known."""
    asked = {"batching": "sequential"} | choices
    trace = make_trace({0: (2, 6), 1: (5, 4), 2: (1, 1)})
    workload = Workload(trace, split="all", windows=(6, 0, 3, 6), **asked)
    assert workload.limits.in_windows == in_windows
    assert workload.limits.tokens_in(0) == workload.limits.tokens
    assert workload.limits.tokens_in(3) == in_windows[3]
    most = 7 * workload.limits.tokens + 10 * in_windows[6]
    assert workload.limits.kv_bytes({0: 7, 6: 10}) == most


def test_a_window_that_was_not_counted_is_refused_with_those_that_were() -> None:
    counted = Limits(9, 1, 0, {3: 4, 6: 8})
    with pytest.raises(ValueError, match=r"window of 5 were not counted, only in those of: 3, 6;"):
        counted.tokens_in(5)
    with pytest.raises(ValueError, match=r"window of 5 were not counted, only in those of: none;"):
        Limits(9, 1, 0).kv_bytes({5: 1})


def test_sequences_that_run_count_while_another_ones_prompt_is_read() -> None:
    """Two prompts have one row each: both sequences are never in one step, but both run."""
    trace = make_trace({0: (1, 1), 1: (1, 1)})
    recorded = replace(
        trace,
        **{
            name: getattr(trace, name)[np.lexsort((trace.sequence, trace.position))]
            for name in ("sequence", "position", "phase", "valid", "ids", "weights")
        },
    )
    workload = Workload(recorded, split="all", batching="recorded")
    assert [step.sequences for step in workload.steps] == [(0,), (1,), (0,), (1,)]
    assert workload.limits == Limits(tokens=2 + 1, rows=1, kept_tokens=0), (
        "one ends with 2 when the other has 1"
    )


# What is left out, and what is refused


def test_padding_runs_with_its_recorded_batch_and_in_no_composed_step() -> None:
    trace = make_trace({0: (1, 2), 1: (1, 1)}, padding=3)
    assert len(Workload(trace, split="all", batching="recorded").row) == 8
    assert trace.valid[Workload(trace, split="all", batching="static", together=2).row].all()


def test_padding_leaves_the_tokens_of_its_sequence_as_they_were() -> None:
    """A sequence of three tokens is padded while another goes on to its second."""
    trace = make_trace({0: (3, 0), 1: (1, 1)})
    order = np.lexsort((trace.position, trace.sequence))
    rows = [*order[:3], order[3], order[0], order[4]]
    columns = {
        name: getattr(trace, name)[rows]
        for name in ("sequence", "position", "phase", "valid", "ids", "weights")
    }
    columns["step"] = np.array([0, 0, 0, 0, 1, 1], np.int32)
    columns["valid"][4], columns["position"][4], columns["phase"][4] = False, -1, DECODE
    steps = Workload(replace(trace, **columns, lookahead={}), split="all").steps
    assert [step.token for step in steps] == [3, 3]


def test_a_sequence_without_rows_is_no_request() -> None:
    trace = make_trace({0: (1, 1), 4: (1, 1)})
    assert len(trace.header.sequences) == 5
    workload = Workload(trace, split="all", batching="static", together=8)
    assert [s.sequence for s in workload.sequences] == [0, 4] == list(workload.arrivals_ns)
    with pytest.raises(ValueError, match="has no sequences for split=fit"):
        Workload(trace, split="fit", batching="static")  # odd sequences are for fitting


def test_a_prompt_recorded_in_parts_is_read_as_one_and_one_after_decoded_rows_is_refused() -> None:
    trace = make_trace({0: (3, 2)})
    in_parts = replace(trace, phase=np.array([PREFILL, PREFILL, CHUNK, DECODE, DECODE], np.uint8))
    assert [step.rows for step in Workload(in_parts, split="all", batching="sequential").steps] == [
        3,
        1,
        1,
    ]
    turns = replace(trace, phase=np.array([PREFILL, PREFILL, DECODE, CHUNK, DECODE], np.uint8))
    with pytest.raises(
        ValueError,
        match=r"prompt rows after decoded ones in sequence 0.*use workload\.batching=recorded",
    ):
        Workload(turns, split="all", batching="sequential")


def test_a_flag_that_no_sequence_carries_is_refused_by_name_with_those_there_are() -> None:
    trace = make_trace({0: (1, 1), 1: (1, 1)})
    with pytest.raises(
        ValueError, match=r"trace\.exclude names long, but the sequences of trace .* \(none\)"
    ):
        Workload(trace, split="all", exclude=["long"])
    flagged = tuple(replace(s, flags={"has_repetition": False}) for s in trace.header.sequences)
    trace = replace(trace, header=replace(trace.header, sequences=flagged))
    assert len(Workload(trace, split="all", exclude=["has_repetition"]).sequences) == 2
    with pytest.raises(
        ValueError, match=r"names long, odd, but .* have the flags has_repetition; leave it out"
    ):
        Workload(trace, split="all", exclude=["long", "has_repetition", "odd"])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"batching": "rolling"},
            r"workload\.batching=rolling; allowed: recorded, sequential, static, continuous",
        ),
        (
            {"batching": "static", "together": 0},
            r"workload\.together=0 must be a whole number >= 1",
        ),
        (
            {"batching": "static", "together": 1.5},
            r"workload\.together=1\.5 must be a whole number",
        ),
        (
            {"batching": "sequential", "together": 4},
            (
                r"together=4 does not go with workload\.batching=sequential, .*; choose"
                r" workload\.batching=static or"
            ),
        ),
        (
            {"batching": "recorded", "together": 4},
            (
                r"together=4 does not go with workload\.batching=recorded, .*choose"
                r" workload\.batching=sequential, static"
            ),
        ),
        (
            {"batching": "recorded", "prefill_chunk": 8},
            r"prefill_chunk=8 does not go with workload\.batching=recorded",
        ),
        (
            {"batching": "recorded", "arrivals_per_s": 2},
            r"arrivals_per_s=2 does not go with .*=recorded",
        ),
        (
            {"batching": "recorded", "arrivals": [0, 0]},
            r"arrivals_s=\[0\.0, 0\.0\] does not go with .*=recorded",
        ),
        (
            {"batching": "static", "prefill_chunk": 0},
            r"workload\.prefill_chunk=0 must be a whole number >= 1",
        ),
        (
            {"batching": "static", "arrivals_per_s": 0},
            r"workload\.arrivals_per_s=0 must be 1e-06 or more",
        ),
        ({"batching": "static", "arrivals": [1]}, "1 arrivals are given for 2 sequences"),
    ],
)
def test_choices_that_do_not_go_together_are_refused_with_the_way_out(
    choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(make_trace({0: (1, 1), 1: (1, 1)}), split="all", **choices)


def test_active_shares_stand_in_the_order_of_the_experts() -> None:
    trace = make_trace({0: (0, 1), 1: (0, 1)})
    shares = np.stack([trace.ids / 8, trace.ids / 16], axis=-1).astype(np.float32)
    workload = Workload(
        replace(trace, active_shares=shares), split="all", batching="static", together=2
    )
    gate = workload.gate()
    gate.open(workload.steps[0])
    for site in range(SITES):
        gate.visit(site)
        assert gate.share is not None
        np.testing.assert_array_equal(gate.share[..., 0] * 8, gate.experts)
        np.testing.assert_array_equal(gate.share[..., 1] * 16, gate.experts)
