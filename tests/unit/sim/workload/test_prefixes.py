"""What is found of prompts that begin alike, and which tier holds it (contracts C177 and C178)."""

from __future__ import annotations

import random

import pytest

from sim.values.types import Found
from sim.workload.batching import Batcher, Part, Request
from sim.workload.prefixes import Prefixes, Tiers


def read(batcher: Batcher, now: int = 0) -> list[tuple[int, int, int]]:
    """The sequence, first row and rows of each part of the next step."""
    parts = batcher.next(now)
    assert isinstance(parts, tuple)
    return [(part.request.sequence, part.first, part.count) for part in parts]


# Contracts: C177
def test_a_prompt_begins_behind_what_it_finds_and_always_reads_a_row() -> None:
    """The page's example: prompts of 6, 5 and 4 tokens in blocks of 2."""
    requests = [
        Request(0, 6, 1, 0, (1, 2, 3)),
        Request(1, 5, 1, 0, (1, 2)),
        Request(2, 4, 1, 0, (1, 2)),
    ]
    batcher = Batcher(requests, tiers=Tiers(2, device=9))
    steps = [read(batcher) for _ in range(6)]
    assert steps == [[(0, 0, 6)], [(0, 6, 1)], [(1, 4, 1)], [(1, 5, 1)], [(2, 2, 2)], [(2, 4, 1)]]
    assert batcher.next(0) is None


# Contracts: C177
def test_what_two_read_in_one_step_neither_finds_and_the_next_one_does() -> None:
    requests = [Request(n, 2, 2, arrival, (7, 8)) for n, arrival in enumerate((0, 0, 5))]
    batcher = Batcher(requests, "continuous", 3, tiers=Tiers(1, device=2))
    assert read(batcher) == [(0, 0, 2), (1, 0, 2)]
    assert read(batcher, 5) == [(2, 1, 1)]


# Contracts: C177
def test_a_prompt_in_chunks_is_held_when_its_last_row_is_read() -> None:
    """Request 1 joins at 5, when half of the prompt is read: nothing is held yet."""
    requests = [
        Request(0, 4, 1, 0, (1, 2)),
        Request(1, 4, 1, 5, (1, 2)),
        Request(2, 4, 1, 9, (1, 2)),
    ]
    batcher = Batcher(requests, "continuous", 2, prefill_chunk=2, tiers=Tiers(2, device=2))
    assert read(batcher) == [(0, 0, 2)]
    assert read(batcher, 5) == [(0, 2, 2)]
    assert read(batcher, 6) == [(0, 4, 1), (1, 0, 2)]
    assert read(batcher, 9) == [(1, 2, 2)]
    assert read(batcher, 9) == [(1, 4, 1), (2, 2, 2)]


def test_the_first_part_of_a_request_begins_it_whatever_was_found() -> None:
    requests = [Request(0, 3, 1, 0, (1, 2, 3)), Request(1, 3, 1, 0, (1, 2, 3))]
    batcher = Batcher(requests, tiers=Tiers(1, device=2))
    parts: list[Part] = []
    while isinstance(step := batcher.next(0), tuple):
        parts += step
    assert [part.begins for part in parts] == [True, False, True, False]
    assert [part.found.tokens for part in parts] == [0, 0, 2, 2]


# Contracts: C178
def test_the_page_s_tiers_hold_the_blocks_used_last() -> None:
    held = Prefixes(Tiers(1, device=2, ram=3))
    assert held.find((1, 2, 3), 3) == Found()
    held.keep((1, 2, 3))
    assert held.find((1, 2, 3), 4) == Found(device=2, ram=1)
    held.keep((1, 4))
    assert held.find((1, 2, 3, 5), 5) == Found(device=1, ram=1, again=1)


# Contracts: C178
@pytest.mark.parametrize("seed", range(20))
def test_no_block_outlives_one_before_it_and_a_larger_tier_holds_what_a_smaller_one_does(
    seed: int,
) -> None:
    dice = random.Random(seed)
    tiers = Tiers(1, dice.randrange(4), dice.randrange(8), dice.randrange(12))
    held = Prefixes(tiers)
    for _ in range(40):
        path = [1]
        for _ in range(dice.randrange(1, 6)):
            path.append(2 * path[-1] + dice.randrange(2))
        held.keep(tuple(path[1:]))
        for blocks, capacity in zip(held._held, (tiers.device, tiers.ram, tiers.disk), strict=True):
            assert len(blocks) <= capacity
            assert all(block // 2 in blocks for block in blocks if block > 3)
        smaller, _, larger = sorted(held._held, key=len)
        assert set(smaller) <= set(larger)


# Contracts: C177
@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_read_once_or_found(seed: int) -> None:
    dice = random.Random(seed)
    requests = []
    for number in range(8):
        rows, block = dice.randrange(1, 9), 1
        blocks = [block := 2 * block + dice.randrange(2) for _ in range(rows // 2)]
        requests.append(Request(number, rows, dice.randrange(3), dice.randrange(20), tuple(blocks)))
    batcher = Batcher(
        requests,
        dice.choice(("static", "continuous")),
        dice.randrange(1, 4),
        dice.choice((None, 2)),
        tiers=Tiers(2, *(dice.randrange(6) for _ in range(3))),
    )
    done = dict.fromkeys(range(8), 0)
    now = 0
    while (step := batcher.next(now)) is not None:
        if isinstance(step, int):
            now = step
            continue
        now += 1
        for part in step:
            done[part.request.sequence] += part.found.tokens if part.begins else 0
            assert done[part.request.sequence] == part.first
            done[part.request.sequence] += part.kept
    assert done == {one.sequence: one.rows for one in requests}
