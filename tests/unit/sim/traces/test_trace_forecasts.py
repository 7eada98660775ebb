"""Forecasts of prompts that a trace keeps together.

The tests are of what gates offer of them, of traces without them, and of what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.cells import prompts_of, with_cells, with_random_scores
from helpers.stacks import both_stacks
from helpers.traces import make_trace, rehash
from sim.policies.lookahead import ConfidentLookahead, GateLookahead
from sim.traces.forecasts import FORECAST_DTYPES, forecast_cells
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace, TraceError, read_trace, write_trace
from sim.workload.lengths import Lengths
from sim.workload.steps import Workload

FILE = "prefill_forecasts_raw.parquet"
SHAPE = ModelShape("small", "none", 4, 8, 2, 16, 16)
SEQUENTIAL: dict[str, Any] = {"batching": "sequential"}
STATIC: dict[str, Any] = {"batching": "static", "together": 3}
CONTINUOUS: dict[str, Any] = {"batching": "continuous", "together": 2}
OVER_TIME: dict[str, Any] = {**CONTINUOUS, "arrivals": [0, 5, 9, 9]}


def rows_trace(prompt_tokens: int = 7) -> Trace:
    """Four sequences whose prompts have scores row by row."""
    return synthesize(
        SHAPE, tokens=5, sequences=4, prompt_tokens=prompt_tokens, lookahead=2, seed=4
    )


def told(trace: Trace, **choice: Any) -> list[Any]:
    """All that gates offer of their forecasts, by step, site and distance."""
    depth = trace.header.lookahead.depth if trace.header.lookahead else 0
    workload = Workload(trace, split="all", lookahead=depth, **choice)
    gate, schedule, found = workload.gate(), workload.start(), []
    while (step := schedule.next(10)) is not None:
        assert not isinstance(step, int)
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            for choice_ahead in gate.forecasts(depth):
                weights = choice_ahead.weights.astype(np.float64)
                sums = [
                    weights[choice_ahead.experts == expert].sum() for expert in choice_ahead.needs
                ]
                found.append(
                    (
                        step.index,
                        site,
                        choice_ahead.site,
                        list(choice_ahead.keys),
                        list(choice_ahead.tokens),
                        list(choice_ahead.scores),
                        sums,
                    )
                )
    return found


def assert_same(found: list[Any], other: list[Any]) -> None:
    """Check that two forecasts are equal, with floats within the rounding of float32."""
    assert [entry[:5] for entry in found] == [entry[:5] for entry in other]
    for one, two in zip(found, other, strict=True):
        assert one[5] == pytest.approx(two[5], abs=1e-6)
        assert one[6] == pytest.approx(two[6], abs=1e-5)


def steps_told(found: list[Any]) -> set[int]:
    return {step for step, *_ in found}


# Contracts: C99
@pytest.mark.parametrize(
    "choice", [SEQUENTIAL, STATIC, CONTINUOUS, OVER_TIME, {"batching": "recorded"}]
)
@pytest.mark.parametrize("prompt_tokens", [1, 7])
def test_what_whole_prompts_are_forecast_to_need_is_what_their_rows_would_say(
    choice: dict[str, Any], prompt_tokens: int
) -> None:
    rows = rows_trace(prompt_tokens)
    cells = with_cells(rows)
    assert np.isnan(cells.lookahead["raw"][prompts_of(cells)]).all()
    found = told(rows, **choice)
    assert 0 in steps_told(found)
    assert_same(told(cells, **choice), found)


def test_prompts_recorded_in_pieces_add_up_and_padding_has_no_forecast() -> None:
    """`make_trace` has a prompt with a chunk as a step of its own, beside a padded row."""
    rows = with_random_scores(make_trace())
    cells = with_cells(rows)
    for choice in (SEQUENTIAL, {"batching": "recorded"}):
        for norm in ("raw", "renormed"):
            assert_same(told(cells, norm=norm, **choice), told(rows, norm=norm, **choice))


# Contracts: C98
@pytest.mark.parametrize("choice", [SEQUENTIAL, STATIC])
def test_prompts_of_an_encoder_are_forecast_at_its_sites(choice: dict[str, Any]) -> None:
    rows = both_stacks(((5, 2), (3, 4), (1, 1)), seed=4)
    cells = with_cells(rows)
    found = told(rows, **choice)
    assert {(site, ahead) for step, site, ahead, *_ in found if step == 0} == {(0, 1)}
    assert_same(told(cells, **choice), found)


# Contracts: C99
def test_part_of_a_prompt_is_not_forecast_and_more_than_the_prompt_is() -> None:
    rows = rows_trace()
    cells = with_cells(rows)
    assert 0 in steps_told(told(rows, batching="sequential", prefill_chunk=3))
    chunked = Workload(cells, split="all", lookahead=2, batching="sequential", prefill_chunk=3)
    prompts = {step.index for step in chunked.steps if not step.decode}
    assert steps_told(told(cells, batching="sequential", prefill_chunk=3)).isdisjoint(prompts)
    cut, longer = (
        Lengths(prompt_tokens=6, decode_tokens=3),
        Lengths(prompt_tokens=8, decode_tokens=3),
    )
    assert 0 not in steps_told(told(cells, lengths=cut, **SEQUENTIAL))
    assert_same(told(cells, lengths=longer, **SEQUENTIAL), told(rows, lengths=longer, **SEQUENTIAL))


def test_predictors_of_gates_forecast_prompts_from_cells() -> None:
    """Fate's predictor takes what the rule selects of a prompt.

    From rows and from cells both predictors say the same.
    """
    for predictor in (GateLookahead(2), ConfidentLookahead()):
        said = []
        for trace in (rows_trace(), with_cells(rows_trace())):
            workload = Workload(trace, split="all", lookahead=2, batching="sequential")
            gate = workload.gate()
            gate.open(workload.steps[0])
            gate.visit(1)
            said.append(
                [
                    (choice.site, list(choice.needs), list(choice.tokens))
                    for choice in predictor.predict(gate)
                ]
            )
            assert (gate.lookahead(1) is None) == bool(trace.prompt_forecasts)
        assert said[0]
        assert said[0] == said[1]


# Contracts: C98
def test_cells_by_hand() -> None:
    """Two tokens of top 2: one chooses 1 before 0 (0.75, 0.25), the other 1 before 2 alike."""
    rule = rows_trace().header.sites[0].rule
    three = np.log(np.float32(3))
    scores = np.full((2, 2, 1, 3), np.nan, np.float32)
    scores[:, 0, 0] = [[0, three, -50], [-50, three, 0]]
    frame = forecast_cells([rule, rule], 2, np.array([4, 4]), np.array([9, 9]), scores)
    assert dict(frame.schema) == FORECAST_DTYPES
    assert frame.select("step", "sequence", "site", "ahead", "expert", "tokens").rows() == [
        (4, 9, 0, 1, 0, 1),
        (4, 9, 0, 1, 1, 2),
        (4, 9, 0, 1, 2, 1),
    ]
    assert frame["weight"].to_list() == pytest.approx([0.25, 1.5, 0.25])
    assert frame["score"].to_list() == pytest.approx([0.75, 0, 0.75])
    scores[1] = np.nan
    assert forecast_cells([rule, rule], 2, np.array([4, 4]), np.array([9, 9]), scores).is_empty()


# Contracts: C98
def test_they_are_written_and_read_with_the_lookahead_of_their_norm(tmp_path: Path) -> None:
    made = with_cells(rows_trace())
    header = write_trace(tmp_path / "one", made)
    assert header.forecast_norms == ("raw",)
    for columns in ("all", ("lookahead",), ("lookahead_raw",)):
        back = read_trace(tmp_path / "one", columns)  # type: ignore[arg-type]
        assert back.prompt_forecasts["raw"].equals(made.prompt_forecasts["raw"])
    assert not read_trace(tmp_path / "one").prompt_forecasts
    again = write_trace(tmp_path / "two", read_trace(tmp_path / "one", "all"))
    assert again.files == header.files
    assert_same(told(read_trace(tmp_path / "two", "all")), told(made))


def test_prompts_kept_as_counts_can_have_them_too(tmp_path: Path) -> None:
    made = with_cells(rows_trace())
    made = replace(made, header=replace(made.header, prefill="counts"))
    write_trace(tmp_path / "trace", made)
    back = read_trace(tmp_path / "trace", "all")
    for choice in (SEQUENTIAL, STATIC):
        assert_same(told(back, **choice), told(made, **choice))
        assert 0 in steps_told(told(back, **choice))


def _set(name: str, place: int, value: float) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def change(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[name].to_list()
        values[place] = value
        return frame.with_columns(pl.Series(name, values, FORECAST_DTYPES[name]))

    return change


HOSTILE: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], str, str]] = {
    "a step of no prompt": (
        _set("step", -1, 999),
        "step",
        "must be a step of a prompt of this sequence",
    ),
    "a decoded step": (_set("step", -1, 25), "step", "must be a step of a prompt of this sequence"),
    "another sequence": (_set("sequence", -1, 9), "sequence|step", "must"),
    "a site that is none": (_set("site", 0, -1), "site", "must lie in 0..3"),
    "past the last site": (_set("ahead", -1, 2), "site", "with the site ahead of it"),
    "no distance": (_set("ahead", 0, 0), "ahead", "must lie in 1..2"),
    "too far": (_set("ahead", 0, 3), "ahead", "must lie in 1..2"),
    "an expert that is none": (_set("expert", 3, 8), "expert", "must lie in -1..7"),
    "an expert twice": (lambda f: pl.concat([f[:1], f]), "step", "must stand in the order"),
    "out of order": (lambda f: f.reverse(), "step", "must stand in the order"),
    "no tokens": (_set("tokens", 0, 0), "tokens", "must be at least 1"),
    "a token too many": (
        _set("tokens", 0, 6),
        "tokens",
        "must sum to 2 for each of the prompt's tokens",
    ),
    "a cell left out": (lambda f: f[1:], "tokens", "must sum to 2"),
    "more tokens than there are": (
        lambda f: pl.concat(
            [
                f[:1].with_columns(tokens=pl.lit(14, pl.Int32)),
                f.filter(
                    (pl.col("step") > f["step"][0]) | (pl.col("site") > 0) | (pl.col("ahead") > 1)
                ),
            ]
        ),
        "tokens",
        "must be at most the prompt's tokens",
    ),
    "weight that is none": (_set("weight", 2, float("nan")), "weight", "must be 0 or more"),
    "negative weight": (_set("weight", 2, -1.0), "weight", "must be 0 or more"),
    "a score above 1": (_set("score", 2, 1.5), "score", "at most 1"),
    "a null": (
        lambda f: f.with_columns(score=pl.when(pl.col("tokens") > 3).then(pl.col("score"))),
        "content",
        "null",
    ),
    "a column too few": (lambda f: f.drop("score"), "columns", "must be"),
    "another type": (
        lambda f: f.with_columns(pl.col("tokens").cast(pl.Int64)),
        "columns",
        "must be",
    ),
    "more rows than there can be": (lambda f: pl.concat([f] * 9), "rows", "must be at most"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_forged_cells_are_refused_with_file_field_and_reason(name: str, tmp_path: Path) -> None:
    change, field, rule = HOSTILE[name]
    write_trace(tmp_path / "trace", with_cells(rows_trace()))
    place = tmp_path / "trace" / FILE
    change(pl.read_parquet(place)).write_parquet(place)
    rehash(tmp_path / "trace")
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path / "trace", "all")
    assert caught.value.file == FILE
    assert any(caught.value.field.startswith(part) for part in field.split("|"))
    assert rule in str(caught.value)
    # A file that nobody asks for is not parsed, but its digest is checked all the same.
    read_trace(tmp_path / "trace")


def test_what_is_no_table_and_what_is_recorded_twice_is_refused(tmp_path: Path) -> None:
    rows = rows_trace()
    write_trace(tmp_path / "trace", with_cells(rows))
    (tmp_path / "trace" / FILE).write_bytes(b"PAR1 is no table")
    rehash(tmp_path / "trace")
    with pytest.raises(TraceError, match=f"{FILE}: content .* must be a parquet file"):
        read_trace(tmp_path / "trace", "all")
    twice = replace(rows, prompt_forecasts=with_cells(rows).prompt_forecasts)
    with pytest.raises(
        TraceError, match="must be absent where rows of prompts have lookahead of their own"
    ):
        write_trace(tmp_path / "twice", twice)
    other = replace(
        with_cells(rows), prompt_forecasts={"renormed": with_cells(rows).prompt_forecasts["raw"]}
    )
    with pytest.raises(TraceError, match="must be one of the trace's lookahead"):
        write_trace(tmp_path / "other", other)
    alone = replace(rows, header=replace(rows.header, lookahead=None), lookahead={})
    with pytest.raises(TraceError, match="must not be listed where the lookahead has no such norm"):
        write_trace(tmp_path / "alone", alone, {FILE: b"cells"})
