"""Prints, by simulation, how often the 95 % intervals cover the truth.

``python tests/bench/interval_coverage.py``. Rows are numbers of sequences. A column has the lowest
and the highest coverage in per cent, over all distributions of the sequences' lengths. Below stand
the coverage of a percentile bootstrap, and that of sequences of which several are of one text.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).parents[1:3]]

from helpers.interval_tails import (  # noqa: E402
    SIZES,
    SKEWED,
    TAILS,
    bootstrap_coverage,
    coverage,
    coverage_of_texts,
)

COUNTS = (2, 3, 4, 6, 8, 16, 32)
TRIALS = 20_000


def main() -> None:
    """Print one line for each number of sequences."""
    print(
        "sequences | both systems vary: "
        + " | ".join(TAILS)
        + " | one alone varies: "
        + " | ".join(SKEWED)
    )
    for count in COUNTS:
        cells = []
        for kinds, one_sided in ((TAILS, False), (SKEWED, True)):
            for tail in kinds.values():
                found = [
                    100 * coverage(size, tail, count, TRIALS, count, one_sided)
                    for size in SIZES.values()
                ]
                cells.append(f"{min(found):.1f} to {max(found):.1f}")
        print(f"{count} | {' | '.join(cells)}", flush=True)
    for count in COUNTS:
        share = bootstrap_coverage(SIZES["lognormal .5"], TAILS["5 %"], count, 2000, count)
        print(
            f"a percentile bootstrap at {count} sequences, both by 5 %, lengths lognormal .5:"
            f" {100 * share:.0f} %"
        )
    for count, each in ((16, 2), (32, 2), (16, 4), (32, 4)):
        found = [
            f"{100 * coverage_of_texts(count, each, alike, TRIALS, count):.1f}"
            for alike in (0.2, 0.5, 1.0)
        ]
        print(f"{count} sequences, {each} of each text, 0.2, 0.5 and 1 alike: {', '.join(found)}")


if __name__ == "__main__":
    main()
