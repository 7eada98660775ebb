"""Commands in the README and in the pages of docs, as a reader would type them.

A block ```` ```sh ```` has one command a line. A block ```` ```console ```` has commands after
``$``, and below each what it prints; ``...`` there stands for anything, as in a doctest. A command
goes on in the next line after a backslash. An HTML comment before a block, which no reader sees,
says how it is run:

- ``<!-- slow -->``: with the thorough tests;
- ``<!-- not run: REASON -->``: not at all; REASON is one of `REASONS`;
- ``<!-- printed below -->``, ``<!-- slow, printed below -->``: what its last command prints stands
  below it as tables and quotations, up to the next heading, block or comment.

Any other block may have a title, ```` ```python title="mine/mru.py" ````: it is a file that the
commands of the page find.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

from hydra.core.global_hydra import GlobalHydra

from sim import moelab
from sim.values.places import ROOT
from sim.verbs.table import of_module
from sim.verbs.words import read

SHELL = ("sh", "console")
REASONS = {
    "gpu": "it needs a GPU",
    "network": "it downloads",
    "own files": "it names files of the reader",
    "installs": "it changes what is installed, or starts a program that is none of this project",
    "hours": "it computes for many minutes, or for hours",
}
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?:(slow)|not run: ([a-z ]+))?(?:, )?(printed below)? -->\n*\Z")
BELOW = "... below"
"""How what stands below a block begins."""
NEXT = re.compile(r"^(?:#|```|<!--)", re.MULTILINE)
RULE = re.compile(r"^\|[-:|]+\|\n", re.MULTILINE)
"""The line between a table's head and its rows."""
OURS = re.compile(r"^\s*(?:\$ )?(?:moelab|make|python -m (?:sim|capture|real))\b", re.MULTILINE)
LINKED = ("capture", "real", "tests", "docs", "notebooks", "conf")
"""Folders of a checkout that commands name, and do not write into."""


@dataclass(frozen=True)
class Command:
    """One command of a page.

    - ``words``: the line without its comment.
    - ``printed``: what the page says that it prints; None where the page does not say.
    - ``not_run``: the reason, "" for a command that is run; ``slow``: only by the thorough tests.
    """

    line: int
    words: str
    printed: str | None = None
    not_run: str = ""
    slow: bool = False


def commands_of(page: str) -> list[Command]:
    """All commands of a page, in order. Raise ValueError for a reason that is none of `REASONS`."""
    return [command for block in _blocks(page) for command in block]


def files_of(page: str) -> dict[str, str]:
    """The files that a page has as blocks with a title, by their names."""
    return {block[2]: block[3] for block in FENCE.finditer(page) if block[2]}


def unmarked(page: str) -> list[int]:
    """Lines of blocks that have commands of this project and do not say that they are commands."""
    fenced = [
        page[: block.start()].count("\n") + 1
        for block in FENCE.finditer(page)
        if block[1] not in (*SHELL, "yaml", "python", "pycon") and OURS.search(block[3])
    ]
    rest = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page)
    indented = [
        number
        for number, line in enumerate(rest.splitlines(), 1)
        if line.startswith("    ") and OURS.match(line)
    ]
    return fenced + indented


def _blocks(page: str) -> Iterator[list[Command]]:
    for block in FENCE.finditer(page):
        if block[1] not in SHELL:
            continue
        line = page[: block.start()].count("\n") + 2
        mark = MARK.search(page[: block.start()])
        reason = (mark[2] or "") if mark else ""
        if reason and reason not in REASONS:
            raise ValueError(f"line {line}: {reason!r} is none of {', '.join(REASONS)}")
        slow = bool(mark and mark[1])
        found = [
            Command(line + at, words, printed, reason, slow)
            for at, words, printed in _split(block[3], block[1] == "console")
        ]
        if mark and mark[3]:
            found[-1] = replace(found[-1], printed=_below(page[block.end() :]))
        yield found


def _below(rest: str) -> str:
    """The tables and quotations up to the next heading, block or comment, and anything between."""
    end = NEXT.search(rest)
    text = RULE.sub("", rest[: end.start()] if end else rest)
    shown = [line[2:] if line[:1] in ("|", ">") else "..." for line in text.splitlines()]
    return "\n".join([BELOW, *shown, "..."])


def _split(text: str, has_output: bool) -> Iterator[tuple[int, str, str | None]]:
    """Line, words and output of each command of a block."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        begun = at
        line = lines[at].removeprefix("$ ")
        while line.endswith("\\"):
            at += 1
            line = line[:-1].rstrip() + " " + lines[at].strip()
        at += 1
        printed: list[str] = []
        while has_output and at < len(lines) and not lines[at].startswith("$ "):
            printed.append(lines[at])
            at += 1
        words = shlex.join(shlex.split(line, comments=True))
        if words:
            yield begun, words, "\n".join(printed) if any(printed) else None


NOT_THERE = re.compile(r"there is no such file|there is no (hardware|model) '|is not empty")
"""Refusals that depend on what a reader has."""


def check_words(words: str) -> None:
    """Raise ValueError where a command of this project has a word that it does not take. A file, or
    a machine or model, that is not there is no fault: another command of the page may make it.
    """
    for part in _parts(words):
        _check_part(part)


def _parts(words: str) -> Iterator[str]:
    """What a shell would start, of a line with pipes, ``&&`` or streams that go elsewhere."""
    ends = {"&&", "|", "2>&1"}
    for is_end, part in groupby(shlex.split(words), ends.__contains__):
        if not is_end:
            yield shlex.join(part)


def _check_part(words: str) -> None:
    found = _verb_and_words(words)
    if found is None:
        return
    name, given = found
    if name not in (known := moelab.by_words()):
        raise ValueError(f"{words}: {name} is no verb")
    try:
        read(known[name], given)
    except ValueError as error:
        if not NOT_THERE.search(str(error)):
            raise ValueError(f"{words}: {error}") from None


def _verb_and_words(words: str) -> tuple[str, list[str]] | None:
    """The verb that a line is, and its words; None where it is none of this project's."""
    first, *rest = shlex.split(words)
    if first == "moelab":
        if rest[:1] == ["--help"] or not rest:
            return None
        for length in (2, 1):
            if (name := " ".join(rest[:length])) in moelab.by_words():
                return name, rest[length:]
        return " ".join(rest[:1]), rest[1:]
    if first == "python" and rest[:1] == ["-m"]:
        verb = of_module(rest[1])
        if verb is not None:
            # The command of single runs takes sweeps, too.
            given = rest[2:]
            if verb.name == "run" and given[:1] == ["-m"]:
                return "sweep", given[1:]
            if verb.name == "run" and given[:1] == ["list"]:
                return "list", given[1:]
            return verb.name, given
    return None


@dataclass(frozen=True)
class Told:
    """What a command did: its exit status, and what it printed."""

    status: int
    out: str
    err: str


class Shell:
    """Runs commands one after the other, all in this process and in one folder.

    What a checkout has is there, by links; what a command writes is new. Loading the simulator,
    torch and figures takes longer than most commands, and so happens once.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._paths: list[str] = []
        for name in LINKED:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(ROOT / name)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")

    def run(self, words: str) -> Told:
        """Run one line; raise ValueError for a command that is none of this project's."""
        if set_path := re.fullmatch(r"export PYTHONPATH=(\w+)", words):
            self._paths.append(str(self.folder / set_path[1]))
            return Told(0, "", "")
        found = _verb_and_words(words)
        if found is None and shlex.split(words) != ["moelab", "--help"]:
            raise ValueError(f"{words}: only moelab and python -m of this project are run")
        name, given = found or ("--help", [])
        out, err = io.StringIO(), io.StringIO()
        status = 0
        started = _as_started(self.folder, self._paths)
        with started, redirect_stdout(out), redirect_stderr(err):
            try:
                status = moelab.main([*name.split(), *given])
            except SystemExit as ending:
                status = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
        return Told(status, out.getvalue(), err.getvalue())


@contextmanager
def _as_started(folder: Path, paths: Sequence[str]) -> Iterator[None]:
    """As if a process had just been started in a folder; what a command changed is put back."""
    here, modules = Path.cwd(), set(sys.modules)
    variables = {"MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])}
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    GlobalHydra.instance().clear()
    try:
        os.chdir(folder)
        with (
            patch.object(sys, "argv", ["moelab"]),
            patch.object(sys, "path", [*paths, *sys.path]),
            patch.dict(os.environ, variables),
        ):
            yield
    finally:
        os.chdir(here)
        GlobalHydra.instance().clear()
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        for one, handler in handlers.items():
            signal.signal(one, handler)


SO_FAR = re.compile(r"^.*\bafter \d+ s(, .* left)?\n", re.MULTILINE)
"""A line of progress. Only a slow machine prints any."""


def difference(printed: str, told: Told) -> str:
    """What a page says against what was printed; "" where they are the same, up to line breaks,
    frames of tables (a page has them with bars), what ``...`` stands for, and how far the work was
    after so many seconds.
    """
    said, found = (_plain(text) for text in (printed, told.out + SO_FAR.sub("", told.err)))
    if said.startswith(BELOW):
        return _first_missing(said.removeprefix(BELOW).split("..."), found)
    if OutputChecker().check_output(said, found, ELLIPSIS | NORMALIZE_WHITESPACE):
        return ""
    return f"the page says\n{said}\nbut it printed\n{found}"


def _first_missing(parts: Sequence[str], found: str) -> str:
    """What a page says of each part that is not there, or not behind the one before; "" for none.
    Between two parts there may be nothing, for which a doctest has no sign.
    """
    at = 0
    for part in (one.strip() for one in parts):
        begin = found.find(part, at)
        if begin < 0:
            return f"the page says\n{part}\nbut it printed\n{found}"
        at = begin + len(part)
    return ""


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[|│┃╭╰╮╯─━┏┓┗┛┡┩└┘┬┴┼┳┻╇╋├┤┠┨]", " ", RULE.sub("", text)).split())
