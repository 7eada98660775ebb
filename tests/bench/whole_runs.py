"""Measures what whole runs cost: simulating, a summary, and all outputs, by system.

    python tests/bench/whole_runs.py [--repeats N] [SYSTEM ..] [WORD=VALUE ..]

It asserts nothing. Numbers are CPU times of this process, the best of the repeats, because other
work on the machine only adds to them. All that is compared takes turns: a machine that is slow for
a while is slow for everybody. The last column is a gate's time over that of the system named first.
MB/M are by how much a process of its own grew while it simulated, for each million token-layers.
Peak is the most that a process of its own held, in GB for each million, from reading the trace to
having written all outputs.

``summary`` and ``all`` are CPU times over that of the simulation, itself included.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import re
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sim.engine.simulate import simulate
from sim.results.outputs import write_outputs
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

SYSTEMS = ("lru", "mixtral_offloading", "hobbit", "fate", "sida", "moe_infinity")


def simulated_s(system: str, words: Sequence[str]) -> tuple[float, int]:
    """CPU seconds of one simulation, and its token-layers."""
    config, name = configure(f"system={system}", *words)
    run = build(config, name)
    gc.collect()
    began = time.process_time()
    simulate(run.controller, run.workload, run.durations)
    return time.process_time() - began, run.workload.num_gates


def executed_s(system: str, words: Sequence[str], everything: bool) -> float:
    """CPU seconds of simulating and measuring; with ``everything`` of writing all outputs, too."""
    config, name = configure(f"system={system}", *words)
    run = build(config, name)
    gc.collect()
    began = time.process_time()
    result = execute(run)
    with tempfile.TemporaryDirectory() as folder:
        frames = result.frames if everything else None
        wait = run.controller.loader.wait
        write_outputs(Path(folder), result.summary, run.config, frames, wait, 4)
    return time.process_time() - began


def alone(
    measure: Callable[[str, Sequence[str]], float], system: str, words: Sequence[str]
) -> float:
    """What a process of its own measures."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (system, tuple(words)))


def grown_mb(system: str, words: Sequence[str]) -> float:
    """By how many MB this process grows while it simulates, for a million token-layers."""
    config, name = configure(f"system={system}", *words)
    run = build(config, name)
    run.workload.choices.keys(0)
    before = resident_bytes()
    record = simulate(run.controller, run.workload, run.durations, packed=True)
    grown = resident_bytes() - before
    assert record.makespan_ns
    return grown / run.workload.num_gates


def peak_gb(system: str, words: Sequence[str]) -> float:
    """The most GB that this process holds in a run with all outputs, for a million token-layers."""
    executed_s(system, words, True)
    config, name = configure(f"system={system}", *words)
    gates = build(config, name).workload.num_gates
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (most,) = re.findall(r"VmHWM:\s*(\d+) kB", status)  # ru_maxrss begins with the parent's
    return int(most) * 1024 / 1e3 / gates


def resident_bytes() -> int:
    """What this process holds in memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    words = [word for word in arguments.words if "=" in word]
    systems = [word for word in arguments.words if "=" not in word] or list(SYSTEMS)
    gates: dict[str, int] = {}
    took_s: dict[str, list[list[float]]] = {system: [] for system in systems}
    for _ in range(arguments.repeats):
        for system in systems:
            simulating_s, gates[system] = simulated_s(system, words)
            whole_s = (executed_s(system, words, everything) for everything in (False, True))
            took_s[system].append([simulating_s, *whole_s])
    best = {system: list(map(min, zip(*took_s[system], strict=True))) for system in systems}
    print(
        f"{'':24}{'gates':>9}{'TL/s':>10}{'MB/M':>7}{'summary':>9}{'all':>6}{'peak':>6}{'to first':>10}"
    )
    first = best[systems[0]][0] / gates[systems[0]]
    for system in systems:
        simulating_s, summary_s, all_s = best[system]
        print(
            f"{system:24}{gates[system]:9}{gates[system] / simulating_s / 1e3:9.1f}k"
            f"{alone(grown_mb, system, words):7.0f}{summary_s / simulating_s:8.2f}x"
            f"{all_s / simulating_s:5.2f}x"
            f"{alone(peak_gb, system, words):6.2f}"
            f"{simulating_s / gates[system] / first:10.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
