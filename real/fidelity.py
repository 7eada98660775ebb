"""``python -m real.fidelity``: every predicted time beside the measured one, for every machine.

    python -m real.fidelity [data=DIR] [phone=DIR] [field=DIR] [control=NAME] [output_dir=DIR]
        [MODEL:KEY=VALUE ...]

Without a word it reads the pairs that the project keeps (``real/results/pairs.csv``). It prints one
table of errors and one of the lines that are asked. Exit status: 1 where a line is missed, or where
a machine of ``conf/hardware`` says another error than its pairs have.

| word | what is simulated again |
|---|---|
| data | replays and recordings of a measured machine (`python -m real.predict`); others stay |
| phone | a phone's recorded runs (``qwen.route.csv``, ``qwen.metrics``; ``gemma.``, ``gptoss.``) |
| field | what others published, on gates like their models' (docs/field.md) |

What is not given comes from the kept file. ``MODEL:KEY=VALUE`` is as in ``real.predict``.
``output_dir`` gets the file, the tables and the figure. ``control`` shows what wrong machines give
(rates_1.1, rates_0.9, contention_off): lines that hold must then be missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from real.suite import gather
from real.suite.pairs import (
    FILE,
    Pair,
    controlled,
    groups,
    read_pairs,
    validated_of,
    write_pairs,
)
from real.suite.pairs_page import HEAD, all_lines, cells, draw, line_cells, markdown, of_gates
from real.suite.sheets import by_machine, sheet_errors
from real.suite.sheets import told as told_of_sheets
from sim.machine.data_sheets import KEPT, SheetErrors
from sim.machine.hardware import NEVER
from sim.machine.validated import Validated
from sim.process.printing import print_text
from sim.results.folders import own_folder
from sim.verbs.names import names, of_file
from sim.verbs.table import verb_of
from sim.verbs.words import read

SOURCES = {"data": ("replay", "recording"), "phone": ("token",), "field": ("published",)}
"""By word, the kinds of runs that it gathers again."""
ONLY = "only"
"""What a machine's file says of the runs that were compared, in words."""
DIGITS = 4
"""Significant digits of an error in a machine's file."""
OF_SHEETS = 2
"""Those of the errors of data sheets: sentences quote them."""


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Exit status: 0; 1 where something is missed; 2 for words that are wrong."""
    console = Console()
    try:
        given, words = _parsed(arguments)
        place = Path(given["output_dir"]) if "output_dir" in given else None
        with own_folder(place) if place else nullcontext():
            pairs, told = _gathered(given, words)
            if "control" in given:
                pairs = controlled(pairs, given["control"])
            if place:
                _write(place, pairs)
    except (ValueError, OSError, KeyError, OmegaConfBaseException) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return 2
    for line in told:
        print_text(console, line)
    found = all_lines(pairs)
    console.print(_table("errors of predicted times", HEAD, map(cells, groups(pairs))))
    console.print(_table("what is asked", ("line", "found", "asked", ""), map(line_cells, found)))
    for machines, gates in of_gates(pairs):
        print_text(console, f"{machines}: {gates}")
    sheets = by_machine(pairs)
    print_text(console, told_of_sheets(sheets))
    wrong = (
        [] if "control" in given else list(disagreeing(validated_of(pairs), sheet_errors(sheets)))
    )
    for line in wrong:
        print_text(console, line)
    return 0 if all(line.holds for line in found) and not wrong else 1


def _parsed(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    words = [word for word in arguments if ":" in word.partition("=")[0]]
    verb = verb_of("fidelity")
    found = read(verb, [word for word in arguments if word not in words])
    given = found.own
    if found.overrides:
        known = ", ".join(one.key for one in verb.options)
        raise ValueError(
            f"{found.overrides[0]!r} is neither KEY=VALUE of {known} nor MODEL:KEY=VALUE"
        )
    if words and "data" not in given:
        raise ValueError(f"{words[0]} changes recordings, and data=DIR does not name any")
    return dict(given), words


def _gathered(given: Mapping[str, str], words: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """All pairs, and lines: for each kind of runs where its pairs are from, and what has no pair."""
    kept, told, found = read_pairs(), list[str](), list[Pair]()
    for word, sources in SOURCES.items():
        of = [pair for pair in kept if pair.source in sources]
        if word in given:
            again = _again(word, Path(given[word]), words, given.get("output_dir"), told.append)
            of = again + (_elsewhere(of, again) if word != "field" else [])
        where = (
            f"simulated again from {given[word]}" if word in given else f"as kept in {FILE.name}"
        )
        told.append(f"{', '.join(sources)}: {len(of)} pair{'s' * (len(of) != 1)}, {where}")
        found += of
    validations = [pair for pair in kept if pair.source == "validation"]
    again = gather.of_validation(Path(given["data"])) if "data" in given else []
    return [*found, *again, *_elsewhere(validations, again)], told


def _elsewhere(kept: Sequence[Pair], again: Sequence[Pair]) -> list[Pair]:
    """The kept pairs of machines, or of what they are predicted from, that are not simulated again."""
    known = {(pair.machine, pair.basis) for pair in again}
    return [pair for pair in kept if (pair.machine, pair.basis) not in known]


def _again(
    word: str,
    place: Path,
    words: Sequence[str],
    keep: str | None,
    tell: Callable[[str], None],
) -> list[Pair]:
    if word == "data":
        return gather.of_machine(place, words, tell, None if keep is None else Path(keep))
    return gather.of_phone(place) if word == "phone" else gather.of_field(place)


def _write(folder: Path, pairs: Sequence[Pair]) -> None:
    write_pairs(folder / "pairs.csv", pairs)
    (folder / "fidelity.md").write_text(markdown(pairs), encoding="utf-8")
    draw(pairs, folder / "fidelity")


def disagreeing(found: Mapping[str, Validated], sheets: SheetErrors) -> Iterator[str]:
    """What a machine's file, or that of data sheets, says of errors where the pairs say otherwise."""
    for name in names("hardware"):
        told, known = of_file("hardware", name).get("validated", NEVER), found.get(name)
        if isinstance(told, dict):
            told = {key: value for key, value in told.items() if key != ONLY}
        asked = NEVER if known is None else _rounded(known)
        if told != asked:
            yield f"conf/hardware/{name}.yaml says validated: {told}; its pairs say {asked}"
    if (kept := _digits(KEPT)) != (shared := _digits(sheets, OF_SHEETS)):
        yield f"sim/machine/data_sheets.py says {kept}; the pairs say {shared}"


def _rounded(error: Validated) -> dict[str, object]:
    """An error as a machine's file has it."""
    return {
        "_target_": "sim.machine.Validated",
        **_digits(error),
    }


def _digits(error: Validated | SheetErrors, digits: int = DIGITS) -> dict[str, float]:
    figures = {name: value for name, value in asdict(error).items() if name != ONLY}
    return {name: float(f"{value:.{digits}g}") for name, value in figures.items()}


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = Table(*head, title=title, title_justify="left")
    for row in rows:
        made.add_row(*(cell.replace("**", "") for cell in row))
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
