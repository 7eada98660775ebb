"""The piece that runs the engine beside a bare loop of the same calls (`real.cuda.bare_loop`).

Both move and compute experts of one model's sizes on the same synthetic routing under LRU. The bare
loop has no controller and no record, so it shows what these cost.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from real.cuda.bare_loop import BareLoop
from real.cuda.runtime import runtime_of
from real.setup.execute import replay_driver
from real.setup.prepare import prepare_replay
from real.suite.context import Cells, Context
from real.suite.runs import STORES
from real.suite.targets import Row
from real.validation.cases import request_of
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace

SKEW = 1.2
MOST_RATIO = 1.3
"""At most so many times the bare loop's time."""
LEAST_S = 8.0
"""A comparison is not begun with less time left."""


@dataclass(frozen=True)
class Sizes:
    """Of one model: hidden size, neurons of an expert, and how many tokens tell its time."""

    hidden: int
    neurons: int
    tokens: int


MODELS = {"qwen3_30b_a3b": Sizes(2048, 768, 60), "mixtral_8x7b": Sizes(4096, 14336, 16)}
TINY = Sizes(64, 32, 4)
SHARES = (0.25, 0.5)


def engine(context: Context) -> None:
    """Measure both at each model's sizes and each share. Result: ``engine.json``."""
    cells = Cells(context, "engine")
    for model, whole in MODELS.items():
        sizes = TINY if context.size == "tiny" else whole
        for share in SHARES:
            # Not among the results, which are packed and kept.
            work = partial(compare, context.device, model, sizes, share, str(STORES))
            cells.run(f"{model} at {share:.0%}", work, LEAST_S)
            gc.collect()
    cells.check_whole()


def compare(device: str, model: str, sizes: Sizes, share: float, folder: str) -> dict[str, Any]:
    """Run both; times are in ms a token, of the second half of the tokens."""
    words = (
        f"model={model}",
        f"model.hidden={sizes.hidden}",
        f"model.expert_intermediate={sizes.neurons}",
        "model.vocab=1024",
        "engine.weights=stand_in",
        "engine.dtype=float16",
        f"engine.store_dir={folder}",
        "engine.links=free",
        "engine.compute=free",
        "hardware=h100_sxm_pcie5",
        # Its gates are not replayed: a bundle has this trace and no other.
        "trace=tiny_mixtral",
        "trace.split=all",
        f"device={device}",
    )
    gates = replace(PRESETS[model], hidden=sizes.hidden, expert_intermediate=sizes.neurons)
    trace = synthesize(gates, tokens=sizes.tokens, skew=SKEW)
    prepared = prepare_replay(request_of(words, "lru", share), trace)
    shape = prepared.run.model
    record = replay_driver(prepared).drive()
    spans = zip(record.step_start_ns, record.step_end_ns, strict=True)
    took = [end_ns - start_ns for start_ns, end_ns in spans]
    half_ns = record.step_start_ns[len(took) // 2]
    loads = sum(start_ns >= half_ns for start_ns in record.service_start_ns)
    loop = BareLoop(runtime_of(device), shape, int(shape.sites * shape.experts * share))
    try:
        bare_ns, missed = loop.run(_routing(trace))
    finally:
        loop.close()
    engine_ns = median(took[len(took) // 2 :])
    return {
        "device": device,
        "model": model,
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


def engine_targets(context: Context) -> Iterator[Row]:
    """Judge what ``engine.json`` has measured."""
    for row in (context.load("engine") or {"rows": []})["rows"]:
        if found := row.get("result"):
            yield (
                f"a token of the engine, {row['cell']}, beside a bare loop",
                f"<= {MOST_RATIO:g} times",
                f"{found['ratio']:.2f} times",
                found["ratio"] <= MOST_RATIO,
            )
