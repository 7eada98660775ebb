"""Progress of long work: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from sim.process.printing import print_text

LINE_EVERY_S = 10.0
LOOK_EVERY_S = 0.5
"""How often it is looked whether a line is due, of work that says nothing by itself."""
Item = TypeVar("Item")


class Shown(Progress):
    """A bar on ``console``'s terminal; where it is none (a pipe, a file), lines now and then.

    A line has the task's description, how much of it is done, and its field ``note``, if it has
    one. ``console`` is stderr unless given. ``clock`` gives the time in s.
    """

    def __init__(
        self,
        *columns: str | ProgressColumn,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or Console(stderr=True)
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._clock = clock
        self._begun = self._told = clock()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self.tell(task_id)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self.tell(task_id)

    def track(  # type: ignore[override]
        self, items: Iterable[Item], *, description: str = "working"
    ) -> Iterator[Item]:
        """Hand on the items, and show how many have been worked on."""
        task = self.add_task(description, total=length_hint(items) or None)
        for item in items:
            yield item
            self.advance(task)

    def tell(self, task_id: TaskID) -> None:
        """Print a line, if one is due."""
        now = self._clock()
        if self.console.is_terminal or now < self._told + LINE_EVERY_S:
            return
        self._told = now
        task = next(one for one in self.tasks if one.id == task_id)
        of = "" if task.total is None else f" of {task.total:g}"
        done = f": {task.completed:g}{of}" if of or task.completed else ","
        note = f", {task.fields['note']}" if task.fields.get("note") else ""
        print_text(self.console, f"{task.description}{done} after {now - self._begun:.0f} s{note}")


def tracked(items: Iterable[Item], description: str) -> Iterator[Item]:
    """Hand on the items, and show on stderr how many have been worked on."""
    with Shown() as bar:
        yield from bar.track(items, description=description)


@contextmanager
def saying(what: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done, of work whose parts nobody can count. Lines come while a
    part lasts, too.
    """
    with Shown(TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task, over = bar.add_task(what, total=None), threading.Event()

        def look() -> None:
            while not over.wait(LOOK_EVERY_S):
                bar.tell(task)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield lambda text: bar.update(task, description=f"{what}: {text}")
        finally:
            over.set()
            looking.join()
