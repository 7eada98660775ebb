"""Measures a timed simulation beside moe-cache-eval's untimed replays, in one run, on one trace.

    python tests/bench/beside_peer.py PEER trace.path=DIR [--repeats N] [WORD=VALUE ..]

PEER is a checkout of github.com/shijiuzhang/moe-cache-eval, which is no part of this project (and
needs torch and safetensors). All three replay the decoded tokens of the same sequences with an LRU
cache a layer. The peer counts hits and no time: access by access (``serial``), or gate by gate
(``event-atomic``, which is what this project does).

It asserts nothing. Numbers are thousands of token-layers a second of CPU time, the best of the
repeats, which take turns; the last column is this project's speed over each.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sim.engine.simulate import simulate
from sim.setup.build import build
from sim.setup.configure import configure
from sim.workload.steps import Workload

WORDS = ("system=lru", "cache=lru_per_site", "output_dir=unused")


def peer_trace(events: Any, workload: Workload) -> Any:
    """The run's decoded tokens in the peer's form: an event for each gate."""
    model, needs, gates = workload.trace.header.model, workload.needs, workload.num_gates
    step, site = workload.gate_step, workload.gate_site
    counts = np.bincount(needs.tick, minlength=gates)
    sequence = np.array([step.sequences[0] for step in workload.steps], np.int64)[step]
    return events.EventTrace(
        root=Path(),
        manifest={"model": {"num_layers": model.sites, "num_experts": model.experts}},
        request_indices=sequence,
        scheduler_steps=step,
        forward_cycles=step,
        phases=np.full(gates, events.PHASE_DECODE, np.int8),
        layer_ids=site,
        token_counts=np.ones(gates, np.int64),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        expert_ids=needs.expert,
        assignment_counts=needs.tokens,
        gate_mass=needs.weight,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.peer))
    peer, events = (
        importlib.import_module(f"moe_controller.{n}") for n in ("simulation", "events")
    )
    config, name = configure(*WORDS, *arguments.words)
    run = build(config, name)
    if any(not step.decode or len(step.sequences) != 1 for step in run.workload.steps):
        raise SystemExit("the trace must have decoded tokens alone, one sequence at a time")
    trace, geometry = peer_trace(events, run.workload), run.controller.geometry
    capacity = sum(run.controller.slots.capacity_bytes) // geometry.variant_bytes[0]
    given = {"policy": "lru", "capacity_blocks": capacity, "cache_scope": "per_layer"}

    def ours() -> float:
        fresh = build(config, name)
        began = time.process_time()
        simulate(fresh.controller, fresh.workload, fresh.durations)
        return time.process_time() - began

    def theirs(replay: Callable[..., Any]) -> float:
        began = time.process_time()
        replay(trace, **given)
        return time.process_time() - began

    ways: dict[str, Callable[[], float]] = {
        "here, timed": ours,
        "peer, serial, untimed": lambda: theirs(peer.simulate),
        "peer, event-atomic, untimed": lambda: theirs(peer.simulate_event_atomic),
    }
    best = dict.fromkeys(ways, np.inf)
    for _ in range(arguments.repeats):
        for way, run_it in ways.items():
            best[way] = min(best[way], run_it())
    print(
        f"{trace.num_events} token-layers, {capacity} of {trace.num_expert_blocks} experts resident"
    )
    for way, took_s in best.items():
        speed = trace.num_events / took_s / 1e3
        print(f"{way:30}{speed:8.1f}k TL/s{took_s / best['here, timed']:8.2f}x")


if __name__ == "__main__":
    main()
