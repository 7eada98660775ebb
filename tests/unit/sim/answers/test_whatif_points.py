"""The points of a what-if: each combination of words runs once, and what is refused is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers import whatif_growth
from sim.answers.whatif import Growth
from sim.answers.whatif_bench import Bench
from sim.answers.whatif_growth import growth_in, growth_table
from sim.answers.whatif_questions import FIT_BUDGET
from sim.study.trials import kept_trial

PLACE = Path("kept")


class Pool:
    """Ends each trial at once with its words; those that ``bad`` has in them are refused."""

    def __init__(self, bad: Sequence[str] = ()) -> None:
        self.bad, self.asked = bad, list[tuple[str, ...]]()

    def submit(self, function: Callable[..., Any], words: tuple[str, ...], place: Path) -> Any:
        assert (function, place) == (kept_trial, PLACE)
        self.asked.append(words)
        future: Future[Any] = Future()
        if bad := [word for word in self.bad if word in words]:
            future.set_exception(ValueError(f"no {bad[0]}"))
        else:
            future.set_result(" ".join(words))
        return future


class Told:
    """How often it was told that a trial has ended."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def bench(pool: Any, told: Told, *, is_apart: bool = False) -> Bench:
    def words(value: float, run: Any) -> Mapping[str, tuple[str, ...]]:
        assert run == "run"
        return {"new": (f"v={value:g}", "p=x"), "old": ("predictor=none",)}

    question: Any = SimpleNamespace(words=words, is_apart=is_apart)
    return Bench(question, ["a", "b"], ["own"], "run", pool, told, PLACE)  # type: ignore[arg-type]


def test_each_combination_runs_once_and_only_the_predictors_series_has_its_own_words() -> None:
    pool, told = Pool(), Told()
    points = bench(pool, told)
    old, new = "a b predictor=none", "a b v={} p=x own"
    assert points.at([2.0, 1.0]) == (
        {
            2.0: {"new": new.format(2), "old": old},
            1.0: {"new": new.format(1), "old": old},
        },
        [],
    )
    assert pool.asked == [tuple(words.split()) for words in (old, new.format(1), new.format(2))]
    assert told.times == 3, "in order of words"
    assert points.at([1.0]) == ({1.0: {"new": new.format(1), "old": old}}, [])
    assert points.at([3.0], "new") == ({3.0: {"new": new.format(3)}}, [])
    assert (told.times, len(pool.asked)) == (4, 4)


@pytest.mark.parametrize(
    ("is_apart", "bad", "found", "refused"),
    [
        (False, ["v=1"], {2: ["new", "old"]}, ["1: no v=1"]),
        (True, ["v=1"], {1: ["old"], 2: ["new", "old"]}, ["1, new: no v=1"]),
        (
            True,
            ["predictor=none", "v=2"],
            {1: ["new"]},
            [
                "1, old: no predictor=none",
                "2, new: no v=2",
                "2, old: no predictor=none",
            ],
        ),
        (False, ["v=1", "v=2"], {}, ["1: no v=1", "2: no v=2"]),
    ],
)
def test_a_value_is_left_out_with_all_series_unless_they_stand_apart(
    is_apart: bool, bad: list[str], found: dict[int, list[str]], refused: list[str]
) -> None:
    points, told = bench(Pool(bad), Told(), is_apart=is_apart).at([1.0, 2.0])
    assert {value: list(series) for value, series in points.items()} == found
    assert told == refused


def at(speed: float, slots: float, share: float = 0.5) -> Any:
    summary = {"decode_tokens_per_s": speed, "budget": {"resident_share": share}}
    return SimpleNamespace(summary=summary, slots=slots)


def test_slots_that_shrink_stand_beside_the_share_of_the_longest_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 1000 to 3000 tokens: 2000 tokens at 1/10 and 1/5 s, or at 1/4 and 1/5 s. At 16 bits the
    longest context does not run.
    """
    monkeypatch.setattr(whatif_growth, "slots_a_layer", lambda one: one.slots)
    found = {3000.0: {"4 bits": at(5, 4, 0.25)}, 1000.0: {"4 bits": at(10, 8), "16 bits": at(9, 6)}}

    def otherwise(question: Any, words: Sequence[str]) -> Any:
        assert words == ["model=m"]
        return SimpleNamespace(
            at=lambda values: (
                {value: {"4 bits": at(4 if value < 2000 else 5, 4)} for value in values},
                [],
            )
        )

    asked: Any = SimpleNamespace(otherwise=otherwise, question="q")
    monkeypatch.setattr(
        whatif_growth,
        "once_allocated",
        lambda question, shares: {("q", 0.25): "once"}[question, shares["4 bits"]],
    )
    grown = growth_in(asked, [FIT_BUDGET, "model=m"], found)
    assert grown == (
        Growth("4 bits", 1000, 3000, 8, 4, pytest.approx(20 / 3), pytest.approx(40 / 9)),
    )
    assert growth_in(asked, ["model=m"], found) == ()
    assert growth_in(asked, [FIT_BUDGET, "model=m"], {1000.0: found[1000.0]}) == ()
    table = growth_table([*grown, Growth("16 bits", 1000, 3000, 7.125, 2.5, 3.456, 1.5)])
    assert [[str(column.header), *column.cells] for column in table.columns] == [
        ["keys and values", "4 bits", "16 bits"],
        ["slots a layer: shrinking", "8 to 4", "7.12 to 2.5"],
        ["once", "4", "2.5"],
        ["tokens/s: shrinking", "6.67", "3.46"],
        ["once", "4.44", "1.5"],
    ]
    assert (table.title, table.pad_edge) == ("a conversation from 1,000 to 3,000 tokens", False)
