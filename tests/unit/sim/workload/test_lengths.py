"""Requests of given lengths, cut from the sequences of a trace: by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers import composed
from sim.setup.traces import load_trace
from sim.traces.trace import DECODE, PREFILL, Trace
from sim.workload.lengths import Lengths
from sim.workload.steps import Limits, Workload

BUNDLED = "capture/assets/traces/tiny_mixtral"


def make_trace(lengths: dict[int, tuple[int, int]], seed: int = 0, padding: int = 0) -> Trace:
    """Random gates of sequences with these (prompt, decoded) tokens, which the header states."""
    trace = composed.make_trace(lengths, seed, padding=padding)
    told = tuple(
        replace(s, prompt_tokens=lengths[s.sequence][0], decode_tokens=lengths[s.sequence][1])
        for s in trace.header.sequences
    )
    return replace(trace, header=replace(trace.header, sequences=told))


def cut(trace: Trace, prompt: int | None, decode: int | None, **options: Any) -> Workload:
    short = options.pop("short", "refuse")
    choices = {
        "split": "all",
        "batching": "sequential",
        "lengths": Lengths(prompt, decode, short),
    } | options
    return Workload(trace, **choices)


def steps_of(workload: Workload) -> list[tuple[int, int, bool]]:
    """Each step's sequence, number of rows, and whether they are decoded."""
    return [(step.sequences[0], step.rows, step.decode) for step in workload.steps]


# Contracts: C80
def test_a_decoded_token_that_was_recorded_in_a_prompt_has_no_active_shares() -> None:
    """They were nan, for which FloE's payload moved whole experts: six times as slow in all.

    Of 4 prompt and 2 decoded tokens 2 are read, and 4 decoded: 2 of them were prompt.
    """
    trace = make_trace({0: (4, 2)})
    shares = np.full((*trace.ids.shape, 1), 0.25, np.float32)
    shares[trace.phase == PREFILL] = np.nan
    shares[:, 0] = np.nan  # a site whose experts have no channels
    workload = cut(replace(trace, active_shares=shares), 2, 4)
    gate, found = workload.gate(), []
    for step in workload.steps[1:]:
        gate.open(step)
        gate.visit(0)
        at_first = gate.share
        gate.visit(1)
        found.append(None if gate.share is None else gate.share.ravel().tolist())
        assert (at_first is None) == (gate.share is None)
        assert at_first is None or np.isnan(at_first).all()
    assert found == [None, None, [0.25] * 2, [0.25] * 2]


# Contracts: C80
def test_a_prompt_may_take_decoded_tokens_and_leave_prompt_tokens_to_be_decoded() -> None:
    """Sequences of 2 + 4 and 4 + 2 tokens, as 3 in and 2 out.

    Both take the first five tokens, in order.
    """
    trace = make_trace({0: (2, 4), 1: (4, 2)})
    workload = cut(trace, 3, 2)
    assert steps_of(workload) == [
        (0, 3, False),
        (0, 1, True),
        (0, 1, True),
        (1, 3, False),
        (1, 1, True),
        (1, 1, True),
    ]
    assert trace.position[workload.row].tolist() == [0, 1, 2, 3, 4] * 2
    assert (
        workload.phase[workload.row].tolist()
        == [PREFILL] * 3 + [DECODE] * 2 + [PREFILL] * 3 + [DECODE] * 2
    )
    assert [(s.prompt_tokens, s.decode_tokens) for s in workload.sequences] == [(3, 2)] * 2
    assert (trace.phase == make_trace({0: (2, 4), 1: (4, 2)}).phase).all(), (
        "the trace itself stays as it is"
    )


def test_a_length_that_is_not_given_stays_the_traces() -> None:
    trace = make_trace({0: (2, 4), 1: (4, 2)})
    assert [(s.prompt_tokens, s.decode_tokens) for s in cut(trace, 1, None).sequences] == [
        (1, 5),
        (1, 5),
    ]
    assert [(s.prompt_tokens, s.decode_tokens) for s in cut(trace, None, 1).sequences] == [
        (2, 1),
        (4, 1),
    ]
    assert steps_of(cut(trace, None, 0)) == [(0, 2, False), (1, 4, False)]
    assert Workload(trace, split="all", batching="sequential").sequences == trace.header.sequences


def test_what_each_token_chose_is_the_traces_whatever_it_is_cut_to() -> None:
    trace = make_trace({0: (2, 4), 1: (4, 2)}, 5)
    whole, part = Workload(trace, split="all", batching="sequential"), cut(trace, 3, 3)
    assert (part.chosen[0] == whole.chosen[0]).all()


def test_padding_is_no_token_of_a_request() -> None:
    workload = cut(make_trace({0: (3, 3), 1: (2, 4)}, padding=2), 4, 2)
    assert len(workload.row) == 12
    assert workload.trace.valid[workload.row].all()


def test_sequences_that_are_too_short_are_dropped_where_that_is_asked_for() -> None:
    trace = make_trace({0: (2, 4), 1: (1, 1), 2: (3, 3)})
    assert [s.sequence for s in cut(trace, 3, 3, short="drop").sequences] == [0, 2]
    assert [s.sequence for s in cut(trace, 3, 3, short="drop", max_sequences=1).sequences] == [0]
    assert [s.sequence for s in cut(trace, 3, 3, max_sequences=1).sequences] == [0], (
        "what does not run cannot be short"
    )


@pytest.mark.parametrize(
    ("prompt", "decode", "options", "message"),
    [
        (
            3,
            4,
            {},
            r"too short for workload\.prompt_tokens=3 and decode_tokens=4: sequence 1 has 1 prompt"
            r" and 1 "
            r"decoded tokens; choose shorter ones, or another trace",
        ),
        (
            2,
            2,
            {},
            (
                r"sequence 1 has .*; choose shorter ones, or workload\.short_sequences=drop, which"
                r" keeps 1 of 2"
            ),
        ),
        (3, 4, {"short": "drop"}, r"choose shorter ones, or another trace"),
        (0, 1, {}, r"workload\.prompt_tokens=0 must be a whole number >= 1"),
        (1, -1, {}, r"workload\.decode_tokens=-1 must be a whole number >= 0"),
        (1, 1, {"short": "pad"}, r"unknown workload\.short_sequences=pad; allowed: refuse, drop"),
        (
            1,
            1,
            {"batching": "recorded"},
            r"workload\.prompt_tokens=1 does not go with workload\.batching=recorded",
        ),
    ],
)
def test_lengths_that_cannot_be_are_refused_with_what_the_trace_has(
    prompt: int, decode: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cut(make_trace({0: (2, 4), 1: (1, 1)}), prompt, decode, **options)


def test_a_sequence_without_its_beginning_has_no_prompt_to_cut() -> None:
    trace = make_trace({0: (2, 4)})
    late = replace(trace, position=trace.position + np.int32(7))
    with pytest.raises(
        ValueError,
        match=r"sequence 0 begins at position 7: its prompt is not recorded.*set it to null",
    ):
        cut(late, 2, 2)
    assert len(cut(late, None, 2).steps) == 3


# Contracts: C80
def test_an_encoders_prompt_is_not_cut() -> None:
    trace = load_trace("capture/assets/traces/tiny_switch", 0)
    with pytest.raises(
        ValueError, match=r"prompt_tokens=8 would cut what an encoder has read as a whole"
    ):
        Workload(trace, batching="sequential", lengths=Lengths(8, 4))
    assert {
        s.decode_tokens
        for s in Workload(trace, batching="sequential", lengths=Lengths(None, 4)).sequences
    } == {4}


def at_end_of(context: int | None, trace: Trace, **options: Any) -> Workload:
    choices = {"split": "all", "batching": "sequential", "lengths": Lengths(context=context)}
    return Workload(trace, **(choices | options))


# Contracts: C152
def test_every_sequence_stands_at_the_end_of_its_context() -> None:
    """The page's example: 3 prompt tokens and 2 decoded ones at the end of 100, and 2 and 4 more."""
    workload = at_end_of(100, make_trace({0: (3, 2), 1: (2, 4)}))
    assert [step.token for step in workload.steps] == [98, 99, 100, 96, 97, 98, 99, 100]
    assert workload.limits == Limits(100, 3, 0)
    without = at_end_of(None, make_trace({0: (3, 2), 1: (2, 4)}))
    assert [step.token for step in without.steps] == [3, 4, 5, 2, 3, 4, 5, 6]
    assert without.limits == Limits(6, 3, 0)
    assert at_end_of(6, make_trace({0: (3, 2), 1: (2, 4)})).limits == Limits(6, 3, 0)


# Contracts: C152
def test_sequences_that_run_at_once_hold_a_context_each() -> None:
    """At the last step of the shorter one, which is the first to end, each holds its own."""
    trace = make_trace({0: (3, 2), 1: (3, 2), 2: (1, 1)})
    together = {"batching": "static", "together": 2}
    assert at_end_of(100, trace, **together).limits.tokens == 200
    timed = at_end_of(100, trace, **together, arrivals=[0, 0, 0])
    assert timed.limits.tokens == 200
    schedule = timed.start()
    first = schedule.next(0)
    assert getattr(first, "token", None) == 98


# Contracts: C152
def test_recorded_steps_with_padding_stand_at_the_end_of_a_context() -> None:
    workload = at_end_of(50, make_trace({0: (3, 3), 1: (2, 4)}, padding=2), batching="recorded")
    assert max(step.token for step in workload.steps) == 50
    assert workload.limits.tokens <= 100


# Contracts: C152
def test_a_context_that_cannot_be_is_refused_with_the_sequence() -> None:
    trace = make_trace({0: (3, 2), 1: (2, 4)})
    with pytest.raises(
        ValueError,
        match=r"workload\.context_tokens=5 is shorter than sequence 1 of trace .*, which has 6"
        r" tokens; raise it to 6",
    ):
        at_end_of(5, trace)
    with pytest.raises(ValueError, match=r"workload\.context_tokens=0 must be a whole number >= 1"):
        at_end_of(0, trace)
    encoder = load_trace("capture/assets/traces/tiny_switch", 0)
    with pytest.raises(
        ValueError,
        match=r"context_tokens=900 .* encoder .*; choose a model without an encoder, or set it to null",
    ):
        Workload(encoder, batching="sequential", lengths=Lengths(context=900))


def test_tokens_that_do_not_stand_in_order_are_not_cut() -> None:
    trace = make_trace({0: (3, 2)})
    cut(trace, 2, 1)
    position = trace.position.copy()
    position[[0, 1]] = position[[1, 0]]
    with pytest.raises(
        ValueError,
        match=rf"^trace {trace.header.name} does not hold its tokens in order, so none can be cut to a"
        r" length; set workload\.prompt_tokens=null and workload\.decode_tokens=null$",
    ):
        cut(replace(trace, position=position), 2, 1)
