"""A run as Chrome trace events: a track for each link and the compute stream, arrows from need to computation.

Opens in Perfetto (ui.perfetto.dev) and in chrome://tracing. Times are microseconds there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from sim.frames import Frames

COMPUTE_TRACK, LINK_TRACK = 1, 2
Event = dict[str, Any]


def trace_events(frames: Frames, wait_all: bool, steps: int | None, run: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of ``timeline.json``, over the first ``steps`` steps (None: all); ``run`` says of which run."""
    total = len(frames.workload.steps)
    shown = total if steps is None else min(steps, total)
    until_ns = frames.record.step_end_ns[shown - 1]
    starts: dict[tuple[int, int], int] = {}
    events = [*_tracks(frames.link_name)]
    events += _compute(frames, wait_all, shown, starts)
    events += _stalls(frames, until_ns)
    events += _transfers(frames, until_ns, starts)
    return {
        "displayTimeUnit": "ms",
        "otherData": {**run, "steps_shown": shown, "steps": total, "time_unit": "us"},
        "traceEvents": events,
    }


def _tracks(link: str) -> Iterator[Event]:
    for track, name in ((COMPUTE_TRACK, "compute"), (LINK_TRACK, f"link {link}")):
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "device 0"}}


def _slice(track: int, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
    return {"ph": "X", "pid": 1, "tid": track, "name": name, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3,
            "args": args}  # fmt: skip


def _compute(frames: Frames, wait_all: bool, steps: int, starts: dict[tuple[int, int], int]) -> Iterator[Event]:
    """Dense work, experts and tails. Fills ``starts``: (key, gate time) -> when its computation begins."""
    record, workload, durations = frames.record, frames.workload, frames.durations
    sites = workload.sites
    rows = frames.lookups.filter(pl.col("step") < steps).rows_by_key("tick", named=True)
    for step in workload.steps[:steps]:
        dense, first = durations.dense_ns(step), step.index * sites
        for site in range(sites):
            tick = first + site
            gate = record.gate_ns[tick]
            yield _slice(COMPUTE_TRACK, f"attention {site}", gate - dense[site], gate, step=step.index, site=site)
            for row, start, end in _computed(frames, rows.get(tick, []), gate, wait_all):
                starts[row["key"], row["gate_ns"]] = start
                yield _slice(COMPUTE_TRACK, f"expert {row['expert']}", start, end, site=site, outcome=row["outcome"],
                             precision=row["served"], tokens=row["tokens"])  # fmt: skip
        tail_start = record.end_ns[first + sites - 1]
        yield _slice(COMPUTE_TRACK, "head", tail_start, record.step_end_ns[step.index], step=step.index)


def _computed(frames: Frames, rows: list[Event], gate_ns: int, wait_all: bool) -> Iterator[tuple[Event, int, int]]:
    """The needs of one gate in the order of their computation, with its start and end."""
    served = [row for row in rows if row["outcome"] != "skip"]
    if wait_all:
        latest: dict[int, int] = {}
        for row in served:
            latest[row["gate_ns"]] = max(latest.get(row["gate_ns"], 0), row["ready_ns"])
        order = [(row, latest[row["gate_ns"]]) for row in served]
    else:
        order = sorted(((row, row["ready_ns"]) for row in served), key=lambda pair: pair[1])
    plane = frames.controller.geometry.plane
    free = gate_ns
    for row, ready in order:
        start = max(free, ready)
        free = start + frames.durations.expert_ns(row["key"] // plane, row["tokens"])
        yield row, start, free


def _stalls(frames: Frames, until_ns: int) -> Iterator[Event]:
    """Idle intervals, named for their largest part: an arrow that starts where nothing is computed starts here."""
    record = frames.record
    for index, (start, end) in enumerate(zip(record.idle_start_ns, record.idle_end_ns, strict=True)):
        if start >= until_ns:
            return
        parts = {part: int(ns[index]) for part, ns in frames.stalls.items() if ns[index]}
        name = max(parts, key=lambda part: parts[part])
        yield _slice(COMPUTE_TRACK, f"stall: {name}", start, end, transfer=record.idle_cause[index],
                     **{f"{part}_us": ns / 1e3 for part, ns in parts.items()})  # fmt: skip


def _transfers(frames: Frames, until_ns: int, starts: dict[tuple[int, int], int]) -> Iterator[Event]:
    geometry = frames.controller.geometry
    shown = frames.transfers.filter(pl.col("start_ns") < until_ns)
    for row in shown.iter_rows(named=True):
        kind = row["class"]
        yield _slice(LINK_TRACK, f"{kind} {geometry.name_of(row['key'])}", row["start_ns"], row["end_ns"],
                     number=row["number"], bytes=row["moved_bytes"], outcome=row["outcome"],
                     queued_us=row["queued_ns"] / 1e3)  # fmt: skip
        yield from _arrows(row, starts)


def _arrows(row: Event, starts: dict[tuple[int, int], int]) -> Iterator[Event]:
    """Need -> transfer -> computation, for a demand whose computation is shown."""
    start = starts.get((row["key"], row["queued_ns"]))
    if row["class"] != "demand" or start is None:
        return
    arrow = {"pid": 1, "cat": "need", "name": "load", "id": row["number"]}
    yield {**arrow, "ph": "s", "tid": COMPUTE_TRACK, "ts": row["queued_ns"] / 1e3}
    yield {**arrow, "ph": "t", "tid": LINK_TRACK, "ts": row["start_ns"] / 1e3}
    yield {**arrow, "ph": "f", "bp": "e", "tid": COMPUTE_TRACK, "ts": start / 1e3}
