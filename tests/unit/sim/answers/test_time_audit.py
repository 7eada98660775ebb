"""Where a simulated time differs: one figure of a machine is changed, and its cause is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl
import pytest

from sim.answers.time_audit import CAUSES, TimeAudit, _of_gate, audit_times
from sim.answers.time_parts import Interval, Tables, intervals_of
from sim.engine.simulate import simulate
from sim.results.frames import Frames
from sim.study.trials import prepared

WORDS = (
    "hardware=rtx4090_pcie4",
    "trace.max_sequences=1",
    "workload.prompt_tokens=2",
    "workload.decode_tokens=6",
    "budget.resident_share=0.4",
)


@cache
def tables(*words: str) -> Tables:
    run = prepared([*WORDS, *words])
    record = simulate(run.controller, run.workload, run.durations)
    frames = Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
    return Tables(
        frames.lookups, frames.transfers, frames.tokens, run.controller.loader.wait, EXPERTS
    )


EXPERTS = 0.8
"""Experts' share of computing: about what it is here."""


def audited(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[TimeAudit, dict[str, float]]:
    """The audit, and its causes that are not 0, in ms."""
    found = audit_times(tables(*was), tables(*now))
    return found, {one.name: one.ns / 1e6 for one in found.causes if abs(one.ns) > 1}


@pytest.mark.parametrize("system", ["lru", "hobbit", "mixtral_offloading", "fiddler"])
def test_the_parts_of_all_gates_sum_to_the_time_of_the_steps(system: str) -> None:
    of = tables(f"system={system}")
    steps = of.tokens.filter(pl.col("phase") == "decode").unique("step")
    parts = [one.served_ns + one.queued_ns + one.cpu_ns + one.own_ns for one in intervals_of(of)]
    assert sum(parts) == int((steps["end_ns"] - steps["start_ns"]).sum())
    assert min(parts) > 0


def test_a_run_beside_itself_differs_nowhere() -> None:
    found, causes = audited(("system=lru",), ("system=lru",))
    assert (found.difference_ns, causes) == (0, {})


@pytest.mark.parametrize(
    ("system", "word", "main", "share"),
    [
        ("lru", "hardware.links.pcie.efficiency=0.7", ("link rate", "queueing"), 0.99),
        ("lru", "hardware.host.wake_us=200", ("host after a wait",), 0.8),
        ("lru", "hardware.compute.launch_us=12", ("compute alone", "compute after a wait"), 0.95),
        ("fiddler", "hardware.cpu.memory_efficiency=0.5", ("cpu",), 0.98),
    ],
)
def test_what_a_machine_does_slower_is_named_and_the_causes_sum_to_the_difference(
    system: str, word: str, main: tuple[str, ...], share: float
) -> None:
    """At least ``share`` of the difference has its true cause.

    Tables tell a step's computing as one sum, so gates of one step share it by their own time.
    """
    found, causes = audited((f"system={system}",), (f"system={system}", word))
    assert found.difference_ns > 0
    assert sum(one.ns for one in found.causes) == pytest.approx(found.difference_ns)
    of_cause = sum(causes.get(name, 0.0) for name in main) / (found.difference_ns / 1e6)
    assert of_cause == pytest.approx(1, abs=1 - share)
    assert max(causes, key=lambda name: abs(causes[name])) in main


def test_the_places_of_a_cause_are_the_three_where_it_is_largest() -> None:
    found, _ = audited(("system=lru",), ("system=lru", "hardware.host.sync_us=50"))
    alone = found.causes[CAUSES.index("host alone")]
    assert len(alone.steps) == len(alone.sites) == 3
    assert [ns for _, ns in alone.steps] == sorted((ns for _, ns in alone.steps), reverse=True)


def test_runs_of_other_gates_are_refused() -> None:
    other = tables("system=lru", "workload.decode_tokens=5")
    with pytest.raises(ValueError, match="96 gates in decode steps, its simulation 80"):
        audit_times(tables("system=lru"), other)


WAS = Interval(0, 0, ((1, "miss"),), 500, 40, moved_bytes=8, own_ns=90, compute_ns=70.0)
NOW = Interval(0, 0, ((1, "miss"),), 700, 25, moved_bytes=8, cpu_ns=3, own_ns=99, compute_ns=72.0)


@pytest.mark.parametrize(
    ("was", "now", "of_waits"),
    [
        ({}, {}, {"link latency": 0, "link rate": 200, "queueing": -15}),
        # An idle link makes 30 of the recorded service, 50 of the simulated one.
        ({}, {"is_first": True}, {"link latency": 50, "link rate": 150, "queueing": -15}),
        ({"is_first": True}, {}, {"link latency": -30, "link rate": 230, "queueing": -15}),
        ({"needs": ((1, "hit"),)}, {}, {"decided otherwise": 185}),
        ({"needs": ((1, "hit"),), "is_prefetch": True}, {}, {"decided otherwise": 185}),
        ({"is_prefetch": True}, {}, {"late prefetches": 185}),
        ({}, {"is_prefetch": True}, {"late prefetches": 185}),
    ],
)
def test_a_gates_difference_has_the_cause_that_its_two_intervals_tell(
    was: dict[str, Any], now: dict[str, Any], of_waits: dict[str, float]
) -> None:
    found = dict(_of_gate(replace(WAS, **was), replace(NOW, **now), {8: 30.0}, {8: 50.0}))
    own = {"cpu": 3, "compute after a wait": 2.0, "host after a wait": 7.0}
    assert found == {**of_waits, **own}


def test_its_own_work_is_named_by_what_the_recorded_gate_met() -> None:
    alone = replace(WAS, served_ns=0, queued_ns=0)
    for was, met in ((alone, "alone"), (replace(alone, beside=True), "beside copies")):
        assert {f"compute {met}", f"host {met}"} < dict(_of_gate(was, NOW, {}, {})).keys()
