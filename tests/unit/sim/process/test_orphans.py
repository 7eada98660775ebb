"""A worker ends when its parent is gone, and keeps no process from ending before."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from sim.process import orphans


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_process_ends_with_1_when_its_parent_is_gone_and_runs_on_without_one(
    has_parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Pipe()
    theirs.close()  # so a parent's end of a pipe looks when it has died
    parent = SimpleNamespace(sentinel=ours) if has_parent else None
    statuses: list[int] = []
    monkeypatch.setattr(orphans, "parent_process", lambda: parent)
    monkeypatch.setattr("os._exit", statuses.append)
    before = set(threading.enumerate())
    made: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        made.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    orphans.leave_with_parent()
    (watcher,) = made
    assert watcher.daemon, "a thread that is none would keep the process from ending"
    watcher.join(30)
    assert statuses == [1] * has_parent
    assert set(threading.enumerate()) <= before
    ours.close()
