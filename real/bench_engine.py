"""Measures the GPU's engine beside a bare loop of the same calls, in one run.

    python -m real.bench_engine [device=cuda] [tokens=60] [share=0.25]

Both move and compute experts of Qwen3-30B's sizes on the same synthetic routing under LRU. The bare
loop (`real.cuda.bare_loop`) has no controller and no record. It prints ms a token of each, misses
a token, and their ratio, as one JSON line. ``device=host size=tiny`` rehearses it without a GPU.
Exit status: 0; 2, with one message, where it cannot run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from real.cuda.bare_loop import BareLoop
from real.cuda.runtime import runtime_of
from real.setup.execute import replay_driver
from real.setup.prepare import prepare_replay
from real.validation.cases import request_of
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace

WORDS = {"device": "cuda", "size": "whole", "tokens": "60", "share": "0.25", "store_dir": ""}
SIZES = {"whole": (2048, 768), "tiny": (64, 32)}
"""Hidden size and neurons of an expert."""
SKEW = 1.2


def compare(device: str, size: str, tokens: int, share: float, folder: str) -> dict[str, Any]:
    """Run both; times are in ms a token, of the second half of the tokens."""
    hidden, neurons = SIZES[size]
    shape = replace(PRESETS["qwen3_30b_a3b"], hidden=hidden, expert_intermediate=neurons)
    trace = synthesize(shape, tokens=tokens, skew=SKEW)
    words = (
        "model=qwen3_30b_a3b",
        f"model.hidden={hidden}",
        f"model.expert_intermediate={neurons}",
        "model.vocab=1024",
        "engine.weights=stand_in",
        "engine.dtype=float16",
        f"engine.store_dir={folder}",
        "engine.links=free",
        "engine.compute=free",
        "hardware=h100_sxm_pcie5",
        "trace.split=all",
        f"device={device}",
    )
    prepared = prepare_replay(request_of(words, "lru", share), trace)
    model = prepared.run.model
    record = replay_driver(prepared).drive()
    spans = zip(record.step_start_ns, record.step_end_ns, strict=True)
    took = [end_ns - start_ns for start_ns, end_ns in spans]
    half_ns = record.step_start_ns[len(took) // 2]
    loads = sum(start_ns >= half_ns for start_ns in record.service_start_ns)
    loop = BareLoop(runtime_of(device), model, int(model.sites * model.experts * share))
    try:
        bare_ns, missed = loop.run(_routing(trace))
    finally:
        loop.close()
    engine_ns = median(took[len(took) // 2 :])
    return {
        "device": device,
        "routing": "synthetic",
        "expert_bytes": loop.expert_bytes,
        "resident_share": share,
        "engine_ms": round(engine_ns / 1e6, 3),
        "engine_misses": round(loads / (len(took) - len(took) // 2), 2),
        "bare_ms": round(bare_ns / 1e6, 3),
        "bare_misses": round(missed, 2),
        "ratio": round(engine_ns / bare_ns, 3),
    }


def _routing(trace: Trace) -> Any:
    """Of each token the chosen experts, site by site."""
    return (row.tolist() for row in trace.ids)


def main(arguments: Sequence[str]) -> int:
    given = dict(WORDS)
    try:
        for word in arguments:
            name, _, value = word.partition("=")
            if name not in WORDS:
                raise ValueError(f"{word} is unknown; known: {', '.join(WORDS)}")
            given[name] = value
        if given["size"] not in SIZES:
            raise ValueError(f"size={given['size']} must be one of {', '.join(SIZES)}")
        with tempfile.TemporaryDirectory() as folder:
            found = compare(
                given["device"],
                given["size"],
                int(given["tokens"]),
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
