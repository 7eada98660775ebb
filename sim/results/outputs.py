"""The outputs of a run: files written together or not at all, a printed table, and one sentence."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from polars.io.plugins import register_io_source
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.machine.precision import AS_STORED
from sim.process.files import writing
from sim.process.printing import print_text
from sim.results.believed import coarse, whose
from sim.results.bounded import bound_told
from sim.results.folders import BUILDING
from sim.results.forecasts import NO_FORECAST, NOT
from sim.results.frames import Frames
from sim.results.intervals import OVER, beside
from sim.results.kept import SUMMARY
from sim.results.labels import Labels, caption, labels_in
from sim.results.timeline import trace_events
from sim.values.units import GIB

Summary = Mapping[str, Any]
PART_ROWS = 1 << 20
"""A longer table is written in parts of so many rows, which take some 100 MB."""


def write_outputs(
    directory: Path,
    summary: Summary,
    config: Summary,
    frames: Frames | None,
    wait: str,
    timeline_steps: int | None,
) -> None:
    """Write every file of a run into ``directory``; without ``frames`` only ``summary.json``.

    Files are made in a hidden folder inside and moved out of it when all are complete. If anything
    fails on the way, none is left. ``wait`` and ``timeline_steps`` are those of
    `sim.results.timeline.trace_events`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=directory))
    moved: list[Path] = []
    try:
        _write_json(building / SUMMARY, summary, indent=1)
        if frames is not None:
            for name in frames.names:
                _write_table(frames.parts(name, PART_ROWS), building / f"{name}.parquet")
            run = {
                name: summary[name]
                for name in ("system", "model", "hardware", "trace", "budget", "labels")
            }
            _write_json(building / "timeline.json", trace_events(frames, wait, timeline_steps, run))
            (building / "config.yaml").write_text(
                OmegaConf.to_yaml(OmegaConf.create(dict(config))), encoding="utf-8"
            )
        # The summary last: where one lies, even after a process was killed, a run is whole.
        for path in sorted(building.iterdir(), key=lambda path: (path.name == SUMMARY, path.name)):
            moved.append(directory / path.name)
            os.replace(path, moved[-1])
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_table(parts: Iterator[pl.DataFrame], path: Path) -> None:
    """Write the rows of ``parts``, in order, to one parquet file. One part is held at a time."""
    first = next(parts)
    if (second := next(parts, None)) is None:
        with writing(path):
            first.write_parquet(path, compression="zstd")
        return
    schema, begun = first.schema, [first, second]
    del first, second

    def in_order(*_: object) -> Iterator[pl.DataFrame]:
        while begun:
            yield begun.pop(0)
        yield from parts

    with writing(path):
        register_io_source(in_order, schema=schema).sink_parquet(
            path, compression="zstd", maintain_order=True
        )


def _write_json(path: Path, content: Summary, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def print_summary(summary: Summary, console: Console) -> None:
    """Print the table of a run with its labels, warnings about its trace, and its ``answer``."""
    title = f"{summary['system']} on {summary['hardware']}, {summary['model']}"
    # An override may be a list in brackets, which rich would take for markup.
    labels = _labels(labels_in(summary))
    ci = summary["ci95"]
    over = beside(
        (ci[name] for name in ("decode_tokens_per_s", "ttft_s", "tpot_s", "hit_ratio")), OVER
    )
    told = escape(". ".join(filter(None, [labels, over])))
    table = Table("metric", "value", "95 % interval", title=escape(title), caption=told)
    for name, value, unit, interval in (
        ("decode", summary["decode_tokens_per_s"], "tok/s", ci["decode_tokens_per_s"]),
        ("time to first token", summary["ttft_s"]["mean"], "s", ci["ttft_s"]),
        ("  p95 of requests", summary["ttft_s"]["p95"], "s", None),
        *_of_prompts(summary),
        ("time per output token", summary["tpot_s"]["mean"], "s", ci["tpot_s"]),
        ("  p95 of requests", summary["tpot_s"]["p95"], "s", None),
        ("hit ratio (decode)", summary["hit_ratio"], "", ci["hit_ratio"]),
        ("makespan", summary["makespan_s"], "s", None),
        ("compute busy", summary["compute_busy_s"], "s", None),
        *(
            (f"stall: {part.replace('_', ' ')}", value, "s", None)
            for part, value in summary["stall_s"].items()
            if value
        ),
        *(
            (f"slowed: {party}", value, "s", None)
            for party, value in (summary["slowed_s"] or {}).items()
            if value
        ),
        *(
            (f"link {link} busy", 100 * share, "%", None)
            for link, share in summary["link_utilisation"].items()
        ),
        *((("hit ratio (RAM)", summary["ram"]["hit_ratio"], "", None),) if summary["ram"] else ()),
        ("proven lower bound", summary["bounds"]["lower_s"], "s", None),
        ("cold start", summary["load_s"], "s", None),
        ("all experts", summary["storage_bytes"] / GIB, "GiB", None),
    ):
        bounds = "" if interval is None else f"{interval[0]:.4g} .. {interval[1]:.4g}"
        table.add_row(name, "-" if value is None else f"{value:.4g} {unit}".rstrip(), bounds)
    console.print(table)
    for finding in summary["trace"]["findings"] or ():
        print_text(console, f"WARNING: the trace: {finding}")
    if (sizes := summary["trace"]["expert_bytes"]) and sizes["note"]:
        print_text(console, f"NOTE: {sizes['note']}")
    print_text(console, answer(summary))


def _of_prompts(summary: Summary) -> Iterator[tuple[str, float | None, str, None]]:
    """Of devices that have layers: how fast prompts are read, and how fast in a pipeline."""
    if (pipelined := summary.get("pipelined")) is None:
        return
    about = "" if pipelined["exact"] else "about "
    yield "prompts", summary["prefill_tokens_per_s"], "tok/s", None
    times = f"tok/s, {about}{pipelined['times_as_fast']:.2f}x"
    yield "  in a pipeline", pipelined["prefill_tokens_per_s"], times, None


def _labels(labels: Labels) -> str:
    return caption([("", labels)])


def _observed(summary: Summary) -> str:
    """What an interval is over: sequences that share steps are one observation.

    >>> _observed({"trace": {"sequences": 8}, "contracts": {"together": 4}})
    'the batches of 8 sequences'
    """
    batches = "the batches of " if summary.get("contracts", {}).get("together", 1) > 1 else ""
    return f"{batches}{summary['trace']['sequences']} sequences"


def decodes(tokens_per_s: float | None) -> str:
    """How a run decodes, in words.

    >>> decodes(4.4), decodes(None)
    ('at 4.4 tokens/s', 'nothing')
    """
    return "nothing" if tokens_per_s is None else f"at {tokens_per_s:.3g} tokens/s"


def answer(summary: Summary) -> str:
    """The run in one sentence; a second says why prompts were not forecast, where it matters."""
    rate, interval = summary["decode_tokens_per_s"], summary["ci95"]["decode_tokens_per_s"]
    waiting = sum(summary["stall_s"].values()) / summary["makespan_s"]
    parts = {name: value for name, value in summary["stall_s"].items() if value}
    main = max(parts, key=lambda name: parts[name]) if parts else None
    speed = decodes(rate)
    if interval is not None:
        speed += f" (95 % over {_observed(summary)}: {interval[0]:.3g} to {interval[1]:.3g}"
        speed += f"{_with_machine(summary)})"
    because = f", mostly {main.replace('_', ' ')}" if main else ""
    labels, lost = labels_in(summary), lost_of(summary)
    lossy = f"; {labels.lossy}{f': {lost}' if lost else ''}" if labels.lossy else ""
    share, best = held_share(summary["budget"]), _best_precision(summary)
    at = "" if best in AS_STORED else f" at {best}"
    note = f" [{label}]" if (label := _labels(replace(labels, lossy=None))) else ""
    note += _prompts(summary)
    return (
        f"With {share:.0%} of the expert bytes{at} resident, {summary['system']} decodes {speed}"
        f" on {summary['hardware']}; it waits {waiting:.0%} of the"
        f" time{because}{bound_told(summary)}{lossy}.{note}"
    )


def held_share(budget: Mapping[str, Any]) -> float:
    """The share of the expert bytes that a run's pools have room for. Some caches leave most of
    their budget unused.

    >>> held_share({"resident_share": 0.5, "device_bytes": 20, "allowed_bytes": 80})
    0.125
    """
    return float(budget["resident_share"] * budget["device_bytes"] / budget["allowed_bytes"])


def _with_machine(summary: Summary) -> str:
    """The interval that has the machine's errors too; empty where nobody knows any."""
    calibration = summary["calibration"]
    ends = (calibration.get("ci95") or {}).get("decode_tokens_per_s")
    return f"; with {whose(calibration)} {coarse(ends[0])} to {coarse(ends[1])}" if ends else ""


def _prompts(summary: Summary) -> str:
    """Why prompts, or some decoded tokens, were not forecast where the system would have done so;
    else empty.
    """
    told = summary["prediction"].get("prompts") or ""
    return f" Prompts were {told}." if told.startswith(NOT) or NO_FORECAST in told else ""


def served(summary: Mapping[str, Any]) -> str:
    """In words: the highest precision at which needs were served, and what was lost."""
    lost, lossy = lost_of(summary), " (lossy)" if labels_in(summary).lossy else ""
    return f"at {_best_precision(summary)}{f', {lost}' if lost else ''}{lossy}"


def _best_precision(summary: Mapping[str, Any]) -> str:
    return str(next(iter(summary["budget"]["slots"])))


def lost_of(summary: Mapping[str, Any]) -> str:
    """In words: the shares of needs served at low precision, skipped, or by other experts.

    Empty for a run that lost nothing.
    """
    quality = summary["quality_proxy"]
    lost = ""
    if quality["low_share"] or quality["skip_share"] or quality["reroute_share"]:
        lost = (
            f"{quality['low_share']:.0%} of needs at low precision, {quality['skip_share']:.1%}"
            " skipped"
        )
    if quality["reroute_share"]:
        lost += f", {quality['reroute_share']:.1%} served by other experts"
    return lost
