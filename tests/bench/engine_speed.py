"""Token-layers a second of the engine, beside this machine's SimPy timeouts a second. Measures, asserts nothing.

Each shape: one synthetic sequence, half of the experts resident, gate lookahead of one site, lookup, transfer and
decision columns on, derived tables and bounds outside, one core, CPU time, medians. The last line is one JSON
document.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

import simpy
from rich.console import Console
from rich.table import Table

from sim.controller import Controller
from sim.costs import FixedDurations
from sim.engine import simulate
from sim.loader import Loader
from sim.policies.base import CachePolicy
from sim.policies.caches import LFU, LRU, WeightedScore
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import GateLookahead
from sim.synthesis import PRESETS, synthesize
from sim.trace import Trace
from sim.types import Geometry
from sim.units import ms
from sim.workload import Workload

# Shape: (MB an expert, ms of dense work a site, ms an expert), a link of 25 GB/s with 10 us a transfer.
TIMES = {"mixtral_8x7b": (352.0, 0.7, 0.4), "qwen15_moe": (17.3, 0.35, 0.05), "qwen3_30b": (9.4, 0.25, 0.03)}
GATES = {"mixtral_8x7b": 0.11, "qwen15_moe": 0.075, "qwen3_30b": 0.045}
EQ3 = {"lru": 0.3, "lfu": 0.2, "lhu": 0.4, "fld": 0.1}
TOKENS = 300


def timeouts_per_s(count: int = 200_000) -> float:
    """One SimPy process that waits ``count`` times."""
    env = simpy.Environment()

    def process():
        for _ in range(count):
            yield env.timeout(1)

    env.process(process())
    start = time.process_time()
    env.run()
    return count / (time.process_time() - start)


def token_layers_per_s(name: str, trace: Trace, cache: CachePolicy) -> float:
    shape = PRESETS[name]
    megabytes, dense_ms, expert_ms = TIMES[name]
    size = round(megabytes * 1e6)
    slots = shape.sites * shape.experts // 2
    geometry = Geometry(shape.sites, shape.experts, shape.top_k, ("fp16",), (16.0,), (size,), slots * size)
    workload = Workload(trace, split="all", batching="sequential", lookahead=1)
    _ = workload.chosen, workload.forecasts  # numpy, once a trace: not the engine
    loader = Loader(wait="as_ready", depth="first_missing")
    controller = Controller(geometry, GateLookahead(1), cache, Fixed("fp16"), Load(), loader)
    durations = FixedDurations([ms(dense_ms)] * shape.sites, 0, [ms(expert_ms)], {size: round(size / 25) + 10_000})
    gc.collect()
    start = time.process_time()
    simulate(controller, workload, durations)
    return len(controller.gate_calls) / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    caches = {"LRU": LRU, "LFU": LFU, "eq. 3": lambda: WeightedScore(EQ3, scope="global", shares=())}
    table = Table("shape", "timeouts/s", *(f"{name} (TL/s, ratio)" for name in caches), "goal (LRU)")
    results = {}
    for name in TIMES:
        trace = synthesize(PRESETS[name], tokens=TOKENS, skew=1.2)
        runs: dict[str, list[float]] = {cache: [] for cache in caches}
        base = []
        for _ in range(repeats):
            base.append(timeouts_per_s())
            for cache, make in caches.items():
                runs[cache].append(token_layers_per_s(name, trace, make()))
        timeouts = statistics.median(base)
        rates = {cache: statistics.median(values) for cache, values in runs.items()}
        cells = [f"{rate / 1e3:.0f}k, {rate / timeouts:.3f}" for rate in rates.values()]
        table.add_row(name, f"{timeouts / 1e6:.2f}M", *cells, f"{GATES[name]}")
        results[name] = {"timeouts_per_s": timeouts, **{cache: rate / timeouts for cache, rate in rates.items()}}
    Console().print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
