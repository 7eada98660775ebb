"""``python -m real.validate systems=A,B budgets=0.25,0.5 [repeats=3] [closed_loop=MODES] [output_dir=DIR] [KEY=VALUE]``

How far the simulator is from runs on a device: each system at each budget runs ``repeats`` times, interleaved in a
seeded random order, and is simulated; ``closed_loop=teacher-forced,free-running`` puts the model in the loop. All other
words go into the configuration of ``python -m real`` (``device=cpu``, ``engine.links=free``, ``trace.max_sequences=1``
..). Writes ``validation.md``, ``validation.json``, a figure, and ``timelines.json``: the first run and its simulation
side by side, for ui.perfetto.dev.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import track

from real.driver.machine import processor
from real.setup.execute import ran_on
from real.setup.prepare import Request, prepare_replay
from real.validation.cases import Checked, Measured, Plan, check, measure_run, order_of, predict, request_of, simulated
from real.validation.closed import as_lines, as_rows, read_modes, shifts_of
from real.validation.report import write_report, write_timelines
from sim.process.interrupts import Terminated, code_of, terminate
from sim.results.outputs import own_folder

OWN = ("systems", "budgets", "repeats", "seed", "closed_loop", "output_dir")
TIMELINE_STEPS = 32


@dataclass(frozen=True)
class Asked:
    plan: Plan
    modes: tuple[str, ...]
    output_dir: Path


def parse(arguments: Sequence[str]) -> Asked:
    """Raise ValueError for the first word that is wrong."""
    given = dict.fromkeys(OWN, "")
    given |= {"repeats": "3", "seed": "0", "output_dir": "outputs/validation"}
    words = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not text:
            raise ValueError(f"{argument!r} is no KEY=VALUE")
        if key in ("system", "budget.resident_share", "budget.slots_gib"):
            raise ValueError(f"{argument}: give systems=A,B and budgets=0.25,0.5")
        if key in OWN:
            given[key] = text
        else:
            words.append(argument)
    systems = tuple(name for name in given["systems"].split(",") if name)
    if not systems or len(set(systems)) < len(systems):
        raise ValueError(f"systems={given['systems']} must name different systems, as systems=lru,hobbit")
    try:
        shares = tuple(float(text) for text in given["budgets"].split(",") if text)
    except ValueError:
        raise ValueError(f"budgets={given['budgets']} must be numbers, as budgets=0.25,0.5") from None
    if not shares or len(set(shares)) < len(shares):
        raise ValueError(
            f"budgets={given['budgets']} must be different shares of the expert bytes, as budgets=0.25,0.5"
        )
    for key in ("repeats", "seed"):
        if not given[key].isdigit() or (key == "repeats" and int(given[key]) == 0):
            raise ValueError(f"{key}={given[key]} must be a whole number")
    return Asked(
        Plan(systems, shares, int(given["repeats"]), int(given["seed"]), tuple(words)),
        read_modes(given["closed_loop"]),
        Path(given["output_dir"]),
    )


@dataclass(frozen=True)
class Validated:
    """The report's text; whether every call was answered as it should be, and lossless systems showed no shift; and
    what ended the runs before their end.
    """

    text: str
    agrees: bool
    stopped_by: BaseException | None


def validate(asked: Asked, console: Console, has_time: Callable[[], bool] = lambda: True) -> Validated:
    """Run everything and write the report. Raise ValueError before anything is run for what cannot run.

    Where a run fails or is interrupted, the report is of those before it; without any, the error is raised.
    ``has_time`` is asked before each run but the first; once it says no the rest is left out, and the report says so.
    """
    plan, output_dir = asked.plan, asked.output_dir
    requests = {
        (system, share): request_of(plan.words, system, share) for system in plan.systems for share in plan.shares
    }
    for request in requests.values():
        prepare_replay(request)
    runs: list[Measured] = []
    checks: dict[tuple[str, float], Checked] = {}
    order = order_of(plan)
    stopped_by: BaseException | None = None
    try:
        for system, share, _ in track(order, "runs", console=console, transient=True):
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
    # In the order that was asked for.
    found = [checks[one] for one in requests if one in checks]
    cases = predict(plan, runs, lambda system, share: requests[system, share]) if len(checks) > 1 else []
    facts = _facts(plan, next(iter(requests.values())), runs)
    if stopped_by is not None:
        facts["INCOMPLETE"] = f"{len(runs)} of {len(order)} runs; then {_words(stopped_by)}"
    elif len(runs) < len(order):
        facts["left out for time"] = f"{len(order) - len(runs)} of {len(order)} runs"
    made = asked.modes and len(runs) == len(order)
    shifts = [] if not made else shifts_of(plan.systems, plan.shares[0], plan.words, asked.modes, console)
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
    write_timelines(output_dir / "timelines.json", first.frames, simulated(twin), twin.run.controller.loader.wait,
                    TIMELINE_STEPS, {"system": first.system, "resident_share": first.share})  # fmt: skip
    agrees = all(one.first_difference is None for one in found)
    return Validated(text, agrees and all(s.is_zero for s in shifts if s.lossless), stopped_by)


def _words(stop: BaseException) -> str:
    return "it was interrupted" if isinstance(stop, (KeyboardInterrupt, Terminated)) else f"one failed: {stop}"


def _facts(plan: Plan, request: Request, runs: Sequence[Measured]) -> dict[str, Any]:
    engine, load = request.engine, [run.load_average for run in runs]
    return {
        "device": request.device, "runs on": f"{processor()}, {os.cpu_count()} cores", "links": engine.links,
        "compute": engine.compute, "experts read from": engine.source,
        "times are of": ran_on(prepare_replay(request).run, engine), "steps a run": len(runs[0].recording.steps),
        "repeats": plan.repeats, "load average": f"{min(load):.1f} to {max(load):.1f} as the runs ended",
        "words": " ".join(plan.words) or "none",
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 1 where decisions differ or a run failed; 2 with one message and nothing written for what cannot
    run; 128 + n for a signal. After a failure or a signal the report is of the runs before it.
    """
    signal.signal(signal.SIGTERM, terminate)
    console = Console(stderr=True)
    try:
        asked = parse(arguments)
        with own_folder(asked.output_dir):
            found = validate(asked, console)
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        print(f"error: {error}\nnothing was written: no run had ended", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Terminated) as stop:
        print("interrupted; nothing was written: no run had ended", file=sys.stderr)
        return code_of(stop)
    print(found.text)
    print(f"files: {asked.output_dir}")
    if found.stopped_by is not None:
        print(f"error: {_words(found.stopped_by)}; the report is of the runs before it", file=sys.stderr)
        return code_of(found.stopped_by)
    return 0 if found.agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
