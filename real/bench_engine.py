"""Measures the GPU's engine beside a bare loop of the same calls, in one run.

    python -m real.bench_engine [device=cuda] [model=qwen3_30b_a3b] [tokens=60] [share=0.25]

Both move and compute experts of the model's sizes on the same synthetic routing under LRU
(`real.suite.engine`, which is a piece of the suite). It prints ms a token of each, misses a token,
and their ratio, as one JSON line. ``device=host size=tiny`` rehearses it without a GPU. Exit
status: 0; 2, with one message, where it cannot run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from real.suite.engine import MODELS, TINY, compare

WORDS = {
    "device": "cuda",
    "model": "qwen3_30b_a3b",
    "size": "whole",
    "tokens": "",
    "share": "0.25",
    "store_dir": "",
}
KNOWN = {"size": ("whole", "tiny"), "model": tuple(MODELS)}


def main(arguments: Sequence[str]) -> int:
    given = dict(WORDS)
    try:
        for word in arguments:
            name, _, value = word.partition("=")
            if name not in WORDS:
                raise ValueError(f"{word} is unknown; known: {', '.join(WORDS)}")
            given[name] = value
        for name, known in KNOWN.items():
            if given[name] not in known:
                raise ValueError(f"{name}={given[name]} must be one of {', '.join(known)}")
        sizes = TINY if given["size"] == "tiny" else MODELS[given["model"]]
        sizes = replace(sizes, tokens=int(given["tokens"] or sizes.tokens))
        with tempfile.TemporaryDirectory() as folder:
            found = compare(
                given["device"],
                given["model"],
                sizes,
                float(given["share"]),
                given["store_dir"] or folder,
            )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
