"""Drafted tokens (contract C151): which are kept, what a step reads, and what it costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sim.workload.batching import Batcher, Part, Request
from sim.workload.speculation import Speculation
from sim.workload.step_shares import drafters_of


class Given(Speculation):
    """Drafts of these tokens are wrong, whatever the dice say."""

    wrong: frozenset[int] = frozenset()

    def outcomes(self, sequence: int, count: int) -> tuple[float, ...]:
        return tuple(0.9 if token in self.wrong else 0.1 for token in range(count))


def given(tokens: int, *wrong: int) -> Given:
    made = Given(tokens, 0.5)
    object.__setattr__(made, "wrong", frozenset(wrong))
    return made


def steps(batcher: Batcher) -> list[tuple[Part, ...]]:
    found = []
    while isinstance(parts := batcher.next(0), tuple):
        found.append(parts)
    return found


def read(parts: tuple[Part, ...]) -> list[tuple[int, int, int]]:
    return [(part.first, part.count, part.kept) for part in parts]


def test_the_page_s_example_reads_three_tokens_and_again_from_the_wrong_one() -> None:
    batcher = Batcher([Request(0, 0, 5)], speculation=given(2, 1))
    assert [read(parts) for parts in steps(batcher)] == [[(0, 3, 1)], [(1, 3, 3)], [(4, 1, 1)]]


def test_a_prompt_is_read_whole_and_drafts_begin_after_it() -> None:
    batcher = Batcher([Request(0, 4, 3)], speculation=given(1))
    assert [read(parts) for parts in steps(batcher)] == [[(0, 4, 4)], [(4, 2, 2)], [(6, 1, 1)]]


def test_every_sequence_of_a_step_goes_on_after_its_own_drafts() -> None:
    """Both decode; a wrong token 2 costs both a step, and the longer one ends alone."""
    batcher = Batcher([Request(0, 1, 4), Request(1, 1, 6)], "static", 2, speculation=given(3, 2))
    assert [read(parts) for parts in steps(batcher)] == [
        [(0, 1, 1), (0, 1, 1)],
        [(1, 4, 2), (1, 4, 2)],
        [(3, 2, 2), (3, 4, 4)],
    ]


def test_a_step_tells_how_many_of_its_sequences_check_each_draft() -> None:
    """The group's prompts are read in chunks of 3 rows beside what decodes."""
    requests = [Request(0, 1, 4), Request(1, 6, 3)]
    batcher = Batcher(requests, "continuous", 2, prefill_chunk=3, speculation=given(3))
    found = steps(batcher)
    assert [read(parts) for parts in found] == [
        [(0, 1, 1), (0, 2, 2)],
        [(1, 4, 4), (2, 3, 3)],
        [(5, 1, 1)],
        [(6, 3, 3)],
    ]
    assert [drafters_of(parts) for parts in found] == [(), (1, 1, 1), (), (1, 1)]
    assert drafters_of((*found[1], *found[3])) == (2, 2, 1)


def test_the_most_rows_of_a_step_count_drafts() -> None:
    requests = [Request(0, 2, 9), Request(1, 1, 9)]
    assert Batcher(requests, "continuous", 2, speculation=given(3)).most_rows == 8
    assert Batcher(requests, "continuous", 2, 2, speculation=given(3)).most_rows == 8
    assert (
        max(
            sum(part.count for part in parts)
            for parts in steps(Batcher(requests, "continuous", 2, 2, speculation=given(3)))
        )
        == 8
    )


def test_shares_by_place_are_those_of_all_steps() -> None:
    """Of 20,000 tokens, the share of steps that keep each place is the one asked for."""
    shares = (0.7, 0.45, 0.3)
    speculation = Speculation(3, shares)
    draws = speculation.outcomes(0, 60_000)
    kept = [speculation.kept(draws[at : at + 3]) for at in range(0, 60_000, 3)]
    for place, share in enumerate(shares, start=1):
        found = sum(count >= place for count in kept) / len(kept)
        assert found == pytest.approx(share, abs=4 * (share * (1 - share) / len(kept)) ** 0.5)


def test_a_number_is_the_chance_of_each_draft_after_right_ones() -> None:
    assert [Speculation(3, 0.5).kept(draws) for draws in ((0.4, 0.4, 0.6), (0.6, 0.1, 0.1))] == [
        2,
        0,
    ]
    assert Speculation(3, 1.0).kept((0.99, 0.99)) == 2
    assert Speculation(3, 0.0).kept((0.0,)) == 0


def test_a_token_meets_the_same_luck_at_every_depth_and_in_every_system() -> None:
    dice = random.Random("7 3")
    expected = tuple(dice.random() for _ in range(5))
    assert Speculation(1, 0.5, seed=7).outcomes(3, 5) == expected
    assert Speculation(4, 0.2, seed=7).outcomes(3, 5) == expected
    assert Speculation(4, 0.2, seed=8).outcomes(3, 5) != expected


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tokens": 10_001}, r"workload\.draft_tokens=10001 must be .* from 0 to 10000"),
        ({"tokens": -1}, r"workload\.draft_tokens=-1 must be a whole number >= 0"),
        ({"tokens": 2, "accepted": 1.5}, r"workload\.draft_accepted=1\.5 must be from 0 to 1"),
        ({"tokens": 2, "accepted": (0.5, 1.2)}, r"workload\.draft_accepted\[1\]=1\.2 must be"),
        ({"tokens": 3, "accepted": (0.5, 0.4)}, r"has 2 shares for workload\.draft_tokens=3"),
        ({"tokens": 2, "accepted": (0.5, 0.6)}, r"rises from 0\.5 to 0\.6"),
        ({"layers": 0.5}, r"workload\.draft_layers=0\.5 must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Speculation(**values)
