"""Words that mean the same: a verb takes each of them for the one that it declares.

One verb calls the machine ``machine``, because it sets the whole question; another ``hardware``,
because that is the section of the configuration. A user need not know which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from sim.values.places import QUOTED, WORDS_OF_YAML, quoted
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


PLAIN = re.compile(r"[A-Za-z_./-]([A-Za-z0-9_./ -]*[A-Za-z0-9_./-])?|")
"""A path that Hydra reads as it is, or none."""
OF_HYDRA = re.compile(
    r"(choice|range|interval|glob|sort|shuffle|tag|str|int|float|bool|json_str|extend_list)\(.*|"
    r".*\$\{.*|\".*\"",
    re.DOTALL,
)
"""What Hydra shall read: a function, a value of the configuration, a text that has quotes already."""
ONE_OF = re.compile(r"(?:^|(?<=,))('(?:[^'\\]|\\.)*'|[^,]*)(?=,|$)")
"""One of several texts with commas between them. Those in single quotes may have commas of their own."""
FOLDERS = ("output_dir", "hydra.run.dir", "hydra.sweep.dir")
SWEEPS = ("-m", "--multirun")


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
    >>> spoken(verb_of("run"), ["output_dir=2026_11_28"])  # else the number 20261128
    ["output_dir='2026_11_28'"]
    >>> spoken(verb_of("frontier"), ["machine=rtx3060_pcie4"])
    ['hardware=rtx3060_pcie4']
    """
    meant = dict(meanings(verb))
    is_many = verb.sweeps or bool(set(SWEEPS) & set(words))
    is_section = verb.config and verb.option(KEYS[0][1]) is None
    found = []
    for word in words:
        key, equals, text = word.partition("=")
        own = meant.get(f"{key}{equals}")
        if (key == KEYS[0][1] and is_section) or (key.startswith(f"{KEYS[0][1]}.") and verb.config):
            word = in_configuration(word)
        if (key == "trace.path" and text != "null") or (key in FOLDERS and verb.is_hydra):
            word = f"{key}={','.join(map(_path, paths(text, is_many)))}"
        found.append(word if own is None else f"{own}{text}")
    return found


def paths(text: str, is_many: bool = True) -> list[str]:
    """The paths in the value of a word: several have commas between them, if there may be several and
    no folder has the whole for its name.

    >>> paths("a,b"), paths("a,b", False), paths("a,'b,c'")
    (['a', 'b'], ['a,b'], ['a', "'b,c'"])
    """
    # A name may be longer than a path can be: Path.exists would raise.
    if not is_many or OF_HYDRA.fullmatch(text) or os.path.exists(text):
        return [text]
    return ONE_OF.findall(text)


def _path(text: str) -> str:
    """A path as Hydra reads it: in quotes where it has signs of Hydra's own, or is a number."""
    is_word = text.lower() in WORDS_OF_YAML or _is_number(text)
    is_plain = PLAIN.fullmatch(text) and not is_word
    as_it_is = is_plain or OF_HYDRA.fullmatch(text) or QUOTED.fullmatch(text)
    return text if as_it_is else quoted(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
