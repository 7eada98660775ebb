"""Search: Optuna proposes configurations, and a study's launcher runs them on ``fit`` sequences.

The best are judged on ``eval`` sequences, which the search has never seen: paired by sequence, each
is compared with the same system as it stands in ``conf/``. Every trial is a cell of the study's
dataset. Optuna's own state lies in ``search.db`` (SQLite) beside it, so a search that was stopped
goes on.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sim.results.intervals import OVER
from sim.results.labels import Labels, labels_in
from sim.results.labels import told as labels_told
from sim.results.paired import Paired, paired_rates
from sim.study.cells import Cell, make_cell
from sim.study.conduct import axes_of, of_other_code, showing_progress
from sim.study.dataset import Dataset
from sim.study.launchers import Launcher
from sim.study.plan import Plan, section
from sim.study.rows import BOUNDED, DONE, NUMBERS, Row
from sim.values.units import require_number
from sim.verbs.synonyms import in_configuration

DIRECTIONS = ("maximize", "minimize")
SAMPLERS = ("tpe", "random", "nsga2")
STORAGE = "search.db"
AGAIN = "again"
"""Marks a trial that proposes what one that was stopped had proposed."""
RANGE_KEYS = ("low", "high", "whole", "log")
Objectives = tuple[float | None, ...]
"""A run's number by objective; None where it has none, such as a forecast's without a predictor."""


@dataclass(frozen=True)
class Search:
    """What is searched.

    ``parameters``: by key, a list of values or a range. ``objectives``: directions by column.
    ``together``: how many trials run at once. ``is_single``: there is one objective.
    """

    parameters: Mapping[str, Sequence[Any] | Mapping[str, Any]]
    objectives: Mapping[str, str]
    trials: int
    sampler: str = "tpe"
    seed: int = 0
    together: int = 4

    @property
    def is_single(self) -> bool:
        return len(self.objectives) == 1


@dataclass(frozen=True)
class Found:
    """One of the best trials: its values, its objectives on ``fit`` and on ``eval``, and how much
    faster it decodes on ``eval`` than the baseline.
    """

    values: Mapping[str, Any]
    fit: Objectives
    eval: Objectives
    speedup: Paired


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    ``found``: the best trial, or with several objectives the Pareto front on ``fit``.
    ``baseline``: the objectives on ``fit`` and on ``eval`` of the study without parameters.
    ``trials`` and ``failed`` are counts. ``refused``: the values of those of the best that cannot run
    on ``eval``, and why.
    """

    search: Search
    found: tuple[Found, ...]
    baseline: tuple[Objectives, Objectives]
    trials: int
    failed: int
    refused: tuple[tuple[Mapping[str, Any], str], ...] = ()
    labels: tuple[tuple[str, Labels], ...] = ()
    """The labels of the runs on ``eval``: the baseline, and what was found."""


def make_search(plan: Plan) -> Search:
    """The search that a plan asks for. Raise ValueError, naming the key, for what cannot be
    searched.
    """
    asked, place = plan.search, f"study {plan.name}: search"
    parameters, objectives = (
        asked.get("parameters"),
        asked.get("objectives", {"decode_tokens_per_s": "maximize"}),
    )
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError(
            f"{place}.parameters must hold values or a range by key, got {parameters!r}"
        )
    parameters = {in_configuration(str(key)): values for key, values in parameters.items()}
    for key, values in parameters.items():
        _check_parameter(f"{place}.parameters.{key}", values)
        if held := [word for word in plan.last if _set_alike(key, word.partition("=")[0])]:
            raise ValueError(
                f"{held[0]} holds against the search's parameter {key}, which would not vary; leave"
                " one of them out"
            )
    if not isinstance(objectives, dict) or not objectives:
        raise ValueError(f"{place}.objectives must hold a direction by column, got {objectives!r}")
    for name, direction in objectives.items():
        if name not in NUMBERS or direction not in DIRECTIONS:
            raise ValueError(
                f"{place}.objectives.{name}={direction}: choose {' or '.join(DIRECTIONS)} of"
                f" {', '.join(NUMBERS)}"
            )
    words = {word for word in (*plan.base, *plan.last) if word.startswith("bounds=")}
    if words <= {"bounds=none"} and (needed := [name for name in objectives if name in BOUNDED]):
        raise ValueError(
            f"{place}.objectives.{needed[0]}: bounds=none computes no bounds; add bounds=max to the"
            " study's words"
        )
    for name, least in (("trials", 1), ("together", 1), ("seed", 0)):
        if name in asked:
            require_number(f"{place}.{name}", asked[name], minimum=least, whole=True)
    if asked.get("sampler", "tpe") not in SAMPLERS:
        raise ValueError(
            f"{place}.sampler={asked['sampler']} is unknown; choose {', '.join(SAMPLERS)}"
        )
    if clash := [word for word in (*plan.base, *plan.last) if word.startswith("trace.split=")]:
        raise ValueError(
            f"{clash[0]}: a search runs on trace.split=fit and is judged on eval; leave it out"
        )
    known = ("trials", "sampler", "seed", "together")
    return Search(
        parameters,
        objectives,
        **{"trials": 50, **{key: asked[key] for key in known if key in asked}},
    )


def _set_alike(one: str, other: str) -> bool:
    """Whether two keys set the same value. A group's choice of a file and a value in it do not."""
    outer, inner = sorted((one, other))
    return inner == outer or ("." in outer and inner.startswith(f"{outer}."))


def _check_parameter(place: str, values: object) -> None:
    if isinstance(values, list):
        if len(values) < 2:
            raise ValueError(f"{place}={values} must be at least two values to choose from")
        return
    fields = section(values, RANGE_KEYS, place)
    for name in ("whole", "log"):
        if not isinstance(fields.get(name, False), bool):
            raise ValueError(f"{place}.{name}={fields[name]} must be true or false")
    for end in ("low", "high"):
        require_number(
            f"{place}.{end}", fields.get(end), minimum=-math.inf, whole=fields.get("whole", False)
        )
    if fields.get("log") and not fields["low"] > 0:
        raise ValueError(f"{place}: low={fields['low']} must be above 0 for log=true")
    if not fields["low"] < fields["high"]:
        raise ValueError(f"{place}: low={fields['low']} must be below high={fields['high']}")


def run_search(
    plan: Plan,
    launcher: Launcher,
    output_dir: Path,
    tell: Callable[[str], None],
    code: str | None = None,
) -> SearchResult:
    """Search until all trials have ended, then judge the best on ``eval``.

    Rows that other code than ``code`` has made stay, and it is told. Raise ValueError for what
    cannot be searched.
    """
    search, optuna = make_search(plan), _optuna()
    cells = [_cell(plan, {}, split) for split in ("fit", "eval")]
    # A misspelt key is refused here, before anything runs.
    axes = axes_of([*cells, _cell(plan, _first_values(search), "fit")])
    with (
        warnings.catch_warnings(),
        launcher,
        Dataset(output_dir, axes, tell) as dataset,
        _storage(optuna, output_dir) as storage,
    ):
        # Optuna warns of values that are lists, such as two shares; as JSON they come back equal.
        warnings.filterwarnings("ignore", message="Choices for a categorical distribution")
        rows: dict[str, Row] = {row["key"]: row for row in dataset.read().to_dicts()}
        study = _open(optuna, search, storage, output_dir, cells[0])
        if old := of_other_code(dataset, rows, code):
            tell(
                f"{len(old)} cells are of other code (column code); another output_dir starts anew"
            )

        def run(wanted: Sequence[Cell]) -> list[Row]:
            new = {cell.key: cell for cell in wanted if cell.key not in rows}
            for row in launcher.run(plan.name, list(new.values()), output_dir):
                dataset.add(row)
                rows[row["key"]] = row
            return [rows[cell.key] for cell in wanted]

        base = run(cells)
        for row in base:
            if row["status"] != DONE:
                raise ValueError(f"the study without its parameters cannot run: {row['error']}")
        _trials(optuna, study, search, plan, run, tell)
        best = [study.best_trial] if search.is_single else study.best_trials
        judged = run([_cell(plan, trial.params, "eval") for trial in best])
        again = _again(study)
        failed = sum(trial.state == optuna.trial.TrialState.FAIL for trial in study.trials) - again
        counts = len(study.trials) - again, failed
        return _result(search, base, list(zip(best, judged, strict=True)), *counts)


def _result(
    search: Search, base: Sequence[Row], judged: Sequence[tuple[Any, Row]], trials: int, failed: int
) -> SearchResult:
    """``base``: the rows of the study without parameters, on ``fit`` and on ``eval``. ``judged``: the
    best trials, each with its row on ``eval``.
    """
    done = [(trial, row) for trial, row in judged if row["status"] == DONE]
    refused = [(t.params, str(row["error"])) for t, row in judged if row["status"] != DONE]
    found = [
        Found(trial.params, tuple(trial.values), _objectives(search, row), _compare(row, base[1]))
        for trial, row in done
    ]
    labelled = [("as it stands", base[1]), *(("found", row) for _, row in done)]
    return SearchResult(
        search,
        tuple(found),
        (_objectives(search, base[0]), _objectives(search, base[1])),
        trials,
        failed,
        tuple(refused),
        tuple((name, labels_in(json.loads(row["summary"]))) for name, row in labelled),
    )


def _trials(
    optuna: Any,
    study: Any,
    search: Search,
    plan: Plan,
    run: Callable[[Sequence[Cell]], list[Row]],
    tell: Callable[[str], None],
) -> None:
    state = optuna.trial.TrialState
    over = sum(trial.state.is_finished() for trial in study.trials) - _again(study)
    for trial in study.trials:
        # A trial that was running when the search was stopped is run again.
        if trial.state == state.RUNNING:
            study.tell(trial.number, state=state.FAIL)
            study.enqueue_trial(trial.params, {AGAIN: True})
    if over:
        tell(f"{over} of {search.trials} trials are through already")
    left = search.trials - over
    with showing_progress(plan.name, left) as report:
        while left > 0:
            trials = [study.ask() for _ in range(min(search.together, left))]
            cells = [_cell(plan, _values(search, trial), "fit") for trial in trials]
            # Optuna hears of trials in the order in which it proposed them, so that the same search
            # gives the same trials.
            for trial, row in zip(trials, run(cells), strict=True):
                if row["status"] == DONE and all(
                    row[name] is not None for name in search.objectives
                ):
                    study.tell(trial, list(_objectives(search, row)))
                else:
                    study.tell(trial, state=state.FAIL)
                report(row)
            left -= len(trials)
    if not any(trial.state == state.COMPLETE for trial in study.trials):
        raise ValueError(
            f"none of {len(study.trials) - _again(study)} trials has {' and '.join(search.objectives)}:"
            " column error of the dataset says why one was refused; one that is done has no such number"
        )


def _again(study: Any) -> int:
    """How many trials stand for one that was stopped: Optuna keeps that one, too, as a failed one."""
    return sum(AGAIN in trial.user_attrs for trial in study.trials)


def _values(search: Search, trial: Any) -> dict[str, Any]:
    """The values that a trial proposes, by key."""
    found: dict[str, Any] = {}
    for key, values in search.parameters.items():
        if not isinstance(values, Mapping):
            found[key] = trial.suggest_categorical(key, values)
        elif values.get("whole"):
            found[key] = trial.suggest_int(
                key, values["low"], values["high"], log=bool(values.get("log"))
            )
        else:
            found[key] = trial.suggest_float(
                key, values["low"], values["high"], log=bool(values.get("log"))
            )
    return found


def _first_values(search: Search) -> dict[str, Any]:
    return {
        key: values["low"] if isinstance(values, Mapping) else values[0]
        for key, values in search.parameters.items()
    }


def _cell(plan: Plan, values: Mapping[str, Any], split: str) -> Cell:
    return make_cell(replace(plan, last=(*plan.last, f"trace.split={split}")), values)


def _objectives(search: Search, row: Row) -> Objectives:
    return tuple(row[name] for name in search.objectives)


def _compare(ours: Row, theirs: Row) -> Paired:
    """How many times as fast ``ours`` decodes as ``theirs``, paired by sequence."""
    if list(ours["sequence"]) != list(theirs["sequence"]):
        raise ValueError("the two runs decoded different sequences, which cannot be paired")
    time_and_tokens = [
        (np.array(row["decode_ns"]), np.array(row["decode_tokens"])) for row in (ours, theirs)
    ]
    return paired_rates(*time_and_tokens)


@contextmanager
def _storage(optuna: Any, output_dir: Path) -> Iterator[Any]:
    """Optuna's file. Its connections end with the search: Optuna would leave them open."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{output_dir / STORAGE}")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open(optuna: Any, search: Search, storage: Any, output_dir: Path, cell: Cell) -> Any:
    """Optuna's state of the search, new or as it was left.

    ``cell``: the study without its parameters. Raise ValueError where the trials that are there are
    of another: their objectives would be of other work.
    """
    study = optuna.create_study(
        storage=storage,
        study_name="search",
        load_if_exists=True,
        directions=list(search.objectives.values()),
    )
    # The seed depends on how many trials there are: with the first seed a search that goes on would
    # repeat its proposals.
    seed = int(np.random.SeedSequence([search.seed, len(study.trials)]).generate_state(1)[0])
    samplers = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed),
    }
    study.sampler = samplers[search.sampler]()
    asked = {"parameters": dict(search.parameters), "objectives": dict(search.objectives)}
    kept = study.user_attrs.get("asked", asked)
    if study.trials and kept != asked:
        raise ValueError(
            f"{output_dir} holds a search of {kept}, this one is of {asked}; choose another"
            " output_dir"
        )
    of = {"key": cell.key, "words": " ".join(cell.words)}
    before = study.user_attrs.get("of", of)
    if study.trials and before["key"] != of["key"]:
        raise ValueError(
            f"{output_dir} holds a search over other words, files or another version"
            f" ({before['words']}), this one is of {of['words']}; choose another output_dir"
        )
    study.set_user_attr("asked", asked)
    study.set_user_attr("of", of)
    return study


def _optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError:
        raise ValueError("a search needs optuna; pip install -e '.[study]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def told(study: str, result: SearchResult) -> str:
    """The printed answer: what was found, with its numbers on ``fit`` and on ``eval``."""
    names = list(result.search.objectives)
    lines = [
        f"{study}: {result.trials} trials ({result.failed} refused), {len(names)} objectives:"
        f" {', '.join(names)}"
    ]
    lines.append(f"as it stands (fit / eval): {_reached(names, *result.baseline)}")
    for found in result.found:
        lines.append(
            f"{_words(found.values)}\n  {_reached(names, found.fit, found.eval)}; on eval it decodes"
            f" {found.speedup} as fast ({found.speedup.verdict})"
        )
    for values, why in result.refused:
        lines.append(f"{_words(values)}\n  is among the best on fit, and is refused on eval: {why}")
    return "\n".join([*lines, *labels_told(result.labels), OVER])


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in values.items()
    )


def _reached(names: Sequence[str], fit: Objectives, judged: Objectives) -> str:
    """The objectives on ``fit`` and on ``eval``; a dash for what a run does not have."""

    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    return "  ".join(
        f"{name} {text(one)} / {text(other)}"
        for name, one, other in zip(names, fit, judged, strict=True)
    )
