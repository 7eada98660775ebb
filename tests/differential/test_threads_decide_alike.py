"""On a device of threads the order of events varies with the machine; the decisions must not.

Every feature runs on threads, beside other threads that keep the machine busy. A fresh controller
that hears the same calls must give the same answers, ``==``. Times are not looked at, except that
they must never run backwards.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from differential.features import FEATURES, random_feature, random_mixture
from differential.production import ScenarioWorkload, controller_for
from differential.scenario import Scenario, random_scenario
from helpers.slowed import Slowed, slowed
from real.driver.paced import PacedDevice
from real.driver.recording import Recording, record_run
from real.validation.conformance import conform
from sim.results.replay import first_difference, replay

KINDS = ("plain", *FEATURES, "mixture")
FASTEST, SLOWER = 1, 300
"""Factors of the scenarios' times: of a ns the threads just race; with some us each they overlap
like real ones.
"""


def given(kind: str, seed: int) -> Scenario:
    if kind == "plain":
        return random_scenario(seed, ties=bool(seed % 2))
    ties = bool(seed % 2)
    return random_mixture(seed, ties) if kind == "mixture" else random_feature(kind, seed, ties)


@dataclass(frozen=True)
class Threaded:
    scenario: Scenario
    recording: Recording


def run(scenario: Scenario, factor: int, device: PacedDevice) -> Threaded:
    scenario = slowed(scenario, factor)
    workload = ScenarioWorkload(scenario)
    controller = controller_for(scenario)
    recording = record_run(controller, workload, Slowed(scenario, workload, factor), device)  # type: ignore[arg-type]
    controller.check()
    return Threaded(scenario, recording)


def check(done: Threaded) -> None:
    """The calls can be repeated, and the record is whole."""
    calls, record = done.recording.calls, done.recording.record
    workload = ScenarioWorkload(done.scenario)
    difference = replay(calls, controller_for(done.scenario), workload, done.recording.asked_ns)  # type: ignore[arg-type]
    assert difference is None
    assert len(record.call_ns) == len(calls)
    assert record.call_ns == sorted(record.call_ns)
    assert record.service_start_ns == sorted(record.service_start_ns)
    assert len(record.gate_ns) == sum(len(step.sites) for step in done.recording.steps)
    assert all(
        ready >= looked for looked, ready in zip(record.lookup_ns, record.ready_ns, strict=True)
    )
    ends = [end_ns for end_ns in record.service_end_ns if end_ns >= 0]
    assert max(ends, default=0) <= record.makespan_ns
    bounds = [
        at
        for interval in zip(record.idle_start_ns, record.idle_end_ns, strict=True)
        for at in interval
    ]
    assert bounds == sorted(bounds)


@pytest.fixture(scope="module")
def device() -> PacedDevice:
    return PacedDevice(arena_bytes=1 << 12, piece_bytes=1 << 8)


# Contracts: C10
@pytest.mark.alike
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [FASTEST, pytest.param(SLOWER, marks=pytest.mark.thorough)])
def test_the_calls_of_threads_get_the_same_answers_from_a_fresh_controller(
    kind: str, factor: float, device: PacedDevice
) -> None:
    for seed in range(2 if kind == "mixture" else 1):
        check(run(given(kind, seed), factor, device))


# ---- a busy machine


def burn() -> None:
    """Keep a core busy until the process is ended, or its parent is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(10_000))


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """A process for every core, and threads of this process that fight for its interpreter lock."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    processes = [
        multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
        for _ in range(os.cpu_count() or 1)
    ]
    threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.thorough
def test_on_a_busy_machine_the_order_differs_and_the_decisions_do_not(
    busy_machine: None, device: PacedDevice
) -> None:
    """The same runs again and again: calls come in other orders, and every order is decided as
    it should be.
    """
    others = 0
    for seed in range(2):
        scenario = random_mixture(seed, ties=False)
        runs = [run(scenario, SLOWER, device) for _ in range(3)]
        for done in runs:
            check(done)
        first = runs[0].recording.calls
        others += sum(
            first_difference(first, done.recording.calls) is not None for done in runs[1:]
        )
    assert others > 0


def test_on_a_busy_machine_the_simulator_still_replays_what_the_threads_did(
    busy_machine: None, device: PacedDevice
) -> None:
    """Durations and gaps are replayed, so load does not matter to which call comes next."""
    for seed in range(2, 4):
        done = run(random_mixture(seed, ties=False), SLOWER, device)
        workload = ScenarioWorkload(done.scenario)
        durations = Slowed(done.scenario, workload, SLOWER)
        conform(done.recording, controller_for(done.scenario), workload, durations)  # type: ignore[arg-type]
