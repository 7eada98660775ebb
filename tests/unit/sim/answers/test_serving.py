"""What is handed to a simulator of many nodes (contract C180), read back as that reads it."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim import export
from sim.answers.serving import Point, Profile, profiled, requests_of, written
from sim.results.labels import Labels
from sim.study.trials import Trial, prepared, trial
from sim.workload.requests import read_requests

GIVEN = ("model=tiny_gates_half_mixtral", "hardware=rtx4090_pcie4", "precision=fp16")
FEW = (*GIVEN, "system=lru", "trace.max_sequences=4")


def simulate(words: Sequence[str]) -> Future[Trial]:
    future: Future[Trial] = Future()
    future.set_result(trial(tuple(words)))
    return future


class Replay:
    """The times that the replay's engine reads of a profile: straight lines between points, in two
    directions for decoding, with extrapolation (``PerfModel::from_npz``).
    """

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self.of = {name: arrays[name] for name in arrays}
        self.check()

    def check(self) -> None:
        names = ["prefill_isl", "prefill_ttft_ms"]
        axes = ["decode_active_kv_tokens", "decode_context_length"]
        assert sorted(self.of) == sorted([*names, *axes, "decode_itl"])
        assert {array.dtype for array in self.of.values()} == {np.dtype("<f8")}
        assert self.of["prefill_isl"].shape == self.of["prefill_ttft_ms"].shape
        assert self.of["decode_itl"].shape == tuple(len(self.of[name]) for name in axes)
        for name in ("prefill_isl", *axes):
            assert len(self.of[name]) >= 2
            assert (np.diff(self.of[name]) > 0).all()

    def decode_ms(self, batch: int, context: int) -> float:
        active = self.of["decode_active_kv_tokens"]
        rows = [
            line(self.of["decode_context_length"], times, context)
            for times in self.of["decode_itl"]
        ]
        return line(active, rows, batch * context)

    def prefill_ms(self, tokens: int) -> float:
        return line(self.of["prefill_isl"], self.of["prefill_ttft_ms"], tokens)


def line(x: Any, y: Any, at: float) -> float:
    place = min(max(bisect_right(list(x), at) - 1, 0), len(x) - 2)
    share = (at - x[place]) / (x[place + 1] - x[place])
    return float(y[place] + share * (y[place + 1] - y[place]))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profiled(FEW, [4, 1, 2], 1000, simulate)


# Contracts: C180
@pytest.mark.thorough
def test_the_replay_reads_every_simulated_time_as_it_is(profile: Profile, tmp_path: Path) -> None:
    written(tmp_path, profile, [])
    replay = Replay(tmp_path / "profile.npz")
    assert (profile.batches, profile.contexts) == ([1, 2, 4], [96, 309, 1000])
    for point in profile.points:
        found = replay.decode_ms(point.batch, point.context)
        assert found == pytest.approx(point.decode_ms, rel=1e-12)
        if point.context == 96:
            assert replay.prefill_ms(point.rows) == pytest.approx(point.prefill_ms, rel=1e-12)
    engine = json.loads((tmp_path / "engine.json").read_text())
    assert engine["max_num_seqs"] == 4
    assert engine["num_gpu_blocks"] * engine["block_size"] >= 4 * 1000
    assert (tmp_path / engine["planner_profile_data"]).is_file()


# Contracts: C180
def test_a_point_has_the_means_of_a_run_at_the_slots_of_the_largest(profile: Profile) -> None:
    """The share is what four sequences of 1000 tokens leave. Prompts are cut to 32, answers to 64."""
    largest = ["workload.batching=static", "workload.together=4", "workload.context_tokens=1000"]
    lengths = ["workload.prompt_tokens=32", "workload.decode_tokens=64"]
    assert prepared([*FEW, *largest, *lengths, "budget=fit"]).resident_share == profile.share
    words = ["workload.batching=static", "workload.together=2", "workload.context_tokens=309"]
    found = trial([*FEW, *words, *lengths, f"budget.resident_share={profile.share!r}"])
    steps = found.tokens.unique("step").with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    point = next(one for one in profile.points if (one.batch, one.context) == (2, 309))
    for phase, told in (("decode", point.decode_ms), ("prefill", point.prefill_ms)):
        mean = steps.filter(pl.col("phase") == phase)["ns"].mean()
        assert told == pytest.approx(mean / 1e6)  # type: ignore[operator]
    assert point.rows == 64


# Contracts: C180
def test_between_batches_a_line_holds_and_beyond_them_the_nearest_time() -> None:
    times = {(1, 10): 1.0, (4, 10): 7.0, (1, 40): 2.0, (4, 40): 8.0}
    points = tuple(Point(*at, ms, at[0], 1.0 * at[0], None) for at, ms in times.items())
    arrays = Profile(points, 1.0, Labels()).arrays()
    assert arrays["decode_active_kv_tokens"].tolist() == [10, 40, 160]
    # 40 tokens of contexts of 10 are 4 sequences; 10 of contexts of 40 less than one.
    assert arrays["decode_itl"].tolist() == [[1.0, 2.0], [7.0, 2.0], [7.0, 8.0]]


# Contracts: C180
def test_given_requests_go_out_as_they_came_in(tmp_path: Path, profile: Profile) -> None:
    run = prepared([*GIVEN, "system=lru", "workload=shared_prefix"])
    rows = requests_of(run, 8)
    assert rows == run.config["workload"]["requests"]
    written(tmp_path, profile, rows)
    told = read_requests(str(tmp_path / "requests.jsonl"), 8)
    again = prepared(
        [
            *GIVEN,
            "system=lru",
            "workload=shared_prefix",
            f"workload.requests={tmp_path}/requests.jsonl",
        ]
    )
    assert [one.blocks for one in told] == list(again.workload._blocks_of.values())
    assert requests_of(again, 8) == rows


# Contracts: C180
def test_blocks_of_equal_tokens_have_equal_ids_and_unknown_ones_their_own() -> None:
    run = prepared([*FEW, "workload.prompt_tokens=6", "workload.decode_tokens=1"])
    rows = {
        one.sequence: np.flatnonzero(run.trace.sequence == one.sequence)[:6]
        for one in run.workload.sequences
    }
    first, second, third, fourth = sorted(rows)
    token = run.trace.token.copy()
    token[rows[first]] = [1, 2, 3, 4, 5, 6]
    token[rows[second]] = [1, 2, 3, 4, 9, 6]
    token[rows[third]] = [7, 8, 3, 4, 5, 6]
    token[rows[fourth]] = [1, 2, -1, 4, 5, 6]
    run.trace.token.setflags(write=True)
    before = run.trace.token.copy()
    try:
        run.trace.token[:] = token
        ids = [row["hash_ids"] for row in requests_of(run, 2)]
    finally:
        run.trace.token[:] = before
    assert ids == [[0, 1, 2], [0, 1, 3], [4, 5, 6], [0, 7, 8]]


# Contracts: C180
@pytest.mark.parametrize(
    ("batches", "context", "says"),
    [
        ([2], 1000, "two different numbers"),
        ([0, 2], 1000, "from 1 on"),
        ([1, 5], 1000, "have 4 sequences, and batches goes up to 5"),
        ([1, 2], 96, "context=96 more than their sum"),
    ],
)
def test_what_cannot_be_profiled_is_refused(batches: list[int], context: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        profiled(FEW, batches, context, simulate)


# Contracts: C180
@pytest.mark.parametrize("more", [[], ["workload.draft_accepted=0.6"]])
def test_steps_that_give_several_tokens_are_no_steps_of_one(more: list[str]) -> None:
    with pytest.raises(ValueError, match=r"workload.draft_tokens=2: a step .* several tokens"):
        profiled([*FEW, "workload.draft_tokens=2", *more], [1, 2], 1000, simulate)


Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("to=dynamo kv=q8_0", "kv= is of llama.cpp's flags"),
        ("to=dynamo gpus=2", "gpus= is of llama.cpp's flags"),
        ("batches=1,2", "batches= is of to=dynamo"),
        ("system=lru", "system= is of to=dynamo"),
    ],
)
def test_words_of_the_other_kind_are_refused(
    word: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model=tiny_gates_half_mixtral", "machine=rtx4090_pcie4", *word.split()]
    assert export.main([*words, f"output_dir={tmp_path / 'out'}"]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
