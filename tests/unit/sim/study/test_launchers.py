"""What Ray, Slurm and a pool are asked for, and the rows of cells that they lose."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.study import launchers
from sim.study.cells import Cell
from sim.study.launchers import OnRay, OnSubmitit, Pool, has_no_threads_of_work, make_launcher

PLACE = Path("out")


def cells(count: int) -> Iterator[Cell]:
    """Cells that are made when they are asked for."""
    return (Cell(f"k{at}", "lru", (f"seed={at}",), {}, {}, None) for at in range(count))


class DeadError(Exception):
    """What Ray raises for a task that it lost."""


class Ray:
    """Ray as far as a launcher sees it: the task that was begun last ends first."""

    exceptions = SimpleNamespace(RayError=DeadError)

    def __init__(self, cpus: dict[str, float]) -> None:
        self.cpus, self.told = cpus, list[Any]()
        self.running: list[Any] = []
        self.most = 0

    def init(self, *words: Any, **options: Any) -> None:
        self.told.append((words, options))

    def shutdown(self) -> None:
        self.told.append("over")

    def cluster_resources(self) -> dict[str, float]:
        return self.cpus

    def remote(self, work: Callable[..., Any]) -> Any:
        def begin(*asked: Any) -> Any:
            task = (len(self.running), lambda: work(*asked))
            self.running.append(task)
            return task

        return SimpleNamespace(remote=begin)

    def wait(self, running: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(running))
        return [running[-1]], list(running[:-1])

    def get(self, task: Any) -> Any:
        return task[1]()


def run_named(study: str, batch: Sequence[Cell], output_dir: str) -> list[Any]:
    """Stands in for the work: the keys of a batch. A batch with k3 dies."""
    assert (study, output_dir) == ("s", "out")
    if any(cell.key == "k3" for cell in batch):
        raise DeadError("no\n  memory " + 600 * "x")
    return [{"key": cell.key, "of": len(batch)} for cell in batch]


@pytest.fixture
def on_ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Ray, OnRay]]:
    monkeypatch.setattr(launchers, "run_cells", run_named)

    def make(address: str | None, batch: int, **cpus: float) -> tuple[Ray, OnRay]:
        ray = Ray(cpus)
        monkeypatch.setattr(launchers, "import_module", lambda name: {"ray": ray}[name])
        return ray, OnRay(2, address, batch)

    return make


def test_ray_runs_here_with_so_many_workers_or_where_its_cluster_is(on_ray: Any) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error", "ignore_reinit_error": True}
    ray, launcher = on_ray(None, 1)
    with launcher as own:
        assert own is launcher
        assert ray.told == [((None,), {**quiet, "num_cpus": 2, "include_dashboard": False})]
    assert ray.told[1:] == ["over"]
    ray, launcher = on_ray("auto", 1)
    launcher.__enter__()
    assert ray.told == [(("auto",), quiet)]


def test_a_batch_that_ray_loses_fails_and_the_others_are_kept(on_ray: Any) -> None:
    """Five cells in batches of two: the second batch has k2 and k3."""
    _, launcher = on_ray(None, 2, CPU=1)
    rows = list(launcher.run("s", cells(5), PLACE))
    assert [row for row in rows if "of" in row] == [
        {"key": "k4", "of": 1},
        {"key": "k0", "of": 2},
        {"key": "k1", "of": 2},
    ]
    lost = [row for row in rows if "of" not in row]
    why = ("DeadError: no memory " + 600 * "x")[:500]
    assert [(row["key"], row["status"], row["error"]) for row in lost] == [
        ("k2", "failed", why),
        ("k3", "failed", why),
    ]


@pytest.mark.parametrize(("cpus", "most"), [({"CPU": 3.0}, 9), ({"CPU": 0.5}, 3), ({}, 6)])
def test_three_batches_for_each_cpu_are_on_the_way(
    on_ray: Any, cpus: dict[str, float], most: int
) -> None:
    ray, launcher = on_ray(None, 1, **cpus)
    assert len(list(launcher.run("s", cells(20), PLACE))) == 20
    assert ray.most == most


@dataclass(frozen=True)
class Job:
    """A job of Slurm's."""

    done: Callable[[], bool]
    result: Callable[[], Any]


class Slurm:
    """submitit as far as a launcher sees it: a job ends when it is asked for the second time."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.running = self.most = 0

    def AutoExecutor(self, **options: Any) -> Slurm:
        self.told.append(options)
        if options["cluster"] == "slurm":
            raise RuntimeError("no sbatch")
        return self

    def update_parameters(self, **options: Any) -> None:
        self.told.append(options)

    def submit(self, work: Callable[..., Any], *asked: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        answers = iter((False, True))

        def result() -> Any:
            self.running -= 1
            self.told.append("ended")
            return work(*asked)

        return Job(lambda: next(answers), result)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(launchers, "import_module", lambda name: {"submitit": found}[name])
    monkeypatch.setattr(launchers, "run_cells", run_named)
    slept = SimpleNamespace(sleep=lambda seconds: found.told.append(seconds))
    monkeypatch.setattr(launchers, "time", slept)
    return found


def test_slurm_is_given_its_options_by_their_names_and_numbers(slurm: Slurm) -> None:
    given = {"cluster": "local", "workers": "2", "batch": "1", "partition": "gpu", "mem_gb": "64"}
    launcher = make_launcher("submitit", {**given, "account": "me", "qos": "7"})
    with launcher as own:
        rows = list(own.run("s", cells(3), PLACE))
    assert [row["key"] for row in rows] == ["k0", "k1", "k2"]
    assert slurm.most == 2
    # Two jobs run, and end when they are asked again. Then the third does.
    assert slurm.told == [
        {"folder": PLACE / "slurm" / "%j", "cluster": "local"},
        {
            "timeout_min": 240,
            "cpus_per_task": 1,
            "slurm_partition": "gpu",
            "mem_gb": 64,
            "slurm_account": "me",
            "slurm_qos": 7,
        },
        0.2,
        "ended",
        "ended",
        0.2,
        "ended",
    ]


def test_a_job_that_dies_is_the_error_of_its_cells(slurm: Slurm) -> None:
    launcher = OnSubmitit("local", 1, 2, {"timeout_min": "5"})
    rows = list(launcher.run("s", cells(5), PLACE))
    assert [(row["key"], row.get("status")) for row in rows] == [
        ("k0", None),
        ("k1", None),
        ("k2", "failed"),
        ("k3", "failed"),
        ("k4", None),
    ]
    assert slurm.told[1] == {"timeout_min": 5, "cpus_per_task": 1}
    assert slurm.most == 1


def test_where_there_is_no_slurm_the_way_to_try_it_out_is_told(slurm: Slurm) -> None:
    launcher = make_launcher("submitit", {})
    with pytest.raises(
        ValueError,
        match=r"^launcher=submitit cluster=slurm: no sbatch; to try it out: cluster=local$",
    ):
        list(launcher.run("s", cells(1), PLACE))


def test_a_launcher_has_its_workers_and_batches_or_their_defaults(
    on_ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ray(None, 1)
    monkeypatch.setattr(os, "sched_getaffinity", {0: {0, 3, 5}}.get, raising=False)
    pool, ray = make_launcher("pool", {}), make_launcher("ray", {})
    assert isinstance(pool, Pool)
    assert isinstance(ray, OnRay)
    assert (pool.workers, ray.workers, ray.batch, ray.address) == (3, 3, 8, None)
    ray = make_launcher("ray", {"workers": "1", "batch": "2", "address": "auto"})
    assert isinstance(ray, OnRay)
    assert (ray.workers, ray.batch, ray.address) == (1, 2, "auto")
    monkeypatch.delattr(os, "sched_getaffinity")
    pool = make_launcher("pool", {})
    assert isinstance(pool, Pool)
    assert pool.workers == 1


@pytest.mark.parametrize("text", ["0", "-1", "1.5", ""])
def test_at_least_one_worker_and_one_cell_a_batch_are_asked_for(text: str) -> None:
    for name in ("workers", "batch"):
        with pytest.raises(ValueError, match=f"^{name}={text} must be a whole number of at least"):
            make_launcher("ray", {name: text})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dask", {}, "unknown launcher=dask; choose pool, ray, submitit"),
        (
            "ray",
            {"qos": "1", "workers": "1", "mem_gb": "2"},
            "launcher=ray has no option qos, mem_gb; it has workers, address, batch",
        ),
    ],
)
def test_what_is_no_launcher_is_refused_with_those_that_are(
    name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_launcher(name, options)


@pytest.mark.parametrize(
    ("names", "active", "is_free"),
    [
        (["python"], 1, True),
        (["python", "python", "jemalloc_bg_thd", "polars-ooc-clea"], 1, True),
        (["python"], 2, False),
        (["python", "polars-3"], 1, False),
        (["python", None], 1, False),
    ],
)
def test_a_process_may_fork_while_it_has_only_idle_threads(
    names: list[str | None],
    active: int,
    is_free: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: active)
    for number, name in enumerate(names, os.getpid()):
        (tmp_path / str(number)).mkdir()
        if name is not None:
            (tmp_path / str(number) / "comm").write_text(f"{name}\n", encoding="utf-8")
    monkeypatch.setattr(launchers, "THREADS", tmp_path)
    assert has_no_threads_of_work() is is_free
    way = launchers._context().get_start_method()
    assert way == ("fork" if is_free else "forkserver")
    monkeypatch.setattr(launchers, "THREADS", tmp_path / "none")
    assert has_no_threads_of_work() is False


def test_where_no_server_can_fork_processes_are_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert launchers._server().get_start_method() == "spawn"


@pytest.mark.parametrize("error", [BlockingIOError(11, "no more"), RuntimeError("no thread")])
@pytest.mark.parametrize("way", ["fork", "forkserver"])
def test_a_system_that_starts_no_more_processes_is_told_with_the_way_out(
    way: str, error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed: list[bool] = []

    class Full:
        def __init__(self, *words: Any) -> None: ...

        def submit(self, *words: Any) -> None:
            raise error

        def shutdown(self, **options: Any) -> None:
            closed.append(True)

    monkeypatch.setattr(launchers, "ProcessPoolExecutor", Full)
    monkeypatch.setattr(launchers, "_context", lambda: multiprocessing.get_context(way))
    told = r"^workers=3: the system starts no more processes .*no .*; take fewer workers, or raise"
    with pytest.raises(ChildProcessError, match=told), Pool(3) as pool:
        list(pool.run("s", [SimpleNamespace()], tmp_path))  # type: ignore[list-item]
    assert closed == [True]
