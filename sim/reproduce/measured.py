"""Simulates one run of an experiment, and takes from it the numbers that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sim.engine.simulate import simulate
from sim.process.shared import Shared
from sim.reproduce.durations import Timing, timed
from sim.results.frames import Frames
from sim.results.hits import asked, is_found, is_missed
from sim.results.labels import labels_of
from sim.results.latency import decode_time_and_tokens, prefill_time
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.traces import load_trace
from sim.traces.trace import Trace

LOADING = ("demand", "behind_demand", "behind_prefetch", "late_prefetch", "storage", "no_slot")
_SHARED = Shared(3)
"""The workloads of the traces that a process replays again and again."""


@dataclass(frozen=True)
class Measured:
    """The numbers that are kept of a run.

    Lists are by sequence, times in ns. Numbers are of decode steps unless their name says prefill.
    """

    decode_ns: list[float]
    tokens: list[float]
    prefill_ns: list[float]
    prompt_tokens: list[int]
    asked: list[float]
    found: list[float]
    missed: list[float]
    penalty: list[float]
    loading_share: float
    host_ns_per_prefill_gate: float
    link_ns_per_gate: float
    ns_per_transfer: float
    prefetches_per_gate: float
    device_bytes: int
    gates: str = ""
    labels: dict[str, str | None] = field(default_factory=dict)
    """What a reader must know of the numbers (`sim.results.labels`)."""
    extra: dict[str, float] = field(default_factory=dict)


def measure(config: Mapping[str, Any], trace_dir: Path, timing: Timing | None) -> Measured:
    """Simulate a configuration, given as plain values, on the trace in ``trace_dir``.

    Raise ValueError as `build` does.
    """
    run = build(config, "arm", trace_in(str(trace_dir)), _SHARED)
    durations: Any = run.durations if timing is None else timed(run, timing)
    record = simulate(run.controller, run.workload, durations)
    frames = Frames(run.controller, run.workload, durations, record, run.hardware.link_names)
    return _measured(run, frames)


@lru_cache(maxsize=3)
def trace_in(path: str) -> Trace:
    """The trace in a folder, with as many forecasts as any measure or predictor of a paper asks."""
    return load_trace(path, lookahead_sites=3)


def _measured(run: Run, frames: Frames) -> Measured:
    decode_ns, tokens = decode_time_and_tokens(frames)
    lookups = _by_sequence(run, frames)
    gates = max(1, frames.lookups["tick"].n_unique())
    first, decode_gates = frames.link_names[0], lookups.pop("gates")
    hops = frames.transfers.filter(pl.col("link") == first)
    whole = hops["end_ns"] - hops["start_ns"]
    return Measured(
        decode_ns.tolist(),
        tokens.tolist(),
        prefill_time(frames).tolist(),
        frames.sequences["prompt_tokens"].to_list(),
        **lookups,
        loading_share=_loading_share(frames),
        host_ns_per_prefill_gate=_host_per_prefill_gate(run, frames),
        link_ns_per_gate=frames.traffic.busy_ns()[first] / gates,
        ns_per_transfer=float(whole.mean() or 0.0) if len(whole) else 0.0,  # type: ignore[arg-type]
        prefetches_per_gate=int(run.controller.issued.column("prefetch").sum())
        / max(1, decode_gates),
        device_bytes=run.ledger.total_bytes,
        gates=run.trace.header.name,
        labels=labels_of(run, frames.lookups).kinds(),
    )


def _by_sequence(run: Run, frames: Frames) -> dict[str, Any]:
    """Decode lookups by sequence: asked for, found on the device, missed, and misses' penalties."""
    bits = run.controller.geometry.bits
    cost = {
        name: each / bits[0]
        for name, each in zip(run.controller.geometry.precisions, bits, strict=True)
    }
    decode = asked(frames.lookups.filter(pl.col("phase") == "decode"))
    steps = frames.tokens.select("step", "sequence")
    table = (
        decode.join(steps, on="step")
        .group_by("sequence")
        .agg(
            asked=pl.len(),
            found=is_found().sum(),
            missed=is_missed().sum(),
            penalty=pl.col("wanted")
            .replace_strict(cost, return_dtype=pl.Float64)
            .filter(is_missed())
            .sum(),
        )
    )
    table = frames.sequences.select("sequence").join(
        table, on="sequence", how="left", maintain_order="left"
    )
    names = ("asked", "found", "missed", "penalty")
    columns = {name: table[name].fill_null(0).cast(pl.Float64).to_list() for name in names}
    return {**columns, "gates": decode["tick"].n_unique()}


def _loading_share(frames: Frames) -> float:
    """The share of the time of decode steps in which the compute stream waited for loads."""
    record = frames.record
    start = np.array(record.step_start_ns, np.int64)
    is_decode = np.array([step.decode for step in frames.workload.steps], np.bool_)
    at = np.searchsorted(start, np.array(record.idle_start_ns, np.int64), side="right") - 1
    waited = np.sum([frames.stalls[part] for part in LOADING], axis=0)
    time_ns = int((np.array(record.step_end_ns, np.int64) - start)[is_decode].sum())
    return float(np.sum(waited[is_decode[at]])) / time_ns if time_ns else 0.0


def _host_per_prefill_gate(run: Run, frames: Frames) -> float:
    steps = [step for step in run.workload.steps if not step.decode]
    gates = sum(len(step.sites) for step in steps)
    start = np.array(frames.record.step_start_ns, np.int64)
    at = np.searchsorted(start, np.array(frames.record.idle_start_ns, np.int64), side="right") - 1
    is_prefill = np.array([not step.decode for step in run.workload.steps], np.bool_)
    return float(frames.stalls["host"][is_prefill[at]].sum()) / gates if gates else 0.0
