"""What a shell may put in the place of a word that is being typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim.verbs.names import chosen, names, section, sections
from sim.verbs.verb import Kind, Option, Verb
from sim.verbs.words import YES


def ends_of(verb: Verb, begun: str) -> list[str]:
    """Whole words that begin with ``begun``: places, keys with their ``=``, or keys with values."""
    key, equals, text = begun.partition("=")
    if equals:
        return [f"{key}={end}" for end in values_of(verb, key, text)]
    known = {f"{option.key}=" for option in verb.options if not option.is_told_only}
    known |= {*verb.choices}
    if verb.place_group:
        known |= set(names(verb.place_group))
    if verb.config:
        known |= {f"{key}=" for key in sections(verb.config) if key not in verb.refused}
        if "." in begun:
            known |= set(_dotted(verb, begun))
    return sorted(word for word in known if word.startswith(begun))


def _dotted(verb: Verb, begun: str) -> Iterator[str]:
    """The keys on the next level below the last point of ``begun``."""
    top, *path = begun.split(".")
    node: Any = section(verb.config, top, chosen(verb.config, top, {}))
    for part in path[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    above = begun.rpartition(".")[0]
    for name, value in node.items() if isinstance(node, dict) else ():
        if not str(name).startswith("_"):
            yield f"{above}.{name}" + ("." if isinstance(value, dict) else "=")


def values_of(verb: Verb, key: str, begun: str) -> list[str]:
    """Values of a key that begin with ``begun``; of a list its last part."""
    option = verb.option(key) or Option(key, "", Kind.NAME, values=(key,))
    first, comma, last = begun.rpartition(",")
    several = verb.sweeps or option.kind in (Kind.NAMES, Kind.SOME)
    if comma and not several:
        return []
    return [f"{first}{comma}{one}" for one in _allowed(option) if one.startswith(last)]


def _allowed(option: Option) -> tuple[str, ...]:
    if option.kind in (Kind.NAME, Kind.NAMES):
        return (*names(option.values[0]), *option.values[1:])
    return YES if option.kind is Kind.YES else option.values
