"""Arithmetic in whole tiles (contract C81): by hand, and beside what the engine's code does.

The machine has 1 TFLOP/s and 100 GB/s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.round_machine import compute, machine, small
from sim.machine.kernels import Kernels
from sim.machine.roofline import Roofline
from sim.values.tiles import WIDTHS, in_tiles, tile_width
from sim.values.types import Share, Step

LAUNCH = 1_000
STEP, FEW = (
    Step(0, 0, rows, tuple(range(rows)), 5, True, (), (), parts=(Share(1, 5, 0),) * rows)
    for rows in (100, 8)
)
"""Of a hundred sequences, and of eight, a row each."""


def durations(tile_rows: int) -> Roofline:
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1, tail_launches=1)
    return Roofline(
        small(), machine(compute=times), ("fp16",), kernels=Kernels(tile_rows=tile_rows)
    )


def searched(rows: int, widest: int) -> int:
    """As the engine finds it: wider tiles are tried until one is enough, and kept where fewer are."""
    best, fewest = 0, rows + 1
    for width in range(8, widest + 1, 8):
        if fewest > 1 and (width < 48 or width % 16 == 0) and -(-rows // width) < fewest:
            best, fewest = width, -(-rows // width)
    return best


# Contracts: C81
def test_a_tile_is_the_narrowest_of_those_that_are_fewest() -> None:
    told = {1: 8, 9: 16, 33: 40, 49: 64, 100: 112, 128: 128, 130: 80, 200: 112, 4096: 128}
    assert {rows: tile_width(rows, 128) for rows in told} == told
    assert tile_width(200, 64) == 64
    for widest in WIDTHS:
        for rows in range(1, 1_200):
            assert tile_width(rows, widest) == searched(rows, widest)


# Contracts: C81
def test_an_expert_takes_the_arithmetic_of_whole_tiles_of_its_step() -> None:
    """It has 384 parameters, 768 B: 7.68 ns. Three rows of 8 are multiplied as they are.

    Of 9 they fill a tile of 16, 2 * 16 * 384 = 12,288 FLOPs, and of 100 one of 112, 86,016. Of 130
    a tile has 80: 61,440 for three rows, and for 90 rows, which need two, 122,880.
    """
    tiles, plain = durations(128), durations(0)
    asked = ((3, 8), (3, 9), (3, 100), (3, 130), (90, 130))
    assert [tiles.expert_ns(0, 0, *one) - LAUNCH for one in asked] == [8, 12, 86, 61, 123]
    assert [plain.expert_ns(0, 0, *one) - LAUNCH for one in asked] == [8, 8, 8, 8, 69]
    assert tiles.expert_ns(0, 0, 100) == tiles.expert_ns(0, 0, 100, 100), "all of a step's rows"
    assert durations(64).expert_ns(0, 0, 3, 100) - LAUNCH == 49


# Contracts: C81
def test_kernels_hand_on_the_rows_of_an_expert_in_a_step_of_many() -> None:
    """Six values of 16 and four of 8, of 4 B, are 512 B: 5.12 ns a row after the expert's 7.68 ns.

    Of nine rows three take 15.36 ns more, and of eight none. Beside tiles, arithmetic of 12.288 ns
    is not what they hide behind.
    """
    times = compute(launch_us=1.0, dense_launches=2, expert_launches=1)
    rows, both = (
        Roofline(small(), machine(compute=times), ("fp16",), kernels=kernels)
        for kernels in (
            Kernels(inner_values=6, outer_values=4),
            Kernels(inner_values=6, outer_values=4, tile_rows=128),
        )
    )
    asked = ((3, 8), (1, 9), (3, 9), (9, 0), (8, 0))
    assert [rows.expert_ns(0, 0, *one) - LAUNCH for one in asked] == [8, 13, 23, 54, 8]
    assert both.expert_ns(0, 0, 3, 9) - LAUNCH == 28
    plain = durations(0)
    assert [rows.dense_ns(step)[0] == plain.dense_ns(step)[0] for step in (STEP, FEW)] == [True] * 2


# Contracts: C81
def test_a_layer_and_the_head_take_the_arithmetic_of_whole_tiles() -> None:
    """A hundred sequences' rows fill a tile of 112: 12 rows more for 240 parameters, 5.76 ns, and for
    the head's 80, 1.92 ns. Attention has no tiles.
    """
    step = STEP
    tiles, plain = durations(128), durations(0)
    more = [a - b for a, b in zip(tiles.dense_ns(step), plain.dense_ns(step), strict=True)]
    assert more == pytest.approx([5.76] * 3, abs=1)
    assert tiles.tail_ns(step) - plain.tail_ns(step) == pytest.approx(1.92, abs=1)
    assert tiles.dense_ns(FEW) == plain.dense_ns(FEW)


def test_a_drafts_rows_are_those_of_the_sequences_that_draft() -> None:
    """Nine sequences draft at once: their experts take the tiles of nine rows, of 16 each."""
    times = compute(launch_us=0.0)
    tiles, plain = (
        Roofline(
            small(),
            machine(compute=times),
            ("fp16",),
            kernels=Kernels(tile_rows=rows),
            draft_layers=1,
        )
        for rows in (128, 0)
    )
    drafting = (Share(2, 5, 1),) * 9
    step = Step(0, 0, 18, tuple(range(9)), 5, True, (), (), (0, 1, 2), (9,), parts=drafting)
    more = tiles.dense_ns(step)[0] - tiles.dense_ns(replace(step, drafters=()))[0]
    least = plain.dense_ns(step)[0] - plain.dense_ns(replace(step, drafters=()))[0]
    # Eighteen choices of 12,288 FLOPs, where they took 7.68 ns; 16 rows for 9 of the layer and head.
    assert more - least == pytest.approx(18 * (12 - 8) + 2 * 7 * 320 / 1_000, abs=2)


def test_no_rows_of_a_step_are_less_than_an_experts_own() -> None:
    """So a bound that knows an expert's rows alone is one: tiles of fewer rows hold no more."""
    for step_rows in range(9, 700):
        for rows in range(1, step_rows + 1, 7):
            assert in_tiles(rows, rows, 128) <= in_tiles(rows, step_rows, 128)
