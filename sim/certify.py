"""``python -m sim.certify FILE [rerun=yes]``: check a certificate of the leaderboard.

Hashes and arithmetic take seconds: code, configuration and trace are digested, and tokens/s, ratio,
interval, coverage and verdict computed again from the times of the sequences. ``rerun=yes`` makes
both runs again and compares every number. Exit status: 0 where everything holds, 1 where something
does not, 2 for what is no certificate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sim.board.certificates import CODE, SIDES, checks, read_certificate
from sim.results.intervals import OVER
from sim.results.labels import from_row, told
from sim.verbs.table import verb_of
from sim.verbs.words import read


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status, see above."""
    faults: list[str] = []
    try:
        given = read(verb_of("certify"), words)
        found = read_certificate(Path(given.places[0]))
        rerun = given.own.get("rerun") == "yes"
        for check in checks(found, rerun):
            faults += [check.what] * bool(check.fault)
            mark = "differs" if check.fault else "holds"
            print(f"{mark:8}{check.what}{': ' * bool(check.fault or check.note)}", end="")
            print(check.fault or check.note)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    claim, pair = found["claim"], found["pair"]
    interval = pair.get("interval_95")
    low_high = "one sequence" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}"
    print(
        f"{claim['a']} against {claim['b']}: {claim['a_is']}, {pair['ratio']:.3f}x [{low_high}] as"
        f" fast; {found['board']}. {OVER}"
    )
    for line in told((claim[side], from_row(found["runs"][side]["labels"])) for side in SIDES):
        print(line)
    if not rerun:
        print(
            "Not checked: that the runs have these times, hits, bounds and labels. rerun=yes does that."
        )
    if faults and all(what.endswith(CODE) for what in faults):
        print(
            "All else holds. It was made by other code: rerun=yes shows whether its numbers hold."
        )
    else:
        print("It does not hold." if faults else "The certificate holds.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
