"""The command that gets real gates: ``python -m capture.get NAME [output_dir=DIR] [cache=DIR]``.

NAME is an entry of the catalogue; without it the catalogue is printed. The files are downloaded once
into ``cache``, compared with their size and sha256, and imported as a trace into ``output_dir``.
Where there is no network the message says what to fetch by hand, and where to put it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from capture.importers.catalogue import entry, fetched, table
from capture.importers.formats import import_into, parse, summary
from capture.importers.source import ImportFailure
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.results.folders import folder_for, own_folder
from sim.traces.trace import TraceError
from sim.verbs.table import verb_of
from sim.verbs.words import read

CACHE = Path("outputs/downloads")


@telling("no trace was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr."""
    console = Console()
    try:
        given = read(verb_of("get"), arguments)
        if not given.places:
            lines = Table("name", "what it is", "size", "licence", "from", title="catalogue")
            for row in table():
                lines.add_row(*row)
            for column in lines.columns:
                column.overflow = "fold"
            console.print(lines)
            return 0
        wanted = entry(given.places[0])
        output_dir = folder_for(given.own, Path("outputs/traces") / wanted.name)
        file = fetched(wanted, Path(given.own.get("cache", str(CACHE))))
        options = [f"{key}={value}" for key, value in wanted.options.items()]
        name, request, _ = parse(
            [f"format={wanted.format}", f"path={file}", f"output_dir={output_dir}", *options]
        )
        overwrite = given.own.get("overwrite") == "yes"
        with own_folder(output_dir, overwrite, at_once=True):
            header = import_into(name, request, output_dir, lambda items, _: items)
    except (ValueError, OSError, ImportFailure, TraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    words = " ".join([f"model={wanted.model}", *wanted.words, f"trace.path={output_dir}"])
    run = f"moelab run system=lru {words}"
    for line in (
        summary(header),
        f"licence: {wanted.licence}; from {wanted.source}",
        f"files: {output_dir}; {run} replays it",
    ):
        print_text(console, line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
