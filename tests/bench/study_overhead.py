"""Measures what a study costs beyond its simulations, in processor time a cell.

Run by hand (Linux): ``python tests/bench/study_overhead.py [cells]``. The study has configurations
of one short sequence in a pool of two processes. Its overhead is the time of all processes, imports
included, minus the time of ``execute`` (simulating and measuring) in them. A study of ten cells before
it tells what starting takes, and so what each further cell does. This machine's speed, as SimPy's
timeouts a second, is printed beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import simpy

from sim.study import launchers, worker
from sim.study.cells import plan_cells
from sim.study.conduct import conduct
from sim.study.plan import read_plan

STUDY = """
base: [trace.max_sequences=1]
grid:
  system: [lru, load_on_demand, mixtral_offloading, llama_cpp, transformers]
  budget.resident_share: [{shares}]
"""
TIMES = "STUDY_OVERHEAD_TIMES"
FEW = 10
"""The cells of a study whose overhead is that of starting."""


def start_timed() -> None:
    """In a worker: note the processor time of every ``execute``."""
    worker.begin_work()
    real, place = worker.execute, Path(os.environ[TIMES]) / str(os.getpid())

    def timed(*given: Any) -> Any:
        began = time.process_time()
        result = real(*given)
        with place.open("a", encoding="utf-8") as file:
            file.write(f"{time.process_time() - began}\n")
        return result

    worker.execute = timed  # type: ignore[assignment]


def study(folder: Path, cells: int) -> None:
    """The study itself, in a process of its own."""
    launchers.begin_work = start_timed
    place = folder / "study.yaml"
    shares = ", ".join(f"{0.3 + 0.2 * i / (cells // 5):.4f}" for i in range(cells // 5))
    place.write_text(STUDY.format(shares=shares), encoding="utf-8")
    conduct("overhead", plan_cells(read_plan(str(place))), launchers.Pool(2), folder / "out")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timeouts_per_s(count: int = 200_000) -> float:
    """SimPy timeouts of one process a second of processor time."""
    env = simpy.Environment()

    def sleep() -> Any:
        for _ in range(count):
            yield env.timeout(1)

    env.process(sleep())
    began = time.process_time()
    env.run()
    return count / (time.process_time() - began)


def measured(cells: int) -> tuple[float, float, float]:
    """Of a study in a process of its own: wall seconds, processor seconds, those of ``execute``."""
    before_s = cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        times.mkdir()
        started = time.perf_counter()
        os.spawnve(
            os.P_WAIT,
            sys.executable,
            [sys.executable, __file__, str(cells), folder],
            {**os.environ, TIMES: str(times)},
        )
        wall_s = time.perf_counter() - started
        try:
            while True:
                os.wait()
        except ChildProcessError:
            whole_s = cpu_s() - before_s
        executed = [
            float(line)
            for place in times.iterdir()
            for line in place.read_text(encoding="utf-8").split()
        ]
    assert len(executed) == cells, f"{len(executed)} of {cells} cells ran"
    return wall_s, whole_s, sum(executed)


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    # Workers are children of a fork server that outlives the study. As their subreaper, this
    # process counts them all.
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    _, few_s, few_executed_s = measured(FEW)
    wall_s, whole_s, executed_s = measured(cells)
    began_s, ended_s = few_s - few_executed_s, whole_s - executed_s
    print(
        json.dumps(
            {
                "cells": cells,
                "wall_s": round(wall_s, 2),
                "cpu_s": round(whole_s, 2),
                "execute_cpu_s": round(executed_s, 2),
                "overhead_ms_a_cell": round(1e3 * ended_s / cells, 2),
                "of_which_each_cell_ms": round(1e3 * (ended_s - began_s) / (cells - FEW), 2),
                "start_s": round(began_s, 2),
                "simpy_timeouts_per_s": round(timeouts_per_s()),
            }
        )
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        study(Path(sys.argv[2]), int(sys.argv[1]))
    else:
        main()
