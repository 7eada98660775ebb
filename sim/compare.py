"""``python -m sim.compare A B``: say which of two runs is faster, how surely, and why."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.answers.comparison import SAME, check_comparable, compared, conditions_of
from sim.answers.comparison_words import answer, table_of
from sim.answers.python import compare
from sim.machine.budget import Budget
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import tracked
from sim.results.kept import read_summary
from sim.results.kept_tables import check_together, read_table
from sim.study.trials import Trial, prepared, trial

USAGE = """usage: moelab compare A B [key=value ...]

A and B are directories of runs (moelab run ... output_dir=DIR), or systems with overrides of their own in one
word, such as hobbit or "lru cache=lfu"; these are simulated here with the common overrides that follow. Two runs are
compared if they are of the same trace, model, machine, workload and budget."""
TOKENS = ("step", "sequence", "phase", "start_ns", "end_ns")
SECTIONS = (*SAME, "budget")
"""The sections that a run's configuration must have."""
SEQUENCES = ("sequence", "arrival_ns", "end_ns")


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Print the comparison; return the exit code: 2, with one line, if the runs do not compare."""
    if len(arguments) < 2 or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0 if {"-h", "--help"} & set(arguments) else 2
    names = arguments[0], arguments[1]
    try:
        found = compared(names, *_trials(names, arguments[2:]))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    console.print(table_of(found))
    print_text(console, answer(found))
    return 0


def _trials(names: tuple[str, str], common: Sequence[str]) -> tuple[Trial, Trial]:
    are_runs = [Path(name).is_dir() for name in names]
    if all(are_runs):
        if common:
            raise ValueError(
                f"{common[0]!r} cannot change runs that have been made; leave it out, or name two"
                " systems"
            )
        return read_run(Path(names[0])), read_run(Path(names[1]))
    if any(are_runs):
        run, system = names if are_runs[0] else names[::-1]
        raise ValueError(
            f"{run} is the directory of a run, {system} is none; give two directories, or two"
            " systems to simulate"
        )
    words = [_words(name, common) for name in names]
    # Refuse them before either is simulated.
    check_comparable(names, conditions_of(prepared(words[0])), conditions_of(prepared(words[1])))
    a, b = [trial(one) for one in tracked(words, "simulating")]
    return a, b


def _words(name: str, common: Sequence[str]) -> list[str]:
    """The overrides of a run named ``SYSTEM [key=value ...]``."""
    system, *own = shlex.split(name) or [""]
    if not system or "=" in system:
        raise ValueError(
            f"{name!r} is neither the directory of a run nor a system; try moelab compare --help"
        )
    for word in (*own, *common):
        if "=" not in word:
            raise ValueError(
                f"{word!r} is no key=value; a system's own overrides stand in one word with its"
                " name"
            )
    return [f"system={system}", *common, *own]


def read_run(directory: Path) -> Trial:
    """The run whose files are in ``directory``.

    Raise ValueError for a file that is missing, cannot be read, or is of another version.
    """
    summary = read_summary(directory)
    paths = {
        name: directory / name for name in ("config.yaml", "tokens.parquet", "sequences.parquet")
    }
    for path in paths.values():
        if not path.is_file():
            raise ValueError(
                f"{directory} has no {path.name}; a run is compared by all its files: set"
                " outputs=all"
            )
    try:
        config = OmegaConf.to_container(OmegaConf.load(paths["config.yaml"]))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"{paths['config.yaml']} cannot be read ({told}); run it again") from None
    lacks = [name for name in SECTIONS if not isinstance(config, dict) or name not in config]
    if lacks or not isinstance(config, dict):
        raise ValueError(
            f"{paths['config.yaml']} is no configuration of a run: it lacks {', '.join(lacks)}; run"
            " it again"
        )
    try:
        Budget(**config["budget"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{paths['config.yaml']} was changed: budget={config['budget']} ({error}); run it again"
        ) from None
    tokens = read_table(paths["tokens.parquet"], TOKENS)
    sequences = read_table(paths["sequences.parquet"], SEQUENCES)
    check_together(tokens, sequences, directory)
    return Trial(summary, {str(key): value for key, value in config.items()}, tokens, sequences)


class _Callable(ModuleType):
    """``sim.compare`` is a command and, in Python, a function: whichever was imported first, its
    name can be called.
    """

    __call__ = staticmethod(compare)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
