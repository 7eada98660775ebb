"""The null device: what a virtual clock, links, a CPU and a compute stream do at each instant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.listening import Listening
from real.driver.device import TAIL, NullDevice, Turn


def listen(*engines: int) -> Listening:
    return Listening(NullDevice(), engines or (1,))


def never() -> bool:
    return False


def test_the_clock_moves_on_the_main_threads_behalf_only() -> None:
    heard = listen()
    heard.serve(0, 5)
    assert heard.device.now_ns() == 0
    heard.device.compute(0, 1, 3)
    assert heard.device.now_ns() == 3
    heard.device.wait(lambda: bool(heard.seen), str)
    assert heard.device.now_ns() == 5
    heard.device.compute(TAIL, 1, 0)
    assert heard.device.now_ns() == 5
    heard.device.sleep_until(9, Turn.GATE)
    assert heard.device.now_ns() == 9
    heard.device.sleep_until(2, Turn.GATE)
    assert heard.device.now_ns() == 9


def test_what_ends_with_the_computation_is_handed_over_before_compute_returns() -> None:
    heard = listen()
    heard.serve(0, 4)
    heard.device.compute_on_cpu(7, 1, 4)
    heard.device.compute(0, 1, 4)
    assert heard.seen == [(4, "end", 0), (4, "cpu", 7)]


def test_what_ends_after_the_computation_is_not() -> None:
    heard = listen()
    heard.serve(0, 5)
    heard.device.compute(0, 1, 4)
    assert heard.seen == []


def test_what_a_hand_over_begins_may_end_in_the_same_computation() -> None:
    """0 ends at 4 and starts 1 (4 ns), then 2 (0 ns) starts: both end with the computation at 8."""
    heard = listen()
    heard.then = {("end", 0): lambda: heard.serve(1, 4), ("end", 1): lambda: heard.serve(2, 0)}
    heard.serve(0, 4)
    heard.device.compute(0, 1, 8)
    assert heard.seen == [(4, "end", 0), (8, "end", 1), (8, "end", 2)]


def test_a_service_of_no_duration_does_not_end_inside_the_call_that_begins_it() -> None:
    heard = listen()
    heard.serve(0, 0)
    assert heard.seen == []
    heard.device.compute(0, 1, 0)
    assert heard.seen == [(0, "end", 0)]


# Contracts: C14
def test_at_one_instant_transfers_come_by_number_then_results_then_predictions() -> None:
    heard = listen(1, 1, 1)
    heard.device.predict(3, 4)
    heard.device.compute_on_cpu(9, 1, 1)
    heard.device.compute_on_cpu(8, 1, 3)
    heard.device.predict(4, 4)
    heard.serve(6, 4, link=2)
    heard.serve(5, 4, link=0)
    heard.serve(2, 4, link=1)
    heard.device.sleep_until(4, Turn.GATE)
    same = [
        (4, "end", 2),
        (4, "end", 5),
        (4, "end", 6),
        (4, "cpu", 8),
        (4, "prediction", 3),
        (4, "prediction", 4),
    ]
    assert heard.seen == [(1, "cpu", 9), *same]


# Contracts: C14
def test_of_one_transfer_the_outer_links_end_comes_first() -> None:
    heard = listen(1, 1)
    heard.then = {("head", 0): lambda: heard.serve(0, 2, link=0)}
    heard.serve(0, 4, link=1, head_ns=2)
    heard.device.wait(lambda: len(heard.seen) == 2, str)
    assert heard.seen == [(2, "head", 0), (4, "end", 0)]
    heard.device.sleep_until(4, Turn.GATE)
    assert heard.seen[2:] == [(4, "end", 0)]


@pytest.mark.parametrize(
    ("turn", "seen"),
    [
        (Turn.CPU_RESULTS, ["end"]),
        (Turn.NEED_DONE, ["end", "cpu"]),
        (Turn.GATE, ["end", "cpu", "prediction"]),
    ],
)
def test_a_sleep_hands_over_what_comes_before_a_turn(turn: Turn, seen: list[str]) -> None:
    heard = listen()
    heard.device.predict(0, 4)
    heard.device.compute_on_cpu(0, 1, 4)
    heard.serve(0, 4)
    heard.device.sleep_until(4, turn)
    assert [what for what, _ in heard.what] == seen


def test_the_cpu_computes_one_need_after_another() -> None:
    heard = listen()
    heard.device.compute_on_cpu(1, 1, 4)
    heard.device.compute_on_cpu(2, 1, 3)
    heard.device.compute(0, 1, 20)
    heard.device.compute_on_cpu(3, 1, 5)
    heard.device.compute(0, 1, 20)
    assert heard.seen == [(4, "cpu", 1), (7, "cpu", 2), (25, "cpu", 3)]


def test_waiting_hands_over_what_ends_before_and_nothing_after() -> None:
    heard = listen(2)
    heard.serve(0, 4)
    heard.serve(1, 4, engine=1, latency_ns=4)
    heard.device.wait(lambda: bool(heard.seen), str)
    assert heard.seen == [(4, "end", 0)]


def test_waiting_for_what_nothing_can_bring_is_refused_and_says_so() -> None:
    heard = listen()
    heard.serve(0, 4)
    with pytest.raises(RuntimeError, match="the moon is missing, but nothing is under way"):
        heard.device.wait(never, lambda: "the moon is missing")


def test_two_engines_share_their_link() -> None:
    """0 is alone to 10, with 20 of its 30 left. Shared, it is through at 50; 1 has done 20 then."""
    heard = listen(2)
    heard.serve(0, 30)
    heard.device.compute(0, 1, 10)
    heard.serve(1, 30, engine=1)
    heard.device.compute(0, 1, 90)
    assert heard.seen == [(50, "end", 0), (60, "end", 1)]


def test_an_engine_that_serves_is_not_given_more() -> None:
    heard = listen()
    heard.serve(0, 1)
    with pytest.raises(ValueError, match="engine 0 of link 0 is not free"):
        heard.serve(1, 1)


def test_a_cut_asked_for_is_reported_at_the_end_of_the_chunk() -> None:
    """Chunks of 2 end at 2, 4 and 6. Asked at 3, that which ends at 4 is reported, and no other."""
    heard = listen()
    service = heard.serve(0, 7, moved_bytes=7, chunk_bytes=2)
    heard.device.compute(0, 1, 3)
    heard.device.ask_cut(service, True)
    heard.device.ask_cut(service, True)
    heard.device.compute(0, 1, 9)
    assert heard.seen == [(4, "chunk to 4", 0), (7, "end", 0)]


@pytest.mark.parametrize(
    ("at_ns", "seen"), [(3, "chunk to 4"), (4, "chunk to 6"), (5, "chunk to 6"), (6, "end")]
)
def test_a_chunk_that_ends_at_an_instant_has_ended_before_what_is_asked_then(
    at_ns: int, seen: str
) -> None:
    heard = listen()
    service = heard.serve(0, 7, moved_bytes=7, chunk_bytes=2)
    heard.device.compute(0, 1, at_ns)
    heard.device.ask_cut(service, True)
    heard.device.compute(0, 1, 9)
    assert heard.what[0][0] == seen


def test_a_cut_that_is_wanted_no_more_is_not_reported_and_wanted_anew_it_counts_from_then() -> None:
    heard = listen()
    service = heard.serve(0, 9, moved_bytes=9, chunk_bytes=2)
    heard.device.ask_cut(service, True)
    heard.device.compute(0, 1, 1)
    heard.device.ask_cut(service, False)
    heard.device.compute(0, 1, 2)
    assert heard.seen == []
    heard.device.ask_cut(service, True)
    heard.device.compute(0, 1, 9)
    assert heard.seen == [(4, "chunk to 4", 0), (9, "end", 0)]


def test_a_chunk_that_ends_with_its_service_is_no_end_to_cut_at() -> None:
    heard = listen()
    service = heard.serve(0, 0, moved_bytes=4, chunk_bytes=2)
    heard.device.ask_cut(service, True)
    heard.device.compute(0, 1, 9)
    assert heard.seen == [(0, "end", 0)]


def test_a_service_that_is_stopped_at_a_chunk_never_ends() -> None:
    heard = listen()
    service = heard.serve(0, 6, moved_bytes=6, chunk_bytes=2)
    heard.device.ask_cut(service, True)

    def cut() -> None:
        heard.device.stop(service)
        heard.serve(1, 3)

    heard.then = {("chunk to 2", 0): cut}
    heard.device.compute(0, 1, 20)
    assert heard.seen == [(2, "chunk to 2", 0), (5, "end", 1)]


def test_at_the_end_of_a_run_what_is_under_way_is_cut() -> None:
    heard = listen(2)
    heard.serve(0, 4, moved_bytes=4, head_ns=3)
    heard.device.compute_on_cpu(1, 1, 4)
    heard.device.predict(1, 4)
    heard.device.compute(0, 1, 2)
    heard.device.cut_off()
    heard.device.compute(0, 1, 20)
    assert heard.seen == []


def test_a_device_can_be_opened_again() -> None:
    heard = listen()
    heard.serve(0, 4)
    heard.device.compute(0, 1, 5)
    again = Listening(heard.device)
    assert heard.device.now_ns() == 0
    again.serve(0, 1)
    heard.device.wait(lambda: bool(again.seen), str)
    assert (heard.seen, again.seen) == ([(4, "end", 0)], [(1, "end", 0)])


@pytest.mark.parametrize("module", ["real.driver.loop", "real.driver.paced", "real.driver.device"])
def test_what_drives_a_device_loads_neither_simpy_nor_torch_nor_hydra(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'simpy', 'torch', 'hydra'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
