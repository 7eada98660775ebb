"""What tokens of a machine with lanes spend on reading, and on waiting for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from sim.answers.engine_lanes import simulated_ms
from sim.results.lanes import lane_times
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute

WORDS = ("system=lru", "trace.max_sequences=1", "loader.in_flight=2")
LANES = (
    "hardware.links.pcie.engines=2",
    "+hardware.links.pcie.copy_gb_per_s=8.0",
    "+hardware.links.pcie.unit=projection",
    "loader.wait=by_projection",
)


# Contracts: C104
def test_reading_and_waiting_stand_in_the_tokens_of_a_machine_with_lanes() -> None:
    cfg, system = configure(*WORDS, *LANES)
    frames = execute(build(cfg, system)).frames
    tokens, services = frames.tokens, frames.record
    begun = zip(
        services.service_start_ns, services.service_end_ns, services.service_bytes, strict=True
    )
    read_ns = sum(end - start - round(moved / 8) for start, end, moved in begun if end >= 0)
    assert abs(int(tokens["reading_ns"].sum()) - read_ns) <= len(services.service_end_ns)
    # Nothing else than transfers stops this machine's stream.
    assert (tokens["waiting_ns"] == tokens["stall_ns"]).all()
    assert int(tokens["waiting_ns"].sum()) > 0
    found = simulated_ms([*WORDS, *LANES])
    decoded = tokens.filter(tokens["phase"] == "decode")
    assert found["io"].tolist() == (decoded["reading_ns"].to_numpy() / 1_000_000).tolist()


def test_without_lanes_the_table_is_as_ever() -> None:
    cfg, system = configure(*WORDS)
    assert not {"reading_ns", "waiting_ns"} & set(execute(build(cfg, system)).frames.tokens.columns)


def test_a_read_counts_in_the_step_in_which_it_began_less_its_copy() -> None:
    """30 - 2 and 70 - 4 in the first step, and 20 in the second; what was cut counts nowhere."""
    columns = {
        "step_start_ns": [0, 100],
        "service_start_ns": [10, 50, 100, 150],
        "service_end_ns": [40, 120, -1, 170],
        "idle_cause": [3, -1, 0],
        "idle_start_ns": [5, 60, 130],
        "idle_end_ns": [25, 80, 160],
    }
    record: Any = SimpleNamespace(
        array=lambda name: np.array(columns[name]),
        service_link=[0, 0, 0, 1],
        service_bytes=[4, 8, 4, 4],
    )
    lane = SimpleNamespace(copy_ns=lambda size: size // 2)
    laned: Any = SimpleNamespace(lanes=lambda link: (lane, None)[link], projection_bytes=len)
    found = lane_times(record, laned, 2)
    assert {name: of.tolist() for name, of in found.items()} == {
        "reading_ns": [94, 20],
        "waiting_ns": [20, 30],
    }
    none: Any = SimpleNamespace(lanes=lambda link: None, projection_bytes=len)
    plain: Any = SimpleNamespace()
    assert (lane_times(record, none, 2), lane_times(record, plain, 2)) == ({}, {})
