"""What a study costs beyond its simulations, in CPU time a cell; run by hand: ``python tests/bench/study_overhead.py``.

500 configurations of one short sequence, in a pool of two processes. Processor time of all processes, from the first
import to the last row, less that of ``execute`` (simulating and measuring) for the same configurations in a bare loop.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sim.build import build
from sim.execute import execute
from sim.shared import Shared
from sim.study.cells import plan_cells
from sim.study.plan import read_plan

STUDY = """
base: [trace.max_sequences=1]
grid:
  system: [lru, load_on_demand, mixtral_offloading, llama_cpp, transformers]
  budget.resident_share: [{shares}]
"""


def cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study.yaml"
        shares = ", ".join(f"{0.3 + 0.2 * i / (cells // 5):.4f}" for i in range(cells // 5))
        study.write_text(STUDY.format(shares=shares), encoding="utf-8")
        before, started = cpu_s(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "sim.study", f"name={study}", "workers=2", f"output_dir={folder}/out"], check=True
        )
        wall_s, whole_s = time.perf_counter() - started, cpu_s(resource.RUSAGE_CHILDREN) - before
        planned = plan_cells(read_plan(str(study)))
        shared, simulated_s = Shared(), 0.0
        for cell in planned:
            run = build(cell.config, cell.system, shared=shared)
            began = time.process_time()
            execute(run)
            simulated_s += time.process_time() - began
    print(json.dumps({
        "cells": len(planned), "wall_s": round(wall_s, 2), "cpu_s": round(whole_s, 2),
        "execute_cpu_s": round(simulated_s, 2),
        "overhead_ms_a_cell": round(1e3 * (whole_s - simulated_s) / len(planned), 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
