"""``python -m sim.screen``: compute one run's times on many machines at once.

    python -m sim.screen [OVERRIDES...] [hardware.KEY=A,B,..] [output_dir=DIR]

Values separated by commas make further machines: every combination is one. The caches are walked
once, and every machine's times follow from what they did. This is exact, bit for bit the times of
``python -m sim``, where decisions do not depend on time: without prefetches, on one link
(docs/studies.md). Other settings are refused, naming the switch that makes decisions depend on
time. The column ``labels`` has what a reader must know of each row (`sim.results.labels`).
``output_dir`` gets ``table.parquet``, ``table.csv`` and ``table.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.process.files import write_json, writing
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import tracked
from sim.process.shared import Shared
from sim.results.folders import own_folder
from sim.results.frames import Frames
from sim.results.hits import hit_ratio
from sim.results.labels import from_row, labels_of, told
from sim.results.latency import request_times
from sim.results.run import Run
from sim.screening.moves import ScreenError, first_pass, require_screenable
from sim.screening.times import Times, second_pass
from sim.setup.build import build
from sim.setup.configure import changes
from sim.study.cells import Cell, plan_cells
from sim.study.plan import DEFAULTS, Plan
from sim.values.record import Record

SWEPT = "hardware"
SHOWN = ("decode_tokens_per_s", "ttft_s.mean", "tpot_s.mean", "makespan_s", "hit_ratio")


def screen(cells: Sequence[Cell]) -> pl.DataFrame:
    """The same run on the machine of each cell, one row for each.

    A row has what the cell varies, and the times of a run's summary. Raise ScreenError (a
    ValueError) for settings that cannot be screened, ValueError for those that cannot run.
    """
    shared = Shared()
    runs = [
        build(cell.config, cell.system, shared=shared, changed=changes(cell.words))
        for cell in tracked(cells, "making machines")
    ]
    for run, cell in zip(runs, cells, strict=True):
        require_screenable(run.controller, run.workload.is_timed)
        _require_constant_links(run, " ".join(cell.words))
        if run.controller.slots.capacity_bytes != runs[0].controller.slots.capacity_bytes:
            raise ScreenError(
                f"{' '.join(cell.words)}: not the same slots on every machine; screen them apart"
            )
    moves = first_pass(runs[0].controller, runs[0].workload)
    times = second_pass(moves, [run.durations for run in runs])
    return pl.DataFrame(
        [
            {**cell.axes, **_measured(runs[0], run, times, machine)}
            for machine, (cell, run) in enumerate(
                tracked([*zip(cells, runs, strict=True)], "machines")
            )
        ]
    )


def _require_constant_links(run: Run, words: str) -> None:
    """Raise ScreenError where the time of a link's service depends on more than its bytes, or
    where devices have several links.
    """
    if run.hardware.devices is not None:
        raise ScreenError(
            f"{words}: hardware.devices is not screened; moelab run runs it, or set"
            " hardware.devices=null"
        )
    for link in run.hardware.links:
        if link.page_cache is not None:
            raise ScreenError(
                f"{words}: hardware.links.{link.name}.page_cache is not screened; moelab run"
                " runs it"
            )
    laned = [f"hardware.{word}" for word in run.hardware.lanes]
    if run.controller.loader.wait == "by_projection":
        laned.append("loader.wait=by_projection")
    if run.hardware.swap is not None:
        laned.append("hardware.swap")
    if laned:
        raise ScreenError(f"{words}: {', '.join(laned)} is not screened; moelab run runs it")
    if run.durations.contention is not None:
        raise ScreenError(
            f"{words}: parties that others at work slow (hardware.beside,"
            " hardware.shared_memory.slows=as_drawn) are not screened; moelab run runs them"
        )


def _measured(walked: Run, run: Run, times: Times, machine: int) -> dict[str, Any]:
    """The times of a run on one machine, by the definitions of a summary."""
    lookups = [0] * len(walked.controller.lookup_keys)
    record = Record(
        lookup_ns=lookups,
        ready_ns=lookups,
        step_start_ns=times.step_start_ns[:, machine].tolist(),
        step_end_ns=times.step_end_ns[:, machine].tolist(),
        makespan_ns=int(times.makespan_ns[machine]),
    )
    frames = Frames(
        walked.controller, walked.workload, run.durations, record, run.hardware.link_names
    )
    found: dict[str, Any] = {}
    for name, value in request_times(frames).items():
        found |= (
            {f"{name}.{part}": one for part, one in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    found["hit_ratio"] = hit_ratio(frames.lookups.filter(pl.col("phase") == "decode"))
    # The labels are those of this machine, and of the decisions of the walk.
    labels = labels_of(replace(walked, hardware=run.hardware, changed=run.changed), frames.lookups)
    return {**found, "labels": labels.row()}


def read_words(words: Sequence[str]) -> list[Cell]:
    """The cells, one for each machine.

    Raise ValueError for a word that is no override, or that varies more than the machine.
    """
    fixed: list[str] = []
    grid: dict[str, list[Any]] = {}
    for word in words:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            raise ValueError(f"{word!r} is no override: {str(error).splitlines()[0]}") from None
        if not override.is_sweep_override():
            fixed.append(word)
        elif override.key_or_group.split(".")[0] != SWEPT:
            raise ValueError(
                f"{word}: only the machine may vary (hardware=.., hardware.KEY=..), as the caches"
                " are walked once; for the rest there is moelab study"
            )
        else:
            try:
                grid[override.key_or_group] = list(override.sweep_iterator())
            except HydraException:
                raise ValueError(f"{word}: give each machine's value, with commas") from None
    plan = Plan("screen", base=(*DEFAULTS, *fixed), grids=(grid,))
    return plan_cells(plan)


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Run the command; return exit status 0, or 2 with one message."""
    own = ("output_dir=", "overwrite=")
    directory = _value(words, "output_dir")
    try:
        cells = read_words([word for word in words if not word.startswith(own)])
        if directory is None:
            found = screen(cells)
        else:
            overwrite = _value(words, "overwrite") == "yes"
            with own_folder(Path(directory), overwrite=overwrite):
                found = screen(cells)
                _write(found, cells[0].system, Path(directory))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    axes = list(cells[0].axes)
    heads = [".".join(key.split(".")[-2:]) for key in axes]
    title = f"{cells[0].system}, {len(cells)} machine{'s' * (len(cells) != 1)}"
    shown = ("tokens/s", "TTFT (s)", "TPOT (s)", "makespan (s)", "hits")
    table = Table(*heads, *shown, title=escape(title), box=SIMPLE_HEAD, pad_edge=False)
    for row in found.iter_rows(named=True):
        table.add_row(
            *(str(row[key]) for key in axes),
            *("-" if row[key] is None else f"{row[key]:.4g}" for key in SHOWN),
        )
    console = Console()
    console.print(table)
    for text in told((cells[0].system, from_row(row)) for row in found["labels"]):
        print_text(console, text)
    if directory is not None:
        print_text(console, f"files: {directory}")
    return 0


def _value(words: Sequence[str], key: str) -> str | None:
    """The last value that is given for a key of the command's own."""
    found = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    return found[-1] if found else None


def _write(found: pl.DataFrame, system: str, directory: Path) -> None:
    """Write the rows as ``table.parquet``, ``table.csv`` and ``table.json``."""
    with writing(directory):
        found.write_parquet(directory / "table.parquet")
    rows = [
        {**row, "labels": told([(system, from_row(row["labels"]))])}
        for row in found.iter_rows(named=True)
    ]
    write_json(directory / "table.json", rows)
    flat = [{**row, "labels": "; ".join(row["labels"])} for row in rows]
    pl.DataFrame(flat).write_csv(directory / "table.csv")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
