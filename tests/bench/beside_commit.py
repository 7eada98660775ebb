"""Measures how fast systems simulate here, beside an earlier commit of this project.

    python tests/bench/beside_commit.py COMMIT [--rounds N] [SYSTEM ..] [WORD=VALUE ..]

The commit is checked out into a folder of its own. A process of each takes turns with the other, so
that whatever else the machine does slows both; both are begun anew several times, because a process
keeps the luck of its start. Printed are thousands of token-layers a second of CPU time, the best of
all rounds, and how many times as fast the project has become: of the best, and the median of pairs.
Without systems all are measured that both know. Decisions may differ between commits, and with them
the work; it asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compiled_speed import Worker

from sim.verbs.names import names

ROOT = Path(__file__).parents[2]
STARTS = 3
WORKER = """
import gc, sys, time
from pathlib import Path

# The folder's own modules, not those of an installation that can be edited.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
if Path("sim/setup").is_dir():
    from sim.engine.simulate import simulate
    from sim.setup.build import build
    from sim.setup.configure import configure
else:  # the flat folder of 2026-10
    from sim.build import build
    from sim.configure import configure
    from sim.engine import simulate

config, name = configure(*sys.argv[1:], "output_dir=unused")
print("ready", flush=True)
for _ in sys.stdin:
    run = build(config, name)
    gc.collect()
    began = time.process_time()
    simulate(run.controller, run.workload, run.durations)
    print(time.process_time() - began, len(run.controller.gate_calls), "-", flush=True)
"""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the commit's files, for as long as it is needed."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "then"
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def compared(words: Sequence[str], then: Path, rounds: int) -> list[tuple[float, float, int]]:
    """CPU seconds then and now, round by round, and the token-layers of a run now."""
    found = []
    for _ in range(STARTS):
        workers = [
            Worker(Path(sys.executable), list(words), place, WORKER) for place in (then, ROOT)
        ]
        for _ in range(rounds):
            (was, _, _), (now, gates, _) = (worker.run() for worker in workers)
            found.append((was, now, gates))
        for worker in workers:
            worker.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_intermixed_args()
    more = [word for word in arguments.words if "=" in word]
    asked = [word for word in arguments.words if "=" not in word]
    print(f"{'k token-layers/s':32}{'then':>8}{'now':>8}{'best':>8}{'median':>8}")
    with checked_out(arguments.commit) as then:
        known = [name for name in names("system") if (then / f"conf/system/{name}.yaml").is_file()]
        for system in asked or known:
            try:
                found = compared([f"system={system}", *more], then, arguments.rounds)
            except SystemExit as error:
                print(f"{system:32}{'-':>8}{'-':>8}  {error}")
                continue
            was, now = (min(row[nth] for row in found) for nth in (0, 1))
            speeds = [found[0][2] / took / 1e3 for took in (was, now)]
            median = statistics.median(row[0] / row[1] for row in found)
            print(
                f"{system:32}{speeds[0]:7.1f}k{speeds[1]:7.1f}k{was / now:7.2f}x{median:7.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
