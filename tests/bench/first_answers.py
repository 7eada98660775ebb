"""CPU seconds of the command line's first answers: help, lists, a refusal, and one simulated run.

    python tests/bench/first_answers.py [REPEATS]

It asserts nothing: a machine's load is no property of the project. Bytecode is at hand, as it is
after an installation: the first of the repeats writes it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from sim.values.places import ROOT

ASKED = (
    ("sim.moelab", "--help"),
    ("sim.moelab", "ask", "--help"),
    ("sim.moelab", "list", "systems"),
    ("sim.moelab", "list", "models"),
    ("real.validate", "systems=lr", "budgets=0.5"),
    ("sim", "system=lru", "trace.max_sequences=1", "outputs=summary"),
)


def cpu_s(words: tuple[str, ...], folder: str) -> float:
    """User and system seconds of one command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as place:
        for asked in ASKED:
            best = min(cpu_s(asked, place) for _ in range(repeats))
            print(f"{best:6.2f} s  python -m {' '.join(asked)}")
