"""Trials of one question: each runs once, and those that are refused say why in one line."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sim.answers import ask_bench
from sim.answers.ask_bench import Bench, trial_within


def test_trials_run_once_and_refused_ones_say_why_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that is missing and a predictor that is not fitted yet; the last is another error."""
    run: list[tuple[str, ...]] = []
    errors = {
        "system=random": OSError("no trace"),
        "system=fiddler": ValueError("fit it:\n  moelab fit"),
        "system=fifo": KeyError("a fault of the program"),
    }

    def trial(words: Sequence[str]) -> Any:
        run.append(tuple(words))
        if words[1] in errors:
            raise errors[words[1]]
        return words[1]

    monkeypatch.setattr(ask_bench, "trial", trial)
    told: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        bench = Bench(["common=1"], pool, lambda: told.append(bench.begun), 10)
        wanted = [(name,) for name in ("system=random", "system=lru", "system=fiddler")]
        for _ in range(2):
            found, refused = bench.all([*wanted, ("system=lru", "precision=int4")])
            assert found == {
                ("system=lru",): "system=lru",
                ("system=lru", "precision=int4"): "system=lru",
            }
            assert refused == [
                ("system=fiddler", "fit it: moelab fit"),
                ("system=random", "no trace"),
            ]
        assert len(run) == bench.begun == len(told) == 4
        assert ("common=1", "system=lru", "precision=int4") in run
        with pytest.raises(KeyError):
            bench.all([("system=fifo",)])


def test_a_trial_that_computes_for_too_long_is_refused_and_leaves_no_clock_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no signal can be heard it goes on."""
    before, clocks = signal.getsignal(signal.SIGVTALRM), list[float]()

    def trial(words: Sequence[str]) -> Any:
        clocks.append(signal.getitimer(signal.ITIMER_VIRTUAL)[0])
        if words[0] == "long":
            signal.raise_signal(signal.SIGVTALRM)
        return tuple(words)

    monkeypatch.setattr(ask_bench, "trial", trial)
    assert trial_within(["short"], 30.0) == ("short",)  # type: ignore[comparison-overlap]
    with pytest.raises(
        ValueError, match=r"^more than 2\.5 s of computing; patience=N gives it more$"
    ):
        trial_within(["long"], 2.5)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(trial_within, ["short"], 30.0).result() == ("short",)
    assert [round(clock, 1) for clock in clocks] == [30.0, 2.5, 0]
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_time_that_is_up_is_no_refusal_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a budget goes on after a ValueError: it then said that nothing fits."""

    def trial(words: Sequence[str]) -> Any:
        try:
            signal.raise_signal(signal.SIGVTALRM)
        except ValueError:
            raise ValueError("budget=fit: nothing fits") from None

    monkeypatch.setattr(ask_bench, "trial", trial)
    with pytest.raises(ValueError, match=r"^more than 3 s of computing"):
        trial_within(["long"], 3.0)


@pytest.mark.parametrize("refusal", [None, ValueError("nothing fits")])
def test_time_that_is_up_as_a_trial_ends_is_told_in_the_same_words(
    refusal: ValueError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the trial's objects are freed, and is heard when the clock is stopped."""
    before, set_clock = signal.getsignal(signal.SIGVTALRM), signal.setitimer

    def heard_at_the_end(which: int, seconds: float) -> None:
        set_clock(which, seconds)
        if not seconds:
            signal.raise_signal(signal.SIGVTALRM)

    def trial(words: Sequence[str]) -> Any:
        if refusal is not None:
            raise refusal

    monkeypatch.setattr(signal, "setitimer", heard_at_the_end)
    monkeypatch.setattr(ask_bench, "trial", trial)
    with pytest.raises(ValueError, match=r"^more than 3 s of computing"):
        trial_within(["long"], 3.0)
    assert signal.getsignal(signal.SIGVTALRM) == before
