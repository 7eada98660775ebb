"""Where cells run: a pool of processes here, Ray, or Slurm by submitit. Each answers with rows as
they come.

All three call the same function of `sim.study.worker`. A few cells at a time are on their way, so
that what is finished is recorded at once and what is left can be given up at any moment.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

from sim.study.cells import Cell
from sim.study.rows import FAILED, Row, make_row
from sim.study.worker import begin_work, run_cell, run_cells

OPTIONS = {
    "pool": ("workers",),
    "ray": ("workers", "address", "batch"),
    "submitit": (
        "workers",
        "cluster",
        "batch",
        "partition",
        "timeout_min",
        "mem_gb",
        "account",
        "qos",
    ),
}
"""Launchers and the options that each takes."""
ON_THE_WAY = 3
"""Cells for each worker that are handed out at a time."""
DIED = "the process that ran it died (killed, or out of memory)"


class Launcher(Protocol):
    """Held in a ``with`` while it runs cells, as often as it likes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, study: str, cells: Iterable[Cell], output_dir: Path) -> Iterator[Row]:
        """The row of every cell, in the order in which they end."""


def make_launcher(name: str, options: Mapping[str, str]) -> Launcher:
    """Raise ValueError for what is no launcher, no option of it, or not installed."""
    if name not in OPTIONS:
        raise ValueError(f"unknown launcher={name}; choose {', '.join(OPTIONS)}")
    if foreign := [key for key in options if key not in OPTIONS[name]]:
        raise ValueError(
            f"launcher={name} has no option {', '.join(foreign)}; it has {', '.join(OPTIONS[name])}"
        )
    workers = _count(
        options, "workers", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    )
    if name == "pool":
        return Pool(workers)
    batch = _count(options, "batch", 8)
    if name == "ray":
        return OnRay(workers, options.get("address"), batch)
    rest = {
        key: value for key, value in options.items() if key not in ("workers", "cluster", "batch")
    }
    return OnSubmitit(options.get("cluster", "slurm"), workers, batch, rest)


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}={text} must be a whole number of at least 1")
    return int(text)


class Pool:
    """Processes of this machine, each of which reads a trace once.

    A worker that dies takes the pool with it: what it left is run again, one cell at a time, until
    it is known which cell it was.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        context = _context()
        self._pool = ProcessPoolExecutor(self.workers, context, begin_work)
        if context.get_start_method() == "fork":
            # Now, before this process has threads of its own, or holds locks and files that workers
            # must not.
            with warnings.catch_warnings():
                # Python warns of any thread; these are known.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(os.getpid)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, study: str, cells: Iterable[Cell], output_dir: Path) -> Iterator[Row]:
        left = iter(cells)
        suspects: deque[Cell] = deque()
        while True:
            alone = bool(suspects)
            source = iter([suspects.popleft()]) if alone else left
            lost: list[Cell] = []
            yield from self._run_pool(study, source, output_dir, lost)
            if alone:
                yield from (make_row(study, cell, FAILED, DIED) for cell in lost)
            else:
                suspects += lost
                if not lost:
                    return

    def _run_pool(
        self, study: str, cells: Iterator[Cell], output_dir: Path, lost: list[Cell]
    ) -> Iterator[Row]:
        """Until the cells or the pool are at their end. ``lost`` takes what a broken pool left."""
        self._pool = pool = self._pool or ProcessPoolExecutor(self.workers, _server(), begin_work)
        running: dict[Future[Row], Cell] = {}
        handed: list[Cell] = []
        is_over = False
        try:
            while not is_over:
                while len(running) < self.workers * ON_THE_WAY and (
                    handed := list(islice(cells, 1))
                ):
                    future = pool.submit(run_cell, study, handed[0], str(output_dir))
                    running[future] = handed.pop()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    row = future.result()
                    del running[future]
                    yield row
                # Nothing was running: nothing is left. What ran may all have ended at once, and
                # others wait.
                is_over = not done
        except BrokenProcessPool:
            is_over = True
            lost += handed
            for future, cell in running.items():
                if future.done() and future.exception() is None:
                    yield future.result()
                else:
                    lost.append(cell)
            self._close()
        finally:
            if not is_over:
                # Given up: what runs is not waited for.
                for process in multiprocessing.active_children():
                    process.terminate()
                self._close()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _context() -> Any:
    """Workers are copies of this process, which has imported what they need, where it has no thread
    that they would miss; else they come from a process of their own that has.
    """
    return multiprocessing.get_context("fork") if has_no_threads_of_work() else _server()


def _server() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sim.study.worker"])
    return context


def has_no_threads_of_work() -> bool:
    """Whether this process is as its imports left it: polars starts its threads of work, and cannot
    be copied any more, when it is first used. Known on Linux.
    """
    if threading.active_count() > 1 or not THREADS.is_dir():
        return False
    try:
        names = [
            (place / "comm").read_text(encoding="utf-8").strip() for place in THREADS.iterdir()
        ]
    except OSError:
        return False
    own = (THREADS / str(os.getpid()) / "comm").read_text(encoding="utf-8").strip()
    return all(name == own or name in IDLE_THREADS for name in names)


THREADS = Path("/proc/self/task")
IDLE_THREADS = ("jemalloc_bg_thd", "polars-ooc-clea")
"""What importing polars starts: an allocator's, which knows of copies, and one that tidies what
polars has used.
"""


class OnRay:
    """Ray: the cluster at ``address``, or one that is started here with ``workers`` processes."""

    def __init__(self, workers: int, address: str | None, batch: int) -> None:
        self.workers, self.address, self.batch = workers, address, batch
        self._ray = _installed("ray", "ray")

    def __enter__(self) -> Self:
        local = {} if self.address else {"num_cpus": self.workers, "include_dashboard": False}
        self._ray.init(
            self.address,
            log_to_driver=False,
            logging_level="error",
            ignore_reinit_error=True,
            **local,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def run(self, study: str, cells: Iterable[Cell], output_dir: Path) -> Iterator[Row]:
        ray = self._ray
        remote = ray.remote(run_cells)
        batches = _batches(cells, self.batch)
        room = ON_THE_WAY * max(1, int(ray.cluster_resources().get("CPU", self.workers)))
        running = {
            remote.remote(study, batch, str(output_dir)): batch for batch in islice(batches, room)
        }
        while running:
            done, _ = ray.wait(list(running))
            for reference in done:
                batch = running.pop(reference)
                try:
                    yield from ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield from _failed(study, batch, error)
                for following in islice(batches, 1):
                    running[remote.remote(study, following, str(output_dir))] = following


class OnSubmitit:
    """Slurm through submitit (``cluster=local``: processes here, to try it out), ``workers`` jobs
    at a time.

    Every job runs a batch of cells; ``options`` are Slurm's (partition, timeout_min, ..).
    """

    def __init__(self, cluster: str, workers: int, batch: int, options: Mapping[str, str]) -> None:
        self.workers, self.batch = workers, batch
        self._submitit = _installed("submitit", "slurm")
        self._cluster = cluster
        known: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 1}
        known |= {key: int(text) if text.isdigit() else text for key, text in options.items()}
        self._parameters = {SLURM.get(key, key): value for key, value in known.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Jobs are in Slurm's hands."""

    def run(self, study: str, cells: Iterable[Cell], output_dir: Path) -> Iterator[Row]:
        try:
            executor = self._submitit.AutoExecutor(
                folder=output_dir / "slurm" / "%j", cluster=self._cluster
            )
        except RuntimeError as error:
            raise ValueError(
                f"launcher=submitit cluster={self._cluster}: {error}; to try it out: cluster=local"
            ) from None
        executor.update_parameters(**self._parameters)
        batches = _batches(cells, self.batch)
        running: dict[Any, Sequence[Cell]] = {}
        while True:
            for following in islice(batches, self.workers - len(running)):
                running[executor.submit(run_cells, study, following, str(output_dir))] = following
            if not running:
                return
            ended = [job for job in running if job.done()]
            for job in ended:
                batch = running.pop(job)
                try:
                    yield from job.result()
                # Whatever a job dies of (its time, its node, the workers' own errors) is what its
                # cells failed by.
                except Exception as error:
                    yield from _failed(study, batch, error)
            if not ended:
                time.sleep(POLL_S)


SLURM = {"partition": "slurm_partition", "account": "slurm_account", "qos": "slurm_qos"}
POLL_S = 0.2


def _batches(cells: Iterable[Cell], size: int) -> Iterator[list[Cell]]:
    left = iter(cells)
    while batch := list(islice(left, size)):
        yield batch


def _failed(study: str, cells: Sequence[Cell], error: Exception) -> list[Row]:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return [make_row(study, cell, FAILED, reason) for cell in cells]


def _installed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(
            f"{module} is not installed; pip install -e '.[{extra}]' (or choose launcher=pool,"
            " which needs nothing)"
        ) from None
