"""Trials of one question, in a pool of processes: each runs once, and none for too long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed

from sim.study.trials import Trial, trial


class _Late(BaseException):
    """Time is up. No ValueError, which a search for a budget would take for a refusal of one."""


def trial_within(words: Sequence[str], seconds: float) -> Trial:
    """A trial that may compute for so many seconds. Raise ValueError for one that takes longer.

    A system whose code asks for thousands of prefetches a step would else hold up all others.
    """

    def late(*_: object) -> None:
        raise _Late

    if threading.current_thread() is not threading.main_thread():
        return trial(words)  # where no signal can be heard
    before = signal.signal(signal.SIGVTALRM, late)
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            return trial(words)
        finally:
            # A signal that came while the trial's objects were freed is heard here at the latest.
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _Late:
        raise ValueError(
            f"more than {seconds:g} s of computing; patience=N gives it more"
        ) from None
    finally:
        signal.signal(signal.SIGVTALRM, before)


class Bench:
    """Runs trials of one question in a pool, each once and for ``patience`` seconds at most.
    ``tell`` is called after each.
    """

    def __init__(
        self, common: Sequence[str], pool: Executor, tell: Callable[[], None], patience: float
    ) -> None:
        self._common, self._pool, self._tell = tuple(common), pool, tell
        self._patience = patience
        self._known: dict[tuple[str, ...], Future[Trial]] = {}

    @property
    def begun(self) -> int:
        """How many trials have been asked for."""
        return len(self._known)

    def ask(self, words: Sequence[str]) -> Future[Trial]:
        """The trial of these words, begun if it is new."""
        key = tuple(words)
        if key not in self._known:
            self._known[key] = self._pool.submit(
                trial_within, (*self._common, *key), self._patience
            )
            self._known[key].add_done_callback(lambda _: self._tell())
        return self._known[key]

    def all(
        self, wanted: Iterable[tuple[str, ...]]
    ) -> tuple[dict[tuple[str, ...], Trial], list[tuple[str, str]]]:
        """The trials of many words, and for each that was refused its words and the reason."""
        asked = {self.ask(words): words for words in wanted}
        found, refused = {}, []
        for future in as_completed(asked):
            try:
                found[asked[future]] = future.result()
            except (ValueError, OSError) as error:
                refused.append((" ".join(asked[future]), " ".join(str(error).split())))
        return found, sorted(refused)
