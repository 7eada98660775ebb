"""Measures how far the simulator is from runs on a device.

    python -m real.validate systems=A,B budgets=0.25,0.5 [repeats=3] [closed_loop=MODES]
                            [output_dir=DIR] [KEY=VALUE ...]

Each system runs at each budget ``repeats`` times, interleaved in a seeded random order, and is
simulated. ``closed_loop=teacher-forced,free-running`` also puts the model in the loop. It writes
``validation.md``, ``validation.json``, a figure, and ``timelines.json``: the first run and its
simulation side by side, for ui.perfetto.dev.

All other words go into the configuration of ``python -m real`` (``device=cpu``,
``engine.links=free``, ``trace.max_sequences=1`` ..).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from real.setup.prepare import check_words
from real.validation.cases import Plan
from real.validation.closed import read_modes
from real.validation.validation import Asked, _words, validate
from sim.process.interrupts import code_of, telling
from sim.results.folders import folder_for, own_folder
from sim.setup.configure import configure
from sim.verbs.table import verb_of
from sim.verbs.words import read


def parse(arguments: Sequence[str]) -> Asked:
    """What the words ask for. Raise ValueError for the first word that is wrong."""
    found = read(verb_of("validate"), arguments)
    given, words = {"repeats": "3", "seed": "0", **found.own}, found.overrides
    for word in words:
        if word.startswith(("budget.resident_share=", "budget.slots_gib=")):
            raise ValueError(f"{word}: give budgets=0.25,0.5")
    systems = tuple(given["systems"].split(","))
    if len(set(systems)) < len(systems):
        raise ValueError(
            f"systems={given['systems']} must name different systems, as systems=lru,hobbit"
        )
    shares = tuple(map(float, given["budgets"].split(",")))
    if len(set(shares)) < len(shares):
        raise ValueError(
            f"budgets={given['budgets']} must be different shares of the expert bytes, as"
            " budgets=0.25,0.5"
        )
    _check_words(systems[0], words)
    return Asked(
        Plan(systems, shares, int(given["repeats"]), int(given["seed"]), words),
        read_modes(given.get("closed_loop", "")),
        folder_for(given, Path("outputs/validation")),
        given.get("overwrite") == "yes",
    )


def _check_words(system: str, words: Sequence[str]) -> None:
    """Raise ValueError for words that would change nothing: every run replays a trace."""
    cfg, _ = configure(f"system={system}", *words, config="real")
    for word in words:
        if word.startswith("live.") or (word.startswith("input=") and cfg.input != "replay"):
            raise ValueError(
                f"{word}: a trace is replayed here; leave it out, or give closed_loop=free-running,"
                " which has the model in the loop"
            )
    check_words(cfg, words)


@telling("nothing was written: no run had ended")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0; 1 where decisions differ or a run failed; 2, with one message and nothing
    written, for what cannot run; 128 + n for signal n.

    After a failure or a signal the report is of the runs before it.
    """
    console = Console(stderr=True)
    try:
        asked = parse(arguments)
        with own_folder(asked.output_dir, overwrite=asked.overwrite):
            found = validate(asked, console)
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        print(f"error: {error}\nnothing was written: no run had ended", file=sys.stderr)
        return 1
    print(found.text)
    print(f"files: {asked.output_dir}")
    if found.stopped_by is not None:
        print(
            f"error: {_words(found.stopped_by)}; the report is of the runs before it",
            file=sys.stderr,
        )
        return code_of(found.stopped_by)
    return 0 if found.agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
