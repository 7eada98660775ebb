"""The driver of real runs, worked by hand on the null device, and once on a device with a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import pytest

from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import (
    Forecast,
    Loader,
    Need,
    PoolSpec,
    Prediction,
    Scenario,
    Step,
    Thresholds,
    random_scenario,
)
from real.device import Device, NullDevice
from real.driver import drive
from sim.calls import Call, RecordedController, replay
from sim.controller import Controller
from sim.record import Record
from sim.types import Outcome, PrefetchOutcome

WAITS = ("wait_all", "as_ready")


def play(scenario: Scenario, device: Device | None = None) -> tuple[Record, RecordedController]:
    controller = RecordedController(controller_for(scenario))
    workload = ScenarioWorkload(scenario)
    record = drive(controller, workload, ScenarioDurations(scenario), device or NullDevice())  # type: ignore[arg-type]
    controller.check()
    return record, controller


def asked(record: Record, calls: list[Call]) -> list[tuple[int, str, int]]:
    return [(now, call.kind, call.argument) for now, call in zip(record.call_ns, calls, strict=True)]


def token(*needs: tuple[int, ...], ahead: dict[int, tuple[Prediction, ...]] | None = None, **rest: Any) -> Step:
    """One step; dense work of 1 a site, forecasts at some sites."""
    values: dict[str, Any] = {"sequence": 0, "begins": True, "ends": True, "rows": 1, "token": 1, "tail_ns": 0} | rest
    forecasts = tuple((ahead or {}).get(site, (None,)) for site in range(len(needs)))
    routed = tuple(tuple(Need(expert) for expert in experts) for experts in needs)
    return Step(dense_ns=(1,) * len(needs), needs=routed, forecasts=forecasts, **values)


def machine(*steps: Step, capacity: int = 99, initial: tuple[tuple[int, int, int], ...] = (), **rest: Any) -> Scenario:
    """One pool, one precision of one byte, transfers of 10, experts of 4; 8 experts a site, so 9 keys."""
    values: dict[str, Any] = {"service_ns": (10,), "base_ns": (4,), "per_token_ns": (0,)} | rest
    pools = (PoolSpec(capacity, (0,), None, initial),)
    return Scenario(sites=len(steps[0].needs), experts=8, variant_bytes=(1,), pools=pools, steps=steps, **values)


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    ("forecast", "score", "makespan_ns"),
    [
        pytest.param(None, 0.0, 38_000_000, id="no prefetch"),
        pytest.param((Forecast(0),), 0.0, 33_000_000, id="right prefetch"),
        pytest.param((Forecast(1),), 0.0, 47_000_000, id="wrong prefetch"),
        pytest.param((Forecast(0, 0.6),), 0.6, 24_000_000, id="right low prefetch"),
        pytest.param((Forecast(1, 0.6),), 0.6, 27_500_000, id="wrong low prefetch"),
    ],
)
def test_hobbit_figure_9(wait: Any, forecast: Prediction, score: float, makespan_ns: int) -> None:
    """Two layers: attention 3, load 14 (low 3.5), expert 2 ms."""
    step = Step(0, True, True, 1, 1, (3_000_000,) * 2, 0, ((Need(0),), (Need(0, 1, score),)), ((forecast,), (None,)))
    scenario = Scenario(
        sites=2, experts=2, variant_bytes=(4, 1), service_ns=(14_000_000, 3_500_000), base_ns=(2_000_000,) * 2,
        per_token_ns=(0, 0), pools=(PoolSpec(8, (0,)), PoolSpec(2, (1,))), steps=(step,),
        selector=Thresholds(0.5, 1.0), loader=Loader(lookahead=1, wait=wait),
    )  # fmt: skip
    record, _ = play(scenario)
    assert record.makespan_ns == makespan_ns
    assert record.gate_ns[0] == 3_000_000


def test_a_wave_computed_as_its_needs_become_ready() -> None:
    """Three needs, room for two. 0 loads 1..11, 1 loads 11..21.

    0 is computed 11..15: it is unpinned and 2 is admitted, but the link is busy, so nothing is polled. At 21, 1 is
    there and 2 takes the slot of 0: it loads 21..31 while 1 is computed 21..25, and is computed 31..35.
    """
    scenario = machine(token((0, 1, 2), rows=3, token=3), capacity=2, loader=Loader(wait="as_ready"))
    record, controller = play(scenario)
    assert asked(record, controller.log) == [
        (0, "begin_sequence", 0),
        (0, "poll", 0),
        (1, "gate", 0),
        (1, "poll", 0),
        (11, "transfer_done", 0),
        (15, "need_done", 0),
        (21, "transfer_done", 1),
        (31, "transfer_done", 2),
        (35, "end_sequence", 0),
        (35, "poll", 0),
    ]
    assert (record.lookup_ns, record.ready_ns) == ([1, 1, 15], [11, 21, 31])
    assert (record.start_ns, record.service_end_ns) == ([1, 11, 21], [11, 21, 31])
    idle = list(zip(record.idle_start_ns, record.idle_end_ns, record.idle_cause, strict=True))
    assert idle == [(1, 11, 0), (15, 21, 1), (25, 31, 2)]
    assert (record.end_ns, record.step_end_ns, record.makespan_ns) == ([35], [35], 35)
    assert [call.victims for call in controller.log if call.transfer >= 0] == [(), (), (0,)]


def test_a_wave_computed_when_all_that_a_call_admitted_is_there() -> None:
    """Three needs, room for two: 0 and 1 load 1..21 and are computed 21..29.

    At 25, 0 is done and 2 is admitted; the link is free, so it is polled, and 2 loads 25..35 and is computed 35..39.
    """
    scenario = machine(token((0, 1, 2), rows=3, token=3), capacity=2, loader=Loader(wait="wait_all"))
    record, controller = play(scenario)
    assert asked(record, controller.log)[2:-2] == [
        (1, "gate", 0),
        (1, "poll", 0),
        (11, "transfer_done", 0),
        (21, "transfer_done", 1),
        (25, "need_done", 0),
        (25, "poll", 0),
        (35, "transfer_done", 2),
    ]
    idle = list(zip(record.idle_start_ns, record.idle_end_ns, record.idle_cause, strict=True))
    assert idle == [(1, 21, 1), (29, 35, 2)]
    assert record.makespan_ns == 39


@pytest.mark.parametrize(("wait", "computed_ns"), [("as_ready", [5, 15, 25]), ("wait_all", [25, 29, 33])])
def test_what_is_there_is_computed_first_or_with_the_rest(wait: Any, computed_ns: list[int]) -> None:
    """Needs 0, 1, 2 at 1, of which 2 is resident; 0 is there at 11, 1 at 21; each takes 4."""
    scenario = machine(token((0, 1, 2)), initial=((0, 0, 2),), loader=Loader(wait=wait))
    device = WatchedDevice()
    play(scenario, device)
    assert [end_ns for key, end_ns in device.computed if key in (0, 1, 2)] == computed_ns
    assert [key for key, _ in device.computed if key in (0, 1, 2)] == ([2, 0, 1] if wait == "as_ready" else [0, 1, 2])


class WatchedDevice(NullDevice):
    """A null device that writes down (key, end) of all that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[tuple[int, int]] = []

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        super().compute(key, rows, nominal_ns)
        self.computed.append((key, self.now_ns()))


def test_each_step_computes_its_layers_dense_blocks_its_experts_and_the_tail() -> None:
    """Keys of a site: experts 0 to 7, then the dense block 8."""
    device = WatchedDevice()
    play(machine(token((3,), (5,), tail_ns=7), initial=((0, 0, 3), (0, 1, 5))), device)
    assert device.computed == [(8, 1), (3, 5), (17, 6), (14, 10), (-1, 17)]


@pytest.mark.parametrize(("in_flight", "polls"), [(1, 1), (2, 2)])
def test_the_link_is_polled_until_it_is_full(in_flight: Any, polls: int) -> None:
    """Three misses at 1: the gate is followed by one poll for each transfer that may be issued."""
    record, controller = play(machine(token((0, 1, 2)), loader=Loader(in_flight=in_flight)))
    assert asked(record, controller.log).count((1, "poll", 0)) == polls
    assert record.start_ns == [1, 11, 21]


@pytest.mark.parametrize(
    ("service_ns", "outcome"), [(4, Outcome.HIT), (5, Outcome.HIT), (6, Outcome.LATE)], ids=["before", "at", "after"]
)
def test_a_transfer_that_ends_at_the_instant_of_a_gate_has_arrived(service_ns: int, outcome: Outcome) -> None:
    """The prefetch for site 1 starts at 1; the expert of site 0 ends at 5 and the gate of site 1 is at 6."""
    step = token((0,), (0,), ahead={0: ((Forecast(0),),)})
    scenario = machine(step, initial=((0, 0, 0),), service_ns=(service_ns,), loader=Loader(lookahead=1))
    _, controller = play(scenario)
    assert controller.lookup_outcomes[-1] == outcome


@pytest.mark.parametrize("in_flight", [1, 2])
def test_transfers_in_flight_at_the_end_are_cut(in_flight: Any) -> None:
    """Site 0 foresees 1, 2 and 3 at site 1, which needs none of them: 1 loads from 1, the run ends at 10."""
    step = token((0,), (0,), ahead={0: ((Forecast(1), Forecast(2), Forecast(3)),)})
    initial = ((0, 0, 0), (0, 1, 0))
    loader = Loader(lookahead=1, in_flight=in_flight, cancel_stale=False)
    record, controller = play(machine(step, initial=initial, loader=loader))
    assert record.makespan_ns == 10
    assert record.start_ns == [1, -1][:in_flight]
    assert record.service_end_ns == [-1, -1][:in_flight]
    assert controller.prefetch_counts[PrefetchOutcome.UNUSED_AT_END] == in_flight
    assert controller.prefetch_counts[PrefetchOutcome.CANCELLED] == 3 - in_flight


def test_a_sequence_begins_with_its_first_step_and_ends_with_its_last() -> None:
    """Two sequences, step by step: 0, 1, 0. Each step: dense 1, expert 4, tail 2."""
    first = token((0,), ends=False, tail_ns=2)
    other = token((0,), sequence=1, tail_ns=2)
    record, controller = play(machine(first, other, replace(first, begins=False, ends=True), initial=((0, 0, 0),)))
    calls = [call for call in asked(record, controller.log) if call[1].endswith("sequence")]
    assert calls == [
        (0, "begin_sequence", 0),
        (7, "begin_sequence", 1),
        (14, "end_sequence", 1),
        (21, "end_sequence", 0),
    ]
    assert (record.step_start_ns, record.step_end_ns) == ([0, 7, 14], [7, 14, 21])


def test_a_need_that_nothing_brings_is_an_error_that_names_it() -> None:
    class Silent(Controller):
        def poll(self, link: int) -> None:
            self.calls += 1

    scenario = machine(token((0,), (5,)), initial=((0, 0, 0),))
    silent = controller_for(scenario)
    silent.__class__ = Silent
    with pytest.raises(RuntimeError, match=r"step 0 site 1 waits for site 1 expert 5 high .* nothing is on the link"):
        drive(silent, ScenarioWorkload(scenario), ScenarioDurations(scenario), NullDevice())  # type: ignore[arg-type]


class ThreadedDevice:
    """A device whose link is a thread that sleeps; the least that a machine with a loader thread does."""

    def open(self, on_transfer_end: Callable[[int], None]) -> None:
        self._origin_ns = time.perf_counter_ns()
        self._on_transfer_end = on_transfer_end
        self._jobs: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._ended = Condition()
        self._is_open = True
        self._times: dict[int, tuple[int, int]] = {}
        self._num_ended = 0
        self._loader = Thread(target=self._serve)
        self._loader.start()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._origin_ns

    def transfer(self, number: int, key: int, moved_bytes: int, nominal_ns: int) -> None:
        self._times[number] = (-1, -1)
        self._jobs.put((number, nominal_ns))

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        time.sleep(nominal_ns / 1e9)

    def wait(self, number: int) -> None:
        with self._ended:
            if not self._ended.wait_for(lambda: self._num_ended > number, timeout=60):
                raise TimeoutError(f"transfer {number} has not ended")

    def service_ns(self, number: int) -> tuple[int, int]:
        return self._times[number]

    def close(self) -> None:
        self._is_open = False
        self._jobs.put(None)
        self._loader.join()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, nominal_ns = job
            start_ns = self.now_ns()
            self._times[number] = (start_ns, -1)
            time.sleep(nominal_ns / 1e9)
            if not self._is_open:
                return
            self._times[number] = (start_ns, self.now_ns())
            self._on_transfer_end(number)
            with self._ended:
                self._num_ended += 1
                self._ended.notify_all()


@pytest.mark.parametrize("seed", range(20))
def test_on_a_device_with_a_loader_thread_no_end_is_missed_and_the_log_can_be_replayed(seed: int) -> None:
    """Whatever order the threads came in, a fresh controller that hears the same calls gives the same answers."""
    scenario = random_scenario(seed, ties=bool(seed % 2))
    record, controller = play(scenario, ThreadedDevice())
    workload = ScenarioWorkload(scenario)
    assert replay(controller.log, controller_for(scenario), workload) is None  # type: ignore[arg-type]
    assert len(record.call_ns) == len(controller.log)
    assert record.call_ns == sorted(record.call_ns)
    assert len(record.gate_ns) == len(scenario.steps) * scenario.sites
    assert len(record.ready_ns) == len(controller.lookup_keys)
    assert all(ready >= looked for looked, ready in zip(record.lookup_ns, record.ready_ns, strict=True))
