"""Steps from sequences: small queues by hand, and random ones against a composer by rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from helpers.composer import Rows, compose_by_rows
from sim.workload.batching import Batcher, Part, Request, arrival_times


def rows_of(parts: Sequence[Part]) -> Rows:
    return [
        (part.request.sequence, row)
        for part in parts
        for row in range(part.first, part.first + part.count)
    ]


def walk(batcher: Batcher, step_ns: Callable[[Rows], int]) -> list[Rows | int]:
    """Steps (as rows) and times to wait for, as told to a driver whose steps take ``step_ns``."""
    told: list[Rows | int] = []
    now = 0
    while (following := batcher.next(now)) is not None:
        if isinstance(following, int):
            assert following > now
            told.append(now := following)
        else:
            step = rows_of(following)
            told.append(step)
            now += step_ns(step)
    assert batcher.next(now) is None
    return told


def ten(step: Rows) -> int:
    return 10


# By hand

THREE = (Request(0, 2, 3, 0), Request(1, 3, 1, 5), Request(2, 1, 2, 5))
"""Prompts of 2, 3 and 1 rows, with 3, 1 and 2 decoded; two arrive during the first step."""


def test_continuous_batching_takes_newcomers_in_at_the_end_of_a_step() -> None:
    """At most two run: 1 joins at 10 and is done, after its only token, at 30.

    2 joins then, with its prompt alone.
    """
    assert walk(Batcher(THREE, "continuous", 2), ten) == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1), (1, 2)],
        [(0, 2), (1, 3)],
        [(2, 0)],
        [(0, 3), (2, 1)],
        [(0, 4), (2, 2)],
    ]


def test_continuous_batching_with_room_for_all_prefills_the_newcomers_together() -> None:
    assert walk(Batcher(THREE, "continuous", 3), ten) == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1), (1, 2), (2, 0)],
        [(0, 2), (1, 3), (2, 1)],
        [(0, 3), (2, 2)],
        [(0, 4)],
    ]


def test_static_batching_forms_a_group_and_lets_nobody_join_it() -> None:
    """At 0 only the first is there; it runs alone, then the other two run."""
    assert walk(Batcher(THREE, "static", 2), ten) == [
        [(0, 0), (0, 1)],
        [(0, 2)],
        [(0, 3)],
        [(0, 4)],
        [(1, 0), (1, 1), (1, 2), (2, 0)],
        [(1, 3), (2, 1)],
        [(2, 2)],
    ]


def test_a_chunk_of_a_prompt_runs_beside_those_that_decode() -> None:
    """Two prompt rows a step: 1 is cut after two of its three rows.

    The third row shares its chunk with 2.
    """
    assert walk(Batcher(THREE, "continuous", 3, prefill_chunk=2), ten) == [
        [(0, 0), (0, 1)],
        [(0, 2), (1, 0), (1, 1)],
        [(0, 3), (1, 2), (2, 0)],
        [(0, 4), (1, 3), (2, 1)],
        [(2, 2)],
    ]


# Contracts: C78
def test_a_chunk_stands_in_the_turn_of_its_sequence_not_behind_those_that_decode() -> None:
    long_first = (Request(0, 4, 1), Request(1, 1, 2))
    assert walk(Batcher(long_first, "continuous", 2, prefill_chunk=2), ten) == [
        [(0, 0), (0, 1)],
        [(0, 2), (0, 3)],
        [(0, 4), (1, 0)],
        [(1, 1)],
        [(1, 2)],
    ]
    short_first = (Request(0, 0, 3), Request(1, 3, 1))
    assert walk(Batcher(short_first, "continuous", 2, prefill_chunk=2), ten) == [
        [(0, 0), (1, 0), (1, 1)],
        [(0, 1), (1, 2)],
        [(0, 2), (1, 3)],
    ]


def test_a_static_group_decodes_only_when_its_chunked_prompts_are_through() -> None:
    group = (Request(0, 1, 2), Request(1, 4, 1))
    assert walk(Batcher(group, "static", 2, prefill_chunk=3), ten) == [
        [(0, 0), (1, 0), (1, 1)],
        [(1, 2), (1, 3)],
        [(0, 1), (1, 4)],
        [(0, 2)],
    ]


def test_one_together_runs_one_sequence_after_another() -> None:
    requests = (Request(4, 2, 1), Request(1, 1, 2))
    expected = [[(1, 0)], [(1, 1)], [(1, 2)], [(4, 0), (4, 1)], [(4, 2)]]
    assert walk(Batcher(requests, "static", 1), ten) == expected
    assert walk(Batcher(requests, "continuous", 1), ten) == expected


def test_sequences_without_a_prompt_or_without_decoded_rows_take_their_turns() -> None:
    requests = (Request(0, 0, 2), Request(1, 2, 0), Request(2, 1, 1))
    assert walk(Batcher(requests, "static", 2), ten) == [
        [(1, 0), (1, 1)],
        [(0, 0)],
        [(0, 1)],
        [(2, 0)],
        [(2, 1)],
    ]
    assert walk(Batcher(requests, "continuous", 2), ten) == [
        [(1, 0), (1, 1)],
        [(2, 0)],
        [(0, 0), (2, 1)],
        [(0, 1)],
    ]


def test_with_nothing_to_run_the_next_arrival_is_named() -> None:
    requests = (Request(0, 1, 0, 7), Request(1, 1, 0, 7), Request(2, 1, 0, 30))
    assert walk(Batcher(requests, "continuous", 2), ten) == [7, [(0, 0), (1, 0)], 30, [(2, 0)]]


def test_who_arrives_at_the_end_of_a_step_is_taken_in_and_a_ns_later_is_not() -> None:
    for late, second in ((0, [(0, 1), (1, 0)]), (1, [(0, 1)])):
        requests = (Request(0, 0, 3, 0), Request(1, 0, 1, 10 + late))
        assert walk(Batcher(requests, "continuous", 2), ten)[1] == second


def test_equal_arrivals_go_by_number_however_they_were_listed() -> None:
    requests = [Request(number, 1, 1, 3) for number in (5, 2, 9)]
    for listed in (requests, requests[::-1]):
        assert walk(Batcher(listed, "static", 2), ten) == [
            3,
            [(2, 0), (5, 0)],
            [(2, 1), (5, 1)],
            [(9, 0)],
            [(9, 1)],
        ]


# A composer that counts rows


def random_case(seed: int) -> tuple[list[Request], dict[str, Any], Callable[[Rows], int]]:
    draw = random.Random(seed)
    requests = []
    for number in draw.sample(range(20), draw.randint(1, 7)):
        prompt = draw.choice((0, 0, 1, 2, 3, 7))
        decode = draw.randint(0 if prompt else 1, 4)
        requests.append(Request(number, prompt, decode, draw.choice((0, 0, 4, 4, 9, 25, 60))))
    choices = {
        "batching": draw.choice(("static", "continuous")),
        "together": draw.randint(1, 4),
        "prefill_chunk": draw.choice((None, 1, 2, 3, 8)),
    }
    base, per_row = draw.randint(1, 6), draw.randint(0, 3)
    return requests, choices, lambda step: base + per_row * len(step)


def test_steps_are_those_of_a_composer_that_counts_rows() -> None:
    for seed in range(1000):
        requests, choices, step_ns = random_case(seed)
        told = walk(Batcher(requests, **choices), step_ns)
        chunk = choices.pop("prefill_chunk")
        assert told == compose_by_rows(requests, **choices, chunk=chunk, step_ns=step_ns), (
            f"seed {seed}"
        )


def test_every_row_runs_once_in_order_within_the_bounds() -> None:
    for seed in range(300):
        requests, choices, step_ns = random_case(seed)
        batcher = Batcher(requests, **choices)
        steps = [step for step in walk(batcher, step_ns) if not isinstance(step, int)]
        ran = [row for step in steps for row in step]
        assert len(ran) == sum(request.rows for request in requests)
        for request in requests:
            assert [row for sequence, row in ran if sequence == request.sequence] == list(
                range(request.rows)
            )
        assert max(map(len, steps)) <= batcher.most_rows, f"seed {seed}"
        assert max(len({sequence for sequence, _ in step}) for step in steps) <= choices["together"]


@pytest.mark.parametrize(
    ("choices", "most"),
    [
        ({"batching": "static", "together": 2}, 5),
        ({"batching": "static", "together": 9}, 6),
        ({"batching": "static", "together": 3, "prefill_chunk": 2}, 3),
        ({"batching": "continuous", "together": 3, "prefill_chunk": 2}, 4),
        ({"batching": "continuous", "together": 1, "prefill_chunk": 9}, 3),
    ],
)
def test_the_bound_on_rows_is_the_largest_prompts_together_or_a_chunk_beside_decoded_rows(
    choices: dict[str, Any], most: int
) -> None:
    assert Batcher(THREE, **choices).most_rows == most


def test_a_part_knows_whether_its_request_begins_or_ends_with_it() -> None:
    request = Request(0, 2, 1)
    whole, last = Part(request, 0, 2, False, 2), Part(request, 2, 1, True, 1)
    assert (whole.begins, whole.ends, last.begins, last.ends) == (True, False, False, True)


# Arrivals


def test_without_a_rate_every_request_is_there_at_0() -> None:
    assert arrival_times(3) == (0, 0, 0)


# Contracts: C79
def test_given_arrivals_are_taken_as_they_are() -> None:
    assert arrival_times(3, given_ns=[5, 0, 5]) == (5, 0, 5)


# Contracts: C79
def test_a_poisson_process_has_independent_exponential_gaps_of_the_stated_mean() -> None:
    times = arrival_times(20_000, per_s=250.0, seed=1)
    assert all(isinstance(time, int) for time in times)
    assert list(times) == sorted(times)
    gaps = [after - before for before, after in zip((0, *times), times, strict=False)]
    mean = sum(gaps) / len(gaps)
    # The mean of n exponential gaps has a relative standard error of n**-0.5, here 0.7 %.
    assert mean == pytest.approx(4e6, rel=0.03)
    assert sum(gap > 4e6 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)
    assert sum(gap < 4e5 for gap in gaps) / len(gaps) == pytest.approx(1 - math.exp(-0.1), abs=0.02)


def test_a_seed_names_one_draw_and_a_longer_one_goes_on_from_it() -> None:
    assert arrival_times(5, 2.0, 7) == arrival_times(9, 2.0, 7)[:5]
    assert arrival_times(5, 2.0, 7) != arrival_times(5, 2.0, 8)
    first = -math.log(1 - 0.8444218515250481) / 2  # the first draw of Python's random.Random(0)
    assert arrival_times(1, 2.0, 0) == (round(first * 1e9),) == (930_303_556,)


# What is refused


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"batching": "rolling"}, "unknown batching=rolling; allowed: static, continuous"),
        ({"together": 0}, r"workload\.together=0 must be a whole number >= 1"),
        ({"together": True}, r"workload\.together=True must be a whole number"),
        ({"prefill_chunk": 0}, r"workload\.prefill_chunk=0 must be a whole number >= 1"),
        ({"prefill_chunk": 2.5}, r"workload\.prefill_chunk=2\.5 must be a whole number"),
        (
            {"prefill_chunk": 4, "separate_prompts": True},
            (
                r"prefill_chunk=4 would cut a prompt, but an encoder reads a prompt whole; set"
                r" workload\.prefill_chunk=null"
            ),
        ),
    ],
)
def test_choices_that_cannot_be_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batcher(THREE, **choices)


def test_a_sequence_cannot_be_requested_twice_nor_without_rows() -> None:
    with pytest.raises(ValueError, match="sequence 3 is requested twice"):
        Batcher([Request(3, 1, 1), Request(2, 1, 1), Request(3, 1, 1, 9)])
    with pytest.raises(ValueError, match="must have rows"):
        Request(0, 0, 0)
    with pytest.raises(ValueError, match="nothing below 0"):
        Request(0, 1, 1, -1)


# Contracts: C79
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"per_s": 0},
            r"arrivals_per_s=0 must be 1e-06 or more; null: every sequence is there at 0",
        ),
        ({"per_s": -1.0}, r"arrivals_per_s=-1\.0 must be a number >= 0"),
        ({"per_s": float("inf")}, r"arrivals_per_s=inf must be a number"),
        ({"per_s": "2/s"}, r"arrivals_per_s='2/s' must be a number"),
        ({"per_s": 1.0, "seed": 0.5}, r"arrival_seed=0\.5 must be a whole number"),
        ({"given_ns": [0]}, "1 arrivals are given for 2 sequences; give one for each"),
        ({"given_ns": [0, -3]}, r"arrivals_ns=-3 must be a whole number >= 0"),
        ({"given_ns": [0, 1], "per_s": 1.0}, "exclude each other"),
        (
            {"given_ns": [0, 10**19]},
            r"arrivals_ns=1.*: .* after 1e\+10 s, the latest is 4,000,000 s; count seconds",
        ),
    ],
)
def test_arrivals_that_cannot_be_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arrival_times(2, **choices)


def test_a_process_too_slow_for_its_last_request_to_be_timed_exactly_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"arrivals_per_s=1e-06 for 96 sequences: .*trace\.max_sequences"
    ):
        arrival_times(96, 1e-6)
