"""A pool hands out a few cells at a time, and finds the cell that kills its process."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.study import launchers
from sim.study.cells import Cell
from sim.study.launchers import Pool

PLACE = Path("out")


def cells(count: int) -> list[Cell]:
    return [Cell(f"k{at}", "lru", (f"seed={at}",), {}, {}, None) for at in range(count)]


class Processes:
    """Executors in which cells end one after another, in the order in which they were handed out.

    A cell of ``deadly`` takes down the executor, after a cell of ``quick`` has ended. A cell of
    ``late`` finds it down already, once.
    """

    def __init__(self, deadly: str = "", quick: str = "", late: str = "") -> None:
        self.deadly, self.quick, self.late = deadly, quick, late
        self.made: list[Any] = []
        self.shut: list[Any] = []
        self.most = 0

    def __call__(self, *made: Any) -> Processes:
        self.made.append(made)
        return self

    def submit(self, work: Any, study: str, cell: Cell, output_dir: str) -> Any:
        assert (work, study, output_dir) == (launchers.run_cell, "s", "out")
        if cell.key == self.late:
            self.late = ""
            raise BrokenProcessPool
        future: Any = Future()
        future.key = cell.key
        return future

    def wait(self, running: Any, return_when: str) -> tuple[set[Any], set[Any]]:
        assert return_when == "FIRST_COMPLETED"
        self.most = max(self.most, len(running))
        first = next((future for future in running if not future.done()), None)
        if first is None:
            return set(), set()
        if first.key == self.deadly:
            for future in running:
                if future.key == self.quick:
                    future.set_result({"key": future.key})
                else:
                    future.set_exception(BrokenProcessPool())
        else:
            first.set_result({"key": first.key})
        return {first}, set()

    def shutdown(self, **how: Any) -> None:
        self.shut.append(how)


class Child:
    """A process of this one, that counts how often it is ended."""

    ended = 0

    def terminate(self) -> None:
        self.ended += 1


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    found = Child()
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [found])
    return found


def pool_on(processes: Processes, monkeypatch: pytest.MonkeyPatch, workers: int = 1) -> Pool:
    monkeypatch.setattr(launchers, "ProcessPoolExecutor", processes)
    monkeypatch.setattr(launchers, "wait", processes.wait)
    monkeypatch.setattr(launchers, "_server", lambda: "server")
    return Pool(workers)


def test_cells_are_handed_out_three_for_each_worker_in_one_pool(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes()
    pool = pool_on(processes, monkeypatch, workers=2)
    rows = list(pool.run("s", cells(9), PLACE))
    assert [row["key"] for row in rows] == [f"k{at}" for at in range(9)]
    assert (processes.most, child.ended, processes.shut) == (6, 0, [])
    assert processes.made == [(2, "server", launchers.begin_work)]
    pool.__exit__()
    pool.__exit__()
    assert processes.shut == [{"cancel_futures": True}]


def test_cells_that_a_broken_pool_left_run_alone_and_the_deadly_one_fails(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """k4 dies beside k5, which had ended, and k6. Those two run alone, then the rest."""
    processes = Processes(deadly="k4", quick="k5")
    rows = list(pool_on(processes, monkeypatch).run("s", cells(8), PLACE))
    told = [(row["key"], row.get("status"), row.get("error")) for row in rows]
    died = "the process that ran it died (killed, or out of memory)"
    assert told == [
        *((f"k{at}", None, None) for at in (0, 1, 2, 3, 5)),
        ("k4", "failed", died),
        ("k6", None, None),
        ("k7", None, None),
    ]
    assert processes.most == 3
    assert len(processes.made) == 3, "one anew after each that broke"
    assert processes.shut == [{"cancel_futures": True}] * 2
    assert child.ended == 0


def test_a_cell_that_finds_the_pool_broken_is_not_lost(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """k2 cannot be handed out, while k0 and k1 run."""
    processes = Processes(late="k2")
    rows = list(pool_on(processes, monkeypatch).run("s", cells(4), PLACE))
    assert [row["key"] for row in rows] == ["k2", "k0", "k1", "k3"]
    assert not any("status" in row for row in rows)


def test_who_gives_up_waits_for_no_process(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    rows = pool_on(processes, monkeypatch).run("s", cells(9), PLACE)
    assert next(iter(rows)) == {"key": "k0"}
    rows.close()  # type: ignore[attr-defined]
    assert (child.ended, processes.shut) == (1, [{"cancel_futures": True}])


@pytest.mark.parametrize(("way", "begun"), [("fork", 1), ("forkserver", 0)])
def test_a_pool_that_forks_begins_its_processes_at_once(
    way: str, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    context = SimpleNamespace(get_start_method=lambda: way)
    made = SimpleNamespace(submit=asked.append, shutdown=lambda **how: None)
    monkeypatch.setattr(launchers, "_context", lambda: context)
    monkeypatch.setattr(
        launchers, "ProcessPoolExecutor", lambda *words: asked.append(words) or made
    )
    with Pool(3) as pool:
        assert pool.workers == 3
    assert asked[0] == (3, context, launchers.begin_work)
    assert len(asked) == 1 + begun
