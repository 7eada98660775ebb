"""Rates, times and intervals of requests, of tables that are written by hand. Times are in ns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from sim.results.frames import Frames
from sim.results.intervals import ratio_interval
from sim.results.latency import (
    _rate,
    by_batch,
    decode_time_and_tokens,
    prefill_time,
    request_times,
    tokens_after_the_first,
    whole_time,
    with_drafting,
)
from sim.results.metrics import _intervals
from sim.results.sections import drafts_section

TOKENS = ["step", "sequence", "phase", "start_ns", "end_ns"]
SEQUENCES = ["sequence", "arrival_ns", "first_token_ns", "end_ns", "prompt_tokens"]
NEEDS = ["phase", "step", "outcome", "skips"]


def test_what_never_happened_or_took_no_time_has_no_rate() -> None:
    assert _rate(3, 1_500_000_000) == 2.0
    assert _rate(0, 1_500_000_000) is None
    assert _rate(3, 0) is None


def three_requests() -> Any:
    """Two requests that decode together once, and a third one of which only the prompt is read."""
    tokens = [
        (0, 0, "prefill", 0, 100),
        (1, 1, "prefill", 100, 160),
        (2, 0, "decode", 160, 200),
        (2, 1, "decode", 160, 200),
        (3, 0, "decode", 200, 230),
        (4, 2, "prefill", 230, 250),
    ]
    sequences = [(0, 0, 100, 230, 3), (1, 50, 160, 200, 2), (2, 60, 250, 250, 1)]
    return SimpleNamespace(
        tokens=pl.DataFrame(tokens, TOKENS, orient="row"),
        sequences=pl.DataFrame(sequences, SEQUENCES, orient="row"),
        makespan_ns=250,
    )


def ns(*values: float | None) -> list[Any]:
    return [None if value is None else pytest.approx(value / 1e9) for value in values]


def test_times_of_requests_count_from_their_arrival_and_rates_the_time_of_steps() -> None:
    found = request_times(three_requests())
    names = "mean", "p50", "p95", "p99"
    assert found == {
        "makespan_s": 2.5e-7,
        # 100, 110, 190
        "ttft_s": dict(zip(names, ns(400 / 3, 110, 182), strict=False)),
        # 130 / 2, 40 / 1; the third has none
        "tpot_s": dict(zip(names, ns(52.5, 52.5, 63.75, 64.75), strict=True)),
        # 100, 40, 30
        "itl_s": dict(zip(names, ns(170 / 3, 40, 94, 98.8), strict=True)),
        # 230, 150, 190
        "latency_s": dict(zip(names, ns(190, 190, 226), strict=False)),
        "prefill_tokens_per_s": pytest.approx(6 / 180e-9),
        "decode_tokens_per_s": pytest.approx(3 / 70e-9),
    }


def test_a_run_that_decodes_nothing_has_no_time_per_token() -> None:
    frames = three_requests()
    frames.tokens = frames.tokens.filter(pl.col("phase") == "prefill")
    found = request_times(frames)
    nothing = dict.fromkeys(("mean", "p50", "p95", "p99"))
    assert (found["tpot_s"], found["itl_s"], found["decode_tokens_per_s"]) == (
        nothing,
        nothing,
        None,
    )


# Contracts: C112
def test_sequences_that_share_a_step_are_one_observation_at_the_first_of_them() -> None:
    frames = three_requests()
    decode_ns, tokens = decode_time_and_tokens(frames)
    assert (decode_ns.tolist(), tokens.tolist()) == ([70, 0, 0], [3, 0, 0])
    assert prefill_time(frames).tolist() == [160, 0, 20]
    assert whole_time(frames).tolist() == [230, 0, 20]


def test_a_batch_is_all_that_share_steps_if_only_through_others() -> None:
    """Steps of 3 with 1, 5 with 4, and 1 with 4; 2 and 9 are alone."""
    steps = [(0, 3), (0, 1), (1, 5), (1, 4), (2, 2), (7, 1), (7, 4), (8, 4), (9, 9)]
    frames: Any = SimpleNamespace(
        tokens=pl.DataFrame(steps, ["step", "sequence"], orient="row"),
        sequences=pl.DataFrame({"sequence": [2, 3, 1, 9, 4, 5]}),
    )
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert by_batch(frames, values).tolist() == [1, 54, 0, 8, 0, 0]
    frames.tokens = frames.tokens.filter(pl.col("step") != 7)
    assert by_batch(frames, values).tolist() == [1, 6, 0, 8, 48, 0]
    frames.tokens = frames.tokens.unique("step", keep="first", maintain_order=True)
    assert by_batch(frames, values) is values


def test_of_a_run_they_are_computed_once_and_of_its_files_each_time() -> None:
    files, nothing = three_requests(), cast(Any, None)
    frames = Frames(nothing, nothing, nothing, nothing, ())
    vars(frames).update(tokens=files.tokens, sequences=files.sequences)
    found = decode_time_and_tokens(frames)
    assert decode_time_and_tokens(frames) is found
    assert [column.tolist() for column in found] == [[70, 0, 0], [3, 0, 0]]
    assert decode_time_and_tokens(files) is not decode_time_and_tokens(files)


def test_intervals_are_over_the_sums_of_each_batch() -> None:
    """Two of the three share a step. Both have lookups: of step 2 four with three hits, of step 3
    two with one, and one that is left out whatever is there. The third has none.
    """
    needs = [
        *[("decode", 2, "hit", "never")] * 2,
        ("decode", 2, "high_for_low", "never"),
        ("decode", 2, "miss", "never"),
        ("decode", 3, "hit", "never"),
        ("decode", 3, "skip", "if_absent"),
        ("decode", 3, "skip", "always"),
    ]
    found = _intervals(three_requests(), pl.DataFrame(needs, NEEDS, orient="row"))

    def over(above: list[float], below: list[float]) -> Any:
        return pytest.approx(ratio_interval(np.array(above), np.array(below)))

    assert found == {
        "decode_tokens_per_s": None,
        "tpot_s": None,
        "ttft_s": over([210e-9, 190e-9], [2, 1]),
        "latency_s": over([380e-9, 190e-9], [2, 1]),
        "prefill_tokens_per_s": over([5e9, 1e9], [160, 20]),
        "hit_ratio": None,
    }


def drafted() -> Any:
    """Two drafting steps before one that checks both sequences; then one before one of sequence 0."""
    tokens = [
        (0, 0, "prefill", 0, 100, 0, 0),
        (1, 1, "prefill", 100, 150, 0, 0),
        (2, 0, "draft", 160, 170, 0, 0),
        (2, 1, "draft", 160, 170, 0, 0),
        (3, 0, "draft", 170, 185, 0, 0),
        (3, 1, "draft", 170, 185, 0, 0),
        (4, 0, "decode", 190, 220, 3, 4),
        (4, 1, "decode", 190, 220, 1, 4),
        (5, 0, "draft", 220, 225, 0, 0),
        (6, 0, "decode", 225, 245, 2, 2),
    ]
    sequences = [(0, 0, 100, 245, 3), (1, 50, 150, 220, 2)]
    needs = [
        ("draft", 2, "hit", "never"),
        ("draft", 2, "miss", "never"),
        ("draft", 2, "late", "never"),
        ("draft", 5, "miss", "never"),
        ("decode", 4, "hit", "never"),
    ]
    return SimpleNamespace(
        tokens=pl.DataFrame(tokens, [*TOKENS, "new_tokens", "drafts"], orient="row"),
        sequences=pl.DataFrame(sequences, SEQUENCES, orient="row"),
        needs=pl.DataFrame(needs, NEEDS, orient="row"),
        workload=SimpleNamespace(speculation=SimpleNamespace(tokens=4, sites=(1,))),
    )


def test_steps_that_draft_are_a_part_of_the_step_that_checks_their_drafts() -> None:
    frames = drafted()
    rows = with_drafting(frames.tokens).select("step", "sequence", "start_ns", "end_ns").rows()
    assert rows == [
        (0, 0, 0, 100),
        (1, 1, 100, 150),
        (4, 0, 160, 220),
        (4, 1, 160, 220),
        (6, 0, 220, 245),
    ]
    after = tokens_after_the_first(frames).select("step", "sequence", "new_tokens", "since_last_ns")
    assert after.rows() == [(4, 0, 3, 120), (4, 1, 1, 70), (6, 0, 2, 25)]
    decode_ns, tokens = decode_time_and_tokens(frames)
    assert (decode_ns.tolist(), tokens.tolist()) == ([85, 0], [6, 0])


def test_drafts_tell_what_was_checked_and_kept_and_what_drafting_took() -> None:
    """Six tokens of three rows; three drafting steps of 10, 15 and 5."""
    frames = drafted()
    told = {"checked": 10, "kept": 3, "tokens_per_step": 2.0}
    assert drafts_section(frames) == told | {"hit_ratio": 0.25, "time_s": 30e-9}
    frames.workload.speculation.sites = ()
    assert drafts_section(frames) == told
    frames.workload.speculation.tokens = 0
    assert drafts_section(frames) is None


def test_a_run_of_prompts_alone_checked_no_draft_and_has_no_tokens_a_step() -> None:
    frames = drafted()
    frames.workload.speculation.sites = ()
    frames.tokens = frames.tokens.filter(pl.col("phase") == "prefill")
    assert drafts_section(frames) == {"checked": 0, "kept": 0, "tokens_per_step": None}
