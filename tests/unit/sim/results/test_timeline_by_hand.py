"""Every event of a small timeline, worked by hand.

Of two steps the first is shown, 0 to 565 ns. Its compute stream:

| ns | what |
|---|---|
| 0 to 100 | attention of site 0; then 50 ns of the host |
| 150 to 170 | expert 1, two rows of 10 ns; then it waits for key 2 |
| 400 to 420 | expert 2 |
| 420 to 470 | attention of site 1 |
| 470 to 495 | expert 3 at the second precision, 5 ns more; another need of it computes nothing |
| 495 to 565 | the head |

The CPU computes key 7 meanwhile. Key 2 comes over the link ``far`` and then over the second engine
of ``near``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from sim.results.timeline import trace_events
from sim.values.record import HOST_TIME

LOOKUPS = pl.DataFrame(
    [
        (0, 0, 2, "fp16", "miss", 2, 2, 100, 400),
        (0, 0, 1, "fp16", "hit", 2, 2, 100, 100),
        (0, 0, -1, None, "skip", 2, 0, 100, 100),
        (1, 1, 7, "fp16", "cpu", 2, 2, 470, 560),
        (1, 1, 13, "int4", "high_for_low", 2, 0, 470, 470),
        (1, 1, 13, "int4", "hit", 2, 2, 470, 470),
    ],
    ["tick", "site", "key", "served", "outcome", "tokens", "computed", "gate_ns", "ready_ns"],
    orient="row",
).with_columns(step=0)
TRANSFERS = pl.DataFrame(
    [
        (0, "far", 2, "demand", 100, 110, "loaded"),
        (0, "near", 2, "demand", 190, 200, "loaded"),
        (1, "near", 9, "dense", 250, 300, "loaded"),
        (2, "near", 4, "prefetch", 260, 565, "used"),
        (3, "near", 3, "demand", 265, 500, "loaded"),
    ],
    ["number", "link", "key", "class", "queued_ns", "start_ns", "outcome"],
    orient="row",
)
"""Nobody shown computes key 3, and number 2 begins after the steps that are shown."""


def frames(computed: list[tuple[int, int, int]] | None = None) -> Any:
    steps = [
        SimpleNamespace(
            index=at, sequences=of, decode=at > 0, drafting=at > 0, rows=2, token=4, sites=(0, 1)
        )
        for at, of in enumerate([(3,), (3, 5)])
    ]

    def of_steps(shown: int) -> pl.DataFrame:
        assert shown == 1
        return LOOKUPS

    durations = SimpleNamespace(
        dense_ns=lambda step: {0: 100, 1: 50},
        tail_ns=lambda step: 70,
        expert_ns=lambda variant, site, tokens, rows: 5 * variant + 10 * tokens * (rows == 2),
    )
    geometry = SimpleNamespace(
        units=5,
        sites=2,
        site_of=lambda key: key // 5 % 2,
        name_of=lambda key: f"key {key}",
        expert_of=lambda key: key % 5,
    )
    columns = [(0, 1, 0, 110, 190, 9, 0), (0, 0, 1, 200, 400, 9, 6), (1, 0, 0, 300, 350, 4, 0)]
    columns.append((2, 0, 0, 565, 600, 1, 0))
    names = ("number", "link", "engine", "start_ns", "end_ns", "moved_bytes", "written_bytes")
    services = dict(zip(names, np.array(columns).T, strict=True))
    idle = [(100, 150, HOST_TIME), (160, 165, HOST_TIME), (170, 400, 0), (565, 900, HOST_TIME)]
    return SimpleNamespace(
        record=SimpleNamespace(
            step_start_ns=[0, 565],
            step_end_ns=[565, 2000],
            slowed_ns=[],
            idle_start_ns=[start for start, _, _ in idle],
            idle_end_ns=[end for _, end, _ in idle],
            idle_cause=[cause for _, _, cause in idle],
        ),
        stalls={
            "storage": np.array([0, 0, 30, 0]),
            "host": np.array([50, 0, 0, 335]),
            "demand": np.array([0, 0, 200, 0]),
        },
        workload=SimpleNamespace(steps=steps),
        durations=durations,
        controller=SimpleNamespace(geometry=geometry, route=SimpleNamespace(engines=(2, 1))),
        link_names=("near", "far"),
        lookups_of_steps=of_steps,
        traffic=SimpleNamespace(services=SimpleNamespace(**services)),
        transfers=TRANSFERS,
        computed=computed,
    )


def told(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Track, name, start and duration in ns, and all else of each slice."""
    return [
        (
            event["tid"],
            event["name"],
            round(event["ts"] * 1e3),
            round(event["dur"] * 1e3),
            event["args"],
        )
        for event in found["traceEvents"]
        if event["ph"] == "X"
    ]


def expert(name: str, start: int, ns: int, **of: Any) -> tuple[Any, ...]:
    return 2, f"expert {name}", start, ns, {"precision": "fp16", "tokens": 2, **of}


def attention(site: int, start: int, ns: int) -> tuple[Any, ...]:
    return 2, f"attention {site}", start, ns, {"step": 0, "site": site}


STEP = (1, "prefill sequence 3", 0, 565, {"step": 0, "sequences": [3], "rows": 2, "token": 4})
COMPUTED = [
    attention(0, 0, 100),
    expert("1", 150, 20, site=0, outcome="hit"),
    expert("2", 400, 20, site=0, outcome="miss"),
    attention(1, 420, 50),
    expert("3", 470, 25, site=1, outcome="hit", precision="int4"),
    (2, "head", 495, 70, {"step": 0}),
]
OTHERS = [
    (2, "stall: host", 100, 50, {"transfer": None, "host_us": 0.05}),
    (4, "host", 100, 50, {}),
    (2, "stall: demand", 170, 230, {"transfer": 0, "storage_us": 0.03, "demand_us": 0.2}),
    (3, "expert 2", 470, 90, {"site": 1, "precision": "fp16", "tokens": 2}),
    (
        7,
        "demand key 2",
        110,
        80,
        {"number": 0, "bytes": 9, "outcome": "loaded", "queued_us": 0.1},
    ),
    (
        6,
        "demand key 2",
        200,
        200,
        {"number": 0, "bytes": 9, "written_back": 6, "outcome": "loaded", "queued_us": 0.19},
    ),
    (
        5,
        "dense site 1",
        300,
        50,
        {"number": 1, "bytes": 4, "outcome": "loaded", "queued_us": 0.25},
    ),
]


def test_a_timeline_in_whole() -> None:
    found = trace_events(frames(), "as_ready", 1, {"system": "s"})
    about = {"system": "s", "steps_shown": 1, "steps": 2, "time_unit": "us"}
    assert (found["displayTimeUnit"], found["otherData"]) == ("ms", about)
    assert told(found) == [STEP, *COMPUTED, *OTHERS]
    tracks = ["steps", "compute", "CPU", "host"]
    tracks += ["link near engine 0", "link near engine 1", "link far"]
    meta = [event for event in found["traceEvents"] if event["ph"] == "M"]
    assert meta == [
        {"ph": "M", "pid": 1, "tid": at, "name": name, "args": args}
        for at, track in enumerate(tracks, start=1)
        for name, args in (
            ("thread_name", {"name": track}),
            ("thread_sort_index", {"sort_index": at}),
        )
    ] + [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "device 0"}}]
    arrow = {"pid": 1, "cat": "need", "name": "load", "id": 0}
    assert [event for event in found["traceEvents"] if event["ph"] in "stf"] == [
        {**arrow, "ph": "s", "tid": 2, "ts": 0.1},
        {**arrow, "ph": "t", "tid": 7, "ts": 0.11},
        {**arrow, "ph": "t", "tid": 5, "ts": 0.2},
        {**arrow, "ph": "f", "bp": "e", "tid": 2, "ts": 0.4},
    ]
    in_order = told(trace_events(frames(), "in_order", 1, {}))
    assert [(name, start) for _, name, start, _, _ in in_order[2:4]] == [
        ("expert 2", 150),
        ("expert 1", 400),
    ]


def test_a_timeline_of_measured_times_in_whole() -> None:
    """Dense work has its end, and begins where the stream went on; experts have both."""
    measured = [
        (-1, 0, 105),
        (1, 150, 170),
        (2, 400, 425),
        (-1, 0, 480),
        (13, 481, 500),
        (-1, 0, 565),
    ]
    found = trace_events(frames(measured), "as_ready", 1, {})
    assert told(found) == [
        STEP,
        attention(0, 0, 105),
        expert("1", 150, 20, site=0, outcome="hit"),
        expert("2", 400, 25, site=0, outcome="miss"),
        attention(1, 425, 55),
        expert("3", 481, 19, site=1, outcome="hit", precision="int4"),
        (2, "head", 500, 65, {"step": 0}),
        *OTHERS,
    ]
    assert [event["ts"] for event in found["traceEvents"] if event["ph"] == "f"] == [0.4]
