"""Experiments by hand: their points, traces, runs and outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from sim.reproduce import arms, experiments, measured
from sim.reproduce.arms import Arm, ArmError
from sim.reproduce.experiments import Outcome, Point, Runner, arms_of, outcome, points_of
from sim.reproduce.measures import MEASURES, TRACE_MEASURES
from sim.reproduce.roles import Claim, Experiment, Paper
from sim.reproduce.rules import Value
from sim.results.labels import Labels
from sim.values import code
from sim.values.places import ROOT

TRACES: dict[str, dict[str, Any]] = {
    "own": {"like": "m", "seed": 3, "fits": ["p", "q"]},
    "twin": {"like": "m", "seed": 3},
    "other": {"like": "m", "seed": 4},
    "bundled": {"path": "capture/x"},
}
CALIBRATED = {"host_us": {"experiment": "e", "to": "C1", "layers": "4", "key": "hardware.us"}}
CLAIM = Claim("C1", "1", "x", "fitted", value=5.0)
PAPER = Paper("p", "P", "here", (CLAIM,), {}, TRACES, {}, {"t": {"x": 1}}, CALIBRATED, {})
EXPERIMENT = Experiment(
    "e",
    ("decode_speedup", ("a", "b")),
    {"a": ["x=1"], "b": ["y=2"]},
    ["trace=own"],
    ({"common": ["m=1"], "b": ["z=3"]}, ["m=2"]),
    {
        "g": [
            ["of the default"],
            ["q=1", "r=2"],
            {"over": [{"common": ["s=1"], "a": ["t=1"]}, ["s=2"]]},
            {"over": [["u=1"], ["u=1"]]},
        ]
    },
)


# ---- points


def test_a_point_changes_one_parameter_in_all_groups_or_in_each_its_own() -> None:
    points = points_of(PAPER, EXPERIMENT, {})
    words = {
        point.name: [[" ".join(arm.words) for arm in group.values()] for group in point.groups]
        for point in points
    }
    assert words == {
        "default": [["m=1 x=1", "m=1 y=2 z=3"], ["m=2 x=1", "m=2 y=2"]],
        "g q=1 r=2": [
            ["m=1 x=1 q=1 r=2", "m=1 y=2 z=3 q=1 r=2"],
            ["m=2 x=1 q=1 r=2", "m=2 y=2 q=1 r=2"],
        ],
        "g s=1 t=1 / s=2": [
            ["m=1 x=1 s=1 t=1", "m=1 y=2 z=3 s=1"],
            ["m=2 x=1 s=2", "m=2 y=2 s=2"],
        ],
        "g u=1": [["m=1 x=1 u=1", "m=1 y=2 z=3 u=1"], ["m=2 x=1 u=1", "m=2 y=2 u=1"]],
    }
    assert [list(group) for group in points[0].groups] == [["a", "b"]] * 2
    assert [" ".join(arm.words) for arm in arms_of(points[:2], EXPERIMENT)] == [
        *(" ".join(one) for one in [["m=1 x=1"], ["m=1 y=2 z=3"], ["m=2 x=1"], ["m=2 y=2"]]),
        *(words["g q=1 r=2"][0] + words["g q=1 r=2"][1]),
    ]


def test_an_experiment_without_arms_has_its_trace_and_no_run() -> None:
    bare = Experiment("e", ("lookahead_top1", (1,)), {}, ["trace=other"])
    (point,) = points_of(PAPER, bare, {})
    assert point == Point("default", ({"trace": Arm((), "other")},))
    assert arms_of([point], bare) == []


# ---- traces


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner of one process, for which digests are short names."""
    monkeypatch.setattr(experiments, "_synthesis_digest", lambda: "code")
    monkeypatch.setattr(experiments, "_fit_digest", lambda option: f"of_{option}")
    monkeypatch.setattr(experiments, "_trace_digest", lambda place: place.name)
    return Runner(tmp_path, 1)


def test_a_trace_and_its_fits_are_made_once_and_again_where_half_was_made(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []

    def make(module: str, *words: str) -> None:
        made.append((module, *words))
        place = Path(words[-1].partition("=")[2])
        place.mkdir(parents=True)
        names = ("header.json",) if module == "capture.synthesize" else ("b.json", "a.json")
        for name in names:
            (place / name).touch()

    monkeypatch.setattr(experiments, "_command", make)
    place = tmp_path / "traces" / "m-3-code"
    fits = {name: tmp_path / "traces" / "m-3-code.fits" / f"{name}-of_{name}" for name in "pq"}
    found = {name: folder / "a.json" for name, folder in fits.items()}
    assert runner.trace_dir(PAPER, "own") == runner.trace_dir(PAPER, "twin") == place
    assert runner.trace_dir(PAPER, "bundled") == ROOT / "capture/x"
    assert runner.make_trace(PAPER, "own") == found
    synthesis = ("capture.synthesize", "like=m", "seed=3", f"output_dir={place}")
    assert made == [
        synthesis,
        *(
            ("sim.fit", f"predictor={name}", f"trace.path={place}", f"output_dir={folder}")
            for name, folder in fits.items()
        ),
    ]
    made.clear()
    assert runner.make_trace(PAPER, "own") == found
    assert runner.make_trace(PAPER, "twin") == {}
    assert made == []
    (place / "header.json").unlink()
    (place / "half").touch()
    assert runner.make_trace(PAPER, "own") == found
    assert made == [synthesis]
    assert [path.name for path in place.iterdir()] == ["header.json"]


def test_traces_that_share_a_place_are_made_one_after_another(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread has the traces of one place."""
    monkeypatch.setattr(Runner, "make_trace", lambda self, paper, name: {name: Path(name)})
    pools: list[tuple[int, Any]] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, most: int) -> None:
            super().__init__(most)
            self.most = most

        def map(self, make: Any, places: Any, **options: Any) -> Any:
            given = list(places)
            pools.append((self.most, given))
            return super().map(make, given, **options)

    monkeypatch.setattr(experiments, "ThreadPoolExecutor", Pool)
    names = ["own", "other", "twin"]
    assert runner._make_traces(PAPER, names) == {name: {name: Path(name)} for name in names}
    runner.processes = 3
    assert runner._make_traces(PAPER, []) == {}
    assert pools == [(1, [["own", "twin"], ["other"]]), (3, [])]


def test_a_command_that_fails_is_told_with_the_last_line_that_it_said() -> None:
    with pytest.raises(ArmError) as refused:
        experiments._command("sim.nowhere", "a=1", "b=2")
    assert str(refused.value) == (
        f"python -m sim.nowhere a=1 b=2: {sys.executable}: No module named sim.nowhere"
    )


def test_a_commands_own_output_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(words: list[str], **options: Any) -> Any:
        asked.append((words, options["capture_output"]))
        return SimpleNamespace(returncode=0, stderr="warning\n")

    monkeypatch.setattr(subprocess, "run", run)
    experiments._command("m", "a=1")
    assert asked == [([sys.executable, "-m", "m", "a=1"], True)]


def test_digests_are_of_the_code_the_options_and_the_trace_but_not_its_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "code_digest", lambda *modules: ",".join(modules))
    monkeypatch.setattr(experiments, "PRESETS", tmp_path)

    def synthesis() -> str:
        return experiments._synthesis_digest.__wrapped__()

    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.yaml").write_text("a: 1")
    before = synthesis()
    (tmp_path / "deep" / "b.pyc").write_text("1")
    assert synthesis() == before
    (tmp_path / "deep" / "a.yaml").write_text("a: 2")
    assert synthesis() != before
    of_fit = {name: experiments._fit_digest.__wrapped__(name) for name in ("next_site", "none")}
    assert [len(one) for one in (before, *of_fit.values())] == [12, 12, 12]
    assert len(set(of_fit.values())) == 2

    monkeypatch.setattr(experiments, "parse_header", json.loads)
    monkeypatch.setattr(experiments, "trace_sha256", lambda header: header["files"])

    def trace(**header: str) -> str:
        (tmp_path / "header.json").write_text(json.dumps({"name": "n", "files": "f"} | header))
        return experiments._trace_digest(tmp_path)

    first = trace(created="1")
    assert trace(created="2") == first
    assert len({first, trace(created="1", name="m"), trace(created="1", files="g")}) == 3


def test_three_traces_and_three_workloads_are_kept_with_three_sites_of_forecasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(measured, "load_trace", lambda path, **more: asked.append((path, more)))
    measured.trace_in.__wrapped__("here")
    assert asked == [("here", {"lookahead_sites": 3})]
    assert (measured.trace_in.cache_info().maxsize, measured._SHARED._most) == (3, 3)


# ---- runs


RUNS = [Arm((), "twin"), Arm(("a=1",), "own", "t"), Arm(("a=2",), "other"), Arm(("a=3",), "own")]


@pytest.fixture
def kept(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    """The words of the arms whose results are kept; a run of ``a=2`` fails."""
    kept: set[tuple[str, ...]] = {("a=3",)}

    def run(job: Any, folder: Path) -> bool:
        if "a=2" in job.arm.words:
            raise ArmError("no room")
        kept.add(job.arm.words)
        return job.arm.trace != "twin"  # of the same key as one that was run

    fits = {name: {"fit": Path(name)} for name in TRACES}
    monkeypatch.setattr(Runner, "make_trace", lambda self, paper, name: fits[name])
    monkeypatch.setattr(arms, "run_job", run)
    monkeypatch.setattr(arms, "load", lambda path: ("kept", path.name))
    monkeypatch.setattr(experiments, "timing_of", lambda paper, name: f"timing {name}")
    at = lambda job, folder: Path(str(job)) if job.arm.words in kept else None  # noqa: E731
    monkeypatch.setattr(experiments.Job, "kept_at", at)
    return kept


@pytest.mark.parametrize("processes", [1, 2])
def test_each_run_that_is_not_kept_is_run_once_and_a_failure_says_why(
    runner: Runner,
    kept: set[tuple[str, ...]],
    processes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four runs, of which one is kept, one fails, and one has the key of another."""
    pools: list[Any] = []

    def pool(most: int, context: Any, begin: Any) -> ThreadPoolExecutor:
        pools.append((most, begin.__name__))
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(experiments, "ProcessPoolExecutor", pool)
    runner.processes = processes
    told: list[tuple[int, int]] = []
    found = runner.results(PAPER, [*RUNS, RUNS[0]], lambda *both: told.append(both))
    jobs = {
        arm: experiments.Job(
            arm,
            runner.trace_dir(PAPER, arm.trace),
            "m-4-code" if arm.trace == "other" else "m-3-code",
            {"fit": Path(arm.trace)},
            "timing t" if arm.timing else None,  # type: ignore[arg-type]
        )
        for arm in RUNS
    }
    assert found == {
        arm: "no room" if arm.trace == "other" else ("kept", Path(str(jobs[arm])).name)
        for arm in RUNS
    }
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (runner.started, pools) == (2, [(2, "leave_with_parent")] * (processes - 1))
    kept.discard(("a=1",))
    runner.results(PAPER, RUNS[1:2], lambda *both: None)
    assert (runner.started, len(pools)) == (3, processes - 1), "one run needs no pool"


def test_runs_of_one_trace_come_together(
    runner: Runner, kept: set[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.clear()
    order: list[str] = []
    monkeypatch.setattr(
        Runner, "_run", lambda self, jobs: order.extend(job.arm.trace for job in jobs) or []
    )
    monkeypatch.setattr(Runner, "_kept", lambda self, job: None)
    runner.results(PAPER, RUNS, lambda *both: None)
    assert order == ["other", "own", "own", "twin"]


# ---- outcomes


def test_a_point_with_a_broken_run_has_no_value_and_the_default_has_labels(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = points_of(PAPER, EXPERIMENT, {})
    results: dict[Arm, Any] = {
        arm: SimpleNamespace(n=number, labels={"lossy": f"lossy {arm.words[0]}"})
        for number, arm in enumerate(dict.fromkeys(arms_of(points, EXPERIMENT)))
    }
    measure = lambda given: Value(  # noqa: E731
        sum(group[arm].n for group in given.groups for arm in given.arms), (len(given.take),)
    )
    monkeypatch.setitem(MEASURES, "decode_speedup", measure)
    labels = (
        ("a", Labels(lossy="lossy m=1")),
        ("b", Labels(lossy="lossy m=1")),
        ("a", Labels(lossy="lossy m=2")),
        ("b", Labels(lossy="lossy m=2")),
    )
    values = [Value(0 + 1 + 2 + 3, (4,)), *(Value(6 + 16 * at, (4,)) for at in (1, 2, 3))]
    names = [point.name for point in points]
    grid = dict(zip(names[1:], values[1:], strict=True))
    found = outcome(PAPER, EXPERIMENT, points, results, runner)
    assert found == Outcome(values[0], grid, {}, labels)
    assert found.values == values
    results[points[1].groups[1]["b"]] = "no room"
    del grid[names[1]]
    broken = {names[1]: "no room"}
    assert outcome(PAPER, EXPERIMENT, points, results, runner) == Outcome(
        values[0], grid, broken, labels
    )
    results[points[0].groups[0]["a"]] = "first"
    results[points[0].groups[1]["b"]] = "second"
    worse = outcome(PAPER, EXPERIMENT, points, results, runner)
    assert worse == Outcome(None, grid, {"default": "first"} | broken, ())
    assert worse.values == list(grid.values())


def test_a_measure_of_a_trace_makes_it_and_has_the_label_of_its_gates(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    place = tmp_path / "traces" / "m-4-code"

    def make(self: Runner, paper: Paper, name: str) -> dict[str, Path]:
        made.append(name)
        place.mkdir(parents=True)
        (place / "header.json").write_text('"header"')
        return {}

    monkeypatch.setattr(Runner, "make_trace", make)
    monkeypatch.setattr(experiments, "trace_in", lambda path: path)
    monkeypatch.setattr(experiments, "parse_header", json.loads)
    monkeypatch.setattr(experiments, "synthetic_label", lambda header: f"of {header}")
    measure = lambda trace, asked: Value(len(asked), (trace,))  # noqa: E731
    monkeypatch.setitem(TRACE_MEASURES, "lookahead_top1", measure)
    bare = Experiment("e", ("lookahead_top1", (1, 2)), {}, ["trace=other"])
    found = outcome(PAPER, bare, points_of(PAPER, bare, {}), {}, runner)
    assert found == Outcome(
        Value(2, (str(place),)),  # type: ignore[arg-type]
        labels=(("trace", Labels(synthetic="of header")),),
    )
    assert made == ["other"]


def test_a_measure_that_needs_no_run_is_of_the_machine_or_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = SimpleNamespace(hardware=OmegaConf.create({"a": 1}))
    asked: list[str] = []
    monkeypatch.setattr(
        experiments, "configure", lambda word: (asked.append(word) or machine, "name")
    )
    monkeypatch.setattr(experiments, "make_object", lambda config: config)
    sizes = {"hidden": 4096, "experts": 8}
    named = lambda name: SimpleNamespace(name=name, **sizes)  # noqa: E731
    monkeypatch.setattr(experiments, "model", named)
    monkeypatch.setattr(experiments, "stacked_gates", lambda *told: Value(told))  # type: ignore[arg-type]
    gates = replace(EXPERIMENT, measure=("stacked_gates", ()))
    assert experiments.closed_outcome(PAPER, gates) == Outcome(Value(({"a": 1}, 4096, 8)))  # type: ignore[arg-type]
    monkeypatch.setattr(experiments, "whole_decoder_over_compute", lambda sizes: sizes.name)
    decoder = replace(EXPERIMENT, measure=("whole_decoder_over_compute", ()))
    assert experiments.closed_outcome(PAPER, decoder) == Outcome(Value("switch_base_8"))  # type: ignore[arg-type]
    assert asked == ["hardware=rtx4090_pcie4"]
