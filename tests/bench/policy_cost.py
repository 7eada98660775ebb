"""Measures the cost of each cache policy for a token-layer at 48 x 128 top-8, in SimPy timeouts.

It asserts nothing. LRU decides, with half of the experts resident and forecasts of one site. The
policy beside LRU is told the same and is asked for a victim at every claim, so all policies serve
the same requests, inserts and evictions. What needs a fit is fitted on a second sequence. A
policy's cost is how much longer the run takes than one with no policy beside LRU: CPU time, as the
median of pairs, with the timeouts measured between the two.

What a kind may cost is what its first member cost, over one pool, when the kinds were first
measured at this shape, on a machine of 2.29 million timeouts a second. That was 151 thousand
token-layers a second with LRU, with 12 % of the time in LRU; 75 thousand with LFU; 55 thousand with
scores over arrays. The difference to LRU's time counts on top of LRU's own.

``--predictors``: a predictor's cost is the CPU time of asking it and telling it every gate, alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence

from engine_speed import timeouts_per_s
from hydra import compose, initialize_config_dir

from sim.engine.simulate import simulate
from sim.policies.adaptive import ARC
from sim.policies.base import CachePolicy, Gate
from sim.policies.frequency import LFU
from sim.policies.recency import FIFO, LRU
from sim.policies.scored import Scored
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace
from sim.values.places import ROOT
from sim.values.types import Cause

WORDS = (
    "output_dir=unused",
    "model=qwen3_30b_a3b",
    "hardware.memory_gib=192",
    "trace.split=eval",
    "system=lru",
    "predictor=gate_lookahead_1",
)
MEASURED_TIMEOUTS_PER_S = 2.29e6
LRU_S = 0.12 / 151e3
MAY_TAKE_S = {
    "order": LRU_S,
    "count": LRU_S + 1 / 75e3 - 1 / 151e3,
    "score": LRU_S + 1 / 55e3 - 1 / 151e3,
}
KINDS: dict[type, str] = {Scored: "score", LFU: "count", ARC: "count", LRU: "order", FIFO: "order"}
"""The kind of each policy. ARC keeps more than one order, as LFU does.

Other kinds, such as Belady, which sorts by the future, were not measured.
"""


class Beside:
    """A policy that decides, and another that is told and asked the same, but not heeded."""

    admits_all = True

    def __init__(
        self, decides: CachePolicy, other: CachePolicy | None, pool_of: Sequence[int]
    ) -> None:
        self.decides, self.other, self.pool_of = decides, other, pool_of

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        other = self.other
        if other is not None:
            victim = next(other.victims(self.pool_of[incoming], incoming, blocked), -1)
            if not other.admits_all and victim >= 0:
                other.admit(incoming, (victim,))
        return self.decides.victims(pool, incoming, blocked)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        self.decides.on_requests(keys, wanted, outcomes, gate)
        if self.other is not None:
            self.other.on_requests(keys, wanted, outcomes, gate)

    def on_insert(self, key: int, cause: Cause) -> None:
        self.decides.on_insert(key, cause)
        if self.other is not None:
            self.other.on_insert(key, cause)

    def on_evict(self, key: int) -> None:
        self.decides.on_evict(key)
        if self.other is not None:
            self.other.on_evict(key)

    def on_sequence(self, sequence: int, begins: bool) -> None:
        self.decides.on_sequence(sequence, begins)
        if self.other is not None:
            self.other.on_sequence(sequence, begins)


def prepared(words: Sequence[str], trace: Trace) -> Run:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return build(compose("config", [*WORDS, *words]), "lru", trace)


def run_s(trace: Trace, name: str | None) -> tuple[float, int, str]:
    """CPU time of a run with this policy beside LRU, its token-layers, and the policy's kind."""
    run = prepared(["cache.initial=empty"], trace)
    other, pool_of, kind = None, run.controller.slots.pool_of, ""
    if name is not None:
        slots = prepared([f"cache={name}", "loader.staging_slots=16"], trace).controller.slots
        other, pool_of = slots.cache, slots.pool_of
        kind = next((kind for of, kind in KINDS.items() if isinstance(other, of)), "other")
        for key in slots.initial:
            other.on_evict(key)
    run.controller.cache = run.controller.slots.cache = Beside(run.controller.cache, other, pool_of)
    gc.collect()
    start = time.process_time()
    simulate(run.controller, run.workload, run.durations)
    return time.process_time() - start, len(run.controller.gate_calls), kind


def forecast_s(trace: Trace, name: str) -> tuple[float, int]:
    """CPU time of a predictor that is asked and told at every gate, and how many gates there are."""
    run = prepared([f"predictor={name}"], trace)
    predictor, gate, gates = run.controller.predictor, run.workload.gate(), 0
    start = time.process_time()
    for step in run.workload.steps:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            list(predictor.predict(gate))
            gates += 1
            if predictor.learns:
                predictor.observe(gate)
    return time.process_time() - start, gates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--caches",
        nargs="*",
        default=sorted(p.stem for p in (ROOT / "conf" / "cache").glob("*.yaml")),
    )
    parser.add_argument("--predictors", nargs="*", default=[])
    arguments = parser.parse_args()
    trace = synthesize(PRESETS["qwen3_30b_a3b"], tokens=arguments.tokens, sequences=2, skew=1.2)
    results = dict[str, float]()
    print(f"{'':34}timeouts  kind   may take")
    for name in arguments.caches:
        costs = []
        for _ in range(arguments.repeats):
            (alone_s, _, _), timeouts = run_s(trace, None), timeouts_per_s()
            beside_s, layers, kind = run_s(trace, name)
            costs.append((beside_s - alone_s) / layers * timeouts)
        results[name], may = (
            statistics.median(costs),
            MAY_TAKE_S.get(kind, math.inf) * MEASURED_TIMEOUTS_PER_S,
        )
        print(
            f"{name:34}{results[name]:8.1f}  {kind} "
            f" {may:6.1f}{'' if results[name] <= may else '  more'}",
            flush=True,
        )
    for name in arguments.predictors:
        costs = []
        for _ in range(arguments.repeats):
            (took_s, gates), timeouts = forecast_s(trace, name), timeouts_per_s()
            costs.append(took_s / gates * timeouts)
        results[name] = statistics.median(costs)
        print(f"{name:34}{results[name]:8.1f}  predictor", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
