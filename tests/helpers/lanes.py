"""Lanes on a checking runtime, and crews that do their work at once or on threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from helpers.fake_runtime import FakeRuntime
from real.cuda.copies import Feed
from real.cuda.lanes import Lane
from real.driver.polled import Crew


def lane_of(runtime: FakeRuntime, name: str) -> Lane:
    return Lane(runtime, name, 4)


def at_once(work: Callable[[], Any], then: Callable[[Any], object]) -> None:
    then(work())


class Threads:
    """A crew whose results are taken by ``take``."""

    def __init__(self, count: int) -> None:
        self._results: SimpleQueue[partial[object]] = SimpleQueue()
        self.crew = Crew("gatherers", self._results, count)
        self.submit = self.crew.submit

    def take(self) -> None:
        while not self._results.empty():
            self._results.get()()

    def end(self) -> None:
        self.crew.dismiss()
        for thread in self.crew.threads:
            thread.join()


def give_whole(feed: Feed | None, lane: Lane, take: Callable[[], None] = lambda: None) -> None:
    """Return when the lane has been given all of a feed."""
    while feed is not None and not feed.advance():
        take()
        lane.ask()
