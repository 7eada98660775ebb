"""How wide the tiles are in which an engine's kernels multiply many rows (contract C81)."""

from __future__ import annotations

from functools import cache

FEW_ROWS = 8
"""Up to so many rows an engine's kernels multiply a matrix by vectors, one after another."""
WIDTHS: tuple[int, ...] = (*range(8, 49, 8), *range(64, 129, 16))
"""Of tiles, in rows."""


@cache
def tile_width(rows: int, widest: int) -> int:
    """The narrowest tile, of those that need the fewest for so many rows."""
    _, narrowest = min((-(-rows // width), width) for width in WIDTHS if width <= widest)
    return narrowest


def in_tiles(rows: int, step_rows: int, widest: int) -> int:
    """How many rows are multiplied where so many of a step's need a matrix: whole tiles.

    ``widest``: 0 where kernels have no tiles.
    """
    if not widest or step_rows <= FEW_ROWS:
        return rows
    width = tile_width(step_rows, widest)
    return -(-rows // width) * width
