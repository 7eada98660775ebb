"""``python -m sim.reproduce``: recompute the papers' claims, and say which hold (docs/papers.md).

    python -m sim.reproduce [paper=hobbit,edgemoe,fate,floe] [phone=DIR] [recorded=MODEL:DIR]
        [output_dir=DIR] [processes=2]
    python -m sim.reproduce field=DIR [runs=FILE]

Each claim is judged by its role. ``phone`` adds recorded phone runs, ``recorded`` the gains over
LRU and LFU on one more trace. ``field`` simulates runs that others published instead, on the gates
in DIR (docs/field.md): those of ``claims/field.csv``, or of a FILE like it. It ends with
exit code 1 where a line that is asked for is missed. Runs of papers are kept in ``output_dir``: a
killed call goes on where it was. A wrong request ends with one message and exit code 2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.reproduce import report
from sim.reproduce.arms import ArmError
from sim.reproduce.checks import phone_lines, worked
from sim.reproduce.experiments import (
    CLOSED,
    Outcome,
    Runner,
    arms_of,
    closed_outcome,
    outcome,
    points_of,
)
from sim.reproduce.field import FILE, check_gates, published, rows, table
from sim.reproduce.field_figures import figures, slots_table, splits, steps_table
from sim.reproduce.field_gains import as_told, asked_of, asked_table, check, gains
from sim.reproduce.field_gains import table as gains_table
from sim.reproduce.field_prompts import prompts, prompts_table
from sim.reproduce.measures import TRACE_MEASURES
from sim.reproduce.phone import PhoneError
from sim.reproduce.recorded import has_gains, with_recorded
from sim.reproduce.roles import PAPERS, Paper, RolesError, load_paper
from sim.reproduce.rules import published as printed
from sim.reproduce.verdicts import Verdict, partly, simulated_rows, verdict_of
from sim.results.folders import locked
from sim.verbs.table import verb_of
from sim.verbs.words import read

MOST_PROCESSES = 64


@dataclass(frozen=True)
class Asked:
    papers: tuple[str, ...]
    output_dir: Path
    processes: int
    phone: Path | None
    recorded: str
    field: Path | None = None
    runs: Path = FILE


def asked(words: Sequence[str]) -> Asked:
    """The request on the command line; raise ValueError for an unknown argument or value."""
    given = read(verb_of("reproduce"), words).own
    if "runs" in given and "field" not in given:
        raise ValueError(f"runs={given['runs']} are simulated on gates: say field=DIR, too")
    if "field" in given and (others := [name for name in given if name not in ("field", "runs")]):
        raise ValueError(
            f"field={given['field']} goes alone: {others[0]}= says nothing of runs that others published"
        )
    processes = int(given.get("processes", "2"))
    if processes > MOST_PROCESSES:
        raise ValueError(f"processes={processes} must be at most {MOST_PROCESSES}")
    return Asked(
        tuple(given["paper"].split(",")) if "paper" in given else PAPERS,
        Path(given.get("output_dir", "outputs/reproduce")),
        processes,
        Path(given["phone"]) if "phone" in given else None,
        given.get("recorded", ""),
        Path(given["field"]) if "field" in given else None,
        Path(given.get("runs", FILE)),
    )


def outcomes_of(
    paper: Paper, runner: Runner, only: Sequence[str] | None = None
) -> dict[str, Outcome]:
    """Run every experiment of the paper (or ``only`` some) and show progress; outcomes by name."""
    constants = calibrated(paper, runner)
    chosen = {name: one for name, one in paper.experiments.items() if only is None or name in only}
    found = {
        name: closed_outcome(paper, one) for name, one in chosen.items() if one.measure[0] in CLOSED
    }
    points = {
        name: points_of(paper, one, constants) for name, one in chosen.items() if name not in found
    }
    wanted = [
        arm
        for name in points
        if chosen[name].measure[0] not in TRACE_MEASURES
        for arm in arms_of(points[name], chosen[name])
    ]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Shown(*columns) as bar:
        task = bar.add_task(f"{paper.title}: runs", total=len(set(wanted)))
        results = runner.results(
            paper, wanted, lambda done, total: bar.update(task, completed=done, total=total)
        )
    return {
        **found,
        **{name: outcome(paper, chosen[name], points[name], results, runner) for name in points},
    }


def calibrated(paper: Paper, runner: Runner) -> dict[str, float]:
    """The host's time for each layer, in us, by name of the constant.

    It is chosen so that an experiment reaches the published rate.
    """
    constants = {}
    for name, step in paper.calibrated.items():
        experiment = paper.experiments[step["experiment"]]
        point = points_of(paper, experiment, {})[0]
        results = runner.results(paper, arms_of([point], experiment), lambda done, total: None)
        without = outcome(paper, experiment, [point], results, runner).default
        if without is None:
            raise ArmError(
                f"{paper.title}: {step['experiment']} cannot run, so {name} cannot be drawn from it"
            )
        (rate,) = printed(paper.claim(step["to"]))
        constants[name] = max(0.0, (1 / rate - without.point) / float(step["layers"]) * 1e6)
    return constants


def of_field(console: Console, gates: Path, file: Path) -> int:
    """Print the runs of a file beside their simulation, and what is asked of them. Of the
    project's own file, also the figures that are no speeds. Exit code 1 where a line is missed.
    """
    told = published(file)
    check(told)
    check_gates(gates, told)
    runs = list(rows(gates, told))
    found = gains(runs, cache(partial(as_told, gates)))
    lines = list(asked_of(found))
    shown = [table(runs)]
    if found:
        shown += [gains_table(found), asked_table(lines)]
    if file == FILE:
        shown += [steps_table(gates, figures()), slots_table(splits()), prompts_table(prompts())]
    for one in shown:
        console.print(one, crop=False)
    return 0 if all(line.holds for line in lines) else 1


@telling("the same command goes on where it was")
def main(words: Sequence[str]) -> int:
    console, started = Console(), time.perf_counter()
    try:
        request = asked(words)
        if request.field is not None:
            return of_field(console, request.field, request.runs)
        papers = [load_paper(name) for name in request.papers]
        if request.recorded:
            if not any(has_gains(paper) for paper in papers):
                raise ValueError(
                    f"recorded={request.recorded} changes nothing of paper={','.join(request.papers)}:"
                    " the gains over LRU and LFU are hobbit's"
                )
            papers = [with_recorded(paper, request.recorded) for paper in papers]
        lines = phone_lines(request.phone) if request.phone else []
    except (ValueError, OSError, RolesError, PhoneError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    every: list[Verdict] = []
    try:
        with locked(request.output_dir):
            runner = Runner(request.output_dir / "kept", request.processes)
            for paper in papers:
                outcomes = outcomes_of(paper, runner)
                verdicts = [verdict_of(paper, claim, outcomes) for claim in paper.claims]
                report.write(request.output_dir, paper, verdicts)
                report.show(console, paper, verdicts, worked(paper, outcomes))
                every += verdicts
    except (ArmError, OSError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    for line in (
        *lines,
        f"claims that need simulated times or decisions: {_words(simulated_rows(every))}",
        f"claims that can be recomputed in part: {_words(partly(every))}",
        f"{runner.started} runs in {time.perf_counter() - started:.0f} s; files:"
        f" {request.output_dir}",
    ):
        print_text(console, line)
    return 0


def _words(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in numbers.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
