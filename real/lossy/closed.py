"""How far simulating a lossy system in an open loop is from running it in a closed one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from real.lossy.assess import Assessment
from real.lossy.loops import Loops, Shift
from real.lossy.requests import Request
from sim.process.progress import Shown


def measure(
    systems: Sequence[str], modes: Sequence[str], request: Request, console: Console
) -> tuple[list[Shift], Assessment]:
    """Measure every system in every mode; also return the assessment they were measured with."""
    configurations = [(f"system={name}", *request.overrides) for name in systems]
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Shown(*columns, console=console) as progress:
        task = progress.add_task("loading", total=None)

        def track(what: str, sequence: int) -> None:
            progress.update(task, description=f"{what}: sequence {sequence}")

        assessment = Assessment(configurations, request.weights, request.scheme, track)
        shifts = []
        for mode in modes:
            loops = Loops(assessment, mode)
            shifts += [loops.shift(words) for words in configurations]
    return shifts, assessment
