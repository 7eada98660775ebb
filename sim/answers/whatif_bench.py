"""Runs the points of a what-if, each once, in a pool of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from sim.answers.whatif_questions import Question
from sim.results.run import Run
from sim.study.trials import Trial, kept_trial


class Bench:
    """Runs trials in a pool of processes, each combination of overrides once, and shows progress.

    ``own`` are overrides of the predictor that is asked about; a series without that predictor does
    not get them. Finished trials are kept in ``directory``.
    """

    def __init__(
        self,
        question: Question,
        words: Sequence[str],
        own: Sequence[str],
        run: Run,
        pool: Executor,
        tell: Callable[[], None],
        directory: Path | None,
    ) -> None:
        self.question, self._words, self._own, self.run = question, tuple(words), tuple(own), run
        self._pool, self._tell, self._directory = pool, tell, directory
        self._known: dict[tuple[str, ...], Trial] = {}

    def otherwise(self, question: Question, words: Sequence[str]) -> Bench:
        """A bench for another question of the same run, in the same pool and folder."""
        return Bench(question, words, self._own, self.run, self._pool, self._tell, self._directory)

    def at(
        self, values: Iterable[float], only: str | None = None
    ) -> tuple[dict[float, dict[str, Trial]], list[str]]:
        """The trials of each value by series (or of the series ``only``), and a line for each value
        that was refused: for each series of it, where series stand apart.
        """
        wanted = {}
        for value in values:
            series = self.question.words(value, self.run)
            series = {name: words for name, words in series.items() if only in (None, name)}
            wanted[value] = {
                name: (*self._words, *words, *(() if "predictor=none" in words else self._own))
                for name, words in series.items()
            }
        new = {
            words for series in wanted.values() for words in series.values()
        } - self._known.keys()
        asked = {
            words: self._pool.submit(kept_trial, words, self._directory) for words in sorted(new)
        }
        refused = {}
        for words, future in asked.items():
            try:
                self._known[words] = future.result()
            except ValueError as error:
                refused[words] = str(error)
            self._tell()
        found, told = {}, []
        for value, series in wanted.items():
            bad = {name: refused[words] for name, words in series.items() if words in refused}
            if self.question.is_apart:
                told += [f"{value:g}, {name}: {why}" for name, why in bad.items()]
            elif bad:
                told.append(f"{value:g}: {next(iter(bad.values()))}")
                continue
            if len(bad) < len(series):
                found[value] = {
                    name: self._known[words] for name, words in series.items() if name not in bad
                }
        return found, told
