"""What happens to the words of ``python -m MODULE`` before the module is loaded.

A command's imports take up to twenty seconds. Its help, and a word that it does not take, need none
of them. Python imports the package around a command before the command itself, and the package
calls `begin`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from runpy import run_module

from sim.verbs.synonyms import SWEEPS, spoken
from sim.verbs.table import of_module, verb_of
from sim.verbs.verb import Verb
from sim.verbs.words import read

HELP = ("-h", "--help")
WRONG_WORDS = 2
"""The exit status for words that a verb does not take."""


def one_thread_for_arrays() -> None:
    """Let numpy compute in one thread, before it is loaded, unless the user says otherwise.

    Arrays are small here: a second thread gains nothing, and on busy cores each product waits until
    it has its turn. Synthesising the gates of 94 layers took 47 s so, and 1 s with one thread.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def begin() -> None:
    """Answer for the help of a command that ``python -m`` is about to run, or for wrong words, and
    leave; return where the command should go on.
    """
    words = sys.argv[1:]
    # argv is ["-m", WORDS..] by now; what Python was called with has the module's name before them.
    module = sys.orig_argv[-len(sys.argv)]
    verb = of_module(module)
    is_list = module == "sim" and words[:1] == ["list"]
    if is_list:
        verb, words = verb_of("list"), words[1:]
    if verb is not None and (status := answered(verb, words)) is not None:
        sys.exit(status)
    if verb is not None and not is_list:
        sys.argv[1:] = spoken(verb, words)
        one_thread_for_arrays()
    if is_list:
        # A run's command loads the simulator, which takes longer than the list.
        sys.argv = ["sim.list", *words]
        run_module("sim.list", run_name="__main__")


def check_names_of_files(words: Sequence[str]) -> None:
    """Raise ValueError where the working directory is gone, and where its name or a word is no UTF-8:
    what writes tables takes names for UTF-8, so results would lie elsewhere, or nowhere.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise ValueError("the working directory has been removed; go to another one") from None
    for name in (*words, here):
        with suppress(UnicodeEncodeError):
            if os.fsencode(name) == name.encode():
                continue
        raise ValueError(
            f"{name!a} is not read as UTF-8, which names of files must be: set PYTHONUTF8=1, or"
            f" a locale of UTF-8 (file names are {sys.getfilesystemencoding()} here)"
        )


def answered(verb: Verb, words: Sequence[str]) -> int | None:
    """The exit status where the help was asked for or a word is wrong, after telling so; None
    where the command should go on.
    """
    if set(HELP) & set(words):
        from sim.verbs.page import print_page

        print_page(verb)
        return 0
    if set(SWEEPS) & set(words):
        verb = replace(verb, sweeps=True)
    try:
        check_names_of_files(words)
        read(verb, words)
    except (ValueError, OSError) as error:  # a folder may be closed to this user
        print(f"error: {error}", file=sys.stderr)
        return WRONG_WORDS
    return None
