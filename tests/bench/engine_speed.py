"""Measures the engine in token-layers a second, beside the machine's SimPy timeouts a second.

It asserts nothing. Each shape runs one synthetic sequence with half of the experts resident and
gate lookahead of one site. Columns of lookups, transfers and decisions are on; derived tables and
bounds are outside of the measurement. Numbers are of one core's CPU time, as medians of pairs. Then
the first shape runs with LRU on other machines. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import simpy
from rich.console import Console
from rich.table import Table

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy
from sim.policies.frequency import LFU
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import GateLookahead
from sim.policies.recency import LRU
from sim.policies.weighted_score import WeightedScore
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace
from sim.values.types import Geometry, Route
from sim.values.units import ms
from sim.workload.steps import Workload

# By shape: (MB an expert, ms of dense work a site, ms an expert). The link has 25 GB/s and takes 10
# us a transfer.
TIMES = {
    "mixtral_8x7b": (352.0, 0.7, 0.4),
    "qwen1_5_moe_a2_7b": (17.3, 0.35, 0.05),
    "qwen3_30b_a3b": (9.4, 0.25, 0.03),
}
GATES = {"mixtral_8x7b": 0.11, "qwen1_5_moe_a2_7b": 0.075, "qwen3_30b_a3b": 0.045}
EQ3 = {"lru": 0.3, "lfu": 0.2, "lhu": 0.4, "fld": 0.1}
TOKENS = 300
CACHES: dict[str, Callable[[], CachePolicy]] = {
    "LRU": LRU,
    "LFU": LFU,
    "eq. 3": lambda: WeightedScore(EQ3, scope="global", shares=()),
}


@dataclass(frozen=True)
class Machine:
    """Links, and what the loader does with them.

    ``ram``: a managed tier that holds this share of all experts.
    """

    engines: tuple[int, ...] = (1,)
    head_bytes: tuple[int, ...] = (0,)
    ram: float = 0.0
    chunk_bytes: int | None = None


ONE_LINK = Machine()
MACHINES = {
    "one link": ONE_LINK,
    "two engines": Machine((2,)),
    "two links": Machine((1, 1), (0, 0)),
    "cut-through": Machine((1, 1), (0, 1 << 20)),
    "managed RAM": Machine((1, 1), (0, 0), ram=0.8),
    "chunks": Machine(chunk_bytes=16 << 20),
    "two links, managed RAM, chunks": Machine((1, 1), (0, 0), ram=0.8, chunk_bytes=16 << 20),
}


class Linear(dict[int, int]):
    """Nanoseconds by bytes: 25 GB/s after 10 us."""

    def __missing__(self, moved_bytes: int) -> int:
        return self.setdefault(moved_bytes, round(moved_bytes / 25) + 10_000)


def timeouts_per_s(count: int = 100_000) -> float:
    """One SimPy process that waits ``count`` times."""
    env = simpy.Environment()

    def process() -> Generator[simpy.Event, None, None]:
        for _ in range(count):
            yield env.timeout(1)

    env.process(process())
    start = time.process_time()
    env.run()
    return count / (time.process_time() - start)


def token_layers_per_s(
    name: str, trace: Trace, make: Callable[[], CachePolicy], machine: Machine = ONE_LINK
) -> float:
    shape = PRESETS[name]
    megabytes, dense_ms, expert_ms = TIMES[name]
    size = round(megabytes * 1e6)
    experts = shape.sites * shape.experts
    geometry = Geometry(
        shape.sites, shape.experts, shape.top_k, ("fp16",), (16.0,), (size,), experts // 2 * size
    )
    workload = Workload(trace, split="all", batching="sequential", lookahead=1)
    _ = (
        workload.choices.keys(0),
        workload.choices.forecast_keys(0),
    )  # numpy, once a trace: not the engine
    loader = Loader(wait="as_ready", depth="first_missing", chunk_bytes=machine.chunk_bytes)
    ram = {"ram_link": 1, "ram_bytes": round(machine.ram * experts) * size} if machine.ram else {}
    controller = Controller(
        geometry,
        GateLookahead(1),
        make(),
        Fixed("fp16"),
        Load(),
        loader,
        route=Route(machine.engines, machine.head_bytes, **ram),
        ram_cache=LRU() if machine.ram else None,
    )
    links = [Linear() for _ in machine.engines]
    durations = FixedDurations(
        [ms(dense_ms)] * shape.sites, 0, [ms(expert_ms)], links, latency_ns=[10_000] * len(links)
    )
    gc.collect()
    start = time.process_time()
    simulate(controller, workload, durations)
    return len(controller.gate_calls) / (time.process_time() - start)


@dataclass(frozen=True)
class Found:
    """Medians over repeats: token-layers a second, and their ratio to timeouts a second.

    The timeouts are measured just before and after each run. The quartiles are the ratio's:
    machines that others share change their pace within seconds.
    """

    rate: float
    ratio: float
    quartiles: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"{self.rate / 1e3:.0f}k, {self.ratio:.3f}, {self.quartiles[0]:.3f} to"
            f" {self.quartiles[1]:.3f}"
        )


def measure(
    repeats: int, runs: Mapping[str, Callable[[], float]]
) -> tuple[float, dict[str, Found]]:
    """The median of timeouts a second, and what each run gives; runs take turns."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    base = [timeouts_per_s()]
    for _ in range(repeats):
        for name, run in runs.items():
            rates[name].append(run())
            base.append(timeouts_per_s())
            ratios[name].append(rates[name][-1] / statistics.harmonic_mean(base[-2:]))
    found = {}
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        found[name] = Found(statistics.median(rates[name]), middle, (low, high))
    return statistics.median(base), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    console, results = Console(width=160), dict[str, Any]()
    table = Table(
        "shape",
        "timeouts/s",
        *(f"{name} (TL/s, ratio, its quartiles)" for name in CACHES),
        "goal (LRU)",
    )
    for name in TIMES:
        trace = synthesize(PRESETS[name], tokens=TOKENS, skew=1.2)
        runs = {
            cache: partial(token_layers_per_s, name, trace, make) for cache, make in CACHES.items()
        }
        timeouts, found = measure(repeats, runs)
        table.add_row(name, f"{timeouts / 1e6:.2f}M", *map(str, found.values()), f"{GATES[name]}")
        results[name] = {
            "timeouts_per_s": timeouts,
            **{cache: one.ratio for cache, one in found.items()},
        }
    console.print(table)
    name = next(iter(TIMES))
    trace = synthesize(PRESETS[name], tokens=TOKENS, skew=1.2)
    runs = {
        machine: partial(token_layers_per_s, name, trace, LRU, of)
        for machine, of in MACHINES.items()
    }
    _, found = measure(repeats, runs)
    table = Table(f"{name}, LRU", "TL/s, ratio, its quartiles")
    for machine, one in found.items():
        table.add_row(machine, str(one))
    console.print(table)
    results["machines"] = {machine: one.ratio for machine, one in found.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
