"""Writes a run as Chrome trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing.

There are tracks for steps, the compute stream, the CPU, the host and every engine of a link; and for
every other device that owns experts. Times in events are microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

import polars as pl

from sim.machine.durations import OwnedDurations
from sim.machine.lanes import LanedDurations, in_proportion
from sim.results.frames import PHASES, Frames
from sim.values.record import HOST_TIME
from sim.values.types import Geometry

STEP_TRACK, COMPUTE_TRACK, CPU_TRACK, HOST_TRACK, LINK_TRACK = range(1, 6)
"""Numbers of the tracks; the engines of the links follow from LINK_TRACK on, link 0 first."""
Event = dict[str, Any]
Starts = dict[tuple[int, int], tuple[int, int]]
"""By a key and the time of its lookup: on which track its computation is shown, and its start."""


def trace_events(
    frames: Frames, wait: str, steps: int | None, run: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object of ``timeline.json`` for the first ``steps`` steps (None: all).

    ``wait`` is the loader's rule for the order of a gate's needs. ``run`` identifies the run; it
    goes into ``otherData``.
    """
    total = len(frames.workload.steps)
    shown = total if steps is None else min(steps, total)
    until_ns = frames.record.step_end_ns[shown - 1]
    starts: Starts = {}
    events = [*_tracks(frames)]
    events += _steps(frames, shown)
    events += _compute(frames, wait, shown, starts)
    events += _others(frames, shown, starts)
    events += _idle(frames, until_ns)
    events += _cpu(frames, shown)
    events += _services(frames, until_ns)
    events += _arrows(frames, until_ns, starts)
    return {
        "displayTimeUnit": "ms",
        "otherData": {**run, "steps_shown": shown, "steps": total, "time_unit": "us"},
        "traceEvents": events,
    }


def link_tracks(frames: Frames) -> list[int]:
    """The track of each link's first engine."""
    return list(accumulate(frames.controller.route.engines, initial=LINK_TRACK))[:-1]


def other_tracks(frames: Frames) -> dict[int, int]:
    """The tracks of devices other than the first that own experts, after all links, with their
    numbers.
    """
    if not isinstance(frames.durations, OwnedDurations):
        return {}
    first = LINK_TRACK + sum(frames.controller.route.engines)
    return {first + device - 1: device for device in range(1, frames.durations.devices)}


def _tracks(frames: Frames) -> Iterator[Event]:
    names = {STEP_TRACK: "steps", COMPUTE_TRACK: "compute", CPU_TRACK: "CPU", HOST_TRACK: "host"}
    engines = frames.controller.route.engines
    for first, link, count in zip(link_tracks(frames), frames.link_names, engines, strict=True):
        for engine in range(count):
            names[first + engine] = f"link {link}" if count == 1 else f"link {link} engine {engine}"
    for track, device in other_tracks(frames).items():
        names[track] = f"compute of device {device}"
    for track, name in names.items():
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {
            "ph": "M",
            "pid": 1,
            "tid": track,
            "name": "thread_sort_index",
            "args": {"sort_index": track},
        }
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "device 0"}}


def _slice(track: int, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "pid": 1,
        "tid": track,
        "name": name,
        "ts": start_ns / 1e3,
        "dur": (end_ns - start_ns) / 1e3,
        "args": args,
    }


def _steps(frames: Frames, steps: int) -> Iterator[Event]:
    """One slice for each step, named for its sequences."""
    record = frames.record
    for step in frames.workload.steps[:steps]:
        whose = (
            f"sequence {step.sequences[0]}"
            if len(step.sequences) == 1
            else f"{len(step.sequences)} sequences"
        )
        yield _slice(
            STEP_TRACK,
            f"{PHASES[step.decode + step.drafting]} {whose}",
            record.step_start_ns[step.index],
            record.step_end_ns[step.index],
            step=step.index,
            sequences=list(step.sequences),
            rows=step.rows,
            token=step.token,
        )


def _compute(frames: Frames, wait: str, steps: int, starts: Starts) -> Iterator[Event]:
    """Slices of dense work, experts and tails, laid one after another around idle intervals.

    Fills ``starts``, which maps a key and the time of its lookup to the start of its computation.
    """
    if frames.computed is not None:
        yield from _measured(frames, frames.computed, steps, starts)
        return
    record, workload, durations = frames.record, frames.workload, frames.durations
    idle = dict(zip(record.idle_start_ns, record.idle_end_ns, strict=True))
    ends = iter(record.work_end_ns) if record.slowed_ns else None
    rows = frames.lookups_of_steps(steps).rows_by_key("tick", named=True)
    geometry = frames.controller.geometry
    units = geometry.units
    owned = isinstance(durations, OwnedDurations)  # then the stream is home's
    tick = start = now = 0

    def follow(name: str, work_ns: int, **args: Any) -> Event:
        """The slice of what the stream does next, which takes ``work_ns`` if nobody slows it."""
        nonlocal start, now
        start = _after_idle(idle, now)
        now = start + work_ns if ends is None else next(ends)
        return _slice(COMPUTE_TRACK, name, start, now, **args)

    for step in workload.steps[:steps]:
        now, dense = record.step_start_ns[step.index], durations.dense_ns(step)
        for site in step.sites:
            yield follow(f"attention {site}", dense[site], step=step.index, site=site)
            for row, work_ns in _in_order(frames, rows.get(tick, []), wait):
                if owned and geometry.on_device(row["key"]):
                    continue
                yield follow(
                    f"expert {row['key'] % units}",
                    work_ns,
                    site=site,
                    outcome=row["outcome"],
                    precision=row["served"],
                    tokens=row["computed"],
                )
                starts.setdefault((row["key"], row["gate_ns"]), (COMPUTE_TRACK, start))
            tick += 1
        yield follow("head", durations.tail_ns(step), step=step.index)


def _others(frames: Frames, steps: int, starts: Starts) -> Iterator[Event]:
    """Slices of the experts that devices other than the first computed. Fills ``starts``."""
    track_of = {device: track for track, device in other_tracks(frames).items()}
    if not track_of:
        return
    record, units = frames.record, frames.controller.geometry.units
    columns = record.owner_key, record.owner_device, record.owner_start_ns, record.owner_end_ns
    turns: dict[int, deque[tuple[int, int, int]]] = {}
    for key, *turn in zip(*columns, strict=True):
        turns.setdefault(key, deque()).append((turn[0], turn[1], turn[2]))
    served = pl.col("outcome").is_in(["skip", "cpu"]).not_() & (pl.col("computed") > 0)
    for row in frames.lookups_of_steps(steps).filter(served).iter_rows(named=True):
        # A key is computed as often as it is asked for, in the same order.
        if not turns.get(row["key"]):
            continue
        device, start, end = turns[row["key"]].popleft()
        starts.setdefault((row["key"], row["gate_ns"]), (track_of[device], start))
        yield _slice(
            track_of[device],
            f"expert {row['key'] % units}",
            start,
            end,
            site=row["site"],
            outcome=row["outcome"],
            precision=row["served"],
            tokens=row["computed"],
        )


def _measured(
    frames: Frames,
    computed: Sequence[tuple[int, int, int]],
    steps: int,
    starts: Starts,
) -> Iterator[Event]:
    """As ``_compute``, from measured times.

    Only the end of dense work was measured; it begins where the stream went on.
    """
    record, geometry = frames.record, frames.controller.geometry
    idle = dict(zip(record.idle_start_ns, record.idle_end_ns, strict=True))
    rows = frames.lookups_of_steps(steps).rows_by_key("tick", named=True)
    left, tick = iter(computed), 0
    for step in frames.workload.steps[:steps]:
        now = record.step_start_ns[step.index]
        for site in step.sites:
            _, _, end = next(left)
            yield _slice(
                COMPUTE_TRACK,
                f"attention {site}",
                _after_idle(idle, now),
                end,
                step=step.index,
                site=site,
            )
            now, by_key = end, {row["key"]: row for row in rows.get(tick, [])}
            for _ in range(sum(row["outcome"] not in ("skip", "cpu") for row in by_key.values())):
                key, start, now = next(left)
                starts[key, by_key[key]["gate_ns"]] = COMPUTE_TRACK, start
                yield _slice(
                    COMPUTE_TRACK,
                    f"expert {geometry.expert_of(key)}",
                    start,
                    now,
                    site=site,
                    outcome=by_key[key]["outcome"],
                    precision=by_key[key]["served"],
                    tokens=by_key[key]["tokens"],
                )
            tick += 1
        _, _, end = next(left)
        yield _slice(COMPUTE_TRACK, "head", _after_idle(idle, now), end, step=step.index)


def _after_idle(idle: Mapping[int, int], now: int) -> int:
    """The time at which the stream goes on, after any idle intervals that begin at ``now``."""
    while idle.get(now, now) > now:
        now = idle[now]
    return now


def _in_order(frames: Frames, rows: list[Event], wait: str) -> Iterator[tuple[Event, int]]:
    """The needs of one gate that the device computed, in the order of their computation, and what
    each takes alone. By projection (contract C167) a need has several turns.
    """
    geometry, durations = frames.controller.geometry, frames.durations
    served = [row for row in rows if row["outcome"] not in ("skip", "cpu") and row["computed"]]
    if wait == "as_ready":
        served.sort(key=lambda row: row["ready_ns"])
    if wait != "by_projection":
        for row in served:
            yield row, _expert_ns(frames, row)
        return
    assert isinstance(durations, LanedDurations)
    for _, admitted in groupby(served, key=lambda row: row["gate_ns"]):
        parts: list[tuple[int, Event, int]] = []
        for row in sorted(admitted, key=lambda row: row["key"]):
            variant = _variant(geometry, row)
            shares = durations.projection_bytes(*variant, geometry.key_bytes[row["key"]])
            times = in_proportion(_expert_ns(frames, row), shares)
            parts += [(turn, row, time) for turn, time in enumerate(times)]
        for _, row, time in sorted(parts, key=lambda part: part[0]):
            yield row, time


def _expert_ns(frames: Frames, row: Event) -> int:
    """How long a need's expert takes alone."""
    variant, step = _variant(frames.controller.geometry, row), frames.workload.steps[row["step"]]
    return frames.durations.expert_ns(*variant, row["computed"], step.rows)


def _variant(geometry: Geometry, row: Event) -> tuple[int, int]:
    """The precision of a lookup's key, and its site."""
    key: int = row["key"]
    return divmod(key // geometry.units, geometry.sites)


def _idle(frames: Frames, until_ns: int) -> Iterator[Event]:
    """Slices of idle intervals, named for their largest part.

    Idle time that host work caused is also on the host's track.
    """
    record = frames.record
    for index, (start, end) in enumerate(
        zip(record.idle_start_ns, record.idle_end_ns, strict=True)
    ):
        if start >= until_ns:
            return
        parts = {part: int(ns[index]) for part, ns in frames.stalls.items() if ns[index]}
        if not parts:  # before the first arrival
            continue
        name, cause = max(parts, key=lambda part: parts[part]), record.idle_cause[index]
        yield _slice(
            COMPUTE_TRACK,
            f"stall: {name}",
            start,
            end,
            transfer=cause if cause >= 0 else None,
            **{f"{part}_us": ns / 1e3 for part, ns in parts.items()},
        )
        if cause == HOST_TIME:
            yield _slice(HOST_TRACK, "host", start, end)


def _cpu(frames: Frames, steps: int) -> Iterator[Event]:
    """Slices of the needs that the CPU computed, one after another; each ends when its result is
    back.
    """
    units, before_ns = frames.controller.geometry.units, 0
    shown = frames.lookups_of_steps(steps).filter(pl.col("outcome") == "cpu")
    for row in shown.iter_rows(named=True):
        yield _slice(
            CPU_TRACK,
            f"expert {row['key'] % units}",
            max(row["gate_ns"], before_ns),
            row["ready_ns"],
            site=row["site"],
            precision=row["served"],
            tokens=row["computed"],
        )
        before_ns = row["ready_ns"]


def _services(frames: Frames, until_ns: int) -> Iterator[Event]:
    """Slices of the services of every engine of every link."""
    geometry, services, tracks = (
        frames.controller.geometry,
        frames.traffic.services,
        link_tracks(frames),
    )
    hops = {
        (row["number"], row["link"]): row
        for row in frames.transfers.iter_rows(named=True)
        if row["start_ns"] < until_ns
    }
    columns = (
        services.number,
        services.link,
        services.engine,
        services.start_ns,
        services.end_ns,
        services.moved_bytes,
        services.written_bytes,
    )
    for number, link, engine, start, end, moved, written in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        if start >= until_ns:
            continue
        row = hops[number, frames.link_names[link]]
        is_dense = row["class"] == "dense"
        what = f"site {geometry.site_of(row['key'])}" if is_dense else geometry.name_of(row["key"])
        yield _slice(
            tracks[link] + engine,
            f"{row['class']} {what}",
            start,
            end,
            number=number,
            bytes=moved,
            **({"written_back": written} if written else {}),
            outcome=row["outcome"],
            queued_us=row["queued_ns"] / 1e3,
        )


def _arrows(frames: Frames, until_ns: int, starts: Starts) -> Iterator[Event]:
    """Arrows from each need to its demand, hop by hop, and on to its computation.

    Only demands whose computation is shown get one.
    """
    tracks = dict(zip(frames.link_names, link_tracks(frames), strict=True))
    shown = frames.transfers.filter((pl.col("start_ns") < until_ns) & (pl.col("class") == "demand"))
    for _, hops in groupby(shown.iter_rows(named=True), key=lambda row: row["number"]):
        first, *_ = rows = list(hops)
        if (first["key"], first["queued_ns"]) not in starts:
            continue
        track, start = starts[first["key"], first["queued_ns"]]
        arrow = {"pid": 1, "cat": "need", "name": "load", "id": first["number"]}
        yield {**arrow, "ph": "s", "tid": COMPUTE_TRACK, "ts": first["queued_ns"] / 1e3}
        for row in rows:
            yield {**arrow, "ph": "t", "tid": tracks[row["link"]], "ts": row["start_ns"] / 1e3}
        yield {**arrow, "ph": "f", "bp": "e", "tid": track, "ts": start / 1e3}
