"""The plan of a study: what its file and the command line ask for, and the cells that follow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sim.values.places import CONF
from sim.verbs.synonyms import in_configuration
from sim.verbs.words import SEED

STUDIES = CONF / "study"
KEYS = ("question", "base", "grid", "list", "search")
SEARCH_KEYS = ("parameters", "objectives", "trials", "sampler", "seed", "together")
DEFAULTS = ("outputs=summary",)
"""Overrides of every cell; a study may override them."""
ALL = "all"
"""In place of a group's values in a grid: every file of that group."""
Values = Mapping[str, Any]


YAML = "; words of a run stand in base: [KEY=VALUE, ..], what varies in grid: {KEY: [VALUE, ..]}"
"""How the file of a study is made, for somebody who has seen none."""


@dataclass(frozen=True)
class Plan:
    """A study as its file describes it.

    ``base``: overrides of every cell. ``grids``: values by key; every combination of a grid's
    values is a cell. ``listed``: cells, each as overrides. ``search``: the section of a search,
    else empty. ``last``: overrides of every cell that come after all others.
    """

    name: str
    question: str = ""
    base: tuple[str, ...] = ()
    grids: tuple[Mapping[str, Sequence[Any]], ...] = ()
    listed: tuple[tuple[str, ...], ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    last: tuple[str, ...] = ()

    def with_last(self, words: Iterable[str]) -> Plan:
        """The plan with the command line's overrides added to those of every cell."""
        return replace(self, last=(*self.last, *words))

    def cells(self) -> list[tuple[Values, tuple[str, ...]]]:
        """What distinguishes each cell from the base: values by key, and overrides. The grids'
        cells come first, in order, then the listed ones.
        """
        found: list[tuple[Values, tuple[str, ...]]] = []
        for grid in self.grids:
            found += [
                (dict(zip(grid, values, strict=True)), ()) for values in product(*grid.values())
            ]
        return [*found, *(({}, words) for words in self.listed)]


def read_plan(name: str) -> Plan:
    """The plan of the study of that name in ``conf/study``, or in the file at that path. Raise
    ValueError for what is no study.
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
    """The plan from the values of a study's file at ``place``. Raise ValueError, naming the key,
    for what cannot be.
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
    """A section that may have these keys. Raise ValueError, with the nearest, for another key."""
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a section of {', '.join(keys)}, got {found!r}")
    for key in found:
        if key not in keys:
            raise ValueError(
                f"{place} knows no key {key}{nearest(str(key), keys)}; it may have"
                f" {', '.join(keys)}{YAML if 'grid' in keys else ''}"
            )
    return dict(found)


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint `` (did you mean ...?)`` if a known word is near, else nothing."""
    close = difflib.get_close_matches(word, [*known], 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _grid(grid: object, place: str) -> dict[str, list[Any]]:
    if not isinstance(grid, dict) or not grid:
        raise ValueError(
            f"{place} must hold values by key, such as budget.resident_share: [0.25, 0.5]; got"
            f" {grid!r}"
        )
    if isinstance(seeds := grid.get("seed"), list) and len(seeds) > 1:
        raise ValueError(f"{place}.seed: {seeds} {SEED}")
    return {
        in_configuration(str(key)): files_of(in_configuration(str(key)), place)
        if values == ALL
        else _list(values, f"{place}.{key}", at_least=1)
        for key, values in grid.items()
    }


def files_of(group: str, place: str) -> list[Any]:
    """The names of all files of a group of ``conf``. Raise ValueError for what is no group."""
    if not (found := sorted(path.stem for path in (CONF / group).glob("*.yaml"))):
        raise ValueError(f"{place}.{group}: {ALL} stands for the files of a folder of conf")
    return [*found]


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
    return tuple(map(in_configuration, words))
