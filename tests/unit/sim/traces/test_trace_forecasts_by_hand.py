"""Cells of forecasts by hand: the rows dealt from them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.stacks import both_stacks
from helpers.traces import make_trace
from sim.traces.forecasts import FORECAST_DTYPES, check_forecasts, deal, forecast_cells
from sim.traces.routing import RoutingRule
from sim.traces.trace import Trace, TraceError

FILE = "prefill_forecasts_raw.parquet"
REPAIR = "; capture or synthesise the trace again, or restore the file"
NAMES = list(FORECAST_DTYPES)
Rows = list[tuple[Any, ...]]

# `make_trace` reads three tokens of sequence 0 and two of sequence 7 in step 1.
# step, sequence, site, ahead, expert, tokens, weight, score
CELLS: Rows = [
    (1, 0, 0, 1, 0, 3, 1.5, 0.0),
    (1, 0, 0, 1, 5, 2, 0.5, 0.75),
    (1, 0, 0, 1, -1, 1, 0.0, 0.0),
    (1, 0, 0, 2, 2, 3, 2.25, 0.25),
    (1, 0, 0, 2, 3, 3, 0.75, 1.0),
    (1, 7, 0, 1, 1, 2, 1.5, 0.0),
    (1, 7, 0, 1, 2, 2, 0.5, 0.5),
    (1, 7, 1, 1, -1, 4, 0.0, 0.0),
    (2, 0, 1, 1, 0, 2, 1.0, 0.0),
    (2, 0, 1, 1, 4, 2, 1.0, 0.5),
]


def frame(rows: Rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=FORECAST_DTYPES, orient="row")


def told(rows: Rows, **other: Any) -> Trace:
    return replace(make_trace(), prompt_forecasts={"raw": frame(rows)}, **other)


def at(row: int, **change: Any) -> Rows:
    values = dict(zip(NAMES, CELLS[row], strict=True)) | change
    return [*CELLS[:row], tuple(values.values()), *CELLS[row + 1 :]]


def refusal(trace: Trace) -> str:
    with pytest.raises(TraceError) as refused:
        check_forecasts(trace)
    return str(refused.value)


def test_cells_of_prompts_are_accepted() -> None:
    check_forecasts(told(CELLS))
    check_forecasts(told([]))


SITE = "must lie in 0..2, the sites that prompts visit, with the site ahead of it"
WEIGHT = "must be 0 or more, and 0 of expert -1"
SCORE = "must be 0 or more and at most 1, and 0 of expert -1"
ORDER = "must stand in the order of step, sequence, site, ahead and expert, each once"
SUM = "must sum to 2 for each of the prompt's tokens in the step"
PROMPT = "must be a step of a prompt of this sequence, with its sequence"
FORGED: list[tuple[Rows, str]] = [
    (at(0, ahead=0), "ahead[0] is 0, must lie in 1..2"),
    (at(4, ahead=3), "ahead[4] is 3, must lie in 1..2"),
    (at(0, site=-1), f"site[0] is -1, {SITE}"),
    (at(9, site=2), f"site[9] is 2, {SITE}"),
    (at(9, ahead=2), f"site[9] is 1, {SITE}"),
    (at(1, expert=6), "expert[1] is 6, must lie in -1..5"),
    (at(2, expert=-2), "expert[2] is -2, must lie in -1..5"),
    (at(3, tokens=0), "tokens[3] is 0, must be at least 1"),
    (at(3, weight=-0.25), f"weight[3] is -0.25, {WEIGHT}"),
    (at(3, weight=np.nan), f"weight[3] is nan, {WEIGHT}"),
    (at(3, weight=np.inf), f"weight[3] is inf, {WEIGHT}"),
    (at(2, weight=0.5), f"weight[2] is 0.5, {WEIGHT}"),
    (at(3, score=-0.25), f"score[3] is -0.25, {SCORE}"),
    (at(4, score=1.25), f"score[4] is 1.25, {SCORE}"),
    (at(2, score=0.5), f"score[2] is 0.5, {SCORE}"),
    (at(5, step=0), f"step[5] is 0, {ORDER}"),
    (at(8, step=1), f"step[8] is 1, {ORDER}"),
    (at(5, site=1), f"step[6] is 1, {ORDER}"),
    (at(4, ahead=1), f"step[4] is 1, {ORDER}"),
    (at(4, expert=1), f"step[4] is 1, {ORDER}"),
    (at(4, expert=2), f"step[4] is 1, {ORDER}"),
    (at(1, expert=-1, weight=0.0, score=0.0), f"step[2] is 1, {ORDER}"),
    (at(9, step=3), f"step[9] is 3, {PROMPT}"),
    (at(9, sequence=7), f"step[9] is 2, {PROMPT}"),
    (at(1, tokens=3), f"tokens[0] is 3, {SUM}"),
    (CELLS[:9], f"tokens[8] is 2, {SUM}"),
    (
        [*CELLS[:5], (1, 7, 0, 1, 1, 3, 1.5, 0.0), (1, 7, 0, 1, 2, 1, 0.5, 0.5), *CELLS[7:]],
        "tokens[5] is 3, must be at most the prompt's tokens in the step",
    ),
]


@pytest.mark.parametrize(("rows", "text"), FORGED, ids=[text for _, text in FORGED])
def test_cells_that_no_rows_can_have_are_refused_by_their_first_wrong_value(
    rows: Rows, text: str
) -> None:
    trace = told(rows)
    if text.startswith("tokens[8]"):
        # The last cell's prompt has two tokens, of two choices each.
        assert ((trace.step == 2) & trace.valid).sum() == 2
    assert refusal(trace) == f"{FILE}: {text}{REPAIR}"


def test_tables_of_another_norm_or_shape_and_what_is_recorded_twice_are_refused() -> None:
    norm = replace(told(CELLS), prompt_forecasts={"scaled": frame(CELLS)})
    assert refusal(norm) == (
        "prefill_forecasts_scaled.parquet: norm is 'scaled', must be one of the trace's"
        f" lookahead{REPAIR}"
    )
    null = frame(CELLS).with_columns(score=pl.when(pl.col("tokens") > 2).then(pl.col("score")))
    assert refusal(replace(told(CELLS), prompt_forecasts={"raw": null})) == (
        f"{FILE}: content is 'null', must hold no null{REPAIR}"
    )
    scores = make_trace().lookahead["raw"].copy()
    scores[3, 0, 0, 0] = 1.0
    check_forecasts(told(CELLS, lookahead={"raw": scores}))
    check_forecasts(told(CELLS, lookahead={}))
    scores[7, 2, 1, 5] = 1.0
    assert refusal(told(CELLS, lookahead={"raw": scores})) == (
        f"{FILE}: step is 'recorded twice', must be absent where rows of prompts have lookahead of"
        f" their own{REPAIR}"
    )
    check_forecasts(told([], lookahead={"raw": scores}))


def test_prompts_visit_the_sites_of_the_encoder_alone() -> None:
    """Its two prompts have two tokens and one; the second's is forecast here."""
    cells = [(0, 1, 0, 1, 0, 1, 1.0, 0.0), (0, 1, 0, 1, 4, 1, 0.5, 0.5)]
    trace = both_stacks()
    silent = trace.lookahead["raw"].copy()
    silent[trace.phase == 0] = np.nan
    check_forecasts(
        replace(trace, lookahead={"raw": silent}, prompt_forecasts={"raw": frame(cells)})
    )
    past = [(0, 1, 1, 1, *cell[4:]) for cell in cells]
    assert refusal(replace(trace, prompt_forecasts={"raw": frame(past)})) == (
        f"{FILE}: site[0] is 1, must lie in 0..1, the sites that prompts visit, with the site ahead"
        f" of it{REPAIR}"
    )


def test_rows_are_dealt_with_mean_weights_and_smallest_scores() -> None:
    dealt = deal(frame(CELLS), 3, 2, 2)
    assert list(dealt) == [(1, 0), (1, 7), (2, 0)]
    first = dealt[1, 0]
    assert first.experts.shape == (3, 3, 2, 2)
    assert first.experts[:, 0, 0].tolist() == [[0, 5], [0, 5], [0, -1]]
    assert first.weights[:, 0, 0].tolist() == [[0.5, 0.25], [0.5, 0.25], [0.5, 0]]
    assert first.scores[:, 0, 0].tolist() == [[0, 0.75], [0, 0.75], [0, 0]]
    assert first.experts[:, 0, 1].tolist() == [[2, 3]] * 3
    assert first.weights[:, 0, 1].tolist() == [[0.75, 0.25]] * 3
    assert first.scores[:, 0, 1].tolist() == [[0.25, 1]] * 3
    assert (first.experts[:, 1:] == -1).all()
    assert not first.weights[:, 1:].any()
    assert not first.scores[:, 1:].any()
    assert dealt[1, 7].experts[:, 0, 0].tolist() == [[1, 2], [1, 2]]
    assert (dealt[1, 7].experts[:, 1:] == -1).all()
    assert dealt[2, 0].experts[:, 1, 0].tolist() == [[0, 4], [0, 4]]
    near = deal(frame(CELLS), 3, 1, 2)
    assert near[1, 0].experts.shape == (3, 3, 1, 2)
    assert near[1, 0].experts[:, 0, 0].tolist() == first.experts[:, 0, 0].tolist()


def test_nothing_is_dealt_from_no_cells() -> None:
    assert deal(frame([]), 3, 2, 2) == {}
    assert deal(frame([row for row in CELLS if row[3] == 2]), 3, 1, 2) == {}


def test_cells_have_the_null_experts_last_and_only_prompts_that_are_known_whole() -> None:
    """Top 2 of 3 experts, of which the last is null; prompts 4 and 5 of step 1, and 4 of step 2."""
    rule = RoutingRule(weight="norm", null_experts=1)
    three = float(np.log(3))
    scores = np.full((4, 3, 2, 3), np.nan, np.float32)
    scores[:, 0, 0] = [[three, 0, -50], [-50, 0, three], [three, -50, 0], [0, three, -50]]
    scores[[0, 1, 3], 0, 1] = [three, 0, -50]
    scores[:, 1, 0] = [three, 0, -50]
    rules = [rule, rule, None]
    step, sequence = np.array([2, 1, 1, 1]), np.array([4, 4, 5, 5])
    found = forecast_cells(rules, 2, step, sequence, scores)
    assert found.select(NAMES[:6]).rows() == [
        (1, 4, 0, 1, 1, 1),
        (1, 4, 0, 1, -1, 1),
        (1, 5, 0, 1, 0, 2),
        (1, 5, 0, 1, 1, 1),
        (1, 5, 0, 1, -1, 1),
        (2, 4, 0, 1, 0, 1),
        (2, 4, 0, 1, 1, 1),
    ]
    assert found["weight"].to_list() == pytest.approx([0.25, 0, 1, 0.75, 0, 0.75, 0.25])
    assert found["score"].to_list() == pytest.approx([0, 0, 0, 0, 0, 0, 0.75], abs=1e-6)
    assert dict(found.schema) == FORECAST_DTYPES
    # Two sites ahead of the first one row of prompt 5 has no scores.
    ahead = forecast_cells([rule, rule, rule], 2, step, sequence, scores)
    further = ahead.filter(pl.col("ahead") == 2).select("step", "sequence", "expert", "tokens")
    assert further.rows() == [(1, 4, 0, 1), (1, 4, 1, 1), (2, 4, 0, 1), (2, 4, 1, 1)]
    assert set(ahead.filter(pl.col("site") == 1)["ahead"]) == {1}
    none = forecast_cells(rules, 2, step[:0], sequence[:0], scores[:0])
    assert (none.height, dict(none.schema)) == (0, FORECAST_DTYPES)
