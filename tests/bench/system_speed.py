"""Token-layers a second of every cache policy and of every system, at 48 x 128 top-8. Measures, asserts nothing.

CPU time of the simulation alone, best of the repeats; machine and loader as in conf/, half of the expert bytes resident
on a device that holds them, one synthetic trace. Policies run in the system ``lru``, with its one cache swapped: what
stands beside them is their kind and what it may cost, as the share of this machine's SimPy timeouts a second that the
first measurements of the kinds came to at this shape (LRU 151, LFU 75, scores over arrays 55 thousand of 2.29 million).
What cannot run on a synthetic trace is listed with the reason. A run that is slow is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from engine_speed import timeouts_per_s
from hydra import compose, initialize_config_dir

from sim.build import ROOT, build
from sim.engine import simulate
from sim.policies.scores import Scored
from sim.synthesis import PRESETS, synthesize
from sim.trace import Trace

WORDS = ("output_dir=unused", "model=qwen3_30b_a3b", "hardware.memory_gib=192", "trace.split=all")
GOALS = {"order": 0.066, "count": 0.033, "score": 0.024}
"""Token-layers for each timeout of SimPy."""
COUNTING = ("LFU",)
LONG_S = 0.5
"""CPU time of a run's repeats, after which there is no further one."""


def token_layers_per_s(words: Sequence[str], name: str, trace: Trace, repeats: int) -> tuple[float, str]:
    """Gates a second, the best of so many fresh runs, and the kind of its cache policy. Raise ValueError where it
    cannot run on this trace."""
    best, spent, kind = 0.0, 0.0, ""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [*words, *WORDS])
    for _ in range(repeats):
        run = build(config, name, trace)
        cache = run.controller.cache
        kind = "score" if isinstance(cache, Scored) else "count" if type(cache).__name__ in COUNTING else "order"
        start = time.process_time()
        simulate(run.controller, run.workload, run.durations)
        took = time.process_time() - start
        best, spent = max(best, len(run.controller.gate_calls) / took), spent + took
        if spent > LONG_S:
            break
    return best, kind


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / folder).glob("*.yaml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--caches", nargs="*", default=names("cache"))
    parser.add_argument("--systems", nargs="*", default=names("system"))
    arguments = parser.parse_args()
    trace = synthesize(PRESETS["qwen3_30b"], tokens=arguments.tokens, sequences=2, prompt_tokens=1, lookahead=3,
                       lookahead_accuracy=0.8, skew=1.2)  # fmt: skip
    results, timeouts = dict[str, float](), timeouts_per_s()
    print(f"{timeouts / 1e6:.2f} million SimPy timeouts/s\n{'':30}{'TL/s':>9}{'/timeout':>10}  kind   goal")
    work = [("cache", name) for name in arguments.caches] + [("system", name) for name in arguments.systems]
    for what, name in work:
        words = [f"system={name}"] if what == "system" else ["system=lru", f"cache={name}"]
        label = f"{what}={name}"
        try:
            rate, kind = token_layers_per_s(words, name if what == "system" else "lru", trace, arguments.repeats)
        except ValueError as error:
            print(f"{label:30}{' '.join(str(error).split())[:85]}", flush=True)
            continue
        results[label] = rate
        share, goal = rate / timeouts, GOALS[kind]
        verdict = "" if what == "system" else f"  {kind}  {goal:.3f}{'' if share >= goal else '  slower'}"
        print(f"{label:30}{rate / 1e3:8.1f}k{share:10.3f}{verdict}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
