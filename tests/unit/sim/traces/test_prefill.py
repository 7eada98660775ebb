"""Counts of prompts by hand: the table that is made, the rows that are dealt, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.traces import make_trace
from sim.traces.prefill import COUNT_DTYPES, count_prompts, deal_prompts, decoded_part
from sim.traces.trace import Trace, TraceError, TraceSequence, read_trace, write_trace

REPAIR = "; capture or synthesise the trace again, or restore the file"

# step, sequence, phase, position, site, expert, tokens, weight
COUNTS: list[tuple[Any, ...]] = [
    (1, 0, 0, 0, 0, 0, 2, 1.0),
    (1, 0, 0, 0, 0, 4, 1, 0.5),
    (1, 0, 0, 0, 0, -1, 1, 0.0),
    (1, 0, 0, 0, 1, 1, 2, 1.5),
    (1, 0, 0, 0, 1, 5, 2, 0.5),
    (1, 7, 0, 0, 0, 2, 1, 0.75),
    (1, 7, 0, 0, 0, 3, 1, 0.25),
    (1, 7, 0, 0, 1, 0, 1, 0.5),
    (1, 7, 0, 0, 1, 2, 1, 0.5),
    # The rest of the first prompt: one token on top of its cache.
    (3, 0, 2, 2, 0, 1, 1, 1.0),
    (3, 0, 2, 2, 0, 5, 1, 0.0),
    (3, 0, 2, 2, 1, 3, 1, 0.5),
    (3, 0, 2, 2, 1, 4, 1, 0.5),
]


def frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=COUNT_DTYPES, orient="row")


def decoded() -> Trace:
    """Two sites; sequence 7 decodes in step 2, sequence 0 in step 4."""
    trace = make_trace()
    rows = [9, 10]
    header = replace(
        trace.header,
        prefill="counts",
        model=replace(trace.header.model, sites=2),
        sites=trace.header.sites[:2],
        sequences=(
            TraceSequence(0, "fit", "prose", 3, 1),
            TraceSequence(7, "eval", "code", 1, 1),
            TraceSequence(9, "eval", "code", 0, 0),
        ),
    )
    assert trace.logits is not None
    return Trace(
        header,
        step=np.array([2, 4], np.int32),
        phase=np.ones(2, np.uint8),
        sequence=np.array([7, 0], np.int32),
        position=np.array([1, 3], np.int32),
        token=np.array([11, 12], np.int32),
        valid=np.ones(2, np.bool_),
        ids=trace.ids[rows, :2],
        weights=trace.weights[rows, :2],
        logits=trace.logits[rows, :2],
        lookahead={"raw": trace.lookahead["raw"][rows, :2]},
    )


def test_rows_are_dealt_from_counts_in_order_of_step_with_mean_weights() -> None:
    own, dealt = decoded(), deal_prompts(decoded(), frame(COUNTS))
    assert dealt.step.tolist() == [1, 1, 1, 2, 3, 4]
    assert dealt.phase.tolist() == [0, 0, 0, 1, 2, 1]
    assert dealt.sequence.tolist() == [0, 0, 7, 7, 0, 0]
    assert dealt.position.tolist() == [0, 1, 0, 1, 2, 3]
    assert dealt.token.tolist() == [-1, -1, -1, 11, -1, 12]
    assert dealt.valid.all()
    assert dealt.ids[[0, 1, 2, 4]].tolist() == [
        [[0, 4], [1, 5]],
        [[0, -1], [1, 5]],
        [[2, 3], [0, 2]],
        [[1, 5], [3, 4]],
    ]
    assert dealt.weights[[0, 1, 2, 4]].tolist() == [
        [[0.5, 0.5], [0.75, 0.25]],
        [[0.5, 0.0], [0.75, 0.25]],
        [[0.75, 0.25], [0.5, 0.5]],
        [[1.0, 0.0], [0.5, 0.5]],
    ]
    for name in ("ids", "weights", "logits"):
        column = getattr(dealt, name)
        np.testing.assert_array_equal(column[[3, 5]], getattr(own, name))
        assert column.dtype == getattr(own, name).dtype
    assert dealt.logits is not None
    assert np.isnan(dealt.logits[[0, 1, 2, 4]]).all()
    np.testing.assert_array_equal(dealt.lookahead["raw"][[3, 5]], own.lookahead["raw"])
    assert np.isnan(dealt.lookahead["raw"][[0, 1, 2, 4]]).all()
    assert (dealt.expert_norms, dealt.active_shares) == (None, None)
    # The counts of the dealt rows are the counts, and the decoded rows are left.
    assert count_prompts(dealt).rows() == COUNTS
    back = decoded_part(dealt)
    assert back.token.tolist() == [11, 12]
    np.testing.assert_array_equal(back.lookahead["raw"], own.lookahead["raw"])


def test_padding_and_rows_in_any_order_are_counted_by_position() -> None:
    """`make_trace` has a padded row; two rows of its first prompt change places here."""
    trace = make_trace()
    whole = count_prompts(trace)
    assert whole.filter(pl.col("site") == 0)["tokens"].sum() == 2 * 7
    order = [2, 1, 0, 3, 4, 5, *range(6, 12)]
    moved = replace(
        trace,
        position=trace.position[order],
        ids=trace.ids[order],
        weights=trace.weights[order],
    )
    assert count_prompts(moved).equals(whole)
    assert whole.filter(pl.col("step") == 2)["position"].unique().to_list() == [3]


def at(row: int, **change: Any) -> list[tuple[Any, ...]]:
    names = list(COUNT_DTYPES)
    rows = [dict(zip(names, values, strict=True)) for values in COUNTS]
    rows[row] |= change
    return [tuple(values.values()) for values in rows]


def without(row: int) -> list[tuple[Any, ...]]:
    return COUNTS[:row] + COUNTS[row + 1 :]


ORDER = "must stand in the order of step, sequence, site and expert, each once"
SUM = "must sum to 2 choices of every token, at each site of the step"
FORGED: list[tuple[list[tuple[Any, ...]], str]] = [
    (at(3, sequence=8), "sequence[3] is 8, must be in header.json"),
    (at(0, phase=1), "phase[0] is 1, must not be 1: decoded rows are no prompt"),
    (at(5, position=-1), "position[5] is -1, must be >= 0"),
    (at(0, site=-1), "site[0] is -1, must lie in 0..1"),
    (at(12, site=2), "site[12] is 2, must lie in 0..1"),
    (at(0, expert=-2), "expert[0] is -2, must lie in -1..5"),
    (at(4, expert=6), "expert[4] is 6, must lie in -1..5"),
    (at(1, tokens=0), "tokens[1] is 0, must be at least 1"),
    (at(1, weight=-0.5), "weight[1] is -0.5, must be >= 0, of -1 be 0"),
    (at(1, weight=np.nan), "weight[1] is nan, must be >= 0, of -1 be 0"),
    (at(1, weight=np.inf), "weight[1] is inf, must be >= 0, of -1 be 0"),
    (at(2, weight=0.5), "weight[2] is 0.5, must be >= 0, of -1 be 0"),
    (at(1, step=0), f"site[1] is 0, {ORDER}"),
    (at(5, sequence=0), f"site[5] is 0, {ORDER}"),
    (at(4, site=0), f"site[4] is 0, {ORDER}"),
    (at(4, expert=0), f"site[4] is 1, {ORDER}"),
    (at(4, expert=1), f"site[4] is 1, {ORDER}"),
    (at(1, expert=-1, weight=0.0), f"site[2] is 0, {ORDER}"),
    # Three choices at a site; then a site with one token more than the first.
    (at(3, tokens=1), f"tokens[3] is 1, {SUM}"),
    (at(3, tokens=4), f"tokens[3] is 4, {SUM}"),
    (without(7), f"tokens[7] is 1, {SUM}"),
    (at(11, tokens=3), f"tokens[11] is 3, {SUM}"),
]


@pytest.mark.parametrize(("rows", "told"), FORGED, ids=[told for _, told in FORGED])
def test_counts_that_no_rows_can_have_are_refused_by_their_first_wrong_value(
    rows: list[tuple[Any, ...]], told: str
) -> None:
    with pytest.raises(TraceError) as refused:
        deal_prompts(decoded(), frame(rows))
    assert str(refused.value) == f"prefill_counts.parquet: {told}{REPAIR}"


def test_no_expert_is_chosen_twice_by_a_token_but_both_choices_may_be_dropped() -> None:
    twice = [*COUNTS[:3], (1, 0, 0, 0, 1, 1, 3, 1.5), (1, 0, 0, 0, 1, 5, 1, 0.5), *COUNTS[5:]]
    with pytest.raises(TraceError) as refused:
        deal_prompts(decoded(), frame(twice))
    assert str(refused.value) == (
        f"prefill_counts.parquet: tokens[3] is 3, must be at most the step's tokens{REPAIR}"
    )
    dropped = [*COUNTS[:3], (1, 0, 0, 0, 1, -1, 4, 0.0), *COUNTS[5:]]
    assert deal_prompts(decoded(), frame(dropped)).ids[:2, 1].tolist() == [[-1, -1], [-1, -1]]


def test_the_tokens_of_prompts_are_those_of_the_counts() -> None:
    trace = decoded()
    first, second, third = trace.header.sequences
    for sequences, told in (
        ((replace(first, prompt_tokens=2), second, third), "prompt_tokens of sequence 0 is 2, mu"),
        ((first, second, replace(third, prompt_tokens=1)), "prompt_tokens of sequence 9 is 1, mu"),
    ):
        wrong = replace(trace, header=replace(trace.header, sequences=sequences))
        with pytest.raises(TraceError) as refused:
            deal_prompts(wrong, frame(COUNTS))
        number = 0 if "sequence 9" in told else 3
        assert str(refused.value) == (
            f"header.json: {told}st be {number}, the tokens of prefill_counts.parquet{REPAIR}"
        )


def test_where_no_prompt_has_a_token_nothing_is_dealt(tmp_path: Path) -> None:
    trace = decoded()
    none = tuple(replace(item, prompt_tokens=0) for item in trace.header.sequences)
    bare = replace(trace, header=replace(trace.header, sequences=none))
    assert deal_prompts(bare, frame([])) is bare
    assert count_prompts(bare).rows() == []
    plain = replace(bare.header, lookahead=None, sparsities=())
    write_trace(tmp_path / "trace", replace(bare, header=plain, lookahead={}))
    assert read_trace(tmp_path / "trace").token.tolist() == [11, 12]
    with pytest.raises(TraceError, match=r"prompt_tokens of sequence 0 is 3, must be 0, the tok"):
        deal_prompts(trace, frame([]))


def test_a_gap_in_a_prompt_is_refused_with_the_way_out() -> None:
    trace = make_trace()
    position = trace.position.copy()
    position[5] = 7
    with pytest.raises(TraceError) as refused:
        count_prompts(replace(trace, position=position))
    assert str(refused.value) == (
        "header.json: prefill is 'counts', must count up by 1 inside a prompt whose tokens are"
        " counted; keep the rows of its prompts (prefill=rows)"
    )
