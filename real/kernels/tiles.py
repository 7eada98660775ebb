"""How every kernel shares its work out to programs: all rules of configuration, in one place.

A multiprocessor hides the memory's latency by bytes in flight: at 3 TB/s and 600 ns that is 16 KiB
for each of an H100's 132. A program of these kernels asks for its whole tile at once, so the rules
choose how many bytes a lane asks for, and how many programs there are.

| what | rule | why |
| --- | --- | --- |
| one row, rows up to 4096 | whole rows, 8 KiB a program of 4 warps | 64 B a lane; sums cross lanes once a row |
| .. rows of bytes a program | at most 4, of two bits 2 | each holds 1, 2 or 4 rows of sums in registers |
| .. 768 columns and the like | their power of two, up to 3 steps | no lane idles behind a row's end |
| one row, longer rows | ``LONG``: 1024 or 2048 columns | down has few rows; parts of K fill the GPU |
| .. with a gate above | steps instead of parts | SiLU needs whole sums |
| few programs | fewer rows each until there are 264 | two for every multiprocessor |
| integer dots | 4 and 2 bits, from 16 MiB a launch | fewer instructions, but one more launch of 2 us |
| .. tiles | the same by half the warps | 128 B a lane: fewer instructions a weight |
| sparse | 132 programs over all needs, 4 neurons of 16 KiB at once | each program adds H sums at its end |
| gates | 2 experts a program, 1 where experts are few | 60 programs and more read 0.5 MB in one latency |
| 2 to 8 inputs | 8 inputs x 16 rows of bytes a warp | the least tile of tensor cores: more programs |
| .. more inputs | 16 x 32, 32 x 64, 64 x 64 (not of two bits: it would spill) | bytes are read once for as many |
| .. scales of two blocks at once | up to ``MOST_PAIRED`` inputs | words can be brought ahead, halves cannot |
| .. but on sm_80 and sm_90 | half as many inputs in the largest tiles | the larger ones spill there |
| .. down | 7 parts of K or fewer | as above; none where 264 programs are there without |

The figures behind them were measured with prototypes on one H100: ``docs/kernels.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MULTIPROCESSORS = 132
"""Of the largest GPU aimed at, an H100 or H200."""
LEAST_PROGRAMS = 2 * MULTIPROCESSORS
TILE_BYTES, WARP_BYTES = 8192, 2048
"""Bytes of weights that a program and a warp ask for at once; of integers a warp does twice."""
LONGEST_WHOLE = 4096
"""The most columns that one tile spans."""
LONG = {16: (2, 2048, 8), 8: (4, 1024, 1), 4: (4, 1024, 2), 2: (2, 1024, 1)}
"""Rows of bytes, columns and warps for longer rows, by bits."""
LONG_INTEGERS = {4: (4, 1024, 1), 2: (2, 1024, 1)}
MOST_ROWS = {16: 4, 8: 4, 4: 4, 2: 2}
MOST_STEPS = 7
INTEGER_BITS, INTEGER_BYTES = (4, 2), 16 << 20
"""Where integer dots pay: the bits, and the least bytes of all matrices of a launch."""
CHUNK = 16
"""Inputs that one lane sums before it scales: their bytes are one load."""
MOST_PARTS = 7
MOST_PAIRED = {8: 32, 4: 32, 2: 8}
"""The most inputs of a tile that takes two blocks' scales at once, by bits: more would spill."""
LARGE_TILES = (80, 90)
"""The compute capabilities, times 10, on which the largest tiles of inputs do not spill."""


@dataclass(frozen=True)
class RowTile:
    """A program of one input: ``rows`` of bytes x ``columns``, ``steps`` times along a row.

    ``parts`` programs share a row, and their sums are added by another launch.
    """

    rows: int
    columns: int
    warps: int
    steps: int = 1
    parts: int = 1


@dataclass(frozen=True)
class BatchTile:
    """A program of several inputs: ``inputs`` x ``rows`` of bytes, by ``warps``.

    ``stages`` tiles are under way at once; ``parts`` as in `RowTile`.
    """

    inputs: int
    rows: int
    warps: int
    stages: int = 3
    parts: int = 1


@dataclass(frozen=True)
class NeuronTile:
    """``programs`` of each need, and how many kept neurons one of them loads at once."""

    programs: int
    neurons: int
    warps: int


@dataclass(frozen=True)
class GateTile:
    """Experts of one program, and how many columns it reads at once."""

    experts: int
    columns: int
    warps: int = 4


def row_tile(
    bits: int, held_rows: int, columns: int, needs: int, *, gated: bool, integers: bool = False
) -> RowTile:
    """For ``needs`` products of one input with matrices of ``held_rows`` rows of bytes."""
    even = columns & -columns
    if columns > LONGEST_WHOLE:
        rows, block, warps = (LONG_INTEGERS if integers else LONG)[bits]
        tiles = -(-columns // block)
        steps = tiles if gated else min(tiles, MOST_STEPS) if bits == 16 else 1
        parts = -(-tiles // steps)
    else:
        whole = columns == even or even < 256 or columns // even > 3
        block = max(2 * CHUNK, power_of_two(columns)) if whole else even
        steps, parts = (1, 1) if whole else (columns // even, 1)
        row_bytes = block * (2 if bits == 16 else 1)
        rows = min(MOST_ROWS[bits], max(1, TILE_BYTES // row_bytes))
        warps = max(1, min(4, rows * row_bytes // (WARP_BYTES * (2 if integers else 1))))
    while rows > 1 and -(-held_rows // rows) * needs * parts < LEAST_PROGRAMS:
        rows //= 2
    return RowTile(rows, block, warps, steps, parts)


def takes_integers(bits: int, columns: int, group: int, stored_bytes: int, needs: int) -> bool:
    """Whether a launch multiplies integers: its rows must divide into loads of 16 bytes."""
    fits = columns % CHUNK == 0 and (group % CHUNK == 0 or group >= columns)
    return bits in INTEGER_BITS and fits and stored_bytes * needs >= INTEGER_BYTES


def neuron_tile(hidden: int, needs: int) -> NeuronTile:
    """For kept neurons of ``needs`` experts: pairs of 2 x ``hidden`` weights."""
    programs = max(1, -(-MULTIPROCESSORS // needs))
    if hidden > 2048:
        return NeuronTile(programs, 4, 16)
    return NeuronTile(programs, 2, 8 if hidden > 512 else 4)


def gate_tile(experts: int, hidden: int) -> GateTile:
    """For the gates of layers of so many experts."""
    return GateTile(1 if experts < 32 else 2, max(32, min(power_of_two(hidden), LONGEST_WHOLE)))


def batch_tile(
    bits: int,
    most_inputs: int,
    blocks_of: int,
    *,
    parts: bool,
    capability: int = 90,
    byte_rows: int = 0,
) -> BatchTile:
    """For up to ``most_inputs`` rows of an expert; ``blocks_of``: K in blocks of one dot.

    ``parts``: whether K may be shared out, which gated products may not. It is not where
    ``byte_rows``, the rows of bytes over all tiles of inputs, make enough programs. ``capability``
    is the GPU's, times 10.
    """
    tile = _inputs_tile(bits, most_inputs, small=capability not in LARGE_TILES)
    if not parts or most_inputs > 32 or byte_rows >= LEAST_PROGRAMS * tile.rows:
        return tile
    shared = max(n for n in range(1, MOST_PARTS + 1) if blocks_of % n == 0)
    return replace(tile, parts=shared)


def _inputs_tile(bits: int, most_inputs: int, *, small: bool) -> BatchTile:
    if most_inputs <= 8:
        return BatchTile(8, 16, 1)
    if most_inputs <= 16 or (small and bits == 2):
        return BatchTile(16, 32, 2)
    if most_inputs <= 64 or bits == 2 or small:
        return BatchTile(32, 64, 4)
    return BatchTile(64, 64, 4, stages=2)


def tiled_counts(most: int) -> list[int]:
    """Counts of rows from 2 on, up to ``most``, that between them get every tile of `batch_tile`."""
    return sorted({min(most, count) for count in (8, 16, 32, 64, most)} - {0, 1})


def pairs_scales(bits: int, inputs: int, capability: int) -> bool:
    """Whether a tile of so many inputs takes two blocks' scales at once."""
    most = MOST_PAIRED.get(bits, 0)
    return inputs <= (most if capability in LARGE_TILES else min(most, 16))


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()
