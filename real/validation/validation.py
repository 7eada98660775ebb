"""Validates the simulator: makes runs on a device and simulated ones, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from real.lossy.loops import Shift
from real.setup.execute import computer_of, ran_on
from real.setup.prepare import Request, prepare_replay
from real.validation.cases import (
    Checked,
    Measured,
    Plan,
    check,
    measure_run,
    order_of,
    predict,
    request_of,
    simulated,
)
from real.validation.closed import as_lines, as_rows, shifts_of
from real.validation.report import write_report, write_timelines
from sim.process.interrupts import Terminated
from sim.process.progress import Shown

TIMELINE_STEPS = 32


@dataclass(frozen=True)
class Asked:
    plan: Plan
    modes: tuple[str, ...]
    output_dir: Path
    overwrite: bool = False


@dataclass(frozen=True)
class Validated:
    """The outcome of a validation.

    - ``text``: the report's.
    - ``agrees``: what `agree` says of its runs.
    - ``stopped_by``: what ended the runs too early; None if nothing did.
    """

    text: str
    agrees: bool
    stopped_by: BaseException | None


def validate(
    asked: Asked, console: Console, has_time: Callable[[], bool] = lambda: True
) -> Validated:
    """Make all runs and write the report. Raise ValueError, before any run, for what cannot run.

    Where a run fails or is interrupted, the report is of the runs before it; without any, the error
    is raised. ``has_time`` is asked before each run but the first. Once it says no the other runs
    are left out, and the report says so.
    """
    plan, output_dir = asked.plan, asked.output_dir
    requests = {
        (system, share): request_of(plan.words, system, share)
        for system in plan.systems
        for share in plan.shares
    }
    for request in requests.values():
        prepare_replay(request)
    runs: list[Measured] = []
    checks: dict[tuple[str, float], Checked] = {}
    order = order_of(plan)
    stopped_by: BaseException | None = None
    try:
        with Shown(console=console) as bar:
            for system, share, _ in bar.track(order, description="runs"):
                if runs and not has_time():
                    break
                request = requests[system, share]
                runs.append(measure_run(request, share, system))
                if (system, share) not in checks:
                    checks[system, share] = check(request, runs[-1])
    except (RuntimeError, OSError, MemoryError, KeyboardInterrupt, Terminated) as stop:
        stopped_by = stop
        if not checks:
            raise
    # In the order in which they were asked for.
    found = [checks[one] for one in requests if one in checks]
    cases = (
        predict(plan, runs, lambda system, share: requests[system, share])
        if len(checks) > 1
        else []
    )
    facts = _facts(plan, next(iter(requests.values())), runs)
    if stopped_by is not None:
        facts["INCOMPLETE"] = f"{len(runs)} of {len(order)} runs; then {_words(stopped_by)}"
    elif len(runs) < len(order):
        facts["left out for time"] = f"{len(order) - len(runs)} of {len(order)} runs"
    made = asked.modes and len(runs) == len(order)
    shifts = (
        []
        if not made
        else shifts_of(plan.systems, plan.shares[0], plan.words, asked.modes, console)
    )
    text = write_report(
        output_dir,
        facts,
        found,
        cases,
        as_lines(shifts, plan.shares[0]),
        as_rows(shifts),
        [(run.system, run.labels) for run in runs],
    )
    first = runs[0]
    twin = prepare_replay(requests[first.system, first.share])
    write_timelines(
        output_dir / "timelines.json",
        first.frames,
        simulated(twin),
        twin.run.controller.loader.wait,
        TIMELINE_STEPS,
        {"system": first.system, "resident_share": first.share},
    )
    return Validated(text, agree(found, shifts), stopped_by)


def agree(found: Sequence[Checked], shifts: Sequence[Shift]) -> bool:
    """Whether every call got the right answer, and no lossless system showed a shift."""
    answered = all(one.first_difference is None for one in found)
    return answered and all(one.is_zero for one in shifts if one.lossless)


def _words(stop: BaseException) -> str:
    return (
        "it was interrupted"
        if isinstance(stop, (KeyboardInterrupt, Terminated))
        else f"one failed: {stop}"
    )


def _facts(plan: Plan, request: Request, runs: Sequence[Measured]) -> dict[str, Any]:
    engine, load = request.engine, [run.load_average for run in runs]
    prepared = prepare_replay(request)
    return {
        "device": request.device,
        "runs on": computer_of(prepared.device),
        "links": engine.links,
        "compute": engine.compute,
        "experts read from": engine.source,
        "times are of": ran_on(prepared),
        "steps a run": len(runs[0].recording.steps),
        "repeats": plan.repeats,
        "load average": f"{min(load):.1f} to {max(load):.1f} as the runs ended",
        "words": " ".join(plan.words) or "none",
    }
