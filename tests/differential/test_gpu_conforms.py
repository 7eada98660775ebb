"""The simulator replays what the GPU's engine did, decision by decision and in time.

Work is given ahead of its time there, and its ends are read from events afterwards. So the record
is checked as that of any other device. A runtime without a GPU stands in, whose events end late.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

import real.cuda.device
from helpers.fake_runtime import FakeEvent, FakeRuntime, FakeStream
from real.driver.recording import record_run
from real.setup.prepare import Prepared, prepare_replay
from real.validation.cases import request_of
from real.validation.conformance import conform
from sim.results.replay import replay

NVME = ("hardware=rtx4090_nvme", "hardware.ram.capacity_gib=0.005")


class Clocked(FakeRuntime):
    """Events have the host's time at which they are first seen over, as a GPU's nearly have."""

    def __init__(self) -> None:
        super().__init__(strict=True, late=2)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        super().record(event, stream)
        event.time_ns = time.perf_counter_ns()

    def elapsed_ns(self, first: FakeEvent, last: FakeEvent) -> int:
        return max(0, last.time_ns - first.time_ns)


# Contracts: C124
@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("system=lru",),
        pytest.param(("system=hobbit",), marks=pytest.mark.thorough),
        ("system=fiddler",),
        pytest.param(("system=load_on_demand", "loader.in_flight=2"), marks=pytest.mark.thorough),
        ("system=moe_infinity", "loader.chunk_bytes=20000"),
        pytest.param(("system=lru", "loader=as_ready"), marks=pytest.mark.thorough),
        pytest.param(("system=moe_infinity", *NVME), marks=pytest.mark.thorough),
        pytest.param(
            ("system=moe_infinity", *NVME, "engine.source=direct"), marks=pytest.mark.thorough
        ),
        pytest.param(("system=lru", "workload=static_4"), marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_what_the_engine_did_is_replayed_exactly(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real.cuda.device, "CudaRuntime", Clocked)
    name = words[0].partition("=")[2]
    fixed = (
        "device=cuda",
        "model=tiny_mixtral",
        "trace=tiny_mixtral",
        "trace.max_sequences=1",
        "workload.decode_tokens=4",
        "workload.prompt_tokens=3",
        "engine.weights=stand_in",
        "engine.stand_in_gib=0.004",
        f"engine.store_dir={tmp_path}",
        "engine.links=free",
        "engine.compute=free",
    )

    def prepared() -> Prepared:
        return prepare_replay(request_of((*fixed, *words[1:]), name, 0.4))

    made, fresh = prepared(), prepared()
    run = made.run
    recording = record_run(run.controller, run.workload, run.durations, made.device)
    assert (
        replay(recording.calls, fresh.run.controller, fresh.run.workload, recording.asked_ns)
        is None
    )
    again = prepared().run
    found = conform(recording, again.controller, again.workload, again.durations)
    found.check()
    computed = recording.computed
    assert all(start_ns <= end_ns for _, start_ns, end_ns in computed)
    assert all(one[2] <= other[1] for one, other in pairwise(computed))
