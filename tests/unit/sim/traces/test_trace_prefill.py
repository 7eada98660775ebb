"""Prompts kept as counts: the counts come back, and runs that need more are refused.

Forged counts are refused, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import DictConfig

from helpers.stacks import both_stacks
from helpers.traces import make_trace, rehash
from sim.fitting.fits import sample_of
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.prefill import COUNT_DTYPES, count_prompts, deal_prompts
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, ModelShape, Trace, TraceError, read_trace, write_trace

FILE = "prefill_counts.parquet"
SHAPE = ModelShape("small", "none", 3, 8, 2, 16, 16)


def counted(trace: Trace) -> Trace:
    return replace(trace, header=replace(trace.header, prefill="counts"))


def round_trip(trace: Trace, directory: Path, columns: Any = "all") -> Trace:
    write_trace(directory, counted(trace))
    return read_trace(directory, columns)


def tallies(trace: Trace) -> tuple[Counter[tuple[int, ...]], dict[tuple[int, ...], float]]:
    """Choices of the prompts' valid rows, and their weights together.

    Both are by step, sequence, site and expert.
    """
    count: Counter[tuple[int, ...]] = Counter()
    weight: dict[tuple[int, ...], float] = {}
    for row in np.flatnonzero((trace.phase != DECODE) & trace.valid):
        for (site, slot), expert in np.ndenumerate(trace.ids[row]):
            key = (int(trace.step[row]), int(trace.sequence[row]), site, int(expert))
            count[key] += 1
            weight[key] = weight.get(key, 0.0) + float(trace.weights[row, site, slot])
    return count, weight


@pytest.mark.parametrize(
    "make", [make_trace, both_stacks, lambda: both_stacks(((5, 2), (3, 4), (1, 1)), seed=4)]
)
def test_unions_tokens_and_weights_come_back_and_decoded_rows_are_the_recorded_ones(
    make: Callable[[], Trace], tmp_path: Path
) -> None:
    trace = make()
    back = round_trip(trace, tmp_path / "counts")
    (one, sums), (other, back_sums) = tallies(trace), tallies(back)
    assert one == other
    assert back_sums == pytest.approx(sums, abs=1e-5)
    own, there = (np.flatnonzero(t.phase == DECODE) for t in (trace, back))
    for name in (
        "step",
        "sequence",
        "position",
        "token",
        "valid",
        "ids",
        "weights",
        "logits",
        "active_shares",
    ):
        np.testing.assert_array_equal(getattr(trace, name)[own], getattr(back, name)[there])
    for norm, scores in trace.lookahead.items():
        np.testing.assert_array_equal(scores[own], back.lookahead[norm][there])
    prompts = back.phase != DECODE
    was = (trace.phase != DECODE) & trace.valid
    assert sorted(zip(back.sequence[prompts], back.position[prompts], strict=True)) == sorted(
        zip(trace.sequence[was], trace.position[was], strict=True)
    )
    assert (back.token[prompts] == -1).all()
    assert back.logits is not None
    assert np.isnan(back.logits[prompts]).all()


def test_what_was_read_is_written_again_the_same(tmp_path: Path) -> None:
    back = round_trip(make_trace(), tmp_path / "one")
    again = write_trace(tmp_path / "two", back)
    assert again.files == read_trace(tmp_path / "one").header.files
    assert pl.read_parquet(tmp_path / "one" / "routes.parquet")["phase"].unique().to_list() == [
        DECODE
    ]


def test_a_prompt_by_hand(tmp_path: Path) -> None:
    """Three tokens of top 2 at one site: experts 0, 1; 0, 2; 0 and a dropped choice."""
    trace = synthesize(replace(SHAPE, sites=1), tokens=1, sequences=1, prompt_tokens=3, lookahead=0)
    ids = trace.ids.copy()
    ids[:3, 0] = [[0, 1], [2, 0], [0, -1]]
    weights = np.array([[0.75, 0.25], [0.5, 0.5], [1, 0], [0.5, 0.5]], np.float32)[:, None]
    site = replace(trace.header.sites[0], rule=None)
    header = replace(trace.header, sites=(site,), steps={}, columns=(), lookahead=None)
    made = replace(trace, header=header, ids=ids, weights=weights, logits=None, lookahead={})
    frame = count_prompts(made)
    assert frame.select("expert", "tokens", "weight").rows() == [
        (0, 3, 2.25),
        (1, 1, 0.25),
        (2, 1, 0.5),
        (-1, 1, 0.0),
    ]
    back = round_trip(made, tmp_path / "hand")
    assert back.ids[:3, 0].tolist() == [[0, 1], [0, 2], [0, -1]]
    assert back.weights[:3, 0].tolist() == [[0.75, 0.25], [0.75, 0.5], [0.75, 0]]


BASE = (
    "system={} model=tiny_mixtral trace=tiny_mixtral hardware=rtx4090_pcie4 precision=fp16"
    " predictor=none"
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """A trace, and the trace that comes back from its counts."""
    shape = ModelShape("tiny_mixtral", "none", 16, 8, 2, 128, 120)
    trace = synthesize(shape, tokens=12, sequences=4, prompt_tokens=7, seed=2)
    return trace, round_trip(trace, tmp_path_factory.mktemp("counted") / "trace")


# Contracts: C95
@pytest.mark.parametrize("system", ["lru", "moe_infinity", "fiddler"])
def test_a_run_over_counts_is_the_run_over_rows(
    system: str, configure: Callable[..., DictConfig], both: tuple[Trace, Trace]
) -> None:
    """The two runs are the same in every lookup and every time.

    Unions, their order and their tokens are all that a run needs.
    """
    frames = [
        execute(build(configure(*BASE.format(system).split()), "x", trace)).frames for trace in both
    ]
    for name in ("lookups", "tokens", "transfers"):
        one, other = (getattr(each, name) for each in frames)
        if name == "lookups":
            one, other = one.drop("weight"), other.drop("weight")
        assert one.height > 20 or name == "transfers"
        assert one.equals(other), name


# Contracts: C95
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("precision=hobbit", "keeps prompts as counts of tokens, not each token's weights"),
        ("workload=static_4 workload.prefill_chunk=2", "set workload.prefill_chunk=null"),
        ("cache.recency=rows", "choose cache.recency=needs"),
        (
            "workload=sequential workload.prompt_tokens=3",
            "of which workload.prompt_tokens=3 cannot cut a part",
        ),
    ],
)
def test_what_needs_single_rows_of_a_prompt_is_refused_by_name(
    words: str, message: str, configure: Callable[..., DictConfig], both: tuple[Trace, Trace]
) -> None:
    base = [word for word in BASE.format("lru").split() if word.split("=")[0] not in words]
    with pytest.raises(ValueError, match=message):
        build(configure(*base, *words.split()), "x", both[1])
    # The same words are accepted with rows.
    build(configure(*base, *words.split()), "x", both[0])


def test_predictors_are_fitted_on_decoded_rows_only(both: tuple[Trace, Trace]) -> None:
    rows, counts = both
    numbers = [item.sequence for item in rows.header.sequences]
    assert len(sample_of(rows, numbers).ids) == 4 * (7 + 12)
    assert len(sample_of(counts, numbers).ids) == 4 * 12


def put(column: str, row: int, value: Any) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def edit(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[column].to_list()
        values[row] = value
        return frame.with_columns(pl.Series(column, values, dtype=frame.schema[column]))

    return edit


@pytest.mark.parametrize(
    ("edit", "field", "rule"),
    [
        (put("expert", 0, 6), "expert[0]", "must lie in -1..5"),
        (put("expert", 0, -2), "expert[0]", "must lie in -1..5"),
        (put("site", 0, 3), "site[0]", "must lie in 0..2"),
        (put("sequence", 0, 3), "sequence[0]", "must be in header.json"),
        (put("tokens", 0, 0), "tokens[0]", "must be at least 1"),
        (put("tokens", 0, 2_000_000_000), "tokens[0]", "must sum to 2 choices of every token"),
        (put("weight", 0, float("nan")), "weight[0]", "must be >= 0"),
        (put("weight", 0, -1.0), "weight[0]", "must be >= 0"),
        (put("phase", 0, DECODE), "phase[0]", "decoded rows are no prompt"),
        (put("position", 0, -1), "position[0]", "must be >= 0"),
        (put("weight", 0, None), "content", "must hold no null"),
        (lambda frame: frame.reverse(), "site[1]", "must stand in the order"),
        (lambda frame: frame[:0], "prompt_tokens of sequence 0", "must be 0"),
        (lambda frame: pl.concat([frame[:1], frame]), "site[1]", "each once"),
        (lambda frame: frame.drop("weight"), "columns", "must be"),
        (lambda frame: frame.cast({"tokens": pl.Int64}), "columns", "must be"),
    ],
)
def test_forged_counts_are_refused_with_file_field_and_reason(
    edit: Callable[[pl.DataFrame], pl.DataFrame], field: str, rule: str, tmp_path: Path
) -> None:
    write_trace(tmp_path / "t", counted(make_trace()))
    place = tmp_path / "t" / FILE
    edit(pl.read_parquet(place)).write_parquet(place)
    rehash(tmp_path / "t")
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path / "t")
    assert field in str(refused.value)
    assert rule in str(refused.value)


def test_a_step_whose_expert_has_more_tokens_than_there_are_is_refused(tmp_path: Path) -> None:
    """Two tokens choose two experts each: three of the four choices are one expert's."""
    write_trace(tmp_path / "t", counted(make_trace()))
    frame = pl.read_parquet(tmp_path / "t" / FILE)
    of_step = frame.filter((pl.col("sequence") == 7) & (pl.col("site") == 0))
    assert of_step["tokens"].sum() == 4
    forged = of_step[:2].with_columns(
        pl.Series("tokens", [3, 1], dtype=pl.Int32), pl.Series("expert", [0, 1], dtype=pl.Int16)
    )
    rest = frame.filter(~((pl.col("sequence") == 7) & (pl.col("site") == 0)))
    pl.concat([rest, forged]).sort("step", "sequence", "site", maintain_order=True).write_parquet(
        tmp_path / "t" / FILE
    )
    rehash(tmp_path / "t")
    with pytest.raises(TraceError, match="at most the step's tokens"):
        read_trace(tmp_path / "t")


def test_the_header_and_the_file_must_say_the_same(tmp_path: Path) -> None:
    import json

    write_trace(tmp_path / "t", counted(make_trace()))
    header = json.loads((tmp_path / "t" / "header.json").read_text())
    assert header["prefill"] == "counts"
    del header["prefill"]
    (tmp_path / "t" / "header.json").write_text(json.dumps(header))
    with pytest.raises(TraceError, match=f"must be counts where files list {FILE}"):
        read_trace(tmp_path / "t")
    assert "prefill" not in json.loads(make_trace().header.to_json())
    assert list(COUNT_DTYPES) == pl.read_parquet(tmp_path / "t" / FILE).columns


def test_a_prompt_with_a_gap_cannot_be_counted(tmp_path: Path) -> None:
    trace = make_trace()
    position = trace.position.copy()
    position[5] = 7
    with pytest.raises(TraceError, match="must count up by 1 inside a prompt"):
        count_prompts(counted(replace(trace, position=position)))


def test_prompts_of_one_token_have_as_many_counts_as_choices_and_no_file_has_more(
    tmp_path: Path,
) -> None:
    """Then no two choices of a step are of one expert, so that no count stands for two."""
    trace = synthesize(SHAPE, tokens=3, sequences=2, prompt_tokens=1)
    again = round_trip(trace, tmp_path / "whole")
    place = tmp_path / "whole" / FILE
    counts = pl.read_parquet(place)
    assert len(counts) == 2 * SHAPE.sites * SHAPE.top_k
    assert tallies(again) is not None
    pl.concat([counts, counts[:1]]).write_parquet(place)
    rehash(tmp_path / "whole")
    with pytest.raises(TraceError, match="must be at most 12, the choices of all prompts"):
        read_trace(tmp_path / "whole", "all")


def test_counts_stand_beside_decoded_rows() -> None:
    trace = synthesize(ModelShape("small", "none", 2, 4, 2, 8, 8), tokens=2, sequences=1)
    prompts = replace(trace, phase=np.zeros_like(trace.phase))
    with pytest.raises(TraceError, match=r"prefill.*must have decoded rows only beside it"):
        deal_prompts(prompts, pl.DataFrame())
