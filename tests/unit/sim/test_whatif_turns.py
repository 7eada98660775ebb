"""Where a question turns and what a target needs, on curves whose values are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.whatif import Answer, BreakEven, Growth, Row
from sim.answers.whatif_questions import QUESTIONS
from sim.whatif import _break_even, _needed, _print, _values

LINK = QUESTIONS["link"]


def trial(speed: float) -> Any:
    return SimpleNamespace(summary={"decode_tokens_per_s": speed})


class Stated:
    """A bench where every value's series has the speed that ``speed`` says; 99 cannot run."""

    def __init__(self, speed: Callable[[float], float], series: str = "decode") -> None:
        self.speed, self.series = speed, series

    def at(self, values: Sequence[float], name: str = "") -> tuple[dict[float, Any], list[str]]:
        (value,) = values
        if value > 98:
            return {}, [f"{value:g}: no room"]
        return {value: {self.series: trial(self.speed(value))}}, []


def turned(less: float, closed: float | None) -> BreakEven:
    """The break-even of a difference of ``less`` minus the value, from 1 to 64."""
    question = replace(
        LINK,
        difference=lambda at: less - at["decode"].summary["decode_tokens_per_s"],
        span=None,
        closed_form=lambda run, at, value: closed if (at, value) == ("first", 1.0) else None,
    )
    bench: Any = Stated(lambda value: value)
    return _break_even(question, Any, bench, [1.0, 8.0, 64.0], {1.0: "first"})  # type: ignore[arg-type, dict-item]


def test_a_turn_is_told_with_its_value_and_the_closed_form() -> None:
    found = turned(8.0, 8.1234)
    assert (found.what, found.value, found.closed_form) == (LINK.what, pytest.approx(8.0), 8.1234)
    assert found.told == "from 8 GB/s on it computes longer than it waits (closed form: 8.123)"


@pytest.mark.parametrize(
    ("less", "told"),
    [
        (100.0, "it waits longer than it computes even at 64 GB/s"),
        (0.5, "it computes longer than it waits even at 1 GB/s"),
    ],
)
def test_where_nothing_turns_the_end_is_told(less: float, told: str) -> None:
    assert turned(less, None) == BreakEven(LINK.what, None, 1.0, 64.0, None, told)


def test_a_search_that_meets_what_cannot_run_says_why() -> None:
    bench: Any = Stated(lambda value: value)
    question = replace(LINK, span=(50.0, 100.0), difference=lambda at: 1.0)
    with pytest.raises(ValueError, match=r"^100: no room$"):
        _break_even(question, Any, bench, [1.0], {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^99: no room$"):
        _needed(
            LINK, 7.0, bench, {50.0: {"decode": trial(1)}, 99.0: {"decode": trial(1)}}, "decode"
        )


def needed(target: float, *speeds: float, **question: Any) -> BreakEven:
    """Of the values 1, 2, 4 .. with these speeds; between two of them a value's own."""
    found = {2.0**place: {"decode": trial(speed)} for place, speed in enumerate(speeds)}
    bench: Any = Stated(lambda value: value)
    return _needed(replace(LINK, **question), target, bench, found, "decode")


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        (2.0, 2.0, "2 tokens/s need a link of 2 GB/s (peak)"),
        (0.5, None, "0.5 tokens/s are reached from a link of 1 GB/s (peak) on"),
        (5.0, None, "nothing up to a link of 4 GB/s (peak) gives 5 tokens/s"),
    ],
)
def test_what_a_target_needs_is_told_with_its_unit(
    target: float, value: float | None, told: str
) -> None:
    found = needed(target, 1.0, 2.0, 4.0)
    near = value and pytest.approx(value, rel=1e-3)
    assert found == BreakEven("target", near, found.low, found.high, None, told)
    if value is None:
        assert (found.low, found.high) == (1.0, 4.0)


@pytest.mark.parametrize("target", [1.1, 1.26, 1.9, 2.51, 3.3])
def test_what_is_needed_is_enough_where_a_speed_goes_by_steps(target: float) -> None:
    """Slots are whole. So a value between the last two of a search may be too little."""

    def speed(value: float) -> float:
        return math.floor(value * 3) / 3

    bench: Any = Stated(speed)
    ends = {1.0: {"decode": trial(1.0)}, 4.0: {"decode": trial(4.0)}}
    found = _needed(LINK, target, bench, ends, "decode")
    told = float(found.told.split()[6])
    assert found.told == f"{target:g} tokens/s need a link of {told:g} GB/s (peak)"
    assert found.value is not None
    assert speed(found.value) >= target > speed(found.low)
    assert speed(told) >= target > speed(told - 0.02)


@pytest.mark.parametrize("target", [5.2, 7.5, 9.9])
def test_the_longest_context_that_is_told_is_not_too_long(target: float) -> None:
    def speed(value: float) -> float:
        return 12 - math.floor(round(value) / 1000)

    bench: Any = Stated(speed, "16 bits")
    ends = {value: {"16 bits": trial(speed(value))} for value in (1000.0, 9000.0)}
    # The bench above has nothing over 98.
    bench.at = lambda values, name="": ({values[0]: {name: trial(speed(values[0]))}}, [])
    found = _needed(QUESTIONS["kv"], target, bench, ends, "16 bits")
    told = int(found.told.split()[5].replace(",", ""))
    assert found.told == f"{target:g} tokens/s allow at most {told:,} tokens of context"
    assert found.value is not None
    assert round(found.value) == told
    assert speed(told) >= target > speed(told + 10)


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        (3.0, 4.0, "3 tokens/s are reached at 1, 4"),
        (5.0, 4.0, "5 tokens/s are reached at 4"),
        (6.0, None, "no point reaches 6 tokens/s"),
    ],
)
def test_between_precisions_there_is_nothing(target: float, value: float | None, told: str) -> None:
    found = needed(target, 3.0, 2.9, 5.0, is_discrete=True)
    assert found == BreakEven("target", value, 1.0, 4.0, None, told)


def test_of_one_point_or_none_only_that_is_told() -> None:
    assert needed(3.0, 3.0).told == "3 tokens/s are reached at 1"
    assert needed(4.0, 3.0) == BreakEven(
        "target",
        None,
        1.0,
        1.0,
        None,
        "a link of 1 GB/s (peak), the one point that ran, gives 3 of 4 tokens/s; name several in"
        " values= to learn what they need",
    )
    bench: Any = Stated(lambda value: value)
    other = {4096.0: {"4.5 bits": trial(9.0)}}
    assert _needed(LINK, 1.0, bench, other, "16 bits") == BreakEven(
        "target", None, 0, 0, None, "no point of 16 bits can run"
    )


def test_an_answer_about_contexts_prints_what_grows_and_what_was_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = tuple(
        Row(value, "16 bits", 5.0, None, 0.5, 0.5, None, None, 2.0) for value in (1024.0, 2048.0)
    )
    growth = (Growth("16 bits", 1024, 2048, 4.25, 3.5, 6.125, 5.875),)
    found = Answer(
        *("kv", "tokens of context", rows, None, None, ("4096, 16 bits: no [room]",), (), True),
        growth=growth,
    )
    _print(found, "lru", "so it is", Path("there"))
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split() == ["16", "bits", "4.25", "to", "3.5", "3.5", "6.12", "5.88"] for line in lines
    )
    assert any("a conversation from 1,024 to 2,048 tokens" in line for line in lines)
    assert lines[-3:] == ["left out 4096, 16 bits: no [room]", "so it is", "files: there"]


def test_values_are_asked_about_in_order_and_none_may_be_beyond_the_most() -> None:
    assert _values("link", "8,4") == (4.0, 8.0)
    assert _values("memory", "2,1") == (1.0, 2.0)
    assert _values("memory", None) == QUESTIONS["memory"].values
    with pytest.raises(
        ValueError, match=r"^values=2,1\.5: share of the expert bytes resident can be 1 at most$"
    ):
        _values("memory", "2,1.5")
