"""The null device: what a virtual clock, a link and a compute stream do at each instant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from real.device import TAIL, NullDevice


class Ends:
    """Writes down (time, number) of every hand-over, and starts the transfers that are planned to follow one."""

    def __init__(self, following: dict[int, int] | None = None) -> None:
        self.device = NullDevice()
        self.device.open(self)
        self.seen: list[tuple[int, int]] = []
        self.following = following or {}

    def __call__(self, number: int) -> None:
        self.seen.append((self.device.now_ns(), number))
        if number in self.following:
            start(self.device, number + 1, self.following[number])


def start(device: NullDevice, number: int, nominal_ns: int) -> None:
    device.transfer(number, key=0, moved_bytes=1, nominal_ns=nominal_ns)


def test_the_clock_moves_in_compute_and_in_wait_only() -> None:
    device = Ends().device
    start(device, 0, 5)
    assert device.now_ns() == 0
    device.compute(0, 1, 3)
    assert device.now_ns() == 3
    device.wait(0)
    assert device.now_ns() == 5
    device.compute(TAIL, 1, 0)
    assert device.now_ns() == 5


def test_the_link_serves_one_transfer_after_another() -> None:
    ends = Ends()
    start(ends.device, 0, 4)
    start(ends.device, 1, 3)
    ends.device.compute(0, 1, 20)
    assert ends.seen == [(4, 0), (7, 1)]
    assert [ends.device.service_ns(number) for number in (0, 1)] == [(0, 4), (4, 7)]


def test_a_transfer_that_ends_with_the_computation_is_handed_over_before_compute_returns() -> None:
    ends = Ends()
    start(ends.device, 0, 4)
    ends.device.compute(0, 1, 4)
    assert ends.seen == [(4, 0)]


def test_a_transfer_that_ends_after_the_computation_is_not() -> None:
    ends = Ends()
    start(ends.device, 0, 5)
    ends.device.compute(0, 1, 4)
    assert ends.seen == []
    assert ends.device.service_ns(0) == (0, -1)


def test_a_transfer_started_by_a_hand_over_is_served_in_the_same_computation() -> None:
    """0 ends at 4 and starts 1 (4 ns), which starts 2 (0 ns): both end at 8 with the computation."""
    ends = Ends({0: 4, 1: 0})
    start(ends.device, 0, 4)
    ends.device.compute(0, 1, 8)
    assert ends.seen == [(4, 0), (8, 1), (8, 2)]


def test_transfers_of_no_duration_end_at_once_but_not_inside_the_call_that_starts_them() -> None:
    ends = Ends()
    start(ends.device, 0, 0)
    start(ends.device, 1, 0)
    assert ends.seen == []
    ends.device.compute(0, 1, 0)
    assert ends.seen == [(0, 0), (0, 1)]


def test_waiting_hands_over_what_ends_before_and_nothing_after() -> None:
    ends = Ends()
    for number in range(3):
        start(ends.device, number, 4)
    ends.device.wait(1)
    assert ends.seen == [(4, 0), (8, 1)]
    ends.device.wait(0)
    assert ends.device.now_ns() == 8


@pytest.mark.parametrize("number", [-1, 1])
def test_waiting_for_a_transfer_that_was_never_started_is_refused(number: int) -> None:
    device = Ends().device
    start(device, 0, 1)
    with pytest.raises(ValueError, match=f"cannot wait for transfer {number}: 1 transfers were started"):
        device.wait(number)


def test_starting_a_transfer_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="transfer 1 was started as the 0th"):
        start(Ends().device, 1, 1)


def test_closing_cuts_what_is_on_the_link() -> None:
    ends = Ends()
    start(ends.device, 0, 4)
    start(ends.device, 1, 4)
    ends.device.compute(0, 1, 2)
    ends.device.close()
    ends.device.compute(0, 1, 20)
    assert ends.seen == []
    assert [ends.device.service_ns(number) for number in (0, 1)] == [(0, -1), (-1, -1)]


def test_a_device_can_be_opened_again() -> None:
    ends = Ends()
    start(ends.device, 0, 4)
    ends.device.compute(0, 1, 5)
    ends.device.open(ends)
    assert ends.device.now_ns() == 0
    start(ends.device, 0, 1)
    ends.device.wait(0)
    assert ends.seen == [(4, 0), (1, 0)]


def test_the_real_driver_loads_neither_simpy_nor_torch_nor_hydra() -> None:
    code = "import real.driver, sys; print(sorted({'simpy', 'torch', 'hydra'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
