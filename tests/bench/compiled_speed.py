"""Measures an interpreter with the compiled wheel beside one with the source, and compares results.

    python tests/bench/compiled_speed.py PYTHON COMPILED_PYTHON [--rounds N] [--runs WORDS ..]

``make compiled`` makes the wheel and calls this. Two processes take turns, so that whatever else
the machine does slows both. Printed are thousands of token-layers a second of CPU time (the best
of the rounds), and by how much the compiled one is faster: of the best, and the median of pairs.
The hash is of lookups, decisions, transfers and all times. It fails where the hashes differ, and
asserts nothing about speed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

SYSTEMS = ("lru", "hobbit", "fate", "sida", "moe_infinity", "promoe")
RUNS = [f"system={name} trace.max_sequences=4" for name in SYSTEMS]
WORKER = """
import gc, hashlib, sys, time
import sim.core.controller as core
from sim.engine.simulate import simulate
from sim.setup.build import build
from sim.setup.configure import configure
from sim.values.record import COLUMNS

config, name = configure(*sys.argv[1:], "output_dir=unused")
print(core.__file__.rsplit(".", 1)[1], flush=True)
for _ in sys.stdin:
    run = build(config, name)
    gc.collect()
    began = time.process_time()
    record = simulate(run.controller, run.workload, run.durations)
    took, done = time.process_time() - began, run.controller
    told = [list(done.lookup_keys), list(done.lookup_outcomes), list(done.lookup_wanted)]
    told += [list(column) for column in done.event_columns.values()]
    told += [done.issued.column(name).tolist() for name in ("key", "call", "moved_bytes", "outcome")]
    told += [getattr(record, name) for name in COLUMNS]
    print(took, len(done.gate_calls), hashlib.sha256(repr(told).encode()).hexdigest()[:8], flush=True)
"""


class Worker:
    """A process that simulates a run as often as it is asked to. ``kind``: what it says first."""

    def __init__(
        self, python: Path, words: list[str], folder: Path | None, script: str = WORKER
    ) -> None:
        self._told = f"{python} in {folder}: {' '.join(words)}"
        self._process = subprocess.Popen(
            [str(python), "-c", script, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        self.kind = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if answer := self._process.stdout.readline().strip():
            return answer
        raise SystemExit(f"the process of {self._told} has ended")

    def run(self) -> tuple[float, int, str]:
        """CPU time in s, token-layers, and the hash of what came out."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        took, gates, digest = self._answer().split()
        return float(took), int(gates), digest

    def end(self) -> None:
        self._process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", type=Path, nargs=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", nargs="*", default=RUNS)
    arguments = parser.parse_args()
    root, differ = Path(__file__).parents[2], False
    pure, compiled = arguments.pythons
    print(f"{'':40}{'source':>8}{'compiled':>10}{'best':>8}{'median':>8}")
    for words in arguments.runs:
        # The compiled one must not find the checkout; the other one must.
        workers = [
            Worker(pure, words.split(), root),
            Worker(compiled, words.split(), compiled.parent),
        ]
        if [worker.kind for worker in workers] != ["py", "so"]:
            raise SystemExit("give an interpreter with the source, then one with compiled modules")
        rounds = [[worker.run() for worker in workers] for _ in range(arguments.rounds)]
        for worker in workers:
            worker.end()
        best = [min(one[nth][0] for one in rounds) for nth in (0, 1)]
        speeds = [rounds[0][0][1] / took / 1e3 for took in best]
        median = statistics.median(one[0][0] / one[1][0] for one in rounds)
        hashes = {one[2] for both in rounds for one in both}
        differ = differ or len(hashes) > 1
        print(
            f"{words[:38]:40}{speeds[0]:7.1f}k{speeds[1]:9.1f}k{best[0] / best[1]:7.2f}x{median:7.2f}x"
            f"  {', '.join(sorted(hashes))}{' DIFFER' if len(hashes) > 1 else ''}",
            flush=True,
        )
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
