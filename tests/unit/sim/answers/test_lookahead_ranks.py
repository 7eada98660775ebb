"""The ranks of a need in a trace of seven rows that is written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.answers.lookahead_ranks import Forecast, forecasts, rows_of_step
from sim.traces.forecasts import FORECAST_DTYPES
from sim.traces.trace import DECODE, PREFILL


@pytest.mark.parametrize(
    ("norm", "rules"), [("layer", ["rule", "rule"]), ("raw", ["rule", None]), ("raw", [None, None])]
)
def test_a_gate_without_scores_or_a_rule_has_no_forecasts(
    norm: str, rules: list[str | None]
) -> None:
    run: Any = SimpleNamespace(choice=lambda section, key, default: norm)
    header = SimpleNamespace(sites=[SimpleNamespace(rule=rule) for rule in rules])
    trace: Any = SimpleNamespace(header=header, lookahead={"raw": "scores"})
    assert forecasts(run, trace, 0, 1, 0) == []


# By row: sequence, position, phase, and whether it is real.
ROWS = [
    (0, 0, PREFILL, True),
    (0, 1, PREFILL, True),
    (1, 0, PREFILL, True),
    (1, 1, PREFILL, True),
    (0, 2, DECODE, True),
    (0, 2, DECODE, False),
    (0, 3, DECODE, True),
]
TOKENS = [(0, 0, 1), (1, 0, 2), (1, 1, 1), (2, 0, 3)]
"""Step, sequence, position: step 1 decodes sequence 0 and reads the prompt of sequence 1."""
CELLS = [
    (1, 1, 1, 3, 2),
    (1, 1, 1, 0, 1),
    (1, 1, 1, -1, 1),
    (1, 0, 1, 2, 9),
    (1, 1, 2, 2, 9),
    (0, 1, 1, 2, 9),
]
"""Sequence, site, ahead, expert and tokens. Two experts are chosen for each token."""


def run_of(chunk: int | None = None, norm: str = "raw") -> Any:
    told = {"lookahead_norm": norm, "prefill_chunk": chunk}
    return SimpleNamespace(
        tokens=pl.DataFrame(TOKENS, ["step", "sequence", "position"], orient="row"),
        choice=lambda section, name, default=None: {"workload": told}[section].get(name, default),
    )


def best(scores: Any, top_k: int) -> Any:
    """The highest scores; none for a row that begins with -1."""
    found = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return np.where(scores[:, :1] == -1, -1, found), None


def trace_of(
    known: dict[tuple[int, int, int], list[float]], cells: bool = False, encoder_sites: int = 0
) -> Any:
    """Scores [row, site, ahead - 1] of four experts that are known; of others none."""
    scores = np.full((len(ROWS), 3, 2, 4), np.nan)
    for place, of in known.items():
        scores[place] = of
    sequence, position, phase, valid = map(np.array, zip(*ROWS, strict=True))
    frame = pl.DataFrame(
        [(0, *cell[:4], cell[4], 1.0, 1.0) for cell in CELLS], FORECAST_DTYPES, orient="row"
    )
    return SimpleNamespace(
        sequence=sequence,
        position=position,
        phase=phase,
        valid=valid,
        lookahead={"raw": scores},
        prompt_forecasts={"raw": frame} if cells else {},
        header=SimpleNamespace(
            sites=[SimpleNamespace(rule=SimpleNamespace(route=best))] * 3,
            encoder_sites=encoder_sites,
            model=SimpleNamespace(top_k=2),
        ),
    )


def test_the_rows_of_a_step_follow_the_last_position_of_each_sequence() -> None:
    found = [rows_of_step(run_of(), trace_of({}), step) for step in range(4)]
    assert found == [[0, 1], [2, 3, 4], [6], []]


def test_the_rows_of_a_step_are_also_those_of_wrong_drafts_and_not_those_of_steps_that_draft() -> (
    None
):
    """Sequence 0 has five decoded rows after row 1. Step 2 checks two drafts of row 2 and keeps one."""
    columns = ["step", "sequence", "position", "phase", "drafts", "new_tokens"]
    rows = [
        (0, 0, 1, "prefill", 0, 0),
        (1, 0, 2, "draft", 0, 0),
        (2, 0, 3, "draft", 0, 0),
        (3, 0, 3, "decode", 2, 2),
        (4, 0, 4, "draft", 0, 0),
        (5, 0, 5, "decode", 1, 2),
        (6, 0, 6, "decode", 0, 1),
    ]
    run: Any = SimpleNamespace(tokens=pl.DataFrame(rows, columns, orient="row"))
    trace: Any = SimpleNamespace(
        sequence=np.zeros(7, int), position=np.arange(7), valid=np.ones(7, bool)
    )
    found = [rows_of_step(run, trace, step) for step in (0, 3, 5, 6)]
    assert found == [[0, 1], [2, 3, 4], [4, 5], [6]]


def test_the_best_rank_of_any_row_counts_by_distance() -> None:
    """Of equal scores none is above; a row without scores is none."""
    trace = trace_of(
        {
            (3, 1, 0): [0.1, 0.9, 0.6, 0.5],
            (4, 1, 0): [-1.0, 0.5, 0.2, 0.5],
            (3, 0, 1): [0.7, 0.9, 0.8, 0.5],
            (6, 1, 0): [0.0, 0.0, 0.0, 9.0],
            (1, 0, 1): [0.0, 1.0, 0.0, 2.0],
        }
    )
    run = run_of()
    assert forecasts(run, trace, 1, 2, 3) == [
        Forecast(1, 1, 2, 0, (1, 2)),
        Forecast(2, 4, 1, 0, (1, 2)),
    ]
    assert forecasts(run, trace, 1, 2, 2)[0] == Forecast(1, 2, 2, 1, (1, 2))
    # The nearest distance has no scores at step 0; at site 1 nothing is two sites ahead.
    assert forecasts(run, trace, 0, 2, 3) == [Forecast(2, 1, 1, 1, (1, 3))]
    assert forecasts(run, trace, 1, 1, 3) == forecasts(run, trace, 1, 0, 3) == []
    # A decoder does not look into its encoder.
    trace.header.encoder_sites = 1
    assert [one.ahead for one in forecasts(run, trace, 1, 2, 3)] == [1]
    trace.header.encoder_sites = 2
    assert forecasts(run, trace, 1, 2, 3) == []
    trace.header.encoder_sites = 3
    assert [one.ahead for one in forecasts(run, trace, 1, 2, 3)] == [1, 2]


def test_what_a_prompt_was_forecast_to_need_counts_beside_decoded_rows() -> None:
    """Four tokens' experts of two each are two tokens of the prompt; expert 3 is named by both."""
    scores = {(4, 1, 0): [0.1, 0.9, 0.6, 0.5]}
    run, both = run_of(), trace_of(scores, cells=True)
    found = forecasts(run, both, 1, 2, 3)
    assert found[0] == Forecast(1, 3, 3, 2, (0, 1, 2, 3))
    assert forecasts(run, both, 1, 2, 2)[0].chosen_by == 1
    (alone, *_) = forecasts(run, trace_of({}, cells=True), 1, 2, 0)
    assert alone == Forecast(1, None, 2, 1, (0, 3))
    # Where prompts are read in parts, or this one is not whole in the step, it is not told.
    assert forecasts(run_of(chunk=4), both, 1, 2, 3) == [Forecast(1, 3, 1, 0, (1, 2))]
    run.tokens = run.tokens.with_columns(position=pl.Series([1, 2, 0, 3]))
    assert forecasts(run, both, 1, 2, 3) == [Forecast(1, 3, 1, 0, (1, 2))]
