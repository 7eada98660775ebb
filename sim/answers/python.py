"""The simulator from Python: ``from sim import run, compare``.

What the two return prints as the sentence that the command line ends with, labels included: a
number of a synthetic trace or of a transplanted model says so wherever it is shown.
"""

from __future__ import annotations

import numbers
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from sim.answers import comparison, comparison_words, python_figures
from sim.answers.comparison import Comparison
from sim.results.folders import own_folder
from sim.results.frames import Frames
from sim.results.labels import Labels, caption, labels_in
from sim.results.outputs import answer, write_outputs
from sim.results.paired import Paired
from sim.setup.execute import execute
from sim.study.trials import Trial, prepared
from sim.values.places import quoted
from sim.verbs.synonyms import spoken
from sim.verbs.table import verb_of
from sim.verbs.words import read

RUN = verb_of("run")


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedRun:
    """One run that has ended.

    ``summary`` is what ``summary.json`` has, ``config`` what ``config.yaml`` has. The tables are
    polars frames, named as the parquet files are; times in ns since the run began, sizes in bytes
    (columns: docs/contracts/outputs.md).
    """

    summary: dict[str, Any]
    config: dict[str, Any]
    _frames: Frames

    @property
    def labels(self) -> Labels:
        """What a reader must know of the numbers before believing them."""
        return labels_in(self.summary)

    @property
    def sequences(self) -> pl.DataFrame:
        """One row a request."""
        return self._frames.sequences

    @property
    def tokens(self) -> pl.DataFrame:
        """One row a token produced, or a prefill step, of a sequence."""
        return self._frames.tokens

    @property
    def lookups(self) -> pl.DataFrame:
        """One row a need: an expert that a gate asked for, and what was found of it."""
        return self._frames.lookups

    @property
    def transfers(self) -> pl.DataFrame:
        """One row a hop of an issued transfer."""
        return self._frames.transfers

    @property
    def decisions(self) -> pl.DataFrame:
        """One row an answer of the controller."""
        return self._frames.decisions

    def __repr__(self) -> str:
        return answer(self.summary)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a run cannot be sent to another process, nor pickled: send what is wanted of it"
            " (.summary, .config, its tables), or .write(DIR) there"
        )

    def plot(self) -> Any:
        """A matplotlib figure: the time of each decoding step, by its cause, labels above it."""
        return python_figures.time_by_cause(self._frames, self.summary)

    def write(self, directory: str | Path) -> None:
        """Write the files that ``python -m sim`` writes, for reports, explanations and audits.
        Raise OSError unless ``directory`` is new or empty.
        """
        place = Path(directory)
        with own_folder(place):
            write_outputs(
                place,
                self.summary,
                self.config,
                self._frames,
                self._frames.controller.loader.wait,
                self.config["timeline_steps"],
            )


@dataclass(frozen=True, eq=False, repr=False)
class ComparedRuns:
    """Run A against run B, paired by sequence."""

    comparison: Comparison

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower``, of A; ``cannot tell`` where the interval contains 1, or there
        are too few sequences.
        """
        return self.comparison.verdict.verdict

    @property
    def is_decided(self) -> bool:
        """Whether the verdict says who is faster."""
        return self.comparison.verdict.is_decided

    @property
    def ratios(self) -> Mapping[str, Paired]:
        """How many times as fast A is, by what is timed, with 95 % intervals. The first is the
        verdict's.
        """
        return self.comparison.ratios

    @property
    def parts_ns(self) -> Mapping[str, tuple[int, int]]:
        """Where A's and B's time went, in ns: computing, then waiting by its cause. Either side
        sums to its makespan.
        """
        return self.comparison.parts

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """A's and B's."""
        return self.comparison.labels

    def __repr__(self) -> str:
        told = caption(zip(("A", "B"), self.labels, strict=True))
        return comparison_words.answer(self.comparison) + (f" [{told}]" if told else "")

    def plot(self) -> Any:
        """A matplotlib figure: where the time of either went, and how many times as fast A is."""
        return python_figures.compared(self.comparison)


def run(system: str, *words: str, progress: bool = False, **options: object) -> SimulatedRun:
    """Simulate a system of ``conf/system`` and measure it. Nothing is written.

    ``words`` are overrides as on the command line, ``options`` the same as keywords, with two
    underscores for a dot. ``progress`` shows a bar on stderr. Raise ValueError for what cannot run.

    >>> run("lru", "trace.max_sequences=2", budget__resident_share=0.25, outputs="summary")
    With 25% of the expert bytes resident, lru decodes at ... tokens/s (95 % over 2 sequences: ...
    """
    if not isinstance(system, str) or "=" in system:
        raise ValueError(f"the first word is the system's name, got {system!r}: run('lru', ...)")
    own = [*words, *(_word(name, value) for name, value in options.items())]
    if wrong := [word for word in own if not isinstance(word, str)]:
        raise ValueError(
            f"words are texts such as 'cache=lfu', got {wrong[0]!r}; other values go by keyword:"
            " run('lru', trace__path=PATH)"
        )
    for word in own:
        if found := re.match(r"\+*(output_dir|overwrite)=", word):
            raise ValueError(f"run() writes nothing, so {found[1]}= has no use; call .write(DIR)")
    if any(word.startswith("flags=") for word in own):
        raise ValueError(
            "flags= choose a system themselves, and run() names one; moelab run has them"
        )
    asked = spoken(RUN, [f"system={system}", *own])
    read(RUN, asked)  # refuses as the command line does, with the nearest name
    begun = time.perf_counter()
    one = prepared([asked[0], "outputs=all", *asked[1:]])
    result = execute(one, Console(stderr=True) if progress else None)
    wall_s = round(time.perf_counter() - begun - result.bounds_wall_s, 3)
    return SimulatedRun({**result.summary, "wall_s": wall_s}, one.config, result.frames)


def compare(a: SimulatedRun, b: SimulatedRun) -> ComparedRuns:
    """Which of two runs is faster, how surely, and where the difference comes from.

    Raise ValueError, naming both values, if they are not of the same trace, model, machine,
    workload and budget.
    """
    if named := [one for one in (a, b) if not isinstance(one, SimulatedRun)]:
        raise ValueError(
            f"compare() is of two runs, got {named[0]!r}: compare(run('lru'), run(...))"
        )
    names = str(a.summary["system"]), str(b.summary["system"])
    return ComparedRuns(comparison.compared(names, _trial(a), _trial(b)))


def _trial(one: SimulatedRun) -> Trial:
    return Trial(one.summary, one.config, one.tokens, one.sequences)


def _word(name: str, value: object) -> str:
    """A keyword as an override.

    >>> _word("budget__resident_share", 0.25), _word("cache", "lfu"), _word("a", [None, "b c"])
    ('budget.resident_share=0.25', 'cache=lfu', "a=[null,'b c']")
    """
    return f"{name.replace('__', '.')}={_text(name, value)}"


def _text(name: str, value: object) -> str:
    """A value in hydra's grammar. Raise ValueError for a kind that no configuration has."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case numbers.Integral():
            return str(int(value))
        case numbers.Real():
            return repr(float(value))
        case str() | Path():
            return quoted(str(value))
        case list() | tuple():
            return f"[{','.join(_text(name, item) for item in value)}]"
        case dict():
            items = (f"{key}:{_text(name, item)}" for key, item in value.items())
            return f"{{{','.join(items)}}}"
        case _:
            raise ValueError(
                f"{name}={value!r}: a configuration has numbers, texts, lists and sections, no"
                f" {type(value).__name__}"
            )
