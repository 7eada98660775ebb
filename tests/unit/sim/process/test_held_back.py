"""Signals that wait until a block is over."""

from __future__ import annotations

import signal
import threading

import pytest

from sim.process.interrupts import held_back


def test_a_signal_that_came_inside_is_passed_on_as_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise_signal = signal.raise_signal
    try:
        monkeypatch.setattr(signal, "raise_signal", heard.append)
        with held_back():
            raise_signal(signal.SIGTERM)
            raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM], "once, by what ends a process"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with held_back():
            raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(-number))
        with held_back():
            raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM, -signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_hears_no_signal_and_goes_on() -> None:
    done: list[int] = []

    def work() -> None:
        with held_back():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]
