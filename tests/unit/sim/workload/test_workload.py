"""From rows of a trace to gates, worked by hand: need order, scores, unions, forecasts, steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL, ModelShape, Trace
from sim.workload import choices
from sim.workload.steps import StepGate, Workload

SITES, EXPERTS, TOP_K = 2, 4, 2
SHAPE = ModelShape("tiny", "none", SITES, EXPERTS, TOP_K, 8, 8)


def trace(*rows: tuple[int, int, int], prompt: int = 0, lookahead: int = 1) -> Trace:
    """A trace of rows (sequence, step, position).

    At both sites they choose experts 0 and 1 with weights 0.75 and 0.25, unless replaced.
    """
    sequences = 1 + max(row[0] for row in rows)
    base = synthesize(SHAPE, tokens=1, sequences=sequences, lookahead=lookahead)
    count = len(rows)
    sequence, step, position = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return replace(
        base,
        sequence=sequence,
        step=step,
        position=position,
        phase=np.where(position < prompt, PREFILL, DECODE).astype(np.uint8),
        token=np.full(count, -1, np.int32),
        valid=np.ones(count, np.bool_),
        ids=np.tile(np.array([0, 1], np.int16), (count, SITES, 1)),
        weights=np.tile(np.array([0.75, 0.25], np.float32), (count, SITES, 1)),
        logits=None,
        lookahead=(
            {"raw": np.full((count, SITES, 1, EXPERTS), np.nan, np.float32)} if lookahead else {}
        ),
    )


def routed(*rows: tuple[list[int], list[float]]) -> Trace:
    """One prompt of so many rows, with these experts and weights at site 0."""
    prompt = trace(
        *((0, 0, position) for position in range(len(rows))),
        prompt=len(rows) if len(rows) > 1 else 0,
    )
    ids, weights = prompt.ids.copy(), prompt.weights.copy()
    for row, (experts, values) in enumerate(rows):
        ids[row, 0], weights[row, 0] = experts, values
    return replace(prompt, ids=ids, weights=weights)


def first_gate(given: Trace, **choices: Any) -> StepGate:
    workload = Workload(given, split="all", **choices)
    gate = workload.gate()
    gate.open(workload.steps[0])
    gate.visit(0)
    return gate


# Need order and scores


# Contracts: C7, C8
@pytest.mark.parametrize(
    ("experts", "weights", "needs", "scores"),
    [
        ([2, 1], [0.75, 0.25], [2, 1], [0.0, 0.75]),
        ([2, 1], [0.25, 0.75], [1, 2], [0.0, 0.75]),
        ([3, 1], [0.5, 0.5], [1, 3], [0.0, 0.5]),
        ([3, 1], [0.3, 0.1], [3, 1], [0.0, 0.75]),
        ([3, -1], [0.5, 0.0], [3], [0.0]),
        ([-1, 3], [0.0, 0.5], [3], [0.0]),
        ([3, 2], [0.5, 0.0], [3, 2], [0.0, 1.0]),
        ([-1, -1], [0.0, 0.0], [], []),
    ],
    ids=[
        "by weight",
        "sorted",
        "tie by id",
        "normalised",
        "dropped",
        "dropped first",
        "weight 0",
        "all dropped",
    ],
)
def test_needs_of_one_row_go_by_weight_then_id_and_score_what_is_ranked_above(
    experts: list[int], weights: list[float], needs: list[int], scores: list[float]
) -> None:
    gate = first_gate(routed((experts, weights)))
    assert list(gate.needs) == needs
    assert list(gate.tokens) == [1] * len(needs)
    assert list(gate.scores) == pytest.approx(scores)


# Contracts: C7, C8
def test_needs_of_several_rows_go_by_rows_then_id_with_the_smallest_score_and_the_summed_weight() -> (
    None
):
    """Rows {3: .75, 1: .25}, {2: .5, 3: .5} (2 first, by id), {1: .75, 2: .25}, {3: 1, 0: 0}.

    Expert 3 has three rows, 1 and 2 have two, 0 has one. Scores: 3 min(0, .5, 0); 1 min(.75, 0); 2
    min(0, .75); 0 1.
    """
    rows = [
        ([3, 1], [0.75, 0.25]),
        ([2, 3], [0.5, 0.5]),
        ([1, 2], [0.75, 0.25]),
        ([3, 0], [1.0, 0.0]),
    ]
    given = routed(*rows)
    gate = first_gate(given)
    assert list(gate.needs) == [3, 1, 2, 0]
    assert list(gate.tokens) == [3, 2, 2, 1]
    assert list(gate.scores) == [0.0, 0.0, 0.0, 1.0]
    workload = Workload(given, split="all")
    needs = workload.needs
    at_site_0 = needs.tick == 0
    assert needs.expert[at_site_0].tolist() == [3, 1, 2, 0]
    assert needs.weight[at_site_0].tolist() == pytest.approx([2.25, 1.0, 0.75, 0.0])


@pytest.mark.parametrize("at_once", [1, 3, 4, 5])
def test_rows_are_put_in_order_some_at_a_time_by_weight_then_id_with_what_was_dropped_last(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "ROWS_AT_ONCE", at_once)
    given = routed(
        ([2, 3], [0.25, 0.75]), ([3, 1], [0.5, 0.5]), ([-1, 2], [0.9, 0.1]), ([0, 1], [1, 0])
    )
    experts, weights = Workload(given, split="all").chosen
    assert experts[:, 0].tolist() == [[3, 2], [1, 3], [2, -1], [0, 1]]
    assert weights[:, 0] == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5], [0.1, 0], [1, 0]]))
    assert experts[:, 1].tolist() == [[0, 1]] * 4


def test_a_row_that_dropped_a_choice_adds_nothing_to_the_union() -> None:
    gate = first_gate(routed(([3, -1], [1.0, 0.0]), ([1, 3], [0.75, 0.25])))
    assert (list(gate.needs), list(gate.tokens)) == ([3, 1], [2, 1])
    assert list(gate.scores) == [0.0, 0.0]


def test_the_rows_of_a_gate_are_sliced_on_demand_in_need_order() -> None:
    gate = first_gate(routed(([1, 3], [0.25, 0.75]), ([2, 0], [0.5, 0.5])))
    assert gate.experts.tolist() == [[3, 1], [0, 2]]
    assert gate.weights.tolist() == [[0.75, 0.25], [0.5, 0.5]]
    assert gate.row_position.tolist() == [0, 1]
    assert gate.row_sequence.tolist() == [0, 0]
    assert gate.row_phase.tolist() == [PREFILL, PREFILL]
    assert gate.share is None


# Forecasts


def looking(*logits: list[float]) -> Trace:
    """One step of so many rows with this lookahead from site 0 to site 1."""
    given = trace(*((0, 0, position) for position in range(len(logits))))
    lookahead = given.lookahead["raw"].copy()
    for row, scores in enumerate(logits):
        lookahead[row, 0, 0] = scores
    return replace(given, lookahead={"raw": lookahead})


def test_a_forecast_is_what_the_target_sites_rule_selects() -> None:
    """The softmax over the two largest logits, ln 3 and 0, is 3/4 and 1/4."""
    gate = first_gate(looking([0.0, -5.0, float(np.log(3)), -5.0]), lookahead=1)
    choice = gate.routed(1)
    assert choice is not None
    assert (choice.site, list(choice.needs), list(choice.tokens)) == (1, [2, 0], [1, 1])
    assert list(choice.scores) == pytest.approx([0.0, 0.75])
    assert choice.experts.tolist() == [[2, 0]]
    assert choice.weights.tolist() == [pytest.approx([0.75, 0.25])]
    assert gate.lookahead(1) is not None
    assert gate.lookahead(2) is None


def test_a_forecast_of_several_rows_is_their_union() -> None:
    gate = first_gate(looking([9.0, 0.0, 8.0, 0.0], [0.0, 9.0, 8.0, 0.0]), lookahead=1)
    choice = gate.routed(1)
    assert choice is not None
    assert (list(choice.needs), list(choice.tokens)) == ([2, 0, 1], [2, 1, 1])


def test_there_is_no_forecast_past_the_last_site_nor_where_none_was_recorded() -> None:
    nan = float("nan")
    gate = first_gate(looking([nan] * 4), lookahead=1)
    assert gate.routed(1) is None
    assert gate.lookahead(1) is None
    gate = first_gate(looking([1.0, 2.0, 3.0, 4.0]), lookahead=1)
    assert gate.routed(2) is None
    gate.visit(1)
    assert gate.routed(1) is None


def test_a_predictor_that_looks_further_than_the_trace_is_refused_with_both_depths() -> None:
    with pytest.raises(
        ValueError,
        match=r"records lookahead for 1 sites, but the predictor needs 2; .*predictor=none",
    ):
        Workload(trace((0, 0, 0)), split="all", lookahead=2)
    with pytest.raises(
        ValueError, match="records lookahead for 0 sites, but the predictor needs 1"
    ):
        Workload(trace((0, 0, 0), lookahead=0), split="all", lookahead=1)


def test_a_norm_that_was_not_recorded_is_refused_with_those_that_were() -> None:
    with pytest.raises(ValueError, match="has lookahead norms raw, not 'renormed'"):
        Workload(trace((0, 0, 0)), split="all", lookahead=1, norm="renormed")


def test_lookahead_columns_that_were_not_read_are_asked_for() -> None:
    with pytest.raises(ValueError, match="was read without its lookahead columns"):
        Workload(replace(trace((0, 0, 0)), lookahead={}), split="all", lookahead=1)


# Steps


def both() -> Trace:
    """Two sequences with prompts of two rows, decoded together.

    Step 0 has both prompts, steps 1 and 2 a token of each.
    """
    rows = [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 2), (0, 2, 3), (1, 2, 3)]
    return trace(*rows, prompt=2)


# Contracts: C76
def test_recorded_batches_keep_the_steps_of_the_trace() -> None:
    steps = Workload(both(), split="all", batching="recorded").steps
    assert [(s.start, s.stop, s.rows, s.sequences, s.token, s.decode) for s in steps] == [
        (0, 4, 4, (0, 1), 2, False),
        (4, 6, 2, (0, 1), 3, True),
        (6, 8, 2, (0, 1), 4, True),
    ]
    assert [(s.begins, s.ends) for s in steps] == [((0, 1), ()), ((), ()), ((), (0, 1))]


def test_sequential_runs_one_sequence_after_another() -> None:
    workload = Workload(both(), split="all", batching="sequential")
    assert workload.row.tolist() == [0, 1, 4, 6, 2, 3, 5, 7]
    assert [(s.rows, s.sequences, s.token, s.decode) for s in workload.steps] == [
        (2, (0,), 2, False),
        (1, (0,), 3, True),
        (1, (0,), 4, True),
        (2, (1,), 2, False),
        (1, (1,), 3, True),
        (1, (1,), 4, True),
    ]
    assert [(s.begins, s.ends) for s in workload.steps] == [
        ((0,), ()),
        ((), ()),
        ((), (0,)),
        ((1,), ()),
        ((), ()),
        ((), (1,)),
    ]


def test_a_sequence_of_one_step_begins_and_ends_with_it() -> None:
    (step,) = Workload(trace((0, 0, 0)), split="all").steps
    assert (step.begins, step.ends) == ((0,), (0,))


def test_a_split_takes_its_sequences_and_the_order_of_gates_is_step_by_step() -> None:
    workload = Workload(both(), split="fit", batching="sequential")  # odd sequences are for fitting
    assert [s.sequence for s in workload.sequences] == [1]
    assert workload.row.tolist() == [2, 3, 5, 7]
    gate, ticks = workload.gate(), []
    for step in workload.steps:
        gate.open(step)
        for site in range(workload.sites):
            gate.visit(site)
            ticks.append((gate.tick, gate.step, gate.site, gate.token))
    assert ticks == [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
        (2, 1, 0, 3),
        (3, 1, 1, 3),
        (4, 2, 0, 4),
        (5, 2, 1, 4),
    ]


def test_a_split_cannot_be_cut_out_of_batches_that_mix_it_with_others() -> None:
    with pytest.raises(
        ValueError,
        match=r"mix sequences of split=eval with others; use workload\.batching=sequential",
    ):
        Workload(both(), split="eval", batching="recorded")


def test_sequences_are_left_out_by_flag_and_by_number() -> None:
    given = both()
    marked = tuple(replace(s, flags={"odd": bool(s.sequence)}) for s in given.header.sequences)
    given = replace(given, header=replace(given.header, sequences=marked))
    chosen = Workload(given, split="all", batching="sequential", exclude=["odd"])
    assert [s.sequence for s in chosen.sequences] == [0]
    assert [
        s.sequence
        for s in Workload(given, split="all", batching="sequential", max_sequences=1).sequences
    ] == [0]
    told = "trace .* has no sequences for split=fit"
    ways = "choose trace.split=eval"
    with pytest.raises(
        ValueError,
        match=rf"^{told} without flags \['odd'\]; {ways}, or exclude fewer \(trace\.exclude\)$",
    ):
        Workload(given, split="fit", batching="sequential", exclude=["odd"])
    judged = tuple(replace(s, split="eval") for s in marked)
    given = replace(given, header=replace(given.header, sequences=judged))
    with pytest.raises(ValueError, match=rf"^{told}; {ways}$"):
        Workload(given, split="fit", batching="sequential")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"split": "test"}, r"unknown trace\.split=test; allowed: fit, eval, all"),
        (
            {"batching": "rolling"},
            r"workload\.batching=rolling; allowed: recorded, sequential, static, continuous",
        ),
    ],
)
def test_unknown_choices_are_refused_with_the_allowed_ones(
    choices: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(both(), **({"split": "all"} | choices))  # type: ignore[arg-type]


def test_the_experts_of_every_gate_are_listed_by_tick() -> None:
    rows = routed(([3, 1], [0.75, 0.25]), ([1, 3], [0.75, 0.25]))
    assert Workload(rows, split="all").experts_by_gate() == [[1, 3], [0, 1]]
    assert Workload(routed(([-1, -1], [0.0, 0.0])), split="all").experts_by_gate() == [[], [0, 1]]


def test_needs_are_in_the_order_in_which_gates_ask_for_them() -> None:
    """Gates of one row and of several rows are computed in different ways.

    Together they must follow the ticks.
    """
    workload = Workload(both(), split="all", batching="sequential")
    gate, asked = workload.gate(), []
    for step in workload.steps:
        gate.open(step)
        for site in range(workload.sites):
            gate.visit(site)
            asked += [
                (gate.tick, e, t, s)
                for e, t, s in zip(gate.needs, gate.tokens, gate.scores, strict=True)
            ]
    needs = workload.needs
    columns = (needs.tick, needs.expert, needs.tokens, needs.score)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == asked


def test_each_row_of_a_step_has_its_sequence_and_the_tokens_so_far() -> None:
    composed = Workload(both(), split="all", batching="static", together=2)
    assert [list(composed.tokens_at(step)) for step in composed.steps] == [
        [(0, 1), (0, 2), (1, 1), (1, 2)],
        [(0, 3), (1, 3)],
        [(0, 4), (1, 4)],
    ]


def test_a_prompt_that_has_a_chunk_to_itself_and_fits_it_is_read_whole() -> None:
    """Prompts of 5, 4 (of 5 recorded) and 6 tokens."""
    made = read_alone(prefill_chunk=5)
    whole = Workload.whole_prompts.func  # type: ignore[attr-defined]
    assert whole(made) == {0}
    made.prefill_chunk = 6
    assert whole(made) == {0, 2}
    made.together = 2
    assert whole(made) == set()


def read_alone(prefill_chunk: int | None) -> Any:
    def item(number: int, tokens: int) -> Any:
        return SimpleNamespace(sequence=number, prompt_tokens=tokens)

    header = SimpleNamespace(sequences=[item(number, 5) for number in range(4)])
    return SimpleNamespace(
        prefill_chunk=prefill_chunk,
        together=1,
        tiers=None,
        trace=SimpleNamespace(header=header),
        sequences=[item(0, 5), item(1, 4), item(2, 6)],
    )


def test_a_prompt_is_read_whole_where_nothing_cuts_it_and_nothing_of_it_is_held() -> None:
    made = read_alone(prefill_chunk=None)
    whole = Workload.whole_prompts.func  # type: ignore[attr-defined]
    assert whole(made) == {0, 2}
    made.prefill_chunk = 3
    assert whole(made) == set()
    made.prefill_chunk, made.tiers = None, "tiers"
    assert whole(made) == set()
