"""Prints, by simulation, how often the 95 % intervals cover the truth.

``python tests/bench/interval_coverage.py``. Rows are numbers of sequences. A column has the lowest
and the highest coverage in per cent, over all distributions of the sequences' lengths. The last
column is the coverage of a percentile bootstrap.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]

from helpers.interval_tails import SIZES, SKEWED, TAILS, bootstrap_coverage, coverage  # noqa: E402

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


if __name__ == "__main__":
    main()
