"""Progress of long work: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

LINE_EVERY_S = 10.0


class Shown(Progress):
    """A bar on ``console``'s terminal; where it is none (a pipe, a file), lines now and then.

    ``clock`` gives the time in s.
    """

    def __init__(
        self,
        *columns: str | ProgressColumn,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._clock = clock
        self._begun = self._told = clock()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        now = self._clock()
        if self.console.is_terminal or now < self._told + LINE_EVERY_S:
            return
        self._told = now
        task = next(one for one in self.tasks if one.id == task_id)
        of = "" if task.total is None else f" of {task.total:g}"
        self.console.print(
            f"{task.description}: {task.completed:g}{of} after {now - self._begun:.0f} s",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
