"""A worker returns a row of every cell, whatever happens, and says in it what happened."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pytest

from sim.policies.requires import PolicyError
from sim.study import worker
from sim.study.cells import Cell
from sim.study.worker import run_cell, run_cells

WORDS = ("system=lru", "trace.max_sequences=1", "seed=0")
CONFIG = {"outputs": "all", "timeline_steps": 7}
CELL = Cell("k1", "lru", WORDS, {}, CONFIG, "abc")


def breaks(error: Exception) -> Callable[..., NoReturn]:
    def here(*_: object, **__: object) -> NoReturn:
        raise error

    return here


PLACE = f"(test_worker.py:{breaks.__code__.co_firstlineno + 2})"
"""The file and the line that raises."""


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ValueError("no  room;\nmore"), "refused", "no room; more"),
        (OSError("no\nfile"), "refused", "no file"),
        (RuntimeError("a\n b"), "failed", f"RuntimeError: a b {PLACE}"),
    ],
)
def test_a_cell_that_cannot_be_made_is_refused_and_one_that_breaks_has_failed(
    error: Exception, status: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "build", breaks(error))
    (row,) = run_cells("s", [CELL], "out")
    assert (row["key"], row["study"], row["status"], row["error"]) == ("k1", "s", status, told)
    monkeypatch.setattr(worker, "build", lambda *_, **__: None)
    monkeypatch.setattr(worker, "execute", breaks(error))
    row = run_cell("s", CELL, "out")
    kind = type(error).__name__
    text = " ".join(str(error).split())
    assert (row["status"], row["error"]) == ("failed", f"{kind}: {text} {PLACE}")


def test_a_policy_of_ones_own_that_ends_a_cell_tells_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row named the file of the check, too."""
    monkeypatch.setattr(worker, "build", lambda *_, **__: None)
    monkeypatch.setattr(worker, "execute", breaks(PolicyError("cache: mru.MRU: no\n (mru.py)")))
    row = run_cell("s", CELL, "out")
    assert (row["status"], row["error"]) == ("failed", "cache: mru.MRU: no (mru.py)")


def test_a_cell_that_ran_has_its_summary_time_and_sequences_and_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    frames = SimpleNamespace(sequences=pl.DataFrame({"sequence": [3, 5]}))
    run = SimpleNamespace(
        config="resolved", controller=SimpleNamespace(loader=SimpleNamespace(wait="wait_all"))
    )
    clock = iter((1.0, 3.123456, 1.0, 2.0))

    def build(*words: Any, **named: Any) -> Any:
        asked.append((words, named))
        return run

    monkeypatch.setattr(worker, "build", build)
    monkeypatch.setattr(
        worker, "execute", lambda made: SimpleNamespace(summary={"x": made.config}, frames=frames)
    )
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(clock))
    times = np.array([10, 20]), np.array([1, 2])
    monkeypatch.setattr(worker, "decode_time_and_tokens", lambda given: times)
    monkeypatch.setattr(worker, "write_outputs", lambda *words: asked.append(words))
    monkeypatch.setattr(worker, "make_row", lambda *words: words)
    summary = {"x": "resolved", "wall_s": 2.1235}
    by_sequence = {"sequence": [3, 5], "decode_ns": [10, 20], "decode_tokens": [1, 2]}
    assert run_cell("s", CELL, "out") == ("s", CELL, "done", None, summary, by_sequence)
    assert asked == [
        (
            (CONFIG, "lru"),
            {"shared": worker.shared(), "changed": ["trace.max_sequences=1"]},
        ),
        (Path("out/runs/k1"), summary, "resolved", frames, "wait_all", 7),
    ]
    assert json.dumps(by_sequence), "plain values"
    few = Cell("k2", "lru", WORDS, {}, {"outputs": "summary"}, "abc")
    assert run_cell("s", few, "out")[2:4] == ("done", None)  # type: ignore[index]
    assert len(asked) == 3, "no files"


def test_a_worker_begins_with_signals_of_its_own_and_leaves_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *words: told.append(words))
    monkeypatch.setattr(gc, "freeze", lambda: told.append("freeze"))
    monkeypatch.setattr(worker, "leave_with_parent", lambda: told.append("leave"))
    worker.begin_work()
    assert told == [(signal.SIGTERM, signal.SIG_DFL), "freeze", "leave"]
