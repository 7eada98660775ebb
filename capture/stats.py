"""The command that shows statistics of the gates of one or more traces, side by side.

``python -m capture.stats TRACE... [key=value ...]``

``output_dir=DIR``
    Also write a parquet file for each statistic, ``summary.parquet``, ``missing.json`` and the
    figures. With ``overwrite=yes`` the folder need not be empty.
``phase=decode``
    Which rows: ``decode``, ``prompt`` or ``all``. The least popular experts are always of prompts.
``exclude=FLAG,FLAG``
    Leave out sequences that carry one of these flags, such as has_repetition.
``only=NAME,NAME``
    Only these statistics.
``seed=0``
    Seed of the shuffled control of paths.

Where a trace lacks what a statistic needs, the reason is printed. Published values are shown for
orientation only: models, texts and definitions differ; the source says where to look. Needs no
torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table

from capture.statistics.published import PAPERS
from capture.statistics.report import STATISTICS, Report, merged, report
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import own_folder
from sim.traces.flags import check_flags
from sim.traces.trace import Trace, read_header, read_trace
from sim.verbs.words import read_all


@dataclass(frozen=True)
class Arguments:
    """What to read and how; the module's docstring explains the options."""

    traces: tuple[Path, ...]
    output_dir: Path | None = None
    overwrite: bool = False
    phase: str = "decode"
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = STATISTICS
    seed: int = 0


def parse(arguments: Sequence[str]) -> Arguments:
    """Raise ValueError, with what is allowed, for the first argument that is wrong."""
    found = read_all("stats", arguments)
    given, traces = found.own, tuple(map(Path, found.places))
    same = [trace.resolve() for trace in traces]
    if again := [str(trace) for n, trace in enumerate(traces) if same[n] in same[:n]]:
        raise ValueError(f"{again[0]} is given twice; name each trace once")
    only = tuple(given.get("only", ",".join(STATISTICS)).split(","))
    if unknown := [name for name in only if name not in STATISTICS]:
        raise ValueError(
            f"only={','.join(unknown)} is unknown; statistics: {', '.join(STATISTICS)}"
        )
    return Arguments(
        traces,
        Path(given["output_dir"]) if "output_dir" in given else None,
        given["overwrite"] == "yes",
        given["phase"],
        tuple(given["exclude"].split(",")) if "exclude" in given else (),
        only,
        int(given["seed"]),
    )


def read_named(directories: Sequence[Path]) -> dict[str, tuple[Trace, Path]]:
    """The traces by name; where several share a name, each gets its directory beside the name."""
    read = [(read_trace(directory, "all"), directory) for directory in directories]
    names = [trace.header.name for trace, _ in read]
    return {
        name if names.count(name) == 1 else f"{name} ({directory})": (trace, directory)
        for name, (trace, directory) in zip(names, read, strict=True)
    }


def summary_table(reports: Mapping[str, Report], summary: pl.DataFrame) -> Table:
    """A row per measure: each trace's value (and chance), the published value and its source."""
    tokens = ", ".join(f"{name} {of.tokens} tokens" for name, of in reports.items())
    table = Table(
        title=(
            "Means over sites (in brackets: even draws, a Gaussian, or the shuffled control);"
            f" {tokens}"
        ),
        title_justify="left",
    )
    for column in ("measure", *reports, "published", "source"):
        table.add_column(
            escape(column), justify="left" if column in ("measure", "source") else "right"
        )
    for measure in summary["measure"].unique(maintain_order=True):
        rows = summary.filter(measure=measure)
        cells = []
        for name in reports:
            mine = rows.filter(trace=name)
            chance = mine["chance"][0] if len(mine) else None
            cells.append(
                "-"
                if not len(mine)
                else f"{mine['value'][0]:.3f}" + ("" if chance is None else f" ({chance:.3f})")
            )
        table.add_row(escape(measure), *cells, rows["published"][0] or "", rows["source"][0] or "")
    return table


def write(
    output_dir: Path, reports: Mapping[str, Report], tables: Mapping[str, pl.DataFrame]
) -> None:
    """Write the parquet files, the reasons for what is missing, and the figures."""
    # Imported late: matplotlib takes a second to load, and the tables do not need it.
    from capture.statistics.figures import draw

    for name, table in tables.items():
        table.write_parquet(output_dir / f"{name}.parquet")
    missing = {name: dict(of.missing) for name, of in reports.items()}
    (output_dir / "missing.json").write_text(json.dumps(missing, indent=1) + "\n", encoding="utf-8")
    draw(output_dir, tables, {name: of.experts for name, of in reports.items()})


def _show(bar: Shown, task: TaskID, trace: str, statistic: str) -> None:
    bar.update(task, advance=1, description=f"{trace}: {statistic}")


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when the input is wrong."""
    console = Console()
    begun = time.monotonic()
    try:
        asked = parse(arguments)
        check_flags(asked.exclude, *map(read_header, asked.traces), key="exclude")
        traces = read_named(asked.traces)
        reports = {}
        with Shown() as bar:
            task = bar.add_task("", total=len(traces) * len(asked.only))
            for name, (trace, directory) in traces.items():
                reports[name] = report(
                    trace,
                    directory,
                    phase=asked.phase,
                    exclude=asked.exclude,
                    only=asked.only,
                    seed=asked.seed,
                    before=partial(_show, bar, task, name),
                )
        tables = merged(reports)
        if asked.output_dir is not None:
            with own_folder(asked.output_dir, overwrite=asked.overwrite):
                write(asked.output_dir, reports, tables)
    except (ValueError, OSError) as error:
        print(f"stats: {error}", file=sys.stderr)
        return 2
    console.print(summary_table(reports, tables["summary"]))
    for name, of in reports.items():
        for statistic, reason in of.missing.items():
            print_text(console, f"{name}: no {statistic}: {reason}")
        prior = of.tables.get("prior_coverage")
        if prior is not None and prior["evaluated"][0] == "in sample":
            print_text(
                console,
                f"{name}: prior_coverage is in sample, which flatters it: no fit or no eval"
                " sequences",
            )
    used = set(tables["summary"]["source"].drop_nulls().str.split(",").list.first())
    for paper in sorted(used):
        print_text(console, f"{paper}: {PAPERS[paper]}")
    where = f", files: {asked.output_dir}" if asked.output_dir is not None else ""
    print_text(console, f"{time.monotonic() - begun:.1f} s{where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
