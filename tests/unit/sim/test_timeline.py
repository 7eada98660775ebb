"""The exported timeline shows what the tables say, on tracks where nothing overlaps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from omegaconf import DictConfig

from sim.build import build
from sim.execute import Result, execute
from sim.frames import compute_busy_ns, idle_ns
from sim.run import Run
from sim.timeline import COMPUTE_TRACK, LINK_TRACK, trace_events
from sim.trace import Trace

Event = dict[str, Any]


@pytest.fixture(scope="module", params=["mixtral_offloading", "hobbit"])
def ran(
    request: pytest.FixtureRequest, configure: Callable[..., DictConfig], bundled_trace: Trace
) -> tuple[Run, Result]:
    """``as_ready`` with prefetches of one precision and waves; ``wait_all`` with two precisions and skips."""
    overrides = ("trace.max_sequences=1", "budget.resident_share=0.25")
    run = build(configure(f"system={request.param}", *overrides), request.param, bundled_trace)
    return run, execute(run)


def events(ran: tuple[Run, Result], steps: int | None = None) -> list[Event]:
    run, result = ran
    found = trace_events(result.frames, run.controller.loader.wait, steps, {})["traceEvents"]
    assert isinstance(found, list)
    return found


def slices(found: list[Event], track: int) -> list[Event]:
    return [event for event in found if event["ph"] == "X" and event["tid"] == track]


def ns(microseconds: float) -> int:
    return round(microseconds * 1e3)


@pytest.mark.parametrize("track", [COMPUTE_TRACK, LINK_TRACK])
def test_on_a_track_nothing_overlaps(ran: tuple[Run, Result], track: int) -> None:
    shown = slices(events(ran), track)
    assert len(shown) > 100
    for before, after in pairwise(sorted(shown, key=lambda event: (event["ts"], event["dur"]))):
        assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])


def test_the_compute_track_shows_all_of_the_compute_time_and_all_stalls(ran: tuple[Run, Result]) -> None:
    """Together they fill the run from its first nanosecond to its last."""
    run, result = ran
    shown = slices(events(ran), COMPUTE_TRACK)
    names = Counter(event["name"].split()[0] for event in shown)
    stalls = [event for event in shown if event["name"].startswith("stall: ")]
    assert names.pop("stall:") == len(stalls) == len(result.frames.record.idle_start_ns)
    assert sum(ns(event["dur"]) for event in stalls) == sum(idle_ns(result.frames).values())
    busy = [event for event in shown if not event["name"].startswith("stall: ")]
    assert sum(ns(event["dur"]) for event in busy) == compute_busy_ns(result.frames)
    gates = len(run.workload.steps) * run.workload.sites
    served = result.frames.lookups.filter(pl.col("outcome") != "skip")
    assert names == {"attention": gates, "expert": len(served), "head": len(run.workload.steps)}
    assert max(ns(event["ts"]) + ns(event["dur"]) for event in shown) == result.frames.record.makespan_ns


def test_the_link_track_shows_every_transfer_with_its_times(ran: tuple[Run, Result]) -> None:
    _, result = ran
    shown = {event["args"]["number"]: event for event in slices(events(ran), LINK_TRACK)}
    for row in result.frames.transfers.filter(pl.col("start_ns") < result.frames.record.makespan_ns).iter_rows(
        named=True
    ):
        event = shown.pop(row["number"])
        assert (ns(event["ts"]), ns(event["dur"])) == (row["start_ns"], row["end_ns"] - row["start_ns"])
        assert event["args"]["bytes"] == row["moved_bytes"]
        assert event["name"].startswith(f"{row['class']} site ")
    assert not shown


def test_an_arrow_leads_from_a_need_over_its_transfer_to_its_computation(ran: tuple[Run, Result]) -> None:
    run, result = ran
    arrows: dict[int, dict[str, Event]] = {}
    for event in events(ran):
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    demands = result.frames.transfers.filter(pl.col("class") == "demand")
    assert set(arrows) == set(demands["number"])
    for number, arrow in arrows.items():
        assert ns(arrow["s"]["ts"]) <= ns(arrow["t"]["ts"]) < ns(arrow["f"]["ts"])
        assert (arrow["s"]["tid"], arrow["t"]["tid"], arrow["f"]["tid"]) == (COMPUTE_TRACK, LINK_TRACK, COMPUTE_TRACK)
        assert ns(arrow["f"]["ts"]) >= result.frames.transfers["end_ns"][number]
    assert len(arrows) > 50
    assert run.system in ("mixtral_offloading", "hobbit")


def test_no_expert_is_computed_before_it_is_there(ran: tuple[Run, Result]) -> None:
    _, result = ran
    starts = sorted(ns(e["ts"]) for e in slices(events(ran), COMPUTE_TRACK) if e["name"].startswith("expert"))
    ready = sorted(result.frames.lookups.filter(pl.col("outcome") != "skip")["ready_ns"].to_list())
    assert all(a <= b for a, b in zip(ready, starts, strict=True))


def test_the_first_steps_are_shown_only_if_asked_for_and_the_rest_is_said(ran: tuple[Run, Result]) -> None:
    run, result = ran
    short = trace_events(result.frames, run.controller.loader.wait, 3, {})
    assert short["otherData"] == {"steps_shown": 3, "steps": len(run.workload.steps), "time_unit": "us"}
    until = result.frames.record.step_end_ns[2]
    for event in short["traceEvents"]:
        if event["ph"] == "X":
            assert ns(event["ts"]) < until
    heads = [event for event in slices(short["traceEvents"], COMPUTE_TRACK) if event["name"] == "head"]
    assert len(heads) == 3
    more = trace_events(result.frames, "wait_all", 10**6, {})["otherData"]
    assert more["steps_shown"] == more["steps"]


def test_the_timeline_is_json_and_its_tracks_have_names(ran: tuple[Run, Result]) -> None:
    found = events(ran, 2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    names = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    assert list(names.values()) == ["steps", "compute", "CPU", "host", "link pcie"]
    assert (names[COMPUTE_TRACK], names[LINK_TRACK]) == ("compute", "link pcie")
