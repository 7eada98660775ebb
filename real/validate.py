"""``python -m real.validate systems=A,B budgets=0.25,0.5 [repeats=3] [output_dir=DIR] [KEY=VALUE ...]``

How far the simulator is from runs on a device: each system at each budget runs ``repeats`` times, interleaved in a
seeded random order, and is simulated. All other words go into the configuration of ``python -m real`` (``device=cpu``,
``engine.links=free``, ``trace.max_sequences=1`` ..). Writes ``validation.md``, ``validation.json``, a figure, and
``timelines.json``: the first run and its simulation side by side, for ui.perfetto.dev.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import track

from real.machine import processor
from real.prepare import Request, prepare_replay
from real.validation.cases import Checked, Measured, Plan, check, measure_run, order_of, predict, request_of, simulated
from real.validation.report import write_report, write_timelines
from sim.outputs import check_writable

OWN = ("systems", "budgets", "repeats", "seed", "output_dir")
TIMELINE_STEPS = 32


@dataclass(frozen=True)
class Asked:
    plan: Plan
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
        if key in ("system", "budget.resident_share"):
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
        Plan(systems, shares, int(given["repeats"]), int(given["seed"]), tuple(words)), Path(given["output_dir"])
    )


def validate(plan: Plan, output_dir: Path, console: Console, has_time: Callable[[], bool] = lambda: True) -> str:
    """Run everything and write the report; its text. Raise ValueError before anything is run for what cannot run.

    ``has_time`` is asked before each run but the first; once it says no the rest is left out, and the report says so.
    """
    requests = {
        (system, share): request_of(plan.words, system, share) for system in plan.systems for share in plan.shares
    }
    for request in requests.values():
        prepare_replay(request)
    runs: list[Measured] = []
    checks: dict[tuple[str, float], Checked] = {}
    order = order_of(plan)
    for system, share, _ in track(order, "runs", console=console, transient=True):
        if runs and not has_time():
            break
        request = requests[system, share]
        runs.append(measure_run(request, share, system))
        if (system, share) not in checks:
            checks[system, share] = check(request, runs[-1])
    # In the order that was asked for.
    found = [checks[one] for one in requests if one in checks]
    cases = predict(plan, runs, lambda system, share: requests[system, share]) if len(checks) > 1 else []
    facts = _facts(plan, next(iter(requests.values())), runs[0])
    if len(runs) < len(order):
        facts["left out for time"] = f"{len(order) - len(runs)} of {len(order)} runs"
    text = write_report(output_dir, facts, found, cases)
    first = runs[0]
    twin = prepare_replay(requests[first.system, first.share])
    write_timelines(output_dir / "timelines.json", first.frames, simulated(twin), twin.run.controller.loader.wait,
                    TIMELINE_STEPS, {"system": first.system, "resident_share": first.share})  # fmt: skip
    return text


def _facts(plan: Plan, request: Request, run: Measured) -> dict[str, Any]:
    engine = request.engine
    return {
        "device": request.device, "ran_on": processor(), "links": engine.links, "compute": engine.compute,
        "experts read from": engine.source, "times stand for": prepare_replay(request).run.hardware.name,
        "steps a run": len(run.recording.steps), "repeats": plan.repeats, "words": " ".join(plan.words) or "none",
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 1 where decisions differ; 2 with one message and nothing written for what cannot run."""
    console = Console(stderr=True)
    try:
        asked = parse(arguments)
        check_writable(asked.output_dir)
        text = validate(asked.plan, asked.output_dir, console)
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    print(f"files: {asked.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
