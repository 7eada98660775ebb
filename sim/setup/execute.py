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

from sim.bounds.bounds import MAX, NONE, Bounds, lower_bounds
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
    bounds_wall_s: float


def execute(run: Run, progress: Console | None = None) -> Result:
    """Simulate ``run`` and measure it.

    ``progress``: the console that shows a bar (None: no bar). The run's setting ``bounds`` says how
    its lower bounds are computed, if at all (`sim.bounds.bounds.METHODS`).
    """
    total = len(run.workload.steps)
    if progress is None:
        record = simulate(run.controller, run.workload, run.durations, packed=True)
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
            record = simulate(run.controller, run.workload, run.durations, report, packed=True)
    frames = Frames(
        run.controller,
        run.workload,
        run.durations,
        record,
        run.hardware.link_names,
        kv_room=run.kv_room,
    )
    began = time.perf_counter()
    found = bounds_asked(run, progress)
    bounds_wall_s = time.perf_counter() - began
    return Result(summarise(run, frames, found), frames, bounds_wall_s)


def bounds_asked(run: Run, progress: Console | None = None) -> Bounds | None:
    """The lower bounds that the run's setting ``bounds`` asks for; None for ``none``."""
    # A configuration that was written before there was this setting has none of it.
    method = run.config.get("bounds", NONE)
    if method == NONE:
        return None
    asked = run.workload, run.durations, run.controller, method
    if progress is None or method == MAX:
        return lower_bounds(*asked)
    with progress.status(f"{run.system}: what nobody can beat"):
        return lower_bounds(*asked)
