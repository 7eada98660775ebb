"""The device of threads: what it copies, how it ends, and how it tells what goes wrong.

Whatever goes wrong in a thread is raised in the main thread. No test asserts how long anything
takes; where a test waits, it waits for something to happen.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from differential.by_hand import gate, machine, token
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import Link, Loader, Placement, Scenario
from helpers.listening import Listening
from helpers.slowed import Slowed
from real.driver.device import Service, Turn
from real.driver.loop import Driver, drive
from real.driver.paced import PacedDevice
from real.driver.timers import sleep_until
from sim.values.record import Record

MS = 1_000_000


@pytest.fixture
def device() -> Iterator[PacedDevice]:
    """A device of small arenas; when it is closed no thread is left, and nothing is changed."""
    threads, interval = threading.active_count(), sys.getswitchinterval()
    yield PacedDevice(arena_bytes=1 << 16, piece_bytes=1 << 12, patience_s=20)
    assert threading.active_count() == threads
    assert sys.getswitchinterval() == interval


def wait_for(heard: Listening, count: int) -> None:
    heard.device.wait(
        lambda: len(heard.seen) >= count, lambda: f"{count} hand-overs, got {heard.seen}"
    )


def test_a_service_ends_when_it_is_due_and_not_before(device: PacedDevice) -> None:
    heard = Listening(device)
    with device.lock:
        service = heard.serve(3, 2 * MS)
    wait_for(heard, 1)
    device.close()
    assert heard.what == [("end", 3)]
    assert heard.seen[0][0] >= service.start_ns + 2 * MS


def test_a_computation_and_a_sleep_take_their_time(device: PacedDevice) -> None:
    Listening(device)
    before = device.now_ns()
    device.compute(0, 1, 2 * MS)
    assert device.now_ns() >= before + 2 * MS
    until = device.now_ns() + MS
    device.sleep_until(until, Turn.GATE)
    assert device.now_ns() >= until
    device.sleep_until(0, Turn.GATE)
    device.close()


@pytest.mark.parametrize("moved_bytes", [1, 4096, 10_000, 70_000])
def test_the_bytes_asked_for_are_copied(device: PacedDevice, moved_bytes: int) -> None:
    heard = Listening(device)
    with device.lock:
        heard.serve(5, 0, moved_bytes=moved_bytes)
    wait_for(heard, 1)
    device.close()
    copied = (device.slots == device.source) & (device.source != 0)
    first = 5 * 4096 % (1 << 16)
    places = (first + np.arange(min(moved_bytes, 1 << 16))) % (1 << 16)
    assert copied[places].sum() == (device.source[places] != 0).sum()
    assert copied.sum() == (device.source[places] != 0).sum()


def test_a_head_is_handed_on_before_the_end(device: PacedDevice) -> None:
    heard = Listening(device)
    with device.lock:
        service = heard.serve(1, 4 * MS, moved_bytes=4, head_ns=MS)
    wait_for(heard, 2)
    device.close()
    assert heard.what == [("head", 1), ("end", 1)]
    assert heard.seen[0][0] >= service.start_ns + MS


def test_what_an_outer_link_still_feeds_does_not_end_before_it(device: PacedDevice) -> None:
    heard = Listening(device, (1, 1))
    with device.lock:
        heard.serve(1, 4 * MS, link=1)
        heard.serve(1, 0, link=0)
    wait_for(heard, 2)
    device.close()
    assert [service.link for service in heard.ended] == [1, 0]


def test_a_service_is_cut_at_the_end_of_a_chunk_and_its_engine_serves_on(
    device: PacedDevice,
) -> None:
    heard = Listening(device)

    def cut() -> None:
        device.stop(service)
        heard.serve(2, MS)

    heard.then = {(f"chunk to {bytes_}", 1): cut for bytes_ in (2, 4)}
    with device.lock:
        service = heard.serve(1, 60_000 * MS, moved_bytes=60_000, chunk_bytes=2)
        device.ask_cut(service, True)
    wait_for(heard, 2)
    device.close()
    assert heard.what[0][0].startswith("chunk to ")
    assert heard.what[1] == ("end", 2)


def test_a_wish_to_cut_that_was_withdrawn_is_forgotten(device: PacedDevice) -> None:
    heard = Listening(device)
    with device.lock:
        service = heard.serve(1, MS, moved_bytes=10, chunk_bytes=2)
        device.ask_cut(service, True)
        device.ask_cut(service, False)
    wait_for(heard, 1)
    device.close()
    assert heard.what == [("end", 1)]


def test_engines_share_their_link(device: PacedDevice) -> None:
    """Two services of 4 ms begin together, so neither is through before 8 ms."""
    heard = Listening(device, (2,))
    with device.lock:
        begun = [heard.serve(number, 4 * MS, engine=number).start_ns for number in (0, 1)]
    wait_for(heard, 2)
    device.close()
    assert sorted(heard.what) == [("end", 0), ("end", 1)]
    assert min(now for now, _, _ in heard.seen) >= begun[1] + 7 * MS


def test_the_cpu_works_in_order_and_predictions_come(device: PacedDevice) -> None:
    heard = Listening(device)
    with device.lock:
        for key in (4, 2, 9):
            device.compute_on_cpu(key, 1, MS)
        device.predict(7, 0)
    wait_for(heard, 4)
    device.close()
    assert [number for what, number in heard.what if what == "cpu"] == [4, 2, 9]
    assert ("prediction", 7) in heard.what


def test_closing_does_not_wait_for_what_is_under_way(device: PacedDevice) -> None:
    """Services, computations and predictions of an hour each."""
    hour = 3_600_000 * MS
    heard = Listening(device, (2, 1))
    with device.lock:
        heard.serve(0, hour, moved_bytes=3)
        heard.serve(1, hour, link=1)
        device.compute_on_cpu(1, 1, hour)
        device.predict(1, hour)
    device.close()
    assert heard.seen == []


def test_nothing_is_handed_over_once_a_run_is_over(device: PacedDevice) -> None:
    heard = Listening(device)
    with device.lock:
        heard.serve(0, 0)
        device.compute_on_cpu(1, 1, 0)
        device.predict(1, 0)
        device.cut_off()
    device.close()
    assert heard.seen == []


def test_a_wait_for_what_nothing_can_bring_says_so(device: PacedDevice) -> None:
    Listening(device)
    with pytest.raises(RuntimeError, match="the moon is missing, but nothing is under way"):
        device.wait(lambda: False, lambda: "the moon is missing")
    device.close()


def test_a_wait_without_any_hand_over_ends_with_what_waits_for_what() -> None:
    device = PacedDevice(arena_bytes=64, piece_bytes=64, patience_s=0.05)
    heard = Listening(device)
    with device.lock:
        heard.serve(0, 3_600_000 * MS)
    with pytest.raises(
        RuntimeError, match=r"the moon is missing, and nothing has happened for 0\.05 s"
    ):
        device.wait(lambda: False, lambda: "the moon is missing")
    device.close()


class Broken(ValueError):
    """Raised in a thread."""


def fail() -> None:
    raise Broken("a broken loader")


@pytest.mark.parametrize("where", ["wait", "compute", "sleep", "close"])
def test_what_goes_wrong_in_a_thread_is_raised_in_the_main_thread_with_its_cause(
    device: PacedDevice, where: str
) -> None:
    heard = Listening(device)
    heard.then = {("end", 0): fail}
    with device.lock:
        heard.serve(0, 0)
    hour = 3_600_000 * MS
    blocks: dict[str, Callable[[], None]] = {
        "wait": lambda: device.wait(lambda: False, str),
        "compute": lambda: device.compute(0, 1, hour),
        "sleep": lambda: device.sleep_until(hour, Turn.GATE),
        "close": device.close,
    }
    if where == "close":
        while not heard.seen:
            time.sleep(0.001)
    with pytest.raises(
        RuntimeError, match=r"the thread of the engine 0 of link 0 failed.*a broken loader"
    ) as raised:
        blocks[where]()
    assert isinstance(raised.value.__cause__, Broken)
    device.close()


def one_load(**rest: Any) -> Scenario:
    return machine(token(gate(0, 1), gate(2)), **rest)


def play(scenario: Scenario, device: PacedDevice, factor: int = 1) -> Record:
    workload = ScenarioWorkload(scenario)
    return drive(controller_for(scenario), workload, Slowed(scenario, workload, factor), device)  # type: ignore[arg-type]


def test_a_run_that_fails_in_a_thread_ends_with_the_cause_and_no_thread(
    device: PacedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Driver, service: Service) -> None:
        fail()

    monkeypatch.setattr(Driver, "on_service_end", failing)
    with pytest.raises(RuntimeError, match="a broken loader") as raised:
        play(one_load(), device)
    assert isinstance(raised.value.__cause__, Broken)


def test_a_run_that_is_interrupted_ends_with_no_thread(device: PacedDevice) -> None:
    """Interrupted as by Ctrl-C, while the stream waits for a load of an hour."""
    waiting = threading.Event()

    class Interrupted(PacedDevice):
        def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
            waiting.set()
            super().wait(is_over, what)

    def interrupt() -> None:
        waiting.wait()
        time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        play(one_load(service_ns=(3_600_000,)), Interrupted(64, 64), MS)
    killer.join()


def test_a_run_takes_every_part_of_the_device(device: PacedDevice) -> None:
    """Two links, the outer of which hands on early; a CPU; a predictor with a latency."""
    links = (Link(1, 10, engines=2), Link(1, 10, head_bytes=1))
    placement = Placement(frozenset({(0, 1)}), cpu_ns=3)
    scenario = one_load(
        variant_bytes=(4,),
        service_ns=(40,),
        links=links,
        placement=placement,
        prediction_ns=2,
        loader=Loader(lookahead=1),
    )
    record = play(scenario, device, 10_000)
    assert sorted(set(zip(record.service_number, record.service_link, strict=True))) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert min(record.service_end_ns) > 0
    assert len(record.ready_ns) == 3
    assert record.makespan_ns == record.step_end_ns[-1]


def test_arenas_hold_a_piece() -> None:
    with pytest.raises(ValueError, match="piece_bytes=65 must be from 1 to arena_bytes=64"):
        PacedDevice(arena_bytes=64, piece_bytes=65)


def test_a_sleep_ends_when_it_is_told_to() -> None:
    stop = threading.Event()
    stop.set()
    sleep_until(time.perf_counter_ns() + 3_600_000 * MS, stop)


def test_the_durations_of_a_scenario_are_slowed_all_alike() -> None:
    scenario = one_load()
    workload = ScenarioWorkload(scenario)
    plain, slow = ScenarioDurations(scenario, workload), Slowed(scenario, workload, 3)
    assert slow.dense_ns(workload.steps[0]) == [3 * ns for ns in plain.dense_ns(workload.steps[0])]
    assert slow.hop_ns(0, 1) == 3 * plain.hop_ns(0, 1)
