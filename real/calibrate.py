"""Measures this machine from inside the engine, and writes it as a machine of the simulator.

    python -m real.calibrate name=NAME [device=cpu|cuda|host] [KEY=VALUE ...]

It takes under three minutes and writes ``conf/hardware/NAME.yaml``; ``python -m sim system=lru
hardware=NAME`` then simulates that machine. What is measured:

- copies by size, alone and beside computation;
- experts by precision and rows, and dequantisation;
- gates of several layers at once;
- the driver's own gaps;
- the drive, by block and depth.

The file serves every model and precision, each by its sizes. It says which precisions were
measured; others take the times of the nearest (`sim.machine.Measured`).

Where the project is installed without a checkout, the file is ``mine/hardware/NAME.yaml``, which
``hydra.searchpath=[mine]`` finds.

``output=FILE`` writes elsewhere; ``facts=FILE`` keeps all that was measured as JSON;
``seconds=150`` is how long it may take; ``size=small`` or ``tiny`` measures less. All other words
go into the configuration of ``python -m real`` (``engine.source=buffered``, ``model=..``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from real.calibration.calibration import Asked, calibrate
from real.calibration.facts import Facts
from real.calibration.fit import fit_line
from sim.process.files import write_whole
from sim.process.interrupts import telling
from sim.process.progress import saying
from sim.results.folders import check_can_be_made
from sim.values.places import machine_file, words_for
from sim.verbs.table import verb_of
from sim.verbs.words import read

MOST_S = 3600.0
MOST_RESIDUAL = 0.25


def parse(arguments: Sequence[str]) -> Asked:
    """What the words ask for. Raise ValueError for the first word that is wrong, and OSError for a file
    that cannot be written.
    """
    found = read(verb_of("real calibrate"), arguments)
    given = {"device": "cpu", "size": "full", "seconds": "150", **found.own}
    output = Path(given["output"]) if given.get("output") else machine_file(given["name"])
    if output.exists() or ("output" in given and not output.parent.is_dir()):
        raise ValueError(
            f"output={output} must be a new file in a folder that exists; remove it, or choose"
            " another"
        )
    for key, place in {"output": output, **_facts_of(given)}.items():
        check_can_be_made(place, key)
    seconds = float(given["seconds"])
    if seconds > MOST_S:
        raise ValueError(f"seconds={given['seconds']} must be at most {MOST_S:g}")
    facts = _facts_of(given).get("facts")
    return Asked(
        given["name"],
        given["device"],
        given["size"],
        output,
        facts,
        seconds,
        found.overrides,
    )


def _facts_of(given: Mapping[str, str]) -> dict[str, Path]:
    return {"facts": Path(given["facts"])} if "facts" in given else {}


def warning(facts: Facts) -> str | None:
    """A warning where no line fits what was measured; else None."""
    line = fit_line(facts.copy)
    if line.residual <= MOST_RESIDUAL:
        return None
    return (
        f"WARNING: the line through the copies is off by {line.residual:.0%} in the median,"
        f" {line.worst:.0%} at worst: this machine was too busy; measure again, or trust the table"
        " (measured.copy_us) no more than that"
    )


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Calibrate. Exit status: 0, or 2 with one message on stderr and no file written."""
    try:
        asked = parse(arguments)
        with saying(f"calibrating {asked.name}") as say:
            text, facts = calibrate(asked, say)
        write_whole(asked.output, text)
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size, ns = facts.copy[-1]
    print(
        f"{asked.output}: {size / ns:.4g} GB/s for {size} B; next: moelab run system=lru"
        f" {words_for(asked.output, 'hardware')}"
    )
    if told := warning(facts):
        print(told, file=sys.stderr)
    if facts.left_out:
        print(f"left out: {'; '.join(facts.left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
