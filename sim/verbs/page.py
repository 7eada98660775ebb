"""The help of a verb, and the list of all: what ``--help`` prints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.process.interrupts import is_terminal
from sim.verbs.synonyms import meanings
from sim.verbs.table import GROUPS, VERBS
from sim.verbs.verb import Kind, Option, Verb

WIDTH = 110
"""The width of a page that goes to no terminal, and the most on one."""


def console() -> Console:
    width = shutil.get_terminal_size().columns if is_terminal() else WIDTH
    return Console(width=min(width, WIDTH), highlight=False)


def print_page(verb: Verb) -> None:
    """Print the help of one verb."""
    out = console()
    out.print(Text(f"usage: {verb.usage}", style="bold"))
    module = " ".join([f"python -m {verb.module}", *verb.lead])
    out.print(Text(f"       {module} is the same", style="dim"))
    out.print(Text(f"\n{verb.about}"))
    if verb.options:
        table = Table(
            "option", "default", "meaning", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for option in verb.options:
            table.add_row(*map(Text, row_of(option)))
        out.print()
        out.print(table)
    for line in lines_below(verb):
        out.print(Text(line), soft_wrap=True)


def row_of(option: Option) -> tuple[str, str, str]:
    """Key, default and meaning, with the values that are allowed."""
    meaning = option.meaning
    if option.kind in (Kind.ONE, Kind.SOME) and option.values:
        meaning = f"{meaning}: {' | '.join(option.values)}"
    elif option.kind in (Kind.NAME, Kind.NAMES):
        meaning = f"{meaning} (a file of conf/{option.values[0]})"
    default = "needed" if option.is_needed else option.default
    return option.key if option.is_told_only else f"{option.key}=", default, meaning


def lines_below(verb: Verb) -> Iterator[str]:
    """Examples, and where the rest is told."""
    if verb.config:
        yield f"\nEvery other value of conf/{verb.config}.yaml can be set as well, by its dotted key."
    yield "\nexamples:"
    for example in verb.examples:
        yield f"  moelab {example}"
    if said := [f"{other} for {own}" for other, own in meanings(verb)]:
        yield f"\nalso: {', '.join(said)}"
    if verb.aliases:
        yield f"\nalso: {', '.join(f'moelab {name}' for name in verb.aliases)}"
    if verb.docs:
        yield f"\nmore: {verb.docs}"


def print_index(below: str = "") -> None:
    """Print all verbs by group, each with what it does; ``below`` comes last."""
    out = console()
    out.print(Text("usage: moelab VERB [WORDS] [KEY=VALUE ...]", style="bold"))
    out.print(Text("What do expert offloading systems do on which machine, and why?"))
    for group, heading in GROUPS.items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
        table.add_column(min_width=24, no_wrap=True)
        for verb in VERBS:
            if verb.group == group:
                table.add_row(Text(verb.name, style="bold"), Text(verb.about))
        out.print(Text(f"\n{heading}", style="bold"))
        out.print(table)
    for line in (
        "\nmoelab VERB --help tells the options of one, with examples.",
        'Completion: eval "$(_MOELAB_COMPLETE=bash_source moelab)"; also zsh_source and fish_source.',
        *([below] if below else []),
    ):
        out.print(Text(line), soft_wrap=True)
