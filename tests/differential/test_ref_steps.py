"""The reference against examples worked by hand: steps composed of requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import stalls
from differential.ref_steps import steps_of
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import (
    Batching,
    Forecast,
    Host,
    Loader,
    Need,
    PoolSpec,
    Prediction,
    Request,
    Routed,
    Row,
    Scenario,
    scored,
    union,
    union_forecast,
)

EVERYTHING = tuple((0, site, expert) for site in range(2) for expert in range(4))


def row(*experts: int, foreseen: Prediction = None) -> Row:
    """A row that goes through both sites with the same experts, of falling weight."""
    routed: Routed = tuple((expert, 0.5 ** (rank + 1)) for rank, expert in enumerate(experts))
    return Row((routed, routed), ((foreseen,), (None,)))


def request(prompt: int, decode: int, arrival_ns: int = 0) -> Request:
    return Request((row(0),) * prompt, (row(0),) * decode, arrival_ns)


def requests(
    *shapes: tuple[int, ...], kind: str = "static", size: int = 2, **rest: Any
) -> Scenario:
    """Requests of (prompt rows, decoded rows, arrival). Everything is there; a step of n rows
    takes 2 * (1 + 1) = 4.
    """
    batching = Batching(kind, size, dense_ns=(1, 1), **rest)  # type: ignore[arg-type]
    return Scenario(
        sites=2,
        experts=4,
        variant_bytes=(1,),
        service_ns=(10,),
        base_ns=(1,),
        per_token_ns=(0,),
        pools=(PoolSpec(99, (0,), None, EVERYTHING),),
        steps=(),
        requests=tuple(request(*shape) for shape in shapes),
        batching=batching,
    )


def shape(timeline: Timeline) -> list[tuple[int, ...]]:
    return [row.sequences for row in timeline.steps]


def rows_of(scenario: Scenario) -> list[tuple[tuple[int, ...], int]]:
    """The sequences and the number of rows of each step."""
    plan, found = steps_of(scenario), []
    while planned := plan.next(0):
        found.append((planned.step.members, planned.step.rows))
    return found


# Contracts: C76
def test_a_static_group_reads_its_prompts_together_and_ends_before_the_next_forms() -> None:
    """Groups {0, 1} and {2}. Decoded rows: one of 0, two of 1, none of 2."""
    scenario = requests((2, 1), (1, 2), (1, 0))
    assert rows_of(scenario) == [((0, 1), 3), ((0, 1), 2), ((1,), 1), ((2,), 1)]
    timeline = run(scenario)
    assert timeline.sequence_ends == ((0, 8), (1, 12), (2, 16))
    assert timeline.steps[0].start_ns == 0


# Contracts: C76
def test_sequential_is_static_with_one() -> None:
    assert rows_of(requests((2, 1), (1, 1), size=1)) == [((0,), 2), ((0,), 1), ((1,), 1), ((1,), 1)]


# Contracts: C76
def test_in_a_continuous_batch_newcomers_read_their_prompts_in_a_step_of_their_own() -> None:
    """0 and 1 read, then decode; 0 is through and 2 joins: it reads while 1 waits; then both
    decode.
    """
    scenario = requests((2, 1), (1, 2), (3, 1), kind="continuous")
    assert rows_of(scenario) == [((0, 1), 3), ((0, 1), 2), ((2,), 3), ((1, 2), 2)]


# Contracts: C77
def test_prompts_are_cut_and_share_their_steps_with_decoded_rows() -> None:
    """Two prompt rows a step. 0 reads both; then it decodes while 1 reads two of three, then one
    while 0 decodes.
    """
    scenario = requests((2, 2), (3, 1), kind="continuous", prefill_chunk=2)
    assert rows_of(scenario) == [((0,), 2), ((0, 1), 3), ((0, 1), 2), ((1,), 1)]


def test_a_chunk_takes_from_several_prompts_in_turn() -> None:
    scenario = requests((1, 2), (1, 0), (3, 0), kind="continuous", size=3, prefill_chunk=3)
    assert rows_of(scenario) == [((0, 1, 2), 3), ((0, 2), 3), ((0,), 1)]


# Contracts: C77
def test_a_static_group_with_cut_prompts_decodes_when_all_of_them_are_through() -> None:
    scenario = requests((2, 2), (3, 1), prefill_chunk=3)
    assert rows_of(scenario) == [((0, 1), 3), ((1,), 2), ((0, 1), 2), ((0,), 1)]


# Contracts: C78
def test_rows_of_an_encoder_decoder_model_visit_the_sites_of_their_part() -> None:
    scenario = requests((2, 1), encoder_sites=1)
    timeline = run(scenario)
    assert [(gate.step, gate.site) for gate in timeline.gates] == [(0, 0), (1, 1)]


# Contracts: C79
def test_with_nothing_to_run_the_stream_waits_for_the_next_arrival() -> None:
    """0 arrives at 5: 5..9 and 9..13. 1, which came at 11: 13..17. 2 comes at 20: 20..24. Idle 5
    and 3.
    """
    timeline = run(requests((1, 1, 5), (1, 0, 11), (1, 0, 20), size=1))
    assert [(step.start_ns, step.end_ns) for step in timeline.steps] == [
        (5, 9),
        (9, 13),
        (13, 17),
        (20, 24),
    ]
    assert stalls(timeline) == {"no_request": 8}


def test_first_come_is_first_served_and_what_arrives_at_the_end_of_a_step_joins_the_next() -> None:
    """1 comes before 0. 0 arrives at 4, the end of 1's prompt step: it joins."""
    timeline = run(requests((1, 0, 4), (1, 1, 0), kind="continuous"))
    assert shape(timeline) == [(1,), (0,), (1,)]
    timeline = run(requests((1, 0, 5), (1, 1, 0), kind="continuous"))
    assert shape(timeline) == [(1,), (1,), (0,)]


# Contracts: C67
def test_a_stream_that_waited_for_a_request_is_woken() -> None:
    """0 arrives at 5; woken by 8, when 1, which came at 7, is there, too."""
    scenario = replace(requests((1, 0, 5), (1, 0, 7)), host=Host(wake_ns=3))
    timeline = run(scenario)
    assert shape(timeline) == [(0, 1)]
    assert timeline.steps[0].start_ns == 8
    assert stalls(timeline) == {"no_request": 5, "host": 3}


def test_a_step_costs_dense_work_by_its_rows() -> None:
    """1 + 10 a row at each site, 2 of tail: two rows take 2 * (21 + 1) + 2."""
    timeline = run(requests((2, 0), dense_row_ns=10, tail_ns=2))
    assert timeline.makespan_ns == 46


# ---- unions


def test_one_row_is_asked_for_by_weight_and_several_by_tokens() -> None:
    """Scores: the weights before an expert's own, of a row's sum; over rows the smallest."""
    first = scored(((3, 0.25), (1, 0.5), (2, 0.25)))
    assert first == [(1, 0.0), (2, 0.5), (3, 0.75)]
    assert union([first]) == (Need(1, 1, 0.0), Need(2, 1, 0.5), Need(3, 1, 0.75))
    second = scored(((3, 0.75), (0, 0.25)))
    assert union([first, second]) == (
        Need(3, 2, 0.0),
        Need(0, 1, 0.75),
        Need(1, 1, 0.0),
        Need(2, 1, 0.5),
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(Forecast(3, 0.5), Forecast(1))], (Forecast(3, 0.5), Forecast(1))),
        ([(Forecast(3, 0.5), Forecast(1))] * 2, (Forecast(1), Forecast(3, 0.5))),
        (
            [(Forecast(3, 0.5), Forecast(1)), None, (Forecast(3, 0.25),)],
            (Forecast(3, 0.25), Forecast(1)),
        ),
        ([None, (Forecast(3), Forecast(1, 0.5))], (Forecast(1, 0.5), Forecast(3))),
        ([None, None], None),
        ([None], None),
    ],
)
def test_forecasts_of_several_rows_are_united_like_needs(
    rows: list[Prediction], expected: Prediction
) -> None:
    assert union_forecast(rows) == expected


def test_a_composed_step_prefetches_what_its_rows_foresee() -> None:
    """Two sequences decode together; they foresee (1, 2) and (1, 3), neither of which is there."""
    rows = (row(0, foreseen=(Forecast(2),)), row(0, foreseen=(Forecast(3),)))
    scenario = Scenario(
        sites=2,
        experts=4,
        variant_bytes=(1,),
        service_ns=(10,),
        base_ns=(1,),
        per_token_ns=(0,),
        pools=(PoolSpec(99, (0,), None, ((0, 0, 0), (0, 1, 0))),),
        steps=(),
        requests=tuple(Request((row(0),), (one,)) for one in rows),
        batching=Batching("static", 2, dense_ns=(1, 1)),
        loader=Loader(lookahead=1),
    )
    timeline = run(scenario)
    assert timeline.prefetch["queued"] == 2
    assert [transfer.key for transfer in timeline.transfers] == [5 + 2]
