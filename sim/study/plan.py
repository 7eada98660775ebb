"""What a study asks for: its file, the command line's words, and the cells that follow from
them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sim.values.places import CONF

STUDIES = CONF / "study"
KEYS = ("question", "base", "grid", "list", "search")
SEARCH_KEYS = ("parameters", "objectives", "trials", "sampler", "seed", "together")
DEFAULTS = ("outputs=summary",)
"""Overrides of every cell that its study may override."""
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """A study as its file tells it.

    ``base``: overrides of every cell, as on the command line. ``grids``: of each, values by key, of
    which every combination is a cell. ``listed``: cells as overrides. ``search``: what to search
    for, where it is a search. ``last``: overrides of every cell that hold against all these.
    """

    name: str
    question: str = ""
    base: tuple[str, ...] = ()
    grids: tuple[Mapping[str, Sequence[Any]], ...] = ()
    listed: tuple[tuple[str, ...], ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    last: tuple[str, ...] = ()

    def with_last(self, words: Iterable[str]) -> Plan:
        """The same with further overrides of every cell: the command line's."""
        return replace(self, last=(*self.last, *words))

    def cells(self) -> list[tuple[Values, tuple[str, ...]]]:
        """Values by key, and overrides, of every cell beyond the base: the grids' in order, then
        the listed ones.
        """
        found: list[tuple[Values, tuple[str, ...]]] = []
        for grid in self.grids:
            found += [
                (dict(zip(grid, values, strict=True)), ()) for values in product(*grid.values())
            ]
        return [*found, *(({}, words) for words in self.listed)]


def read_plan(name: str) -> Plan:
    """The study of that name in ``conf/study``, or the file at that path. Raise ValueError for
    what is none.
    """
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    place = STUDIES / f"{name}.yaml" if name in known else Path(name)
    try:
        found = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"name={name} is no study: neither in conf/study ({', '.join(known) or 'empty'}) nor a"
            f" file ({error})"
        ) from None
    except yaml.YAMLError as error:
        raise ValueError(f"{place} is no yaml: {' '.join(str(error).split())}") from None
    return make_plan(place.stem, found, str(place))


def make_plan(name: str, found: object, place: str) -> Plan:
    """A study from the values of its file at ``place``. Raise ValueError, naming the key, for
    what cannot be.
    """
    fields = section(found, KEYS, place)
    question = fields.get("question", "")
    grids = fields.get("grid", [])
    grids = [grids] if isinstance(grids, dict) else grids
    if not isinstance(grids, list) or not isinstance(question, str):
        raise ValueError(
            f"{place}: question must be text, and grid values by key, or a list of such grids"
        )
    plan = Plan(
        name,
        question,
        (*DEFAULTS, *_words(fields.get("base", []), f"{place}: base")),
        tuple(_grid(grid, f"{place}: grid") for grid in grids),
        tuple(
            _words(item, f"{place}: list")
            for item in _list(fields.get("list", []), f"{place}: list")
        ),
        section(fields.get("search", {}), SEARCH_KEYS, f"{place}: search"),
    )
    if plan.search and (plan.grids or plan.listed):
        raise ValueError(
            f"{place}: a study is a search, or a grid and a list; take search out, or the others"
        )
    if not (plan.search or plan.grids or plan.listed):
        raise ValueError(f"{place}: nothing to run; give a grid, a list or a search")
    return plan


def section(found: object, keys: Sequence[str], place: str) -> dict[str, Any]:
    """A section with these keys only. Raise ValueError with the nearest one for another."""
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a section of {', '.join(keys)}, got {found!r}")
    for key in found:
        if key not in keys:
            raise ValueError(
                f"{place} has no key {key}{nearest(str(key), keys)}; it may have {', '.join(keys)}"
            )
    return dict(found)


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)`` where a known word is near."""
    close = difflib.get_close_matches(word, [*known], 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _grid(grid: object, place: str) -> dict[str, list[Any]]:
    if not isinstance(grid, dict) or not grid:
        raise ValueError(
            f"{place} must hold values by key, such as budget.resident_share: [0.25, 0.5]; got"
            f" {grid!r}"
        )
    return {str(key): _list(values, f"{place}.{key}", at_least=1) for key, values in grid.items()}


def _list(found: object, place: str, at_least: int = 0) -> list[Any]:
    if not isinstance(found, list) or len(found) < at_least:
        raise ValueError(f"{place} must be a list{' of values' if at_least else ''}, got {found!r}")
    return found


def _words(found: object, place: str) -> tuple[str, ...]:
    words = found.split() if isinstance(found, str) else found
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(
            f"{place} must be overrides, such as [system=lru, budget.resident_share=0.5]; got"
            f" {found!r}"
        )
    return tuple(words)
