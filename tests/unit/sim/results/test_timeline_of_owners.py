"""The timeline of a run whose devices own experts: what every device computes, and when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from omegaconf import DictConfig

from sim.machine.durations import OwnedDurations
from sim.results.run import Run
from sim.results.timeline import COMPUTE_TRACK, other_tracks, trace_events
from sim.setup.build import build
from sim.setup.execute import Result, execute
from sim.traces.trace import Trace

RUNS = {
    "as ready": "system=lru loader.wait=as_ready",
    "all together": "system=lru loader.wait=wait_all",
    "in order": "system=lru loader.wait=in_order",
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def ran(
    request: pytest.FixtureRequest, configure: Callable[..., DictConfig], bundled_trace: Trace
) -> tuple[Run, Result]:
    words = ("devices=owners_2", "hardware.devices.count=3", "trace.max_sequences=1")
    run = build(
        configure(*words, "budget.resident_share=0.3", *request.param.split()), "x", bundled_trace
    )
    return run, execute(run)


def events(ran: tuple[Run, Result], steps: int | None = None) -> list[dict[str, Any]]:
    run, result = ran
    found = trace_events(result.frames, run.controller.loader.wait, steps, {})["traceEvents"]
    assert isinstance(found, list)
    return found


def slices(found: list[dict[str, Any]], track: int) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["tid"] == track]


def ns(microseconds: float) -> int:
    return round(microseconds * 1e3)


def test_every_other_device_has_a_track_with_all_that_it_computed(ran: tuple[Run, Result]) -> None:
    run, result = ran
    found, geometry, durations = events(ran), run.controller.geometry, run.durations
    assert isinstance(durations, OwnedDurations)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    tracks = other_tracks(result.frames)
    assert [names[track] for track in tracks] == ["compute of device 1", "compute of device 2"]
    served = result.frames.lookups.filter(~pl.col("outcome").is_in(["skip", "cpu"]))
    for track, device in tracks.items():
        shown = slices(found, track)
        own = [
            row for row in served.iter_rows(named=True) if geometry.on_device(row["key"]) == device
        ]
        assert len(shown) == len(own) > 20
        for event in shown:
            precision = list(geometry.precisions).index(event["args"]["precision"])
            took = durations.expert_on_ns(
                device, precision, event["args"]["site"], event["args"]["tokens"]
            )
            assert ns(event["dur"]) == took
        for before, after in pairwise(sorted(shown, key=lambda event: event["ts"])):
            assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])
        starts = sorted(ns(event["ts"]) for event in shown)
        there = sorted(max(row["ready_ns"], row["gate_ns"]) for row in own)
        assert all(ready <= start for ready, start in zip(there, starts, strict=True))


def test_an_arrow_of_a_load_ends_where_its_expert_was_computed(ran: tuple[Run, Result]) -> None:
    _, result = ran
    others = other_tracks(result.frames)
    ends = {e["tid"] for e in events(ran) if e["ph"] == "f"}
    assert {COMPUTE_TRACK, *others} == ends
    demands = result.frames.transfers.filter(pl.col("class") == "demand")
    assert {e["id"] for e in events(ran) if e["ph"] == "f"} == set(demands["number"])


def test_the_tracks_of_other_devices_end_with_the_steps_that_are_shown(
    ran: tuple[Run, Result],
) -> None:
    _, result = ran
    until = result.frames.record.step_end_ns[2]
    short = events(ran, 3)
    for track in other_tracks(result.frames):
        assert 0 < len(slices(short, track)) < len(slices(events(ran), track))
        assert all(ns(e["ts"]) + ns(e["dur"]) < until for e in slices(short, track))
