"""The work of a worker process: run a cell and return its row, whatever happens."""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy.ma  # noqa: F401

from sim.policies.requires import PolicyError
from sim.process.orphans import leave_with_parent
from sim.process.shared import Shared
from sim.results.latency import decode_time_and_tokens
from sim.results.outputs import write_outputs
from sim.setup.build import build
from sim.setup.configure import changes
from sim.setup.execute import execute
from sim.study.cells import Cell
from sim.study.rows import DONE, FAILED, REFUSED, Row, make_row

RUNS = "runs"
"""The folder of the files of cells with ``outputs=all``, each in a folder named by its key."""


@cache
def shared() -> Shared:
    """The traces and workloads that the runs of this process share."""
    return Shared()


def run_cell(study: str, cell: Cell, output_dir: str) -> Row:
    """Simulate one cell and return its row. A cell that cannot run is ``refused``, one that breaks
    is ``failed``; neither raises.
    """
    started = time.perf_counter()
    try:
        run = build(cell.config, cell.system, shared=shared(), changed=changes(cell.words))
    except (ValueError, OSError) as error:
        return make_row(study, cell, REFUSED, " ".join(str(error).split()))
    except Exception as error:
        return make_row(study, cell, FAILED, _reason(error))
    try:
        result = execute(run)
        summary = {**result.summary, "wall_s": round(time.perf_counter() - started, 4)}
        decode_ns, tokens = decode_time_and_tokens(result.frames)
        by_sequence = {
            "sequence": result.frames.sequences["sequence"].to_list(),
            "decode_ns": decode_ns.tolist(),
            "decode_tokens": tokens.tolist(),
        }
        if cell.config["outputs"] == "all":
            write_outputs(
                Path(output_dir) / RUNS / cell.key,
                summary,
                run.config,
                result.frames,
                run.controller.loader.wait,
                cell.config["timeline_steps"],
            )
        return make_row(study, cell, DONE, None, summary, by_sequence)
    except Exception as error:
        return make_row(study, cell, FAILED, _reason(error))


def run_cells(study: str, cells: Sequence[Cell], output_dir: str) -> list[Row]:
    return [run_cell(study, cell, output_dir) for cell in cells]


def _reason(error: Exception) -> str:
    """The kind, text and place of an error, in one line. A policy's own tells its place itself."""
    if isinstance(error, PolicyError):
        return " ".join(str(error).split())
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {' '.join(str(error).split())}"
        f" ({Path(last.filename).name}:{last.lineno})"
    )


def begin_work() -> None:
    """Called in a process that is to run cells, before the first."""
    # A forked process would otherwise keep its parent's handler of the signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Imported objects stay for good. The garbage collector need not go through them at every pass,
    # which would take longer than collecting what a cell leaves.
    gc.freeze()
    leave_with_parent()
