"""``python -m sim.list KIND``: print what there is to choose from, one line each, with sources.

KIND is systems, machines, models, traces, workloads or policies. ``python -m sim list KIND`` is the
same. ``hydra.searchpath=[mine]`` lists what lies in such folders, too, as runs find it there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from sim.process.interrupts import is_terminal
from sim.setup.catalogue import own_folders, table
from sim.verbs.table import verb_of
from sim.verbs.words import read

WIDTH = 250
"""The width of lines that go to no terminal, in which nothing is wrapped."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr."""
    try:
        given = read(verb_of("list"), arguments)
        (kind,) = given.places
        found = table(kind, own_folders(given.own.get("hydra.searchpath", "[]")))
        Console(width=None if is_terminal() else WIDTH).print(found)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
