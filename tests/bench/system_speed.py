"""Token-layers a second of every system at 48 x 128 top-8. Measures, asserts nothing.

CPU time of the simulation alone, best of the repeats; machine and loader as in conf/, half of the expert bytes resident
on a device that holds them, one synthetic trace. What cannot run on a synthetic trace is listed with the reason. A run
that is slow is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time

from engine_speed import timeouts_per_s
from hydra import compose, initialize_config_dir

from sim.build import ROOT, build
from sim.engine import simulate
from sim.synthesis import PRESETS, synthesize
from sim.trace import Trace

WORDS = ("output_dir=unused", "model=qwen3_30b_a3b", "hardware.memory_gib=192", "trace.split=all")
LONG_S = 0.5
"""CPU time of a run's repeats, after which there is no further one."""


def token_layers_per_s(name: str, trace: Trace, repeats: int) -> float:
    """Gates a second, the best of so many fresh runs. Raise ValueError where it cannot run on this trace."""
    best, spent = 0.0, 0.0
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [f"system={name}", *WORDS])
    for _ in range(repeats):
        run = build(config, name, trace)
        start = time.process_time()
        simulate(run.controller, run.workload, run.durations)
        took = time.process_time() - start
        best, spent = max(best, len(run.controller.gate_calls) / took), spent + took
        if spent > LONG_S:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--systems", nargs="*", default=sorted(p.stem for p in (ROOT / "conf/system").glob("*.yaml")))
    arguments = parser.parse_args()
    trace = synthesize(PRESETS["qwen3_30b"], tokens=arguments.tokens, sequences=2, prompt_tokens=1, lookahead=3,
                       lookahead_accuracy=0.8, skew=1.2)  # fmt: skip
    results, timeouts = dict[str, float](), timeouts_per_s()
    print(f"{timeouts / 1e6:.2f} million SimPy timeouts/s\n{'':30}{'TL/s':>9}{'/timeout':>10}")
    for name in arguments.systems:
        try:
            results[name] = token_layers_per_s(name, trace, arguments.repeats)
        except ValueError as error:
            print(f"{name:30}{' '.join(str(error).split())[:85]}", flush=True)
            continue
        print(f"{name:30}{results[name] / 1e3:8.1f}k{results[name] / timeouts:10.3f}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
