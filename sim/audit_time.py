"""``python -m sim.audit_time RUN``: say where a simulated time differs from a recorded run's.

    python -m sim.audit_time RUN hardware=NAME [output_dir=DIR] [KEY=VALUE ...]

RUN is a folder of ``python -m real``, or of ``python -m sim`` for two machines. The same system,
budget and workload are simulated on the machine ``hardware=NAME``; further words change the
simulation (``trace=DIR`` where the trace lies elsewhere). Experts have the sizes of the run's
store. What differs in decode steps is told by cause, in ms a token and in per cent, with the steps
and sites where it is largest. The causes sum to the difference (`sim.answers.time_audit`).
``output_dir`` takes a figure and ``audit_time.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.answers.recorded_run import read_recorded, stored_bytes, words_of
from sim.answers.time_audit import TimeAudit, audit_times
from sim.answers.time_audit_figure import draw
from sim.answers.time_parts import Tables
from sim.engine.simulate import simulate
from sim.process.files import write_json
from sim.process.printing import print_text
from sim.results.folders import own_folder
from sim.results.frames import Frames
from sim.results.labels import Labels, caption, labels_of
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.verbs.names import names
from sim.verbs.words import check_names

OWN = "output_dir="


def main(arguments: Sequence[str]) -> int:
    """Print the audit. Exit status: 0, or 2 with one line where there is nothing to compare."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    folder, *rest = arguments
    words = [word for word in rest if not word.startswith(OWN)]
    kept = [word.removeprefix(OWN) for word in rest if word.startswith(OWN)]
    try:
        place = Path(kept[-1]) if kept else None
        with own_folder(place) if place else nullcontext():
            found, title, labels = audit(Path(folder), words)
            if place:
                write(place, found, title, labels)
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return 2
    console = Console()
    console.print(table_of(found, title, labels))
    print_text(console, sentence(found))
    return 0


def audit(folder: Path, words: Sequence[str]) -> tuple[TimeAudit, str, Labels]:
    """The audit of the run in ``folder``, its title, and the labels of its simulation.

    Raise ValueError for a folder that holds no run, and for a simulation of something else.
    """
    was = read_recorded(folder)
    summary, asked = was.summary, words_of(was.summary, words)
    _check_found(asked)
    cfg, system = configure("outputs=summary", *asked)
    run = build(cfg, system, stored_bytes=stored_bytes(summary), changed=changes(asked))
    frames = Frames(
        run.controller,
        run.workload,
        run.durations,
        simulate(run.controller, run.workload, run.durations),
        run.hardware.link_names,
    )
    share = expert_share(run, frames)
    recorded = replace(was.tables, expert_share=share)
    simulated = Tables(
        frames.lookups, frames.transfers, frames.tokens, run.controller.loader.wait, share
    )
    title = f"{summary['system']} at {summary['budget']['resident_share']:.0%}: {run.hardware.name}"
    found = audit_times(recorded, simulated)
    if _chosen(recorded) != _chosen(simulated):
        raise ValueError(
            "the recorded run's gates chose other experts than those of its simulation: name the"
            " trace that the run had (trace=..). Gates of a live run are in no trace, so its times"
            " are not audited; record it with input=replay"
        )
    return found, f"{title} against {summary['hardware']}", labels_of(run, frames.lookups)


def _check_found(words: Sequence[str]) -> None:
    """Raise ValueError for a file of somebody's own, which the run chose and its words do not find:
    where files lie is no word of a run.
    """
    if any(word.startswith("hydra.searchpath") for word in words):
        return
    for word in words:
        group, _, name = word.partition("=")
        if names(group):
            check_names(group, name, group, several=False)


def _chosen(tables: Tables) -> set[tuple[int, int, int]]:
    """Step, site and expert of every need of the decode steps."""
    decode = tables.lookups.filter(pl.col("phase") == "decode")
    return set(decode.select("step", "site", "expert").rows())


def expert_share(run: Run, frames: Frames) -> float:
    """Experts' share of what the machine computes in decode steps."""
    steps = [step for step in run.workload.steps if step.decode]
    dense = sum(
        sum(run.durations.dense_ns(step)[site] for site in step.sites) + run.durations.tail_ns(step)
        for step in steps
    )
    rows = frames.tokens.filter(pl.col("phase") == "decode").unique("step")
    return max(0.0, 1 - dense / max(1, int(rows["compute_ns"].sum())))


def table_of(found: TimeAudit, title: str, labels: Labels) -> Table:
    """Causes with ms a token, per cent of the recorded time, and the places of most of it."""
    columns = ("cause", "ms a token", "%", "mostly in steps", "mostly at sites")
    table = Table(*columns, title=escape(title), caption=escape(caption([("", labels)])))
    per_ms = 1e6 * found.tokens
    for cause in found.causes:
        table.add_row(
            cause.name,
            f"{cause.ns / per_ms:+.3f}",
            f"{cause.ns / found.recorded_ns:+.1%}",
            *(
                ", ".join(f"{at} ({ns / 1e6:+.2f})" for at, ns in of)
                for of in (cause.steps, cause.sites)
            ),
        )
    table.add_section()
    difference = found.difference_ns
    table.add_row("sum", f"{difference / per_ms:+.3f}", f"{difference / found.recorded_ns:+.1%}")
    return table


def sentence(found: TimeAudit) -> str:
    """The audit in one sentence."""
    per_ms = 1e6 * found.tokens
    off = found.difference_ns / found.recorded_ns
    worst = max(found.causes, key=lambda cause: abs(cause.ns))
    most = f"most of it is {worst.name}: {worst.ns / per_ms:+.3g} ms a token"
    return (
        f"Simulated {found.simulated_ns / per_ms:.4g} ms a token, recorded"
        f" {found.recorded_ns / per_ms:.4g} ({off:+.1%}) over {found.tokens} tokens;"
        f" {most if worst.ns else 'no cause differs'}. A step's time in () is in ms."
    )


def write(directory: Path, found: TimeAudit, title: str, labels: Labels) -> None:
    """Write the figure and ``audit_time.json``."""
    draw(directory, found, title, labels)
    told = {"title": title, **asdict(found), "difference_ns": found.difference_ns}
    write_json(directory / "audit_time.json", told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
