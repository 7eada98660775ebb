"""Compare five systems at three memory budgets on the bundled trace: table, figure, timeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import folder_for, own_folder
from sim.results.intervals import OVER
from sim.results.labels import Labels, labels_in, told, write_on
from sim.results.latency import decode_time_and_tokens
from sim.results.looks import MARKERS, looks, save
from sim.results.paired import TOO_FEW, Paired, paired
from sim.results.timeline import trace_events
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.setup.execute import Result, execute
from sim.setup.traces import load_trace
from sim.verbs.table import verb_of
from sim.verbs.words import read

SYSTEMS = ("load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle")
SHARES = (0.25, 0.50, 0.75)
BASELINE = "lru"
LOSSY = "hobbit"


@dataclass(frozen=True)
class Cell:
    """One system at one budget: its summary, and decode time and tokens by sequence."""

    summary: dict[str, Any]
    decode_ns: NDArray[np.float64]
    tokens: NDArray[np.float64]


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Run the comparison. Exit status: 0, or 2 with one message on stderr."""
    try:
        words = read(verb_of("demo"), arguments).own
        output_dir = folder_for(words, Path("outputs/demo"))
        with own_folder(output_dir, overwrite=words.get("overwrite") == "yes"):
            _compare(output_dir, words.get("sequences"))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(output_dir: Path, sequences: str | None) -> None:
    """Simulate and tell; files go to ``output_dir``. ``sequences``: only so many; None: all."""
    few = [] if sequences is None else [f"trace.max_sequences={sequences}"]
    console = Console()
    cells: dict[tuple[str, float], Cell] = {}
    trace = load_trace("capture/assets/traces/tiny_mixtral", lookahead_sites=3)
    pairs = [(system, share) for share in SHARES for system in SYSTEMS]
    with Shown() as bar:
        for system, share in bar.track(pairs, description="simulating"):
            # 75 % of the experts of half of Mixtral's layers exceed a real 4090: the machine is
            # imagined with 48 GiB at every budget alike.
            words = (
                f"system={system}",
                f"budget.resident_share={share}",
                "experiment=more_memory",
                *few,
            )
            cfg, name = configure(*words)
            run = build(cfg, name, trace, changed=changes(words))
            result = execute(run)
            cells[system, share] = Cell(result.summary, *decode_time_and_tokens(result.frames))
            if (system, share) == (LOSSY, 0.50):
                _write_timeline(output_dir / "timeline.json", result, run.controller.loader.wait)
    report = _table(cells)
    console.print(report)
    print_text(console, _answer(cells))
    (output_dir / "table.json").write_text(
        json.dumps(
            [
                {**cell.summary, f"speedup_over_{BASELINE}": asdict(_speedup(cells, *where))}
                for where, cell in cells.items()
            ],
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    _draw(output_dir / "comparison.png", cells)
    print_text(
        console,
        f"files: {output_dir}/comparison.png, comparison.svg, table.json, timeline.json (open it in"
        " ui.perfetto.dev)",
    )


def _write_timeline(path: Path, result: Result, wait: str) -> None:
    run = {
        name: result.summary[name]
        for name in ("system", "model", "hardware", "trace", "budget", "labels")
    }
    path.write_text(
        json.dumps(trace_events(result.frames, wait, 256, run)) + "\n", encoding="utf-8"
    )


def _speedup(cells: dict[tuple[str, float], Cell], system: str, share: float) -> Paired:
    """How many times as fast as the baseline a system is at the same budget."""
    return _paired(cells[system, share], cells[BASELINE, share])


def _paired(ours: Cell, theirs: Cell) -> Paired:
    return paired(ours.decode_ns, theirs.decode_ns)


def _table(cells: dict[tuple[str, float], Cell]) -> Table:
    some = cells[BASELINE, SHARES[0]].summary
    title = (
        f"decode tokens/s [95 % interval], x against {BASELINE}; {some['hardware']},"
        f" {some['model']}"
    )
    is_few = _speedup(cells, SYSTEMS[0], SHARES[0]).verdict == TOO_FEW
    mark_means = TOO_FEW if is_few else "the paired 95 % interval of the ratio contains 1"
    caption = "; ".join([*told(_labels(cells)), f"~: {mark_means}", OVER])
    table = Table(
        "system", *(f"{share:.0%} resident" for share in SHARES), title=title, caption=caption
    )
    for system in SYSTEMS:
        row = []
        for share in SHARES:
            summary = cells[system, share].summary
            low, high = summary["ci95"]["decode_tokens_per_s"]
            found = _speedup(cells, system, share)
            mark = "~" if not found.is_decided and system != BASELINE else ""
            row.append(
                f"{summary['decode_tokens_per_s']:.2f}  {found.speedup:.2f}x{mark}\n[{low:.2f},"
                f" {high:.2f}]"
            )
        table.add_row(system, *row)
    return table


def _labels(cells: dict[tuple[str, float], Cell]) -> list[tuple[str, Labels]]:
    """The labels of every cell, under the name of its system."""
    return [(system, labels_in(cell.summary)) for (system, _), cell in cells.items()]


def _answer(cells: dict[tuple[str, float], Cell]) -> str:
    share = SHARES[1]
    found = _speedup(cells, LOSSY, share)
    summary = cells[LOSSY, share].summary
    quality = summary["quality_proxy"]
    labels = {system: labels_in(cells[system, share].summary) for system in SYSTEMS}
    lossless = [s for s in SYSTEMS if labels[s].lossy is None and labels[s].is_system]
    best = max(lossless, key=lambda s: cells[s, share].summary["decode_tokens_per_s"])
    ahead = {s: _paired(cells[best, share], cells[s, share]) for s in lossless if s != best}
    rest = [s for s, one in ahead.items() if not one.is_decided]
    rate = f"{cells[best, share].summary['decode_tokens_per_s']:.2f} tokens/s"
    who = f"the fastest lossless system is {best}, with {rate}"
    if any(one.verdict == TOO_FEW for one in ahead.values()):
        why = TOO_FEW.partition(": ")[2]
        who = f"{best} has the highest speed of lossless systems, {rate} (not sure: {why})"
    elif rest:
        tied = ", ".join([best, *rest])
        who = f"{tied} tie as the fastest lossless systems, {best} with {rate}"
    assert found.interval is not None, "the bundled trace has more than one sequence to evaluate on"
    low, high = found.interval
    return (
        f"At {share:.0%} resident {who};"
        f" {LOSSY} is {found.speedup:.2f}x {BASELINE} (paired 95 % over {found.sequences}"
        f" sequences: {low:.2f} to {high:.2f}) serving {quality['low_share']:.0%} of needs at low"
        f" precision and skipping {quality['skip_share']:.1%}."
    )


def _draw(path: Path, cells: dict[tuple[str, float], Cell]) -> None:
    with looks("comparison") as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        for system, marker in zip(SYSTEMS, MARKERS, strict=False):
            rate = np.array(
                [cells[system, share].summary["decode_tokens_per_s"] for share in SHARES]
            )
            interval = np.array(
                [cells[system, share].summary["ci95"]["decode_tokens_per_s"] for share in SHARES]
            ).T
            left.errorbar(
                [100 * s for s in SHARES],
                rate,
                yerr=np.abs(interval - rate),
                marker=marker,
                capsize=3,
                label=system,
                linestyle="--" if system == "oracle" else "-",
            )
        left.set(
            xlabel="expert bytes resident (%)",
            ylabel="decode (tokens/s)",
            xticks=[100 * s for s in SHARES],
            ylim=(0, None),
        )
        left.legend()
        _draw_stalls(right, cells)
        some = cells[BASELINE, SHARES[0]].summary
        figure.suptitle(
            f"{some['model']} on {some['hardware']}, batch 1, 95 % intervals over the trace's"
            " sequences"
        )
        write_on(figure, _labels(cells))
        save(figure, path.with_suffix(""))


def _draw_stalls(axis: Any, cells: dict[tuple[str, float], Cell]) -> None:
    share = SHARES[1]
    summaries = {system: cells[system, share].summary for system in SYSTEMS}
    parts = [
        "compute",
        *(
            p
            for p in summaries[BASELINE]["stall_s"]
            if any(s["stall_s"][p] for s in summaries.values())
        ),
    ]
    base = np.zeros(len(SYSTEMS))
    # Greys and earth tones, because the colours of the other panel stand for systems.
    tones = ["0.85", "#5b4a3f", "#a3876a", "#d9c7a7", "#7f8c5a", "#40513b"]
    shades = dict(zip(parts, tones, strict=False))
    for part in parts:
        seconds = np.array(
            [
                s["compute_busy_s"] if part == "compute" else s["stall_s"][part]
                for s in summaries.values()
            ]
        )
        axis.barh(SYSTEMS, seconds, left=base, label=part.replace("_", " "), color=shades[part])
        base += seconds
    axis.invert_yaxis()
    axis.set(xlabel=f"time of the whole run (s), {share:.0%} resident")
    axis.legend()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
