"""Simulate a run that has been built, show progress, and measure it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sim.bounds.bounds import MAX, lower_bounds
from sim.engine.simulate import simulate
from sim.process.progress import Shown
from sim.results.frames import Frames
from sim.results.metrics import summarise
from sim.results.run import Run


@dataclass(frozen=True)
class Result:
    """A run's summary, without ``wall_s``, and the tables that it was computed from.
    ``bounds_wall_s``: how long the bounds took, in seconds.
    """

    summary: dict[str, Any]
    frames: Frames
    bounds_wall_s: float = 0.0


def execute(run: Run, progress: Console | None = None, bounds: str = MAX) -> Result:
    """Simulate ``run`` and measure it.

    ``progress``: the console that shows a bar (None: no bar). ``bounds``: the method of the lower
    bound (``sim.bounds.bounds.lower_bounds``).
    """
    total = len(run.workload.steps)
    if progress is None:
        record = simulate(run.controller, run.workload, run.durations)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Shown(*columns, console=progress) as bar:
            task = bar.add_task(f"{run.system}: steps", total=total)
            report: Callable[[int], None] = lambda done: bar.update(task, completed=done)  # noqa: E731
            record = simulate(run.controller, run.workload, run.durations, report)
    frames = Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
    began = time.perf_counter()
    if progress is None or bounds == MAX:
        found = lower_bounds(run.workload, run.durations, run.controller, bounds)
    else:
        with progress.status(f"{run.system}: what nobody can beat"):
            found = lower_bounds(run.workload, run.durations, run.controller, bounds)
    bounds_wall_s = time.perf_counter() - began
    return Result(summarise(run, frames, found), frames, bounds_wall_s)
