"""Workloads of encoder-decoder models: prompts visit the encoder, decoded rows the decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.stacks import DEPTH, ENCODER, SITES, both_stacks
from sim.traces.trace import DECODE
from sim.workload.steps import Workload

ENCODERS, DECODERS = tuple(range(ENCODER)), tuple(range(ENCODER, SITES))
LENGTHS = ((2, 1), (3, 2), (0, 2), (1, 0))


def run(workload: Workload, step_ns: int = 10) -> None:
    schedule, now = workload.start(), 0
    while (following := schedule.next(now)) is not None:
        now = following if isinstance(following, int) else now + step_ns


def composed(**choices: Any) -> Workload:
    workload = Workload(both_stacks(LENGTHS), split="all", **choices)
    run(workload)
    return workload


def test_steps_visit_the_sites_of_their_stack() -> None:
    """Prompts of 2 and 3 rows, then a token of each.

    The third sequence has no prompt, the fourth no tokens.
    """
    workload = composed(batching="continuous", together=2)
    assert [(step.sequences, step.rows, step.decode, step.sites) for step in workload.steps] == [
        ((0, 1), 5, False, ENCODERS),
        ((0, 1), 2, True, DECODERS),
        ((1, 2), 2, True, DECODERS),
        ((3,), 1, False, ENCODERS),
        ((2,), 1, True, DECODERS),
    ]
    assert [step.token for step in workload.steps] == [3, 4, 5, 1, 2]


@pytest.mark.parametrize(
    "choices",
    [
        {"batching": "recorded"},
        {"batching": "sequential"},
        {"batching": "static", "together": 3},
        {"batching": "continuous", "together": 2},
        {"batching": "continuous", "together": 3, "arrivals": [0, 3, 3, 40]},
    ],
    ids=lambda choices: "-".join(map(str, choices.values())),
)
def test_gates_are_those_of_the_sites_that_steps_visit(choices: dict[str, Any]) -> None:
    workload = composed(**choices, lookahead=DEPTH)
    phase = workload.trace.phase[workload.row]
    gate, walked, needed = workload.gate(), [], []
    for step in workload.steps:
        decode = (phase[step.start : step.stop] == DECODE).all()
        assert step.sites == (DECODERS if decode else ENCODERS)
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            walked.append((gate.tick, step.index, site))
            needed.append(list(gate.needs))
            rows = workload.trace.ids[workload.row[step.start : step.stop], site]
            assert sorted(gate.needs) == sorted(set(rows[rows >= 0].tolist()))
    assert walked == [
        (tick, *of)
        for tick, of in enumerate(
            zip(workload.gate_step.tolist(), workload.gate_site.tolist(), strict=True)
        )
    ]
    assert workload.num_gates == len(walked) == sum(len(step.sites) for step in workload.steps)
    needs = workload.needs
    assert [needs.expert[needs.tick == tick].tolist() for tick in range(len(walked))] == needed
    if not workload.is_timed:
        assert workload.experts_by_gate() == needed


def test_forecasts_end_with_their_stack() -> None:
    workload = composed(batching="static", together=2, lookahead=DEPTH)
    gate, found = workload.gate(), set()
    for step in workload.steps:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            for j in range(1, DEPTH + 2):
                choice, scores = gate.routed(j), gate.lookahead(j)
                assert (choice is None) == (scores is None)
                if choice is not None:
                    found.add((site, choice.site))
    assert found == {(0, 1), (2, 3)}


def test_a_forecast_into_the_other_stack_is_not_asked_for_even_where_scores_are_given() -> None:
    trace = both_stacks(LENGTHS)
    trace.lookahead["raw"][:, ENCODER - 1] = 1.0
    workload = Workload(trace, split="all", batching="sequential", lookahead=DEPTH)
    assert (workload.forecasts[0][:, ENCODER - 1] == -1).all()
    gate = workload.gate()
    gate.open(workload.steps[0])
    gate.visit(ENCODER - 1)
    assert [gate.routed(j) for j in (1, 2)] == [gate.lookahead(j) for j in (1, 2)] == [None, None]


def test_an_encoder_reads_a_prompt_whole() -> None:
    with pytest.raises(
        ValueError,
        match=r"prefill_chunk=2 would cut a prompt, but an encoder.*; set workload\.prefill",
    ):
        composed(batching="continuous", together=2, prefill_chunk=2)


def test_rows_that_are_not_visited_have_no_needs() -> None:
    workload = composed(batching="continuous", together=2)
    experts, weights = workload.chosen
    decode = workload.trace.phase[workload.row] == DECODE
    for rows, sites in ((decode, slice(None, ENCODER)), (~decode, slice(ENCODER, None))):
        assert (experts[rows][:, sites] == -1).all()
        assert not np.any(weights[rows][:, sites])
