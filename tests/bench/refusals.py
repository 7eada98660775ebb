"""CPU seconds of refusals: each wrong line of `helpers.wrong_words`, as a process of its own.

    python tests/bench/refusals.py [REPEATS] [LINE ...]

It prints the slowest ten, and those of the lines given instead. It asserts nothing: a machine's
load is no property of the project. Of REPEATS (2) the fastest counts.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from first_answers import cpu_s

from helpers.wrong_words import FILES, LATER, WRONG

SHOWN = 10

if __name__ == "__main__":
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    found = []
    with tempfile.TemporaryDirectory() as place:
        for name, text in FILES.items():
            (Path(place) / name).write_text(text, encoding="utf-8")
        for line in sys.argv[2:] or (*WRONG, *LATER):
            words = ("sim.moelab", *shlex.split(line))
            found.append((min(cpu_s(words, place) for _ in range(repeats)), line))
    print(f"{len(found)} lines; the slowest:")
    for seconds, line in sorted(found, reverse=True)[:SHOWN]:
        print(f"{seconds:6.2f} s  moelab {line}")
