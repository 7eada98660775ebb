"""The device that one thread drives: crews, times that are set, failures, and what ends a wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from real.driver.device import Service, Turn
from real.driver.polled import PolledDevice

MS = 1_000_000


class Heard:
    """A listener that writes down what it hears, and on which thread."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.threads: set[int] = set()

    def _see(self, what: str, number: int) -> None:
        self.seen.append((what, number))
        self.threads.add(threading.get_ident())

    def on_service_end(self, service: Service) -> None: ...

    def on_head(self, service: Service) -> None: ...

    def on_chunk(self, service: Service, moved_bytes: int) -> None: ...

    def on_cpu_result(self, key: int) -> None:
        self._see("cpu", key)

    def on_prediction(self, tick: int) -> None:
        self._see("prediction", tick)


class Plain(PolledDevice):
    """A device without a machine: only crews and clocks."""

    def _ask(self) -> bool:
        return False

    def _is_asking(self) -> bool:
        return False

    def _is_serving(self) -> bool:
        return False


def opened(*, is_padded: bool = False, patience_s: float = 20) -> tuple[Plain, Heard]:
    device, heard = Plain(patience_s, is_padded=is_padded), Heard()
    device.prepare()
    device.open(heard, (1,))
    return device, heard


def wait_for(device: Plain, heard: Heard, count: int) -> None:
    device.wait(lambda: len(heard.seen) >= count, lambda: f"{count} hand-overs, got {heard.seen}")


def test_results_of_the_cpu_come_in_order_on_the_callers_thread() -> None:
    device, heard = opened()
    done: list[int] = []
    for key in (4, 2, 9):
        device.on_cpu(key, lambda: done.append(threading.get_ident()), MS)
    device.predict(7, 5 * MS)
    wait_for(device, heard, 4)
    device.close()
    assert [number for what, number in heard.seen if what == "cpu"] == [4, 2, 9]
    assert heard.threads == {threading.get_ident()}
    assert threading.get_ident() not in done
    assert threading.active_count() == 1 or not device.dismiss()


def test_padded_results_come_when_they_are_due_and_not_before() -> None:
    device, heard = opened(is_padded=True)
    begin_ns = device.now_ns()
    device.predict(1, 2 * MS)
    device.on_cpu(5, lambda: None, 3 * MS)
    wait_for(device, heard, 2)
    assert device.now_ns() >= begin_ns + 3 * MS
    until_ns = device.now_ns() + MS
    device.sleep_until(until_ns, Turn.GATE)
    assert device.now_ns() >= until_ns
    device.close()


def fail() -> None:
    raise ValueError("a broken disk")


def test_what_goes_wrong_in_a_thread_is_raised_where_the_run_waits() -> None:
    device, heard = opened()
    device.on_cpu(1, fail, 0)
    with pytest.raises(
        RuntimeError, match=r"the thread of the CPU worker failed.*a broken disk"
    ) as raised:
        wait_for(device, heard, 1)
    assert isinstance(raised.value.__cause__, ValueError)
    device.close()


def test_a_failure_that_nobody_has_heard_of_is_raised_at_the_end() -> None:
    device, _ = opened()
    done = threading.Event()

    def fail_late() -> None:
        done.set()
        fail()

    device.on_cpu(1, fail_late, 0)
    done.wait(20)
    with pytest.raises(RuntimeError, match="a broken disk"):
        device.close()


def test_a_wait_ends_where_nothing_can_end_it_or_nothing_happens() -> None:
    device, _ = opened()
    never: Callable[[], bool] = lambda: False  # noqa: E731
    with pytest.raises(RuntimeError, match="the moon is missing, but nothing is under way"):
        device.wait(never, lambda: "the moon is missing")
    device.close()
    device, _ = opened(patience_s=0.05)
    stop = threading.Event()
    device.on_cpu(1, lambda: stop.wait(20) and None, 0)  # type: ignore[func-returns-value]
    with pytest.raises(RuntimeError, match=r"and nothing has happened for 0\.05 s"):
        device.wait(never, lambda: "the moon is missing")
    with pytest.raises(RuntimeError, match=r"CPU worker did not end within 0\.05 s of the run's"):
        device.close()
    stop.set()


def test_nothing_is_handed_over_once_a_run_is_over() -> None:
    device, heard = opened()
    device.on_cpu(1, lambda: None, 0)
    device.predict(1, 0)
    device.cut_off()
    assert not device.poll()
    device.close()
    assert heard.seen == []
