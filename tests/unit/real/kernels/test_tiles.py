"""The rules by which kernels are configured: what was measured stays, and nothing is left over."""

from __future__ import annotations

import pytest

from real.kernels.tiles import (
    LEAST_PROGRAMS,
    BatchTile,
    RowTile,
    batch_tile,
    gate_tile,
    neuron_tile,
    pairs_scales,
    row_tile,
    takes_integers,
    tiled_counts,
)


@pytest.mark.parametrize(
    ("bits", "columns", "held_rows", "needs", "gated", "want"),
    [
        (16, 4096, 14336, 1, True, RowTile(1, 4096, 4)),
        (8, 4096, 14336, 1, True, RowTile(2, 4096, 4)),
        (8, 14336, 4096, 1, False, RowTile(4, 1024, 1, 1, 14)),
        (16, 14336, 4096, 1, False, RowTile(2, 2048, 8, 7)),
        (4, 2048, 768, 8, True, RowTile(4, 2048, 4)),
        (4, 768, 1024, 8, False, RowTile(4, 256, 1, 3)),
        (2, 2048, 384, 8, True, RowTile(2, 2048, 2)),
        (4, 1408, 1024, 4, False, RowTile(4, 2048, 4)),
    ],
)
def test_real_shapes_have_the_tiles_that_were_measured(
    bits: int, columns: int, held_rows: int, needs: int, gated: bool, want: RowTile
) -> None:
    assert row_tile(bits, held_rows, columns, needs, gated=gated) == want


@pytest.mark.parametrize("columns", [1, 131, 600, 768, 2880, 4096, 5120, 7168, 14336])
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_every_column_is_in_a_tile_and_few_rows_are_shared_by_many(bits: int, columns: int) -> None:
    for rows in (1, 300, 14336):
        for gated in (False, True):
            tile = row_tile(bits, rows, columns, 1, gated=gated)
            covered = tile.columns * tile.steps * tile.parts
            assert columns <= covered < columns + tile.columns * (tile.steps + 1)
            assert not gated or tile.parts == 1
            programs = -(-rows // tile.rows) * tile.parts
            assert programs >= LEAST_PROGRAMS or tile.rows == 1


def test_integer_dots_take_what_is_large_and_divides() -> None:
    assert takes_integers(4, 4096, 64, 16 << 20, 1)
    assert takes_integers(2, 14336, 14336, 2 << 20, 8)
    assert not takes_integers(8, 4096, 64, 16 << 20, 1)
    assert not takes_integers(4, 4096, 64, (16 << 20) - 1, 1)
    assert not takes_integers(4, 4104, 64, 16 << 20, 1)


def test_all_needs_together_fill_the_gpu_with_sparse_programs() -> None:
    assert [neuron_tile(4096, needs).programs for needs in (1, 2, 8, 500)] == [132, 66, 17, 1]
    assert gate_tile(8, 4096).experts == 1
    assert gate_tile(128, 2048).columns == 2048


def test_parts_divide_the_blocks_of_a_row() -> None:
    assert batch_tile(4, 8, 224, parts=True) == BatchTile(8, 16, 1, 3, 7)
    assert batch_tile(4, 8, 64, parts=True).parts == 4
    assert batch_tile(4, 8, 224, parts=False).parts == 1
    assert [batch_tile(4, rows, 1, parts=False).inputs for rows in (2, 9, 17, 65)] == [
        8,
        16,
        32,
        64,
    ]
    assert batch_tile(2, 300, 1, parts=False).inputs == 32
    assert [batch_tile(b, 300, 1, parts=False, capability=89).inputs for b in (8, 2)] == [32, 16]
    assert [pairs_scales(4, 32, capability) for capability in (90, 120)] == [True, False]


def test_rows_that_fill_the_gpu_by_themselves_are_not_shared_out() -> None:
    """8 experts of Mixtral's have 8 x 7168 rows of bytes: 1,792 programs of 32."""
    assert batch_tile(4, 16, 64, parts=True, byte_rows=8 * 7168).parts == 1
    assert batch_tile(4, 16, 224, parts=True, byte_rows=2048).parts == 7
    least = LEAST_PROGRAMS * 32
    assert [batch_tile(4, 16, 64, parts=True, byte_rows=n).parts for n in (least - 1, least)] == [
        4,
        1,
    ]


@pytest.mark.parametrize("most", [1, 2, 7, 16, 40, 500])
@pytest.mark.parametrize(("bits", "capability"), [(8, 90), (4, 89), (2, 90)])
def test_a_few_counts_of_rows_get_every_tile(most: int, bits: int, capability: int) -> None:
    def tile(count: int) -> object:
        return batch_tile(bits, count, 8, parts=True, capability=capability)

    counts = tiled_counts(most)
    assert {tile(count) for count in counts} == {tile(count) for count in range(2, most + 1)}
    assert len(counts) <= 5
