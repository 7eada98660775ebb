"""A search's settings, proposals and printed answer, worked by hand and without a run."""

from __future__ import annotations

import re
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from sim.results.intervals import OVER
from sim.results.labels import Labels
from sim.results.paired import Paired
from sim.study import search
from sim.study.plan import Plan
from sim.study.rows import NUMBERS
from sim.study.search import (
    Found,
    Search,
    SearchResult,
    _first_values,
    _objectives,
    _trials,
    _values,
    make_search,
    told,
)

PARAMETERS: dict[str, Any] = {
    "share": {"low": 0.1, "high": 0.9, "log": True},
    "slots": {"low": 1, "high": 8, "whole": True},
    "cache": ["lru", "lfu"],
    "rate": {"low": -2, "high": 3.5},
    "batch": {"low": 1, "high": 64, "whole": True, "log": True},
}
FAST = {"decode_tokens_per_s": "maximize"}


def asked(last: tuple[str, ...] = (), base: tuple[str, ...] = (), **given: Any) -> Search:
    return make_search(Plan("s", base=base, search={"parameters": PARAMETERS, **given}, last=last))


def test_a_search_has_its_settings_or_their_defaults() -> None:
    assert asked() == Search(PARAMETERS, FAST, 50, "tpe", 0, 4)
    both = {"hit_ratio": "maximize", "makespan_s": "minimize"}
    given = {"trials": 1, "together": 1, "seed": 0, "sampler": "nsga2", "objectives": both}
    assert asked(**given) == Search(PARAMETERS, both, 1, "nsga2", 0, 1)
    assert (asked().is_single, asked(**given).is_single) == (True, False)


@pytest.mark.parametrize("words", [{"last": ("bounds=max",)}, {"base": ("bounds=max",)}])
def test_bounds_may_be_searched_where_they_are_computed(words: dict[str, Any]) -> None:
    assert asked(objectives={"gap": "minimize"}, **words).objectives == {"gap": "minimize"}
    assert asked(base=("bounds=none",)).objectives == FAST


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parameters": ["seed"]}, "parameters must hold values or a range by key, got ['seed']"),
        ({"parameters": {}}, "parameters must hold values or a range by key, got {}"),
        (
            {"parameters": {"seed": [3]}},
            "parameters.seed=[3] must be at least two values to choose from",
        ),
        (
            {"parameters": {"seed": {"low": 3, "high": 3}}},
            "parameters.seed: low=3 must be below high=3",
        ),
        (
            {"parameters": {"seed": 3}},
            "parameters.seed must be a section of low, high, whole, log, got 3",
        ),
        (
            {"parameters": {"seed": {"low": 0.5, "high": 3, "whole": True}}},
            "parameters.seed.low=0.5 must be a whole number",
        ),
        (
            {"parameters": {"seed": {"low": 1, "high": 3, "whole": "maybe"}}},
            "parameters.seed.whole=maybe must be true or false",
        ),
        (
            {"parameters": {"seed": {"low": 0, "high": 3, "log": True}}},
            "parameters.seed: low=0 must be above 0 for log=true",
        ),
        ({"objectives": {}}, "objectives must hold a direction by column, got {}"),
        (
            {"objectives": {"decode_tokens_per_s": "up"}},
            "objectives.decode_tokens_per_s=up: choose maximize or minimize of"
            f" {', '.join(NUMBERS)}",
        ),
        (
            {"objectives": {**FAST, "status": "minimize"}},
            f"objectives.status=minimize: choose maximize or minimize of {', '.join(NUMBERS)}",
        ),
        *(
            (
                {"objectives": {**FAST, "gap": "minimize"}, "base": base},
                "objectives.gap: bounds=none computes no bounds; add bounds=max to the study's words",
            )
            for base in ((), ("bounds=none",))
        ),
        ({"trials": 0}, "trials=0 must be a whole number >= 1"),
        ({"together": 0}, "together=0 must be a whole number >= 1"),
        ({"seed": -1}, "seed=-1 must be a whole number >= 0"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"sampler": "best"}, "sampler=best is unknown; choose tpe, random, nsga2"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_place_and_values(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^study s: search\\.{re.escape(message)}"):
        asked(**given)


@pytest.mark.parametrize("end", ["low", "high"])
def test_both_ends_of_a_range_are_numbers(end: str) -> None:
    with pytest.raises(ValueError, match=rf"^study s: search\.parameters\.seed\.{end}='x' must be"):
        asked(parameters={"seed": {"low": 1, "high": 2, end: "x"}})


@pytest.mark.parametrize("place", ["base", "last"])
def test_the_split_is_the_searchs_own(place: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^trace\.split=all: a search runs on trace\.split=fit and is judged on eval; leave",
    ):
        asked(**{place: ("seed=1", "trace.split=all")})


@pytest.mark.parametrize(
    ("word", "parameter"),
    [
        ("cache=sieve", "cache"),
        ("budget.slots_gib=3", "budget.slots_gib"),
        ("cache.weights={lru: 1}", "cache.weights.lru"),
        ("cache.weights.lru=1", "cache.weights"),
    ],
)
def test_a_word_that_holds_against_a_parameter_is_refused(word: str, parameter: str) -> None:
    """All trials would be of the word's value, and the answer would name another."""
    parameters = {parameter: [1, 2], "seed": [1, 2]}
    with pytest.raises(ValueError, match=rf"^{re.escape(word)} holds against .* {parameter}, whic"):
        asked(parameters=parameters, last=("seed_of=3", word))
    assert asked(parameters=parameters, base=(word,)).parameters == parameters


def test_a_word_beside_a_parameter_is_taken_and_machine_means_hardware() -> None:
    """A group's file and a value in it vary beside each other."""
    found = asked(
        parameters={"machine": ["a", "b"], "cache.weights.lru": [0, 1]},
        last=("cache=weighted_score", "hardware.memory_gib=12"),
    )
    assert [*found.parameters] == ["hardware", "cache.weights.lru"]


class Trial:
    """A trial of Optuna's, that proposes what it is asked for in words."""

    def suggest_categorical(self, key: str, values: Any) -> Any:
        return ("one of", key, values)

    def suggest_int(self, key: str, low: int, high: int, log: bool) -> Any:
        return ("whole", key, low, high, log)

    def suggest_float(self, key: str, low: float, high: float, log: bool) -> Any:
        return ("number", key, low, high, log)


def test_a_trial_proposes_a_value_of_each_parameter_and_the_first_are_the_least() -> None:
    assert _values(asked(), Trial()) == {
        "share": ("number", "share", 0.1, 0.9, True),
        "slots": ("whole", "slots", 1, 8, False),
        "cache": ("one of", "cache", ["lru", "lfu"]),
        "rate": ("number", "rate", -2, 3.5, False),
        "batch": ("whole", "batch", 1, 64, True),
    }
    least = {"share": 0.1, "slots": 1, "cache": "lru", "rate": -2, "batch": 1}
    assert _first_values(asked()) == least
    assert _objectives(asked(), {"decode_tokens_per_s": 3.5, "gap": 1}) == (3.5,)


class State(Enum):
    """The states of Optuna's trials."""

    RUNNING, COMPLETE, FAIL = range(3)

    def is_finished(self) -> bool:
        return self is not State.RUNNING


class Study:
    """Optuna's study as far as a search sees it; ``before`` are states of its trials."""

    def __init__(self, *before: State) -> None:
        self.trials: list[Any] = []
        self.told: list[Any] = []
        for state in before:
            self.ask().state = state

    def ask(self) -> Any:
        number = len(self.trials)
        self.trials.append(
            SimpleNamespace(
                number=number, state=State.RUNNING, params={"seed": number}, user_attrs={}
            )
        )
        return self.trials[-1]

    def enqueue_trial(self, params: Any, user_attrs: Any) -> None:
        self.told.append(("again", params))

    def tell(self, trial: Any, values: Any = None, state: State = State.COMPLETE) -> None:
        number = getattr(trial, "number", trial)
        self.told.append((number, values, state.name))
        self.trials[number].state = state


def search_with(
    study: Study,
    rates: list[float | None],
    monkeypatch: pytest.MonkeyPatch,
    trials: int = 7,
    **more: Any,
) -> tuple[list[int], list[str], list[Any]]:
    """Search with trials that decode at ``rates`` (None: refused, 0: no rate): the sizes of batches, what was
    told, and the rows that were reported.
    """
    monkeypatch.setattr(search, "_cell", lambda plan, values, split: (values, split))
    monkeypatch.setattr(search, "_values", lambda search, trial: trial.number)
    reported: list[Any] = []

    @contextmanager
    def showing(name: str, total: int) -> Any:
        reported.append((name, total))
        yield reported.append

    monkeypatch.setattr(search, "showing_progress", showing)
    left, sizes, lines = iter(rates), list[int](), list[str]()

    def run(cells: Any) -> list[Any]:
        assert {split for _, split in cells} == {"fit"}
        sizes.append(len(cells))
        return [
            {
                "status": "refused" if rate is None else "done",
                "decode_tokens_per_s": rate or None,
                "hit_ratio": 0.5,
            }
            for _, rate in zip(cells, left, strict=False)
        ]

    optuna = SimpleNamespace(trial=SimpleNamespace(TrialState=State))
    _trials(optuna, study, asked(trials=trials, together=3, **more), Plan("s"), run, lines.append)
    return sizes, lines, reported


def test_trials_run_some_together_and_are_told_in_the_order_of_their_proposal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of seven trials two are through; the one that was stopped counts as neither."""
    study = Study(State.COMPLETE, State.RUNNING, State.FAIL)
    sizes, lines, reported = search_with(study, [1.0, None, 3.0, 4.0, 5.0], monkeypatch)
    assert (sizes, lines) == ([3, 2], ["2 of 7 trials are through already"])
    assert study.told == [
        (1, None, "FAIL"),
        ("again", {"seed": 1}),
        (3, [1.0], "COMPLETE"),
        (4, None, "FAIL"),
        (5, [3.0], "COMPLETE"),
        (6, [4.0], "COMPLETE"),
        (7, [5.0], "COMPLETE"),
    ]
    assert reported[0] == ("s", 5)
    assert [row["decode_tokens_per_s"] for row in reported[1:]] == [1.0, None, 3.0, 4.0, 5.0]


def test_a_trial_fails_that_lacks_one_of_its_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four trials the last one runs alone."""
    study, both = Study(), {**FAST, "hit_ratio": "maximize"}
    rates = [1.0, 0.0, 3.0, 4.0]
    sizes, _, _ = search_with(study, rates, monkeypatch, trials=4, objectives=both)
    assert sizes == [3, 1]
    assert study.told == [
        (0, [1.0, 0.5], "COMPLETE"),
        (1, None, "FAIL"),
        (2, [3.0, 0.5], "COMPLETE"),
        (3, [4.0, 0.5], "COMPLETE"),
    ]


def test_a_new_search_tells_of_no_trials_and_one_that_is_over_runs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert search_with(Study(), [1.0, 2.0], monkeypatch, trials=2)[:2] == ([2], [])
    over = Study(State.COMPLETE, State.COMPLETE)
    assert search_with(over, [], monkeypatch, trials=2)[:2] == (
        [],
        ["2 of 2 trials are through already"],
    )


def test_a_search_of_which_no_trial_has_its_objectives_says_where_the_reason_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One trial is refused, one is done and decodes nothing."""
    with pytest.raises(
        ValueError,
        match=r"^none of 2 trials has decode_tokens_per_s: column error of the dataset says why one"
        r" was refused; one that is done has no such number$",
    ):
        search_with(Study(), [None, 0.0], monkeypatch, trials=2)


def test_a_number_that_a_run_does_not_have_is_a_dash_in_the_answer() -> None:
    """As forecasts of the system as it stands, where a search looks for a predictor."""
    found = Found({"predictor": "next_site"}, (0.5,), (None,), Paired(1.0, None, None, 1))
    result = SearchResult(
        Search({}, {"prediction.top1": "maximize"}, 1), (found,), ((None,), (None,)), 1, 0
    )
    lines = told("s", result).splitlines()
    assert lines[1] == "as it stands (fit / eval): prediction.top1 - / -"
    assert lines[3].startswith("  prediction.top1 0.5 / -; on eval")


def test_the_answer_has_every_number_on_fit_and_on_eval() -> None:
    both = {"decode_tokens_per_s": "maximize", "makespan_s": "minimize"}
    found = (
        Found(
            {"share": 0.123456, "cache": "lru"},
            (2.0, 30.0),
            (1.5, 40.123456),
            Paired(1.25, (1.125, 1.5), 0.99, 9),
        ),
        Found({"slots": 3}, (1.0, 2.0), (3.0, 4.0), Paired(0.5, None, None, 1)),
    )
    result = SearchResult(
        Search({}, both, 9),
        found,
        ((1.0, 20000.4), (0.5, 25.0)),
        9,
        2,
        (({"share": 0.5}, "it is too small"),),
        (("as it stands", Labels(lossy="lossy (x)")), ("found", Labels(lossy="lossy (x)"))),
    )
    assert told("s", result).splitlines() == [
        "s: 9 trials (2 refused), 2 objectives: decode_tokens_per_s, makespan_s",
        "as it stands (fit / eval): decode_tokens_per_s 1 / 0.5  makespan_s 2e+04 / 25",
        "share=0.1235 cache=lru",
        "  decode_tokens_per_s 2 / 1.5  makespan_s 30 / 40.12; on eval it decodes"
        " 1.25x [1.12, 1.50] as fast (faster)",
        "slots=3",
        "  decode_tokens_per_s 1 / 3  makespan_s 2 / 4; on eval it decodes"
        f" 0.50x [no interval] as fast ({found[1].speedup.verdict})",
        "share=0.5",
        "  is among the best on fit, and is refused on eval: it is too small",
        "lossy (x)",
        OVER,
    ]
