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

from sim.results.frames import compute_busy_ns, idle_ns
from sim.results.run import Run
from sim.results.timeline import (
    COMPUTE_TRACK,
    CPU_TRACK,
    HOST_TRACK,
    LINK_TRACK,
    STEP_TRACK,
    link_tracks,
    trace_events,
)
from sim.setup.build import build
from sim.setup.execute import Result, execute
from sim.traces.trace import Trace

Event = dict[str, Any]


HOST = (
    "hardware.host.sync_us=20 hardware.host.issue_us=5 hardware.host.wake_us=30"
    " hardware.host.post_us=10"
)
RUNS = {
    "as ready": "system=mixtral_offloading",
    "all together": "system=hobbit",
    "two links and a tier": "system=mixtral_offloading hardware=rtx4090_nvme",
    "two engines, in order": "system=lru loader.wait=in_order hardware.links.pcie.engines=2",
    "chunks": "system=mixtral_offloading loader.chunk_bytes=33554432",
    "CPU and host": f"system=lru placement=absent_on_cpu placement.up_to_tokens=2 {HOST}",
    "slowed by others": (
        "system=fiddler hardware=strix_halo hardware.shared_memory.parties=[compute,cpu]"
    ),
    "tiles of a step's rows": ("system=lru kernels.tile_rows=128 hardware.compute.peak_tflops=1"),
    "a replayed step": "system=lru kernels.graph_rows=1 hardware.compute.replay_us=1",
    "streamed layers": f"system=mixtral_offloading loader.dense_slots=2 {HOST}",
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def ran(
    request: pytest.FixtureRequest, configure: Callable[..., DictConfig], bundled_trace: Trace
) -> tuple[Run, Result]:
    overrides = ("trace.max_sequences=1", "budget.resident_share=0.25", *request.param.split())
    run = build(configure(*overrides), "x", bundled_trace)
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


@pytest.mark.alike
def test_on_a_track_nothing_overlaps(ran: tuple[Run, Result]) -> None:
    found = events(ran)
    tracks = {event["tid"] for event in found if event["name"] == "thread_name"}
    assert len(slices(found, COMPUTE_TRACK)) > 100
    for track in tracks:
        shown = sorted(slices(found, track), key=lambda event: (event["ts"], event["dur"]))
        for before, after in pairwise(shown):
            assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"]), track


def test_the_compute_track_shows_all_of_the_compute_time_and_all_stalls(
    ran: tuple[Run, Result],
) -> None:
    """Together they fill the run from its first nanosecond to its last."""
    run, result = ran
    shown = slices(events(ran), COMPUTE_TRACK)
    names = Counter(event["name"].split()[0] for event in shown)
    stalls = [event for event in shown if event["name"].startswith("stall: ")]
    assert names.pop("stall:") == len(stalls) == len(result.frames.record.idle_start_ns)
    assert sum(ns(event["dur"]) for event in stalls) == sum(idle_ns(result.frames).values())
    busy = [event for event in shown if not event["name"].startswith("stall: ")]
    assert sum(ns(event["dur"]) for event in busy) == compute_busy_ns(result.frames)
    served = result.frames.lookups.filter(~pl.col("outcome").is_in(["skip", "cpu"]))
    assert names == {
        "attention": run.workload.num_gates,
        "expert": len(served),
        "head": len(run.workload.steps),
    }
    assert (
        max(ns(event["ts"]) + ns(event["dur"]) for event in shown)
        == result.frames.record.makespan_ns
    )


def test_the_tracks_of_the_links_show_every_service_with_its_times(ran: tuple[Run, Result]) -> None:
    _, result = ran
    found, record = events(ran), result.frames.record
    first, names = link_tracks(result.frames), {}
    for row in result.frames.transfers.iter_rows(named=True):
        names[row["number"]] = f"{row['class']} site "
    columns = zip(
        record.service_number,
        record.service_link,
        record.service_engine,
        record.service_start_ns,
        record.service_end_ns,
        strict=True,
    )
    services = Counter(
        (number, first[link] + engine, start, record.makespan_ns if end < 0 else end)
        for number, link, engine, start, end in columns
    )
    shown = [event for event in found if event["ph"] == "X" and event["tid"] >= LINK_TRACK]
    assert services == Counter(
        (event["args"]["number"], event["tid"], ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]))
        for event in shown
    )
    assert all(event["name"].startswith(names[event["args"]["number"]]) for event in shown)
    moved = sum(event["args"]["bytes"] for event in shown)
    assert moved == sum(sum(by_class.values()) for by_class in result.summary["bytes"].values())


def test_an_arrow_leads_from_a_need_over_its_transfer_to_its_computation(
    ran: tuple[Run, Result],
) -> None:
    """It leads over every hop of the transfer, in order."""
    _, result = ran
    arrows: dict[int, dict[str, list[Event]]] = {}
    for event in events(ran):
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], {"s": [], "t": [], "f": []})[event["ph"]].append(event)
    demands = result.frames.transfers.filter(pl.col("class") == "demand")
    assert set(arrows) == set(demands["number"])
    ends = dict(demands.select("number", "end_ns").iter_rows())
    hops = dict(demands.group_by("number").len().iter_rows())
    for number, arrow in arrows.items():
        (need,), (computation,) = arrow["s"], arrow["f"]
        times = [ns(need["ts"]), *(ns(hop["ts"]) for hop in arrow["t"]), ns(computation["ts"])]
        assert times == sorted(times)
        assert len(arrow["t"]) == hops[number]
        assert (need["tid"], computation["tid"]) == (COMPUTE_TRACK, COMPUTE_TRACK)
        assert min(hop["tid"] for hop in arrow["t"]) >= LINK_TRACK
        assert times[-1] >= ends[number]
    assert len(arrows) > 20


def test_no_expert_is_computed_before_it_is_there(ran: tuple[Run, Result]) -> None:
    _, result = ran
    starts = sorted(
        ns(e["ts"]) for e in slices(events(ran), COMPUTE_TRACK) if e["name"].startswith("expert")
    )
    on_device = ~pl.col("outcome").is_in(["skip", "cpu"])
    ready = sorted(result.frames.lookups.filter(on_device)["ready_ns"].to_list())
    assert all(a <= b for a, b in zip(ready, starts, strict=True))


def test_the_first_steps_are_shown_only_if_asked_for_and_the_rest_is_said(
    ran: tuple[Run, Result],
) -> None:
    run, result = ran
    short = trace_events(result.frames, run.controller.loader.wait, 3, {})
    assert short["otherData"] == {
        "steps_shown": 3,
        "steps": len(run.workload.steps),
        "time_unit": "us",
    }
    until = result.frames.record.step_end_ns[2]
    for event in short["traceEvents"]:
        if event["ph"] == "X":
            assert ns(event["ts"]) < until
    heads = [
        event for event in slices(short["traceEvents"], COMPUTE_TRACK) if event["name"] == "head"
    ]
    assert len(heads) == 3
    more = trace_events(result.frames, "wait_all", 10**6, {})["otherData"]
    assert more["steps_shown"] == more["steps"]


def test_a_step_is_a_slice_from_its_beginning_to_its_end(ran: tuple[Run, Result]) -> None:
    run, result = ran
    shown, record = slices(events(ran), STEP_TRACK), result.frames.record
    assert [ns(event["ts"]) for event in shown] == record.step_start_ns
    assert [ns(event["ts"]) + ns(event["dur"]) for event in shown] == record.step_end_ns
    assert shown[0]["name"] == f"prefill sequence {run.workload.sequences[0].sequence}"
    assert Counter(event["name"].split()[0] for event in shown) == {
        "prefill": 1,
        "decode": len(run.workload.steps) - 1,
    }


def test_an_expert_that_is_computed_by_projection_has_a_slice_for_each(
    configure: Callable[..., DictConfig], bundled_trace: Trace
) -> None:
    """All of a gate's first projections come before its second ones (contract C167)."""
    words = ["trace.max_sequences=1", "budget.resident_share=0.25", "system=lru"]
    words += ["loader.wait=by_projection", "+hardware.links.pcie.unit=projection"]
    run = build(configure(*words), "x", bundled_trace)
    result = execute(run)
    found = trace_events(result.frames, run.controller.loader.wait, None, {})["traceEvents"]
    shown = sorted(slices(found, COMPUTE_TRACK), key=lambda event: (event["ts"], event["dur"]))
    assert ns(shown[0]["ts"]) == 0
    for before, after in pairwise(shown):
        assert ns(before["ts"]) + ns(before["dur"]) == ns(after["ts"])
    busy = [event for event in shown if not event["name"].startswith("stall: ")]
    assert sum(ns(event["dur"]) for event in busy) == compute_busy_ns(result.frames)
    names = [event["name"] for event in busy]
    gate = names[1 : names.index("attention 1")]
    turn = gate[: len(set(gate))]
    assert gate == turn * (len(gate) // len(turn))
    assert len(gate) == 3 * len(turn) > 3


@pytest.mark.alike
def test_the_cpu_and_the_host_have_tracks_of_what_they_do(ran: tuple[Run, Result]) -> None:
    run, result = ran
    on_cpu = result.frames.lookups.filter(pl.col("outcome") == "cpu")
    shown = slices(events(ran), CPU_TRACK)
    assert [ns(event["ts"]) + ns(event["dur"]) for event in shown] == on_cpu["ready_ns"].to_list()
    host = sum(ns(event["dur"]) for event in slices(events(ran), HOST_TRACK))
    assert host == int(result.frames.stalls["host"].sum())
    assert bool(len(on_cpu)) == (run.controller.placement.constant is None)


def test_the_timeline_is_json_and_its_tracks_have_names(ran: tuple[Run, Result]) -> None:
    run, _ = ran
    found = events(ran, 2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    names = {
        event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"
    }
    engines = run.hardware.links[0].engines
    name = f"link {run.hardware.link_names[0]}"
    first = [name] if engines == 1 else [f"{name} engine {at}" for at in range(engines)]
    links = [*first, *(f"link {name}" for name in run.hardware.link_names[1:])]
    assert list(names.values()) == ["steps", "compute", "CPU", "host", *links]
    assert list(names) == sorted(names)
