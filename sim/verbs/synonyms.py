"""Words that mean the same: a verb takes each of them for the one that it declares.

One verb calls the machine ``machine``, because it sets the whole question; another ``hardware``,
because that is the section of the configuration. A user need not know which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from sim.values.places import quoted
from sim.verbs.verb import Verb

KEYS = (("hardware", "machine"),)
"""Keys that mean the same thing, first as the configuration has it."""
CHOICES = (
    ("link", "bandwidth"),
    ("kv", "context"),
    ("bits", "precision"),
    ("memory", "budget"),
    ("machines", "hardware"),
)
"""Words without ``=`` that mean the same thing."""


PATH = re.compile(r"[\w.\-/~ ]*([^\W\x00-\x7f]|[ _-]\()[\w.\-/~ ()]*")
"""A path that Hydra cannot read as it is: with a letter beyond ASCII, or as ``mine (1)``."""


def spoken(verb: Verb, words: Sequence[str]) -> list[str]:
    """``words`` as the verb declares them, with paths as Hydra reads them. What it knows itself stays
    as it is.

    >>> from sim.verbs.table import verb_of
    >>> spoken(verb_of("whatif"), ["bandwidth", "machine=rtx4090_pcie4"])
    ['link', 'hardware=rtx4090_pcie4']
    >>> spoken(verb_of("ask"), ["hardware=rtx4090_pcie4", "hardware.memory_gib=12"])
    ['machine=rtx4090_pcie4', 'hardware.memory_gib=12']
    >>> spoken(verb_of("run"), ["machine.memory_gib=12", "trace.path=mine (1)"])
    ['hardware.memory_gib=12', "trace.path='mine (1)'"]
    >>> spoken(verb_of("frontier"), ["machine=rtx3060_pcie4"])
    ['hardware=rtx3060_pcie4']
    """
    meant = dict(meanings(verb))
    is_section = verb.config and verb.option(KEYS[0][1]) is None
    found = []
    for word in words:
        key, equals, text = word.partition("=")
        own = meant.get(f"{key}{equals}")
        if (key == KEYS[0][1] and is_section) or (key.startswith(f"{KEYS[0][1]}.") and verb.config):
            word = in_configuration(word)
        if key == "trace.path" or (key == "output_dir" and verb.is_hydra):
            word = f"{key}={','.join(map(_path, text.split(',')))}"
        found.append(word if own is None else f"{own}{text}")
    return found


def _path(text: str) -> str:
    """A path with the letters and brackets that Hydra takes from no word without quotes; else as it
    is.
    """
    return quoted(text) if PATH.fullmatch(text) else text


def in_configuration(word: str) -> str:
    """A key, or a word that begins with one, as the configuration has it.

    >>> in_configuration("machine.memory_gib=12"), in_configuration("machines")
    ('hardware.memory_gib=12', 'machines')
    """
    for own, other in KEYS:
        if re.match(rf"{other}(?![a-z_])", word):
            return own + word.removeprefix(other)
    return word


def meanings(verb: Verb) -> Iterator[tuple[str, str]]:
    """Each word that a verb takes for one of its own, with that one; a key ends with ``=``."""
    keys = [one.key for one in verb.options]
    for one in KEYS:
        for own, other in permutations(one):
            if own in keys and other not in keys:
                yield f"{other}=", f"{own}="
    for own, other in CHOICES:
        if own in verb.choices:
            yield other, own
