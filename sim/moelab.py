"""``moelab VERB ...``: every command of the project under one name.

``moelab run system=lru`` is ``python -m sim system=lru``, and so on down the table of verbs
(`sim.verbs.table`). A command runs as ``python -m`` runs it: it is not imported before its words
were checked, and what it needs besides the core (torch, say) is missed only then. click finds the
verb, and completes words in a shell.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Any

import click
from click.shell_completion import CompletionItem

from sim.process.interrupts import NO_MEMORY, Unprinted, code_of, own_streams, say_unprinted
from sim.verbs.begin import HELP, WRONG_WORDS, answered, one_thread_for_arrays
from sim.verbs.complete import ends_of, values_of
from sim.verbs.page import print_index
from sim.verbs.synonyms import spoken
from sim.verbs.table import VERBS, by_words
from sim.verbs.verb import Verb

OWN = ("sim", "capture", "real")
DISTRIBUTION = "moe-offload-lab"


class WordType(click.ParamType[str]):
    """A word of a verb, which the shell completes by the verb's declaration."""

    name = "word"

    def __init__(self, verb: Verb) -> None:
        self.verb = verb

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Keys with their ``=``, or values behind one, whichever way the shell cuts words."""
        before = list(ctx.params.get("words") or ())
        if before[-1:] == ["="]:
            return [*map(CompletionItem, values_of(self.verb, before[-2], incomplete))]
        if before and not incomplete and self.verb.option(before[-1]):
            return [*map(CompletionItem, values_of(self.verb, before[-1], ""))]
        below = [name.split()[1] for name in by_words() if name.startswith(f"{self.verb.name} ")]
        nested = [] if before else [name for name in below if name.startswith(incomplete)]
        return [*map(CompletionItem, [*nested, *ends_of(self.verb, incomplete)])]


class Verbs(click.Group):
    """All verbs; each is made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in VERBS if " " not in verb.name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = by_words().get(cmd_name)
        if verb is None:
            return None
        return click.Command(
            cmd_name,
            callback=lambda words: run(verb, list(words)),
            params=[click.Argument(["words"], nargs=-1, type=WordType(verb))],
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            add_help_option=False,
            short_help=verb.about,
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The longest name counts: ``capture lint TRACE`` is not ``capture`` of a word ``lint``."""
        known = by_words()
        for length in (2, 1):
            if (name := " ".join(args[:length])) in known:
                self._check_nested(name, args[length:])
                return name, self.get_command(ctx, name), args[length:]
        near = get_close_matches(" ".join(args[:2]), known, 1) or get_close_matches(
            args[0], known, 1
        )
        like = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(f"{args[0]!r} is no verb; {like}moelab --help lists them")

    @staticmethod
    def _check_nested(name: str, rest: Sequence[str]) -> None:
        """Refuse a word that is nearly a verb below ``name``: ``capture lnt``."""
        below = [known.split()[1] for known in by_words() if known.startswith(f"{name} ")]
        for word in rest[:1]:
            if "=" not in word and (near := get_close_matches(word, below, 1)):
                raise click.UsageError(
                    f"{name} {word!r} is no verb; did you mean {name} {near[0]}?"
                )


def run(verb: Verb, words: Sequence[str]) -> int:
    """Run a verb as ``python -m`` would; return its exit status, 2 where a word is wrong or a
    package is missing.
    """
    if (status := answered(verb, words)) is not None:
        return status
    one_thread_for_arrays()
    sys.argv = [sys.argv[0], *verb.lead, *spoken(verb, words)]
    try:
        runpy.run_module(verb.module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OWN:
            raise
        told = f"error: moelab {verb.name} needs {package}, which is not installed{way_to(package)}"
        print(told, file=sys.stderr)
        return WRONG_WORDS
    except MemoryError:
        print(NO_MEMORY, file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("interrupted", file=sys.stderr)
        return code_of(stop)
    return 0


def way_to(package: str) -> str:
    """How to install a package that an extra of this distribution brings, or nothing."""
    extras: dict[str, list[str]] = {}
    try:
        for line in requires(DISTRIBUTION) or ():
            if extra := re.search(r"extra == ['\"](\w+)['\"]", line):
                name = re.split(r"[^\w.-]", line)[0].lower().replace("-", "_")
                extras.setdefault(extra[1], []).append(name)
    except PackageNotFoundError:  # run from a checkout that nobody has installed
        return ""
    # The smallest of those that have it: what a user wants, not what the tests want.
    having = [extra for extra, names in extras.items() if package.lower() in names]
    best = min(having, key=lambda extra: len(extras[extra]), default=None)
    return f": pip install '{DISTRIBUTION}[{best}]'" if best else ""


GROUP = Verbs("moelab", add_help_option=False, context_settings={"ignore_unknown_options": True})


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: the command's own; 2 for a word that is no verb, and where a package is
    missing; 1 where standard output cannot be written.
    """
    own_streams()
    try:
        try:
            return _main(words)
        finally:  # most commands leave by SystemExit
            if sys.stdout is not None:
                sys.stdout.flush()
    except Unprinted as unprinted:
        return say_unprinted(unprinted)


def _main(words: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    if (not given and "_MOELAB_COMPLETE" not in os.environ) or given[:1] in [[h] for h in HELP]:
        missing = f"Most of capture and real needs torch, which is not installed{way_to('torch')}."
        print_index("" if find_spec("torch") else missing)
        return 0 if given else WRONG_WORDS
    try:
        status: Any = GROUP.main(given, prog_name="moelab", standalone_mode=False)
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return WRONG_WORDS
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(main())
