"""Launchers run cells: in a pool of processes on this machine, on Ray, or on Slurm by submitit.

All three call the same function of `sim.study.worker` and yield rows as cells end. Only a few cells
are handed out at a time, so that finished cells are recorded at once and the rest can be given up
at any moment.
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
from contextlib import contextmanager
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
"""The launchers, each with the options that it takes."""
ON_THE_WAY = 3
"""How many cells for each worker are handed out at a time."""
DIED = "the process that ran it died (killed, or out of memory)"


class Launcher(Protocol):
    """Runs cells, any number of times while a ``with`` holds it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, study: str, cells: Iterable[Cell], output_dir: Path) -> Iterator[Row]:
        """The row of every cell, in the order in which the cells end."""


def make_launcher(name: str, options: Mapping[str, str]) -> Launcher:
    """The launcher of that name. Raise ValueError for an unknown one, for an option that it does
    not take, and for a package that is not installed.
    """
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
    """Processes of this machine. Each of them reads a trace once.

    A worker that dies breaks the pool. The cells that were running are then run again, one at a
    time, to find the one that kills its process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        context = _context()
        with self._starting():
            self._pool = ProcessPoolExecutor(self.workers, context, begin_work)
            if context.get_start_method() == "fork":
                # Started now, before this process has threads of its own, or holds locks and files
                # that workers must not inherit.
                with warnings.catch_warnings():
                    # Python warns of any thread when it forks; those of this process are known.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._pool.submit(os.getpid)
        return self

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Raise ChildProcessError where the block cannot start a worker."""
        try:
            yield
        except BrokenProcessPool:
            raise
        except (OSError, RuntimeError) as error:
            self._end_workers()
            raise ChildProcessError(
                f"workers={self.workers}: the system starts no more processes or threads ({error});"
                " take fewer workers, or raise the limit (ulimit -u)"
            ) from error

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
        """Run cells until there are no more, or the pool breaks. ``lost`` receives the cells that a
        broken pool left.
        """
        self._pool = pool = self._pool or ProcessPoolExecutor(self.workers, _server(), begin_work)
        running: dict[Future[Row], Cell] = {}
        handed: list[Cell] = []
        is_over = False
        try:
            while not is_over:
                while len(running) < self.workers * ON_THE_WAY and (
                    handed := list(islice(cells, 1))
                ):
                    with self._starting():
                        future = pool.submit(run_cell, study, handed[0], str(output_dir))
                    running[future] = handed.pop()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    row = future.result()
                    del running[future]
                    yield row
                # Nothing ran, so nothing is left. (Were all running cells done at once, others may
                # still wait.)
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
                self._end_workers()  # The caller gave up: do not wait for what runs.

    def _end_workers(self) -> None:
        for process in multiprocessing.active_children():
            process.terminate()
        self._close()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _context() -> Any:
    """How workers are started.

    They are forked from this process, which has imported what they need, if it has no working
    threads that a copy would lack. Otherwise a server process imports it and forks them.
    """
    return multiprocessing.get_context("fork") if has_no_threads_of_work() else _server()


def _server() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sim.study.worker"])
    return context


def has_no_threads_of_work() -> bool:
    """Whether this process has only the threads that its imports started, so that it may fork.

    Polars starts working threads at its first use; a process that has them cannot be forked. Where
    threads cannot be listed (not Linux) the answer is False.
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
"""Threads that importing polars starts: its allocator's, which copes with forks, and one that
cleans up after polars.
"""


class OnRay:
    """Ray: the cluster at ``address``, or a local one of ``workers`` processes."""

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
    """Slurm through submitit, ``workers`` jobs at a time; ``cluster=local`` runs processes here, to
    try it out.

    Every job runs a batch of cells. ``options`` are Slurm's (partition, timeout_min, ..).
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
        """Nothing to close: the jobs belong to Slurm."""

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
                # Whatever ends a job (its time, its node, an error of the worker) is the error of
                # its cells.
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
