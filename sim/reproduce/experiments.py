"""Runs experiments: every point of the grid, every group, every arm.

Each arm is run once, several at a time, and its result is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from typing import Any

from omegaconf import OmegaConf

from sim.process.orphans import leave_with_parent, naming_killed_workers
from sim.reproduce import arms
from sim.reproduce.arms import Arm, ArmError, Job, expand
from sim.reproduce.identities import model
from sim.reproduce.measured import Measured, trace_in
from sim.reproduce.measures import MEASURES, TRACE_MEASURES, Given, stacked_gates
from sim.reproduce.roles import Experiment, Paper
from sim.reproduce.rules import Value
from sim.reproduce.storage import timing_of, whole_decoder_over_compute
from sim.results.labels import Labels, from_row, synthetic_label
from sim.setup.configure import configure
from sim.setup.sections import make_object
from sim.traces.header import trace_sha256
from sim.traces.header_text import parse_header
from sim.values import code
from sim.values.places import CONF, PRESETS, ROOT

CLOSED = ("stacked_gates", "whole_decoder_over_compute")
"""Measures that need neither a run nor a trace."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Point:
    """One setting of the parameters that a paper leaves unstated.

    ``name`` is ``default``, or says which parameter takes which alternative. ``groups`` have the
    arms by name.
    """

    name: str
    groups: tuple[Mapping[str, Arm], ...]


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave: at its default, and at the other points of its grid.

    ``failures`` has the points that could not run, and why.
    """

    default: Value | None
    grid: Mapping[str, Value] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[tuple[str, Labels], ...] = ()
    """The labels of the runs at the default, under the names of their arms."""

    @property
    def values(self) -> list[Value]:
        return [value for value in (self.default, *self.grid.values()) if value is not None]


def points_of(paper: Paper, experiment: Experiment, constants: Mapping[str, float]) -> list[Point]:
    """The points of an experiment's grid.

    The default comes first, then every alternative of every unstated parameter, one at a time.
    """
    settings: list[tuple[str, Any]] = [("default", ())]
    for name, alternatives in experiment.grid.items():
        settings += [(f"{name} {_text(one)}", one) for one in alternatives[1:]]
    return [
        Point(
            name,
            tuple(
                _group(paper, experiment, group, _for_group(change, place), constants)
                for place, group in enumerate(experiment.over)
            ),
        )
        for name, change in settings
    ]


def _for_group(change: Any, place: int) -> Any:
    """What a point changes in the group at ``place``.

    It is the same in all groups, unless the change lists one for each under ``over``.
    """
    return change["over"][place] if isinstance(change, Mapping) and "over" in change else change


def _text(change: Any) -> str:
    if isinstance(change, Mapping) and "over" in change:
        return " / ".join(dict.fromkeys(map(_text, change["over"])))
    words = (
        change
        if isinstance(change, list | tuple)
        else [word for several in change.values() for word in several]
    )
    return " ".join(map(str, words))


def _group(
    paper: Paper, experiment: Experiment, group: Any, change: Any, constants: Mapping[str, float]
) -> dict[str, Arm]:
    def part(given: Any, name: str) -> list[str]:
        if isinstance(given, Mapping):
            return [*given.get(name, ())]
        return [*given] if name == "common" else []

    found = {}
    for name, words in (experiment.arms or {"trace": ()}).items():
        whole = [
            *experiment.common,
            *part(group, "common"),
            *words,
            *part(group, name),
            *part(change, "common"),
            *part(change, name),
        ]
        found[name] = expand(paper, whole, constants)
    return found


class Runner:
    """Runs arms and keeps their results in ``folder``, so that a killed call can be resumed."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder, self.processes = folder, processes
        self.started = 0

    # ---- traces

    def trace_dir(self, paper: Paper, name: str) -> Path:
        spec = dict(paper.traces[name])
        if "path" in spec:
            return ROOT / str(spec["path"])
        marks = "-".join(f"{value}" for key, value in spec.items() if key != "fits")
        return self.folder / "traces" / f"{marks}-{_synthesis_digest()}"

    def make_trace(self, paper: Paper, name: str) -> dict[str, Path]:
        """Synthesise a trace and fit its predictors, unless that is done; return its fits."""
        spec = dict(paper.traces[name])
        fits, place = spec.pop("fits", ()), self.trace_dir(paper, name)
        if not (place / "header.json").exists():
            rmtree(place, ignore_errors=True)
            _command(
                "capture.synthesize",
                *(f"{key}={value}" for key, value in spec.items()),
                f"output_dir={place}",
            )
        found = {}
        for fit in fits:
            target = place.parent / f"{place.name}.fits" / f"{fit}-{_fit_digest(fit)}"
            if not any(target.glob("*.json")):
                _command(
                    "sim.fit", f"predictor={fit}", f"trace.path={place}", f"output_dir={target}"
                )
            found[str(fit)] = min(target.glob("*.json"))
        return found

    def _make_traces(self, paper: Paper, names: Iterable[str]) -> dict[str, dict[str, Path]]:
        """Make the traces ``names``; return the fits of each by predictor.

        Traces are made by commands; threads wait for them. One thread makes all traces that share a
        place, one after another.
        """
        places: dict[Path, list[str]] = {}
        for name in names:
            places.setdefault(self.trace_dir(paper, name), []).append(name)

        def make(named: Sequence[str]) -> dict[str, dict[str, Path]]:
            return {name: self.make_trace(paper, name) for name in named}

        with ThreadPoolExecutor(max(1, self.processes)) as pool:
            return {
                name: fits
                for made in pool.map(make, places.values())
                for name, fits in made.items()
            }

    # ---- runs

    def results(
        self, paper: Paper, wanted: Iterable[Arm], progress: Progress
    ) -> dict[Arm, Measured | str]:
        """The result of every arm in ``wanted``, or a text that says why there is none."""
        distinct = list(dict.fromkeys(wanted))
        fits = self._make_traces(paper, dict.fromkeys(arm.trace for arm in distinct))
        digests = {trace: _trace_digest(self.trace_dir(paper, trace)) for trace in fits}
        jobs = [
            Job(
                arm,
                self.trace_dir(paper, arm.trace),
                digests[arm.trace],
                fits[arm.trace],
                timing_of(paper, arm.timing) if arm.timing else None,
            )
            for arm in distinct
        ]
        missing = [job for job in jobs if job.kept_at(self.folder) is None]
        # Jobs of one trace come together, because a process keeps the traces it read last.
        missing.sort(key=lambda job: job.arm.trace)
        done, failures = len(distinct) - len(missing), dict[Arm, str]()
        progress(done, len(distinct))
        for arm, is_new, failure in self._run(missing):
            done, self.started = done + 1, self.started + is_new
            progress(done, len(distinct))
            if failure:
                failures[arm] = failure
        return {job.arm: failures.get(job.arm) or self._kept(job) for job in jobs}

    def _kept(self, job: Job) -> Measured:
        path = job.kept_at(self.folder)
        assert path is not None, "a job that did not fail is kept"
        return arms.load(path)

    def _run(self, jobs: Sequence[Job]) -> Iterable[tuple[Arm, bool, str]]:
        if self.processes <= 1 or len(jobs) <= 1:
            yield from ((job.arm, *_work(job, self.folder)) for job in jobs)
            return
        with (
            naming_killed_workers("what is finished is kept, and the same words go on"),
            ProcessPoolExecutor(self.processes, get_context("spawn"), leave_with_parent) as pool,
        ):
            futures = {pool.submit(_work, job, self.folder): job.arm for job in jobs}
            try:
                for future in as_completed(futures):
                    yield (futures[future], *future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _work(job: Job, folder: Path) -> tuple[bool, str]:
    """Run one job, in any process.

    Returns whether it was run now, and why it cannot run ("" if it can).
    """
    try:
        return arms.run_job(job, folder), ""
    except ArmError as error:
        return True, str(error)


def _command(module: str, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        raise ArmError(f"python -m {module} {' '.join(words)}: {last}")


@cache
def _synthesis_digest() -> str:
    presets = [path for path in PRESETS.glob("**/*.*") if path.suffix != ".pyc"]
    return code.digest(code.code_digest("capture.synthesize"), code.files_digest(presets))[:12]


@cache
def _fit_digest(option: str) -> str:
    """A digest of the code and options that fit a predictor.

    The trace need not count: fits lie in a folder beside their trace.
    """
    path = CONF / "predictor" / f"{option}.yaml"
    modules = code.target_modules(OmegaConf.to_container(OmegaConf.load(path)))
    return code.digest(code.code_digest("sim.fit", *sorted(modules)), code.files_digest([path]))[
        :12
    ]


def _trace_digest(place: Path) -> str:
    """A digest of a trace's header and files, without the date on which it was made."""
    data = (place / "header.json").read_bytes()
    header = {name: value for name, value in json.loads(data).items() if name != "created"}
    return code.digest(header, trace_sha256(parse_header(data)))


# ---- outcomes


def arms_of(points: Sequence[Point], experiment: Experiment) -> list[Arm]:
    """Every arm that the points need; none for an experiment without arms."""
    if not experiment.arms:
        return []
    return [arm for point in points for group in point.groups for arm in group.values()]


def outcome(
    paper: Paper,
    experiment: Experiment,
    points: Sequence[Point],
    results: Mapping[Arm, Measured | str],
    runner: Runner,
) -> Outcome:
    """The experiment's value at every point, or why a point could not run."""
    values: dict[str, Value] = {}
    failures: dict[str, str] = {}
    for point in points:
        broken = [
            results[arm]
            for group in point.groups
            for arm in group.values()
            if isinstance(results.get(arm), str)
        ]
        if broken:
            failures[point.name] = str(broken[0])
        else:
            values[point.name] = _value(paper, experiment, point, results, runner)
    labels = (
        tuple(_labels(paper, experiment, points[0], results, runner)) if "default" in values else ()
    )
    return Outcome(values.pop("default", None), values, failures, labels)


def _labels(
    paper: Paper, experiment: Experiment, point: Point, results: Mapping[Arm, Any], runner: Runner
) -> list[tuple[str, Labels]]:
    """The labels of a point's runs, under the names of their arms.

    A measure of the trace alone has only the label of its gates.
    """
    arms_by_name = [(name, arm) for group in point.groups for name, arm in group.items()]
    if experiment.measure[0] not in TRACE_MEASURES:
        return list(
            dict.fromkeys((name, from_row(results[arm].labels)) for name, arm in arms_by_name)
        )
    places = [
        (name, runner.trace_dir(paper, arm.trace) / "header.json") for name, arm in arms_by_name
    ]
    return [
        (name, Labels(synthetic=synthetic_label(parse_header(place.read_bytes()))))
        for name, place in places
    ]


def _value(
    paper: Paper, experiment: Experiment, point: Point, results: Mapping[Arm, Any], runner: Runner
) -> Value:
    name, asked = experiment.measure
    if name in TRACE_MEASURES:
        (arm,) = point.groups[0].values()
        runner.make_trace(paper, arm.trace)
        return TRACE_MEASURES[name](trace_in(str(runner.trace_dir(paper, arm.trace))), asked)
    groups = [{arm: results[run] for arm, run in group.items()} for group in point.groups]
    return MEASURES[name](Given(groups, asked, experiment.take))


def closed_outcome(paper: Paper, experiment: Experiment) -> Outcome:
    """The outcome of an experiment whose measure needs no run."""
    name, _ = experiment.measure
    if name == "whole_decoder_over_compute":
        return Outcome(Value(whole_decoder_over_compute(model("switch_base_8"))))
    hardware = make_object(OmegaConf.to_container(configure("hardware=rtx4090_pcie4")[0].hardware))
    mixtral = model("mixtral_8x7b")
    return Outcome(stacked_gates(hardware, mixtral.hidden, mixtral.experts))
