"""Pools of processes and a bar that start nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

SPAWNED = "by spawn"


class Inline(Executor):
    """An executor that runs what it is given at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except ValueError as error:
            future.set_exception(error)
        return future


class Pool:
    """Ends each task at once: its result is what was asked for."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __call__(self, *of: Any) -> Pool:
        self.seen.append(of)
        return self

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.seen.append("ended")

    def submit(self, *task: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task)
        return future

    def shutdown(self, **how: bool) -> None:
        self.seen.append(how)


class Bar:
    """Notes each step."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is shown."""

    def add_task(self, what: str, total: None) -> str:
        return what

    def advance(self, task: str) -> None:
        self.seen.append(f"{task}: one more")

    def update(self, task: str, advance: int, total: int) -> None:
        self.seen.append(f"{task}: {advance} more of {total}")


def noted(command: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a command asks of its pool and its bar from now on."""
    seen: list[Any] = []
    monkeypatch.setattr(command, "ProcessPoolExecutor", Pool(seen))
    monkeypatch.setattr(command, "Shown", lambda: Bar(seen))
    monkeypatch.setattr(command.multiprocessing, "get_context", lambda way: f"by {way}")
    return seen
