"""Token-layers a second of every system at 48 x 128 top-8, on one synthetic trace. Measures, asserts nothing.

CPU time of the simulation alone, best of the repeats; machine and loader as in conf/, half of the expert bytes resident
on a device that holds them. A system that needs what a synthetic trace does not have is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import time

from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table

from sim.build import ROOT, build
from sim.engine import simulate
from sim.synthesis import PRESETS, synthesize
from sim.trace import Trace

WORDS = ("output_dir=unused", "model=qwen3_30b_a3b", "hardware.memory_gib=192", "trace.split=all")


def token_layers_per_s(system: str, trace: Trace, repeats: int) -> float:
    """Gates a second, the best of so many fresh runs. Raise ValueError where the system cannot run on this trace."""
    best = 0.0
    for _ in range(repeats):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            run = build(compose("config", [f"system={system}", *WORDS]), system, trace)
        start = time.process_time()
        simulate(run.controller, run.workload, run.durations)
        best = max(best, len(run.controller.gate_calls) / (time.process_time() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--systems", nargs="*", default=sorted(p.stem for p in (ROOT / "conf" / "system").glob("*.yaml"))
    )
    arguments = parser.parse_args()
    trace = synthesize(PRESETS["qwen3_30b"], tokens=arguments.tokens, sequences=2, prompt_tokens=1, lookahead=3,
                       lookahead_accuracy=0.8, skew=1.2)  # fmt: skip
    table, results = Table("system", "TL/s"), dict[str, float]()
    for system in arguments.systems:
        try:
            results[system] = token_layers_per_s(system, trace, arguments.repeats)
            table.add_row(system, f"{results[system] / 1e3:.1f}k")
        except ValueError as error:
            table.add_row(system, str(error)[:90])
    Console().print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
